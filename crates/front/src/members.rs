//! The members behind the front: which of them serve, which one leads, and which one gets the next connection. Each is probed every
//! second, over a connection without a user, so the probe has no permissions in the cluster.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_agent::dial::Dial;
use quorate_control::kinds::etcd::front::Place;
use quorate_etcd::{Client, ConnectOptions, Error, LONGEST_MESSAGE, LoginRefusal, Room, Sockets};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::Prefer;

const BETWEEN_PROBES: Duration = Duration::from_secs(1);
/// A member that takes longer serves nobody well.
const PROBE: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);
/// Connections to a member that has not answered for so long are closed, so that their clients come back and are sent elsewhere.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// The state of a member.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// It took part in a quorum when it was last asked.
    pub serves: bool,
    pub leads: bool,
    /// Its number in etcd; zero while it has never answered.
    pub id: u64,
    /// How long it took to answer.
    pub took: Option<Duration>,
    /// It does not say whether it leads.
    pub is_discreet: bool,
    /// Why it does not serve.
    pub why: String,
    /// Since when it does not.
    since: Option<Instant>,
}

pub struct Member {
    pub name: String,
    pub address: SocketAddr,
    dial: Dial,
    /// As nobody. Everyone who logs in by password or token shares its connection.
    pub client: Client,
    /// What large answers of all members may take.
    room: Room,
    health: Mutex<Health>,
    /// Whether it leads, and its number, as found elsewhere than in its status.
    role: Mutex<(bool, u64)>,
    stops_soon: AtomicBool,
    /// Ends the connections that are passed through to it.
    pub give_up: Arc<Notify>,
    probing: Mutex<Option<AbortHandle>>,
}

impl Member {
    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, health: Health) {
        let mut known = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        match (known.serves, health.serves) {
            (false, true) => tracing::info!(member = self.name, address = %self.address, "serves"),
            (true, false) => {
                tracing::warn!(member = self.name, address = %self.address, why = health.why, "does not serve")
            }
            _ => {}
        }
        let since = known.since.filter(|_| !health.serves).or_else(|| (!health.serves).then(Instant::now));
        *known = Health { since, ..health };
    }

    /// A request has met nobody there: the next ones go elsewhere until it was asked again.
    pub fn failed(&self, why: &str) {
        self.set(Health { serves: false, why: why.to_owned(), ..self.health() });
    }

    /// Takes from a member's metrics whether it leads, and its number.
    pub fn read_role(&self, metrics: &str) {
        let leads = metrics.lines().any(|line| line == "etcd_server_is_leader 1");
        let id = metrics.lines().find_map(|line| line.strip_prefix("etcd_server_id{server_id=\"")?.split('"').next());
        let id = id.and_then(|id| u64::from_str_radix(id, 16).ok()).unwrap_or_default();
        *self.role.lock().unwrap_or_else(PoisonError::into_inner) = (leads, id);
    }

    pub fn is_stopping(&self) -> bool {
        self.stops_soon.load(Ordering::Relaxed)
    }

    /// How to reach it, without an identity.
    pub fn options(&self, ca: &str) -> ConnectOptions {
        let place = Place { name: self.name.clone(), address: self.address, dial: self.dial.clone() };
        options(&place, ca, &self.room)
    }

    /// A connection for a client to be passed through.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        let stream = timeout(CONNECT, self.dial.connect(self.address)).await;
        stream.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
    }

    async fn probe(&self) -> Health {
        let asked = async {
            let status = match self.client.status().await {
                Ok(status) => Some(status),
                // Releases of 2026 say it to users alone.
                Err(Error::Unauthenticated(_) | Error::PermissionDenied) => None,
                Err(error) => return Err(error),
            };
            // A refusal comes after the quorum was asked. A learner answers nobody.
            match self.client.linearizable_read_ok().await {
                Ok(()) | Err(Error::Unauthenticated(LoginRefusal::NoLogin)) => Ok(status),
                Err(error) => Err(error),
            }
        };
        let (started, known) = (Instant::now(), self.health());
        let silent = |why: String| Health { why, id: known.id, is_discreet: known.is_discreet, ..Health::default() };
        match timeout(PROBE, asked).await {
            Ok(Ok(Some(status))) => Health {
                serves: !status.is_learner,
                leads: status.leader == status.member_id,
                id: status.member_id,
                took: Some(started.elapsed()),
                why: if status.is_learner { String::from("it is a learner") } else { String::new() },
                ..Health::default()
            },
            Ok(Ok(None)) => {
                let (leads, id) = *self.role.lock().unwrap_or_else(PoisonError::into_inner);
                let took = Some(started.elapsed());
                Health { serves: true, leads, id, took, is_discreet: true, ..Health::default() }
            }
            Ok(Err(error)) => silent(quorate_core::text::with_causes(&error)),
            Err(_) => silent(String::from("no answer in time")),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(probing) = self.probing.lock().unwrap_or_else(PoisonError::into_inner).take() {
            probing.abort();
        }
    }
}

