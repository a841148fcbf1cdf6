//! Reads and writes on etcd: one transaction for a read; one to read and one to write for a write, repeated after a conflict. A
//! lease is granted only when the write is known to be allowed, and revoked if the write does not happen.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use quorate_etcd::{Client, Error, KeyValue, Op, OpResult, RangeQuery, Room, Taken, Thing, Txn, TxnResult};

use crate::error::{Code, Refusal};
use crate::node::{Action, Happening, Node, View, index};
use crate::path::{Layout, Path};
use crate::plan::{self, Plan, State};
use crate::request::{Kind, Write};
use crate::tree::listing;

/// Somebody else has succeeded in each of these.
const ATTEMPTS: u32 = 200;
const LONGEST_PAUSE: u64 = 20;
/// The first two bytes of the number of every lease that is granted here: "v2".
pub const LEASES: i64 = 0x7632 << 48;

/// What happened, and the index of the store then.
pub type Done = (Happening, u64);

pub fn pairs(result: OpResult) -> Vec<KeyValue> {
    match result {
        OpResult::Range(range) => range.pairs,
        OpResult::Put | OpResult::Delete(_) => Vec::new(),
    }
}

pub fn node(result: OpResult) -> Option<Node> {
    pairs(result).pop().map(Node::read)
}

/// What a pair takes beyond its bytes while it becomes a node, and then text.
const PER_NODE: usize = 600;

/// What is read, and the room that it takes until it was written down.
pub async fn get(
    client: &Client,
    layout: &Layout,
    path: &Path,
    recursive: bool,
    room: Option<&Room>,
) -> Result<(Done, Option<Taken>), Refusal> {
    let mut then: Vec<Op> = path.ancestors().iter().map(|directory| plan::get(layout.node(directory))).collect();
    if !path.is_root() {
        then.push(plan::get(layout.node(path)));
    }
    let below = if recursive { layout.below(path) } else { layout.children(path) };
    then.push(Op::Range(RangeQuery::new(below)));
    let TxnResult { revision, mut results, .. } = client.txn(Txn { then, ..Txn::default() }).await?;
    let below = results.pop().map(pairs).unwrap_or_default();
    let taken = room.map(|room| room.take(cost(&below)).ok_or(Error::NoRoom)).transpose()?;
    let mut way: Vec<Option<Node>> = results.into_iter().map(node).collect();
    let mut view = View { dir: true, ..View::default() };
    if let Some(node) = way.pop() {
        let found = plan::find(path, &way, node.as_ref()).map_err(|refusal| refusal.at(index(revision)))?;
        view = found.view(path);
    }
    if view.dir {
        view.nodes = listing(layout, path, below);
    }
    Ok(((Happening { action: Action::Get, node: view, previous: None }, index(revision)), taken))
}

fn cost(pairs: &[KeyValue]) -> usize {
    pairs.iter().map(|pair| PER_NODE + 3 * (pair.key.len() + pair.value.len())).sum()
}

/// Makes a write. Must not be cancelled midway, or its lease stays until it expires.
pub async fn write(client: &Client, layout: &Layout, write: &Write) -> Result<Done, Refusal> {
    let mut writer = Writer { client, layout, write, lease: 0 };
    let done = writer.run().await;
    let unused = match &done {
        Ok((plan, _)) => plan.former_lease(),
        Err(Failure::Refused(_)) => Some(writer.lease).filter(|lease| *lease != 0),
        // It may have been made, and the key must not be deleted.
        Err(Failure::Unknown(_)) => None,
    };
    if let Some(lease) = unused.filter(|lease| is_ours(*lease)) {
        // If this fails the lease expires without any keys.
        let _ = client.lease_revoke(lease).await;
    }
    match done {
        Ok((plan, revision)) => Ok((plan.happening(revision), index(revision))),
        Err(Failure::Refused(refusal) | Failure::Unknown(refusal)) => Err(refusal),
    }
}

pub fn is_ours(lease: i64) -> bool {
    lease >> 48 == LEASES >> 48
}

