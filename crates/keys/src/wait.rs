//! Waiting for events: a watch on etcd that lasts as long as the client waits.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_etcd::{Change, Client, Error, KeyRange, Op, RangeQuery, Txn, TxnResult, Watch};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::{Code, Refusal};
use crate::follow::{self, Lineage, Sign};
use crate::node::{Happening, Log, Node, index};
use crate::path::{Layout, Path};
use crate::plan;
use crate::request::Wait;
use crate::store::{node, pairs};

/// How often a watch that broke is taken up again, and how long after.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

pub struct Waiter {
    client: Client,
    layout: Layout,
    wait: Wait,
    range: KeyRange,
    watch: Watch,
    /// The index of the store when the wait began.
    pub began: u64,
    /// The first revision that has not been seen.
    next: i64,
    ready: VecDeque<Happening>,
    _place: OwnedSemaphorePermit,
}

impl Waiter {
    pub async fn start(
        client: &Client,
        layout: &Layout,
        wait: Wait,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, Refusal> {
        let (began, may_expire) = look(client, layout, &wait.path).await?;
        let next = match wait.since {
            0 => began + 1,
            since => i64::try_from(since).unwrap_or(i64::MAX),
        };
        if next <= began {
            has_history(client, layout, next).await.map_err(|refusal| refusal.at(index(began)))?;
        }
        let (range, watch) = open(client, layout, &wait, may_expire, next).await?;
        let (client, layout) = (client.clone(), layout.clone());
        let (began, ready) = (index(began), VecDeque::new());
        Ok(Waiter { client, layout, wait, range, watch, began, next, ready, _place: place })
    }

    pub fn streams(&self) -> bool {
        self.wait.stream
    }

    /// The next event. After an error there are no more.
    pub async fn next(&mut self) -> Result<Happening, Error> {
        loop {
            if let Some(happening) = self.ready.pop_front() {
                return Ok(happening);
            }
            let changes = self.changes().await?;
            let mut rest = changes.as_slice();
            while let Some(first) = rest.first() {
                let revision = first.event.revision();
                let end = rest.iter().position(|change| change.event.revision() != revision).unwrap_or(rest.len());
                let (same, later) = rest.split_at(end);
                self.take(same, revision).await?;
                rest = later;
            }
        }
    }

    /// What etcd sends next. A watch that broke, because its member was restarted or lost its leader, is taken up again.
    async fn changes(&mut self) -> Result<Vec<Change>, Error> {
        let mut attempts = 0;
        loop {
            let error = match self.watch.next_changes().await {
                Ok(changes) => return Ok(changes),
                Err(error) => error,
            };
            loop {
                attempts += 1;
                if attempts > ATTEMPTS || !is_passing(&error) {
                    return Err(error);
                }
                tokio::time::sleep(PAUSE).await;
                if let Ok(watch) = self.client.watch_changes(self.range.clone(), self.next).await {
                    self.watch = watch;
                    break;
                }
            }
        }
    }

    async fn take(&mut self, changes: &[Change], revision: i64) -> Result<(), Error> {
        let mut last = None;
        for sign in follow::read(&self.layout, &self.wait, changes) {
            let happened = match sign {
                Sign::Happened { path, happening } => Some((path, happening)),
                Sign::Vanished { path, previous } => self.vanished(path, previous, revision).await?,
            };
            if let Some((path, happening)) = happened
                && last.as_ref() != Some(&path)
                && self.shows(&path, revision)
            {
                self.ready.push_back(happening);
                last = Some(path);
            }
        }
        self.next = revision + 1;
        Ok(())
    }

    /// etcd looks for hidden nodes in what happens, and not in what has happened.
    fn shows(&self, path: &Path, revision: i64) -> bool {
        index(revision) <= self.began || !self.wait.path.hides(path)
    }

    async fn vanished(
        &self,
        path: Path,
        previous: Option<Node>,
        revision: i64,
    ) -> Result<Option<(Path, Happening)>, Error> {
        let explained = match lineage(&self.client, &self.layout, &path, revision).await {
            Ok(lineage) => follow::explain(&path, &lineage, revision),
            Err(Error::Compacted { .. }) => {
                let happening = follow::gone(crate::node::Action::Expire, &path, previous.as_ref(), revision);
                Some((path.clone(), happening))
            }
            Err(error) => return Err(error),
        };
        let Some((gone, happening)) = explained else { return Ok(None) };
        let is_above = gone.holds(&self.wait.path) && gone != self.wait.path;
        let concerns = !is_above || path == self.wait.path || self.existed(revision).await?;
        Ok(concerns.then_some((gone, happening)))
    }

    /// Whether the node that is waited for was there before this revision.
    async fn existed(&self, revision: i64) -> Result<bool, Error> {
        let path = &self.wait.path;
        let lineage = match lineage(&self.client, &self.layout, path, revision).await {
            Err(Error::Compacted { .. }) => return Ok(true),
            lineage => lineage?,
        };
        Ok(lineage.before.iter().all(Option::is_some))
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. }
            | Error::Timeout
            | Error::NoLeader
            | Error::NoRoom
            | Error::Unavailable { .. }
            | Error::Other { .. }
    )
}