fn options(place: &Place, ca: &str, room: &Room) -> ConnectOptions {
    let mut options = ConnectOptions::new(format!("https://{}", place.address), ca);
    options.connect_timeout = CONNECT;
    options.longest_answer = LONGEST_MESSAGE;
    options.room = Some(room.clone());
    options.sockets = (place.dial != Dial::Address).then(|| {
        let dial = place.dial.clone();
        Sockets::new(move |to| dial.socket(to))
    });
    options
}

pub struct Members {
    prefer: Prefer,
    room: Room,
    all: Mutex<Arc<[Arc<Member>]>>,
    next: AtomicUsize,
}

impl Members {
    pub fn new(prefer: Prefer, room: Room) -> Self {
        Members { prefer, room, all: Mutex::new(Arc::new([])), next: AtomicUsize::new(0) }
    }

    pub fn all(&self) -> Arc<[Arc<Member>]> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes up members and the identity that they are asked with. One that is known already, with the same identity, stays.
    pub fn update(
        &self,
        places: &[Place],
        ca: &str,
        identity: Option<&(String, String)>,
        renew: bool,
    ) -> Result<(), Error> {
        let known = self.all();
        let mut all = Vec::new();
        for place in places {
            let same = |member: &&Arc<Member>| {
                (&member.name, member.address, &member.dial) == (&place.name, place.address, &place.dial)
            };
            match known.iter().find(same).filter(|_| !renew) {
                Some(member) => all.push(member.clone()),
                None => {
                    all.push(self.begin(place, ca, identity, known.iter().find(same))?);
                }
            }
        }
        // The old ones end when the last connection through them has.
        for gone in known.iter().filter(|old| !all.iter().any(|member| Arc::ptr_eq(member, old))) {
            if let Some(probing) = gone.probing.lock().unwrap_or_else(PoisonError::into_inner).take() {
                probing.abort();
            }
            if !all.iter().any(|member| member.name == gone.name && member.address == gone.address) {
                tracing::info!(member = gone.name, address = %gone.address, "is no longer behind this front");
            }
        }
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) = all.into();
        Ok(())
    }

    /// Members that a controller is about to stop.
    pub fn stopping(&self, names: &BTreeSet<String>) {
        for member in &*self.all() {
            let stops = names.contains(&member.name);
            if member.stops_soon.swap(stops, Ordering::Relaxed) != stops && stops {
                tracing::info!(member = member.name, "is about to be stopped: new connections go elsewhere");
            }
        }
    }

    /// The members to try, best first. Those that do not serve come last: the last probe's result may be outdated.
    pub fn candidates(&self) -> Vec<Arc<Member>> {
        let all = self.all();
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut ranked: Vec<(u8, Arc<Member>)> = (0..all.len())
            .map(|at| all[(at + turn) % all.len()].clone())
            .map(|member| {
                let health = member.health();
                let rank = match (health.serves, member.is_stopping()) {
                    (true, false) if self.prefer == Prefer::Leader && health.leads => 0,
                    (true, false) => 1,
                    (true, true) => 2,
                    (false, _) => 3,
                };
                (rank, member)
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, member)| member).collect()
    }

    /// Why no member serves; `None` if one does.
    pub fn trouble(&self) -> Option<String> {
        let all = self.all();
        if all.is_empty() {
            return Some(String::from("no member is known"));
        }
        if all.iter().any(|member| member.health().serves) {
            return None;
        }
        Some(
            all.iter().map(|member| format!("{}: {}", member.name, member.health().why)).collect::<Vec<_>>().join("; "),
        )
    }

    /// Lets go of connections to members that answer nobody, as long as another one does.
    pub fn let_go(&self) {
        let all = self.all();
        if !all.iter().any(|member| member.health().serves) {
            return;
        }
        for member in &*all {
            if member.health().since.is_some_and(|since| since.elapsed() > GIVEN_UP) {
                member.give_up.notify_waiters();
            }
        }
    }

    /// `before`: the same member, as it was asked with another identity.
    fn begin(
        &self,
        place: &Place,
        ca: &str,
        identity: Option<&(String, String)>,
        before: Option<&Arc<Member>>,
    ) -> Result<Arc<Member>, Error> {
        let client = Client::connect(ConnectOptions { identity: identity.cloned(), ..options(place, ca, &self.room) })?;
        let member = Arc::new(Member {
            name: place.name.clone(),
            address: place.address,
            dial: place.dial.clone(),
            client,
            room: self.room.clone(),
            health: Mutex::new(before.map(|before| before.health()).unwrap_or_default()),
            role: Mutex::default(),
            stops_soon: AtomicBool::new(false),
            // Connections that were passed through before go on.
            give_up: before.map_or_else(Arc::default, |before| before.give_up.clone()),
            probing: Mutex::new(None),
        });
        let weak = Arc::downgrade(&member);
        let probing = tokio::spawn(async move {
            while let Some(member) = weak.upgrade() {
                let health = member.probe().await;
                tracing::debug!(member = member.name, took = ?health.took, why = health.why, "probed");
                member.set(health);
                drop(member);
                tokio::time::sleep(BETWEEN_PROBES).await;
            }
        });
        *member.probing.lock().unwrap_or_else(PoisonError::into_inner) = Some(probing.abort_handle());
        Ok(member)
    }
}