enum Failure {
    Refused(Refusal),
    /// Whether the write was made is not known.
    Unknown(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl Failure {
    /// Whatever etcd does not clearly refuse may have been carried out.
    fn of_txn(error: Error) -> Self {
        let is_refusal = match &error {
            Error::PermissionDenied | Error::Unauthenticated(_) | Error::NoSpace => true,
            Error::Other { message, .. } => message.contains("request is too large"),
            _ => false,
        };
        if is_refusal { Failure::Refused(error.into()) } else { Failure::Unknown(error.into()) }
    }
}

struct Writer<'a> {
    client: &'a Client,
    layout: &'a Layout,
    write: &'a Write,
    /// Zero until one was granted.
    lease: i64,
}

impl Writer<'_> {
    async fn run(&mut self) -> Result<(Plan, i64), Failure> {
        let read = Txn { then: plan::reads(self.layout, self.write), ..Txn::default() };
        let mut state = self.state(self.client.txn(read).await.map_err(Refusal::from)?);
        for attempt in 0..ATTEMPTS {
            let plan = plan::plan(self.layout, self.write, &state)?;
            match self.attempt(&plan).await? {
                Ok(revision) => return Ok((plan, revision)),
                Err(seen) => state = seen,
            }
            pause(attempt).await;
        }
        Err(Refusal::new(Code::RaftInternal, "too many other writers of this key").at(index(state.revision)).into())
    }

    /// The revision of the write, or what was seen instead of what it rests on.
    async fn attempt(&mut self, plan: &Plan) -> Result<Result<i64, State>, Failure> {
        self.grant().await?;
        let mut otherwise = plan::reads(self.layout, self.write);
        let is_post = self.write.kind == Kind::Post;
        if is_post {
            otherwise.push(plan::get(self.layout.node(&plan.path)));
        }
        let txn = Txn { conditions: plan.conditions.clone(), then: plan.ops(self.lease), otherwise };
        let mut answer = match self.client.txn(txn).await {
            // It expired while the write took its time.
            Err(Error::NotFound(Thing::Lease)) => return self.read_again().await,
            answer => answer.map_err(Failure::of_txn)?,
        };
        if answer.succeeded {
            return Ok(Ok(answer.revision));
        }
        // The next attempt has another name if anybody has written since; if nobody has, the name was given by a client.
        let is_taken = is_post && answer.results.pop().and_then(node).is_some();
        if is_taken && plan::name_in_order(answer.revision).as_bytes() == plan.path.name() {
            let refusal = Refusal::new(Code::NodeExist, plan.path.shown());
            return Err(refusal.at(index(answer.revision)).into());
        }
        Ok(Err(self.state(answer)))
    }

    async fn read_again(&mut self) -> Result<Result<i64, State>, Failure> {
        self.lease = 0;
        let read = Txn { then: plan::reads(self.layout, self.write), ..Txn::default() };
        Ok(Err(self.state(self.client.txn(read).await.map_err(Refusal::from)?)))
    }

    async fn grant(&mut self) -> Result<(), Failure> {
        let Some(ttl) = self.write.ttl.filter(|_| self.lease == 0) else { return Ok(()) };
        self.lease = grant(self.client, ttl.seconds).await.map_err(Refusal::from)?;
        Ok(())
    }

    fn state(&self, answer: TxnResult) -> State {
        let TxnResult { revision, mut results, .. } = answer;
        let rest = results.split_off(plan::way(self.write).len().min(results.len()));
        let way = results.into_iter().map(node).collect();
        let mut rest = rest.into_iter().map(pairs);
        let first = rest.next().and_then(|mut pairs| pairs.pop());
        if self.write.kind == Kind::Post {
            let logged = first.map_or(0, |log| log.mod_revision);
            return State { way, logged, revision, ..State::default() };
        }
        let has_children = rest.next().is_some_and(|children| !children.is_empty());
        State { way, node: first.map(Node::read), has_children, logged: 0, revision }
    }
}

/// A lease whose number says that it was granted here.
pub async fn grant(client: &Client, seconds: u64) -> Result<i64, Error> {
    let ttl = Duration::from_secs(seconds.max(1));
    loop {
        match client.lease_grant_as(LEASES | random() & 0xffff_ffff_ffff, ttl).await {
            Err(Error::AlreadyExists(Thing::Lease)) => {}
            answer => return Ok(answer?.id),
        }
    }
}

/// Unlike in every process and at every call.
fn random() -> i64 {
    RandomState::new().build_hasher().finish().cast_signed()
}

/// Writers that met once should not meet again.
async fn pause(attempt: u32) {
    let longest = LONGEST_PAUSE.min(1 << attempt.min(5));
    let pause = random().cast_unsigned() % longest;
    tokio::time::sleep(Duration::from_millis(pause)).await;
}
