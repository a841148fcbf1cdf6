//! A front on a machine of the cluster. Its agent writes the settings into files, and the front reads them again when they change. There
//! is no ledger and no CA key here, so it cannot act for clients that have only a certificate.
//!
//! If a file cannot be read or is invalid, the front keeps its settings and logs it once.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use quorate_agent::dial::Dial;
use quorate_control::kinds::etcd::front::Place;
use quorate_core::kinds::etcd::front::{CONFIG_NAME, DRAINED_NAME, FrontConfig};
use quorate_core::model::{CLIENT_PORT, MemberName, https_url};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::behind::Behind;
use crate::members::Members;
use crate::places::Places;
use crate::rest::{self, Rest};
use crate::{FIRST_PROBE, FrontError, LEDGER, LOOK, Prefer, Shared, Trouble, drain, outgoing, port};

/// A clock that was set back must not keep clients away from a member for longer.
const LONGEST_DRAIN: SignedDuration = SignedDuration::from_secs(120);
const LARGEST_FILE: u64 = 8 << 20;

pub struct MachineOptions {
    /// The directory of a front's settings, which the agent writes.
    pub directory: PathBuf,
    pub listen: SocketAddr,
    pub prefer: Prefer,
    pub connections: usize,
    pub connections_of_one: usize,
    /// How long connections may last after the front was told to stop.
    pub drain: Duration,
}

