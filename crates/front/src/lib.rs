//! One address in front of an etcd cluster. gRPC is passed through to a member that serves, with TLS from end to end. REST is served
//! here, for clients with a certificate or a password.
//!
//! It promises that no client gets more access through it than from etcd itself: it has no permissions in etcd, and never acts as
//! root. It changes nothing in the cluster or in its ledger, so any number of fronts can run, and each can be killed at any time.

mod behind;
mod gateway;
mod hello;
mod machine;
mod members;
mod outgoing;
mod places;
mod port;
mod relay;
mod rest;
mod who;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_control::Home;
use quorate_control::clients::ClientError;
use quorate_control::kinds::etcd::front::{self, Place, Stops};
use quorate_control::ledger::LedgerError;
use quorate_core::text::with_causes;
use rustls::pki_types::ServerName;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use behind::Behind;
pub use behind::BehindError;
pub use machine::{MachineOptions, run_on_machine};
use members::Members;
use places::Places;
use rest::Rest;

/// How often the history is read on, for steps that stop a member.
const LOOK: Duration = Duration::from_millis(100);
/// How often the ledger's version is checked.
const LEDGER: Duration = Duration::from_secs(1);
/// How often machines are looked for while the ledger changes, and while it does not.
const MACHINES_SOON: Duration = Duration::from_secs(2);
const MACHINES: Duration = Duration::from_secs(60);
/// For so long after a change of the ledger, another one is likely.
const CHANGING: Duration = Duration::from_secs(120);
const FIRST_PROBE: Duration = Duration::from_secs(3);
const CHECK: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    #[error(transparent)]
    Behind(#[from] BehindError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("cluster {0} no longer exists: it has no ledger")]
    NoLedger(String),
    #[error("the members cannot be connected to")]
    Etcd(#[from] quorate_etcd::Error),
    #[error("{} cannot be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Where new connections go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefer {
    /// To the leader, while it serves.
    Leader,
    /// To all serving members in turn.
    Spread,
}

pub struct Options {
    pub cluster: String,
    pub listen: SocketAddr,
    /// Names and addresses that clients use.
    pub hosts: Vec<String>,
    pub prefer: Prefer,
    pub insecure_http: bool,
    pub connections: usize,
    pub connections_of_one: usize,
    /// How long connections may last after the front was asked to stop.
    pub drain: Duration,
}

/// What is to be said when clients can connect.
#[derive(Debug)]
pub struct Ready {
    pub members: usize,
    pub serving: usize,
    /// Hosts of the front for which members show no certificate, with a member that does not.
    pub unnamed: Vec<(String, String)>,
    pub is_rest: bool,
}

/// What all connections share.
pub(crate) struct Shared {
    members: Members,
    places: Arc<Places>,
    behind: Mutex<Arc<Behind>>,
    rest: Rest,
    hosts: Vec<String>,
    insecure_http: bool,
    stop: watch::Sender<bool>,
}

impl Shared {
    fn behind(&self) -> Arc<Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether `Host` names this front.
    fn is_own_name(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or_default(),
        };
        name == "localhost" || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// Serves until `stopped` says so, and then for as long as connections may last.
pub async fn run(
    home: &Home,
    options: Options,
    mut stopped: watch::Receiver<bool>,
    ready: impl FnOnce(&Ready),
) -> Result<(), FrontError> {
    let (dns, addresses) = split(&options.hosts);
    let mut stops = Stops::new(home, &options.cluster);
    let ledger = home.store(&options.cluster).read()?.ok_or_else(|| FrontError::NoLedger(options.cluster.clone()))?;
    let places = front::places(home, &ledger).await?;
    let behind = Behind::new(ledger, &dns, &addresses, None)?;
    if places.is_empty() {
        return Err(ClientError::NoMachines(options.cluster.clone()).into());
    }
    let room = outgoing::room();
    let shared = Arc::new(Shared {
        members: Members::new(options.prefer, room.clone()),
        places: Places::new(options.connections, options.connections_of_one),
        behind: Mutex::new(Arc::new(behind)),
        rest: Rest::new(url(&options), room),
        hosts: options.hosts.clone(),
        insecure_http: options.insecure_http,
        stop: watch::Sender::new(false),
    });
    let behind = shared.behind();
    shared.members.update(&places, &behind.ca, behind.identity.as_ref(), true)?;
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.map_err(|source| FrontError::Listen { address: options.listen, source })?;
    shared.first_probes().await;
    let all = shared.members.all();
    ready(&Ready {
        members: all.len(),
        serving: all.iter().filter(|member| member.health().serves).count(),
        unnamed: shared.unnamed().await,
        is_rest: behind.rest.is_some(),
    });
    tokio::select! {
        never = port::serve(shared.clone(), listener) => match never {},
        never = rest::ask_roles(&shared) => match never {},
        never = follow(home, &options, &shared, &mut stops, places) => match never {},
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    drain(&shared, options.drain).await;
    Ok(())
}

/// Nobody new is let in. Requests end, and connections may.
async fn drain(shared: &Shared, patience: Duration) {
    tracing::info!(connections = shared.places.count(), "stopping");
    let _ = shared.stop.send(true);
    let until = Instant::now() + patience;
    while shared.places.count() > 0 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if shared.places.count() > 0 {
        tracing::info!(connections = shared.places.count(), "connections that are still open are closed");
    }
}

/// The names that clients use for the front.
fn url(options: &Options) -> String {
    let host = options.hosts.first().map_or("localhost", String::as_str);
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let scheme = if options.insecure_http { "http" } else { "https" };
    format!("{scheme}://{host}:{}", options.listen.port())
}

fn split(hosts: &[String]) -> (Vec<String>, Vec<IpAddr>) {
    let addresses: Vec<IpAddr> = hosts.iter().filter_map(|host| host.parse().ok()).collect();
    let dns = hosts.iter().filter(|host| host.parse::<IpAddr>().is_err()).cloned().collect();
    (dns, addresses)
}

impl Shared {
    /// Every second: what members that do not answer and statistics need.
    fn keep_up(&self) {
        self.members.let_go();
        for member in &*self.members.all() {
            let health = member.health();
            if health.id != 0 {
                self.rest.keys.probed(health.id, health.took);
            }
        }
    }

    async fn first_probes(&self) {
        let until = Instant::now() + FIRST_PROBE;
        let is_known = |member: &Arc<members::Member>| {
            let health = member.health();
            health.serves || !health.why.is_empty()
        };
        while Instant::now() < until && !self.members.all().iter().all(is_known) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Clients of gRPC verify the certificate of the member that they are passed through to.
    async fn unnamed(&self) -> Vec<(String, String)> {
        let behind = self.behind();
        let mut unnamed = Vec::new();
        for host in &self.hosts {
            let Ok(name) = ServerName::try_from(host.clone()) else { continue };
            for member in &*self.members.all() {
                let connected = timeout(CHECK, async {
                    let stream = member.connect().await?;
                    TlsConnector::from(behind.to_members.clone()).connect(name.clone(), stream).await.map(|_| ())
                });
                let Ok(Err(error)) = connected.await else { continue };
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                if let Some(rustls::Error::InvalidCertificate(
                    rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. },
                )) = inner
                {
                    unnamed.push((host.clone(), member.name.clone()));
                    break;
                }
            }
        }
        unnamed
    }
}

/// Keeps up with the ledger, the machines and the steps of controllers. What cannot be read leaves everything as it is.
async fn follow(
    home: &Home,
    options: &Options,
    shared: &Shared,
    stops: &mut Stops,
    mut places: Vec<Place>,
) -> std::convert::Infallible {
    let (dns, addresses) = split(&options.hosts);
    let mut version = shared.behind().ledger.as_ref().map_or(0, |ledger| ledger.version);
    let start = Instant::now();
    let (mut ledger_at, mut machines_at, mut changed_at) = (start, start, None::<Instant>);
    let mut trouble = Trouble::default();
    loop {
        tokio::time::sleep(LOOK).await;
        match stops.look(Timestamp::now()) {
            Ok(names) => shared.members.stopping(&names),
            Err(error) => trouble.say("the history cannot be read", &error.to_string()),
        }
        if ledger_at.elapsed() < LEDGER {
            continue;
        }
        ledger_at = Instant::now();
        shared.keep_up();
        let known = shared.behind();
        let newest = front::version(home, &options.cluster);
        let is_new = matches!(newest, Ok(Some(newest)) if newest != version);
        if is_new || !matches!(newest, Ok(Some(_))) || known.is_old() {
            match renew(home, options, &dns, &addresses, &known) {
                Ok(behind) => {
                    version = behind.ledger.as_ref().map_or(0, |ledger| ledger.version);
                    changed_at = Some(Instant::now());
                    trouble.over();
                    take_up(shared, &places, behind, &known, &mut trouble);
                }
                Err(error) => {
                    trouble
                        .say("the ledger cannot be read; the previous settings stay in effect", &with_causes(&error));
                    // Certificates are renewed all the same.
                    if let (true, Some(ledger)) = (known.is_old(), known.ledger.clone())
                        && let Ok(behind) = Behind::new(ledger, &dns, &addresses, Some(&known))
                    {
                        take_up(shared, &places, behind, &known, &mut trouble);
                    }
                }
            }
        }
        let pause = if changed_at.is_some_and(|at| at.elapsed() < CHANGING) { MACHINES_SOON } else { MACHINES };
        if machines_at.elapsed() >= pause {
            machines_at = Instant::now();
            let behind = shared.behind();
            let Some(ledger) = &behind.ledger else { continue };
            match front::places(home, ledger).await {
                // A provider that lists nothing for a moment is not followed.
                Ok(found) if !found.is_empty() && found != places => {
                    places = found;
                    let updated = shared.members.update(&places, &behind.ca, behind.identity.as_ref(), false);
                    updated.unwrap_or_else(|error| trouble.say("members cannot be connected to", &with_causes(&error)));
                }
                Ok(_) => {}
                Err(error) => trouble.say("machines cannot be listed; those that are known stay", &with_causes(&error)),
            }
        }
    }
}

fn take_up(shared: &Shared, places: &[Place], behind: Behind, known: &Behind, trouble: &mut Trouble) {
    let renews = behind.renews(known);
    *shared.behind.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(behind);
    if renews {
        tracing::info!("the front presents new certificates");
        let behind = shared.behind();
        let updated = shared.members.update(places, &behind.ca, behind.identity.as_ref(), true);
        updated.unwrap_or_else(|error| trouble.say("members cannot be connected to", &with_causes(&error)));
    }
}

fn renew(
    home: &Home,
    options: &Options,
    dns: &[String],
    addresses: &[IpAddr],
    known: &Behind,
) -> Result<Behind, FrontError> {
    let ledger = home.store(&options.cluster).read()?.ok_or_else(|| FrontError::NoLedger(options.cluster.clone()))?;
    Ok(Behind::new(ledger, dns, addresses, Some(known))?)
}

/// Says each trouble once, until it is over.
#[derive(Default)]
struct Trouble(Option<String>);

impl Trouble {
    fn say(&mut self, what: &'static str, why: &str) {
        let said = format!("{what}: {why}");
        if self.0.as_ref() != Some(&said) {
            tracing::warn!(why, "{what}");
            self.0 = Some(said);
        }
    }

    fn over(&mut self) {
        self.0 = None;
    }
}