/// The current revision, and whether a directory on the way may expire.
async fn look(client: &Client, layout: &Layout, path: &Path) -> Result<(i64, bool), Refusal> {
    let mut then: Vec<Op> = path.ancestors().iter().map(|directory| plan::get(layout.node(directory))).collect();
    if then.is_empty() {
        then.push(plan::get(layout.log(&Path::root())));
    }
    let TxnResult { revision, results, .. } = client.txn(Txn { then, ..Txn::default() }).await?;
    let may_expire = results.into_iter().filter_map(node).any(|node| node.lease != 0);
    Ok((revision, may_expire))
}

/// Whether etcd still has what happened at this revision.
async fn has_history(client: &Client, layout: &Layout, revision: i64) -> Result<(), Refusal> {
    let log = KeyRange::key(layout.log(&Path::root()));
    let query = RangeQuery { revision, count_only: true, ..RangeQuery::new(log.clone()) };
    match client.range(query).await {
        Ok(_) => Ok(()),
        Err(Error::Compacted { .. }) => {
            let oldest = oldest(client, log, revision).await;
            let cause = format!("the requested history has been cleared [{oldest}/{revision}]");
            Err(Refusal::new(Code::EventIndexCleared, cause))
        }
        Err(error) => Err(error.into()),
    }
}

/// Only a watch says which revision is the oldest.
async fn oldest(client: &Client, key: KeyRange, revision: i64) -> i64 {
    let ended = async { client.watch_changes(key, revision).await?.next_changes().await };
    match tokio::time::timeout(PAUSE * 4, ended).await {
        Ok(Err(Error::Compacted { oldest: Some(oldest) })) => oldest,
        _ => 0,
    }
}

/// Ancestors are watched only where one of them may expire: that takes in much else.
async fn open(
    client: &Client,
    layout: &Layout,
    wait: &Wait,
    may_expire: bool,
    from: i64,
) -> Result<(KeyRange, Watch), Refusal> {
    if may_expire {
        let range = layout.watched_with_ancestors(&wait.path, wait.recursive);
        match client.watch_changes(range.clone(), from).await {
            // A user who may read only a part of the keys is told of that part.
            Err(Error::PermissionDenied) => {}
            answer => return Ok((range, answer?)),
        }
    }
    let range = layout.watched(&wait.path, wait.recursive);
    let watch = client.watch_changes(range.clone(), from).await?;
    Ok((range, watch))
}

async fn lineage(client: &Client, layout: &Layout, path: &Path, revision: i64) -> Result<Lineage, Error> {
    let nodes: Vec<Path> = (1..=path.depth()).map(|depth| path.first(depth)).collect();
    let at = |key: Vec<u8>, revision| Op::Range(RangeQuery { revision, ..RangeQuery::new(KeyRange::key(key)) });
    let read = |then: Vec<Op>| async { Ok::<_, Error>(client.txn(Txn { then, ..Txn::default() }).await?.results) };
    let before = read(nodes.iter().map(|node| at(layout.node(node), revision - 1)).collect()).await?;
    let after = nodes.iter().map(|node| at(layout.node(node), revision));
    let logs = nodes.iter().map(|node| at(layout.log(&node.parent()), revision));
    let mut after = read(after.chain(logs).collect()).await?;
    let logs = after.split_off(nodes.len().min(after.len()));
    let log = |mut pairs: Vec<quorate_etcd::KeyValue>| {
        let pair = pairs.pop()?;
        Some((pair.mod_revision, Log::decode(&pair.value)?))
    };
    Ok(Lineage {
        before: before.into_iter().map(node).collect(),
        after: after.into_iter().map(node).collect(),
        logs: logs.into_iter().map(|result| log(pairs(result))).collect(),
    })
}