/// Serves until `stopped` says so, and then for as long as connections may last.
pub async fn run_on_machine(options: MachineOptions, mut stopped: watch::Receiver<bool>) -> Result<(), FrontError> {
    let files = Files::read(&options.directory)?;
    let told = files.told(&options.directory)?;
    let behind = Behind::on_machine(&told, files.given.clone(), None)?;
    let room = outgoing::room();
    let shared = Arc::new(Shared {
        members: Members::new(options.prefer, room.clone()),
        places: Places::new(options.connections, options.connections_of_one),
        rest: Rest::new(https_url(options.listen.ip(), options.listen.port()), room),
        hosts: vec![options.listen.ip().to_string()],
        insecure_http: false,
        stop: watch::Sender::new(false),
        behind: Mutex::new(Arc::new(behind)),
    });
    let behind = shared.behind();
    shared.members.update(&places(&told), &behind.ca, behind.identity.as_ref(), true)?;
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.map_err(|source| FrontError::Listen { address: options.listen, source })?;
    tracing::info!(cluster = told.cluster, listen = %options.listen, members = told.members.len(), "the front serves");
    tokio::select! {
        never = serve(&shared, listener) => match never {},
        never = rest::ask_roles(&shared) => match never {},
        never = follow(&options.directory, &shared, files) => match never {},
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    drain(&shared, options.drain).await;
    Ok(())
}

/// Clients may connect at once. They are answered when the front has its certificate and knows a member that serves, or after a while
/// without: a front that has just been started would refuse what its cluster can do.
async fn serve(shared: &Arc<Shared>, listener: TcpListener) -> Infallible {
    let is_ready = || shared.behind().rest.is_some() && shared.members.trouble().is_none();
    let ready = async {
        while !is_ready() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if timeout(FIRST_PROBE, ready).await.is_err() {
        tracing::warn!(why = shared.members.trouble(), "clients are answered although nothing can be served yet");
    }
    port::serve(shared.clone(), listener).await
}

/// Keeps up with what the agent writes.
async fn follow(directory: &Path, shared: &Shared, mut known: Files) -> Infallible {
    let mut trouble = Trouble::default();
    let mut files_at = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        shared.members.stopping(&drained(directory, Timestamp::now()));
        if files_at.elapsed() < LEDGER {
            continue;
        }
        files_at = Instant::now();
        shared.keep_up();
        let taken = Files::read(directory).and_then(|files| {
            if files != known {
                take_up(directory, shared, &files)?;
            }
            Ok(files)
        });
        match taken {
            Ok(files) => {
                known = files;
                trouble.over();
            }
            Err(error) => trouble
                .say("what the agent has written cannot be used; the previous settings stay in effect", &text(&error)),
        }
    }
}

fn text(error: &FrontError) -> String {
    quorate_core::text::with_causes(error)
}

fn take_up(directory: &Path, shared: &Shared, files: &Files) -> Result<(), FrontError> {
    let told = files.told(directory)?;
    let before = shared.behind();
    let behind = Behind::on_machine(&told, files.given.clone(), Some(&before))?;
    let renews = behind.renews(&before);
    shared.members.update(&places(&told), &behind.ca, behind.identity.as_ref(), renews)?;
    *shared.behind.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(behind);
    tracing::info!(members = told.members.len(), "the front has applied the changed settings");
    Ok(())
}

fn places(told: &FrontConfig) -> Vec<Place> {
    let place = |(name, address): (&MemberName, &std::net::IpAddr)| Place {
        name: name.to_string(),
        address: SocketAddr::new(*address, CLIENT_PORT),
        dial: Dial::Address,
    };
    told.members.iter().map(place).collect()
}

/// The members that get no new connections now.
fn drained(directory: &Path, now: Timestamp) -> BTreeSet<String> {
    let text = fs::read_to_string(directory.join(DRAINED_NAME)).unwrap_or_default();
    let until: BTreeMap<String, Timestamp> = serde_json::from_str(&text).unwrap_or_default();
    let is_open = |until: &Timestamp| (SignedDuration::ZERO..LONGEST_DRAIN).contains(&until.duration_since(now));
    until.into_iter().filter(|(_, until)| is_open(until)).map(|(member, _)| member).collect()
}

/// The settings from the agent.
#[derive(PartialEq, Eq)]
struct Files {
    config: String,
    /// The certificate and its key. They come later than the rest.
    given: Option<(String, String)>,
}

impl Files {
    fn read(directory: &Path) -> Result<Self, FrontError> {
        let config = read(&directory.join(CONFIG_NAME))?;
        // The link may lead elsewhere in the next moment.
        let given = match fs::canonicalize(directory.join("pki")) {
            Ok(set) => Some((read(&set.join("front.crt"))?, read(&set.join("front.key"))?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(FrontError::Read { path: directory.join("pki"), source }),
        };
        Ok(Files { config, given })
    }

    fn told(&self, directory: &Path) -> Result<FrontConfig, FrontError> {
        let path = directory.join(CONFIG_NAME);
        serde_json::from_str(&self.config).map_err(|error| FrontError::Read { path, source: error.into() })
    }
}

fn read(path: &Path) -> Result<String, FrontError> {
    let failed = |source| FrontError::Read { path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > LARGEST_FILE {
        return Err(failed(std::io::Error::other("the file is too large")));
    }
    fs::read_to_string(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_drained_until_the_time_is_up_and_never_for_long() {
        let directory = tempfile::tempdir().expect("a directory");
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let put = |text: &str| fs::write(directory.path().join(DRAINED_NAME), text).expect("a file");
        let names = || drained(directory.path(), now).into_iter().collect::<Vec<_>>();
        assert!(names().is_empty());
        put(
            r#"{"etcd-1": "2026-01-01T00:00:10Z", "etcd-2": "2025-12-31T23:59:59Z", "etcd-3": "2026-01-01T01:00:00Z"}"#,
        );
        assert_eq!(names(), ["etcd-1"], "one is over, and one is far ahead");
        put("{\"etcd-1\": ");
        assert!(names().is_empty(), "what makes no sense keeps nobody away");
    }

    #[test]
    fn certificate_and_key_are_of_one_set_and_may_come_later() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        assert!(Files::read(directory.path()).is_err(), "without a configuration there is no front");
        fs::write(at(CONFIG_NAME), "{}").expect("a file");
        assert!(Files::read(directory.path()).expect("a configuration").given.is_none());
        fs::create_dir(at("pki-1")).expect("a directory");
        std::os::unix::fs::symlink("pki-1", at("pki")).expect("a link");
        assert!(Files::read(directory.path()).is_err(), "half a set is none");
        fs::write(at("pki-1/front.crt"), "c").expect("a file");
        fs::write(at("pki-1/front.key"), "k").expect("a file");
        let files = Files::read(directory.path()).expect("files");
        assert_eq!(files.given, Some((String::from("c"), String::from("k"))));
        assert!(files.told(directory.path()).is_err(), "an empty object says nothing of a cluster");
    }
}
