//! A private, temporary etcd: restored from a snapshot into a private directory, with one member on a loopback address and separate
//! certificates. Users and passwords come with the snapshot, so quorate logs in as root by certificate, which works with and without
//! authentication. Everything written to it is lost with it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::model::https_url;
use quorate_etcd::{Client, ConnectOptions, Login};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::Error;
use crate::leases::LeasesKept;
use crate::manifest::Hash;
use crate::pipe::{Checking, SnapshotCheck, SnapshotFile};

/// etcd's programs, all of one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Programs {
    pub version: String,
    pub etcd: PathBuf,
    /// `etcdutl`, or `etcdctl` where there is none yet (3.4).
    pub restorer: PathBuf,
}

const RESTORING: Duration = Duration::from_secs(600);
/// Reading a large database into memory takes its time.
const STARTING: Duration = Duration::from_secs(300);
/// One that is killed ends at once, unless its disk hangs.
const ENDING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(30);
/// One revision may be a transaction of any size.
const REQUEST: Duration = Duration::from_secs(120);
const DAY: SignedDuration = SignedDuration::from_hours(24);
const PREFIX: &str = "throwaway-";
const LOCK: &str = "lock";

pub struct Throwaway {
    client: Client,
    options: ConnectOptions,
    etcd: Child,
    /// From the moment on that it answers: a lease that runs out would delete keys, and count as a revision.
    leases: LeasesKept,
    place: PrivateDirectory,
    /// Of the snapshot, exactly.
    revision: i64,
}

/// A private directory, removed with its owner; after a kill, by the next one that is created.
pub(crate) struct PrivateDirectory {
    root: TempDir,
    /// Held while this process lives: by it others know that the directory is in use.
    _lock: File,
}

impl Throwaway {
    /// Makes one of a snapshot, under `scratch`, which must have room for it. The snapshot's own checksum is compared on the way.
    pub async fn start(programs: &Programs, snapshot: &Path, scratch: &Path) -> Result<Self, Error> {
        let place = PrivateDirectory::make(scratch)?;
        let restored = restore(programs, snapshot, &place, 0);
        let (revision, ()) = tokio::try_join!(revision_of(programs, snapshot), restored)?;
        let mut throwaway = Self::start_on(programs, snapshot, place).await?;
        throwaway.revision = counted(&throwaway.client, revision).await?;
        Ok(throwaway)
    }

    /// The same, with the revision raised by so much and all before it marked as compacted. Its revision is the one that etcd reports.
    pub async fn start_raised(
        programs: &Programs,
        snapshot: &Path,
        scratch: &Path,
        bump_revision: u64,
    ) -> Result<Self, Error> {
        let place = PrivateDirectory::make(scratch)?;
        restore(programs, snapshot, &place, bump_revision).await?;
        let mut throwaway = Self::start_on(programs, snapshot, place).await?;
        throwaway.revision = throwaway.client.status().await?.revision;
        Ok(throwaway)
    }

    /// On data that was made of the snapshot.
    async fn start_on(programs: &Programs, snapshot: &Path, place: PrivateDirectory) -> Result<Self, Error> {
        let bytes = fs::metadata(snapshot).map_err(Error::file("read", snapshot))?.len();
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let credentials = Credentials::make(&place, address)?;
        // The port was free a moment ago; another program may have been faster.
        let mut tries = 3;
        loop {
            let port = free_port(address).map_err(Error::file("find a port for an etcd in", place.root.path()))?;
            let endpoint = https_url(address, port);
            let mut etcd = spawn(programs, &place, &endpoint, bytes)?;
            let options = credentials.options(endpoint);
            let client = Client::connect(options.clone())?;
            tries -= 1;
            match ready(&mut etcd, &client, &place).await {
                Ok(()) => {
                    let leases = LeasesKept::all_of(&client).await?;
                    return Ok(Throwaway { client, options, etcd, leases, place, revision: 0 });
                }
                Err(_) if tries > 0 && place.last_words().contains("address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn leases(&self) -> &LeasesKept {
        &self.leases
    }

    /// Of the snapshot that it was made of, exactly.
    pub fn snapshot_revision(&self) -> i64 {
        self.revision
    }

    /// Writes a snapshot of what it holds now into a new file that only this user can read.
    pub async fn snapshot(&self, into: &Path) -> Result<SnapshotFile, Error> {
        let file = create_private(into).map_err(Error::file("make", into))?;
        let mut output = Checking { output: file, check: SnapshotCheck::new() };
        let mut snapshot = self.client.snapshot().await?;
        while let Some(chunk) = snapshot.next().await? {
            output.write_all(&chunk.bytes).map_err(Error::file("write", into))?;
        }
        let Checking { output, check } = output;
        let Some(checked) = check.finish() else {
            let why = String::from("sent a snapshot that does not agree with its checksum");
            return Err(Error::Throwaway { why });
        };
        drop(output);
        Ok(checked)
    }

    /// Whether root, as the snapshot knows it, would be let in with this password once authentication is on. A snapshot without root
    /// has nobody to be let in: the restore creates one.
    pub async fn root_is_let_in(&self, password: &Secret) -> Result<bool, Error> {
        const ROOT: &str = "root";
        if !self.client.user_list().await?.iter().any(|user| user == ROOT) {
            return Ok(true);
        }
        if !self.client.auth_enabled().await? {
            let _ = self.client.role_add(ROOT).await;
            let _ = self.client.user_grant_role(ROOT, ROOT).await;
            self.client.auth_enable().await?;
        }
        let login = Login { user: ROOT.to_owned(), password: password.expose().to_owned() };
        let by_password = Client::connect(ConnectOptions { login: Some(login), ..self.options.clone() })?;
        match by_password.user_list().await {
            Ok(_) => Ok(true),
            Err(quorate_etcd::Error::Unauthenticated(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops it, and waits until it has exited.
    pub async fn end(mut self) {
        let _ = self.etcd.kill().await;
        drop(self.place);
    }
}

pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

impl PrivateDirectory {
    pub(crate) fn make(scratch: &Path) -> Result<Self, Error> {
        fs::create_dir_all(scratch).map_err(Error::file("make", scratch))?;
        let _alone = alone_in(scratch).map_err(Error::file("lock", scratch))?;
        sweep(scratch).map_err(Error::file("clear", scratch))?;
        let root = tempfile::Builder::new().prefix(PREFIX).tempdir_in(scratch);
        let root = root.map_err(Error::file("make a directory in", scratch))?;
        let path = root.path().join(LOCK);
        let lock = create_private(&path).map_err(Error::file("make", &path))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| Error::file("lock", &path)(error.into()))?;
        Ok(PrivateDirectory { root, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.root.path().join("etcd.log")).unwrap_or_default();
        let mut last: Vec<&str> = log.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        last.reverse();
        last.join(" | ")
    }
}

/// While this is held, nobody else makes a directory there: one without a lock was left by a process that was killed before it
/// could make that.
fn alone_in(scratch: &Path) -> io::Result<File> {
    let directory = File::open(scratch)?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Removes what a process that was killed left behind, its etcd included.
fn sweep(scratch: &Path) -> io::Result<()> {
    for entry in fs::read_dir(scratch)? {
        let path = entry?.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if ours && !is_in_use(&path)? {
            end_all_in(&path);
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

fn is_in_use(directory: &Path) -> io::Result<bool> {
    match File::open(directory.join(LOCK)) {
        Ok(lock) => Ok(rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for the end, too: what is dying still writes, and would leave a directory that nobody knows.
fn end_all_in(root: &Path) {
    let until = std::time::Instant::now() + ENDING;
    while let Some(pid) = running_in(root).filter(|_| std::time::Instant::now() < until) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        std::thread::sleep(PAUSE);
    }
}

/// The etcd whose data is there, or the program that puts it there.
fn running_in(root: &Path) -> Option<Pid> {
    let argument = data_argument(&root.join("data"));
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let found = line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes());
        if found { Pid::from_raw(pid) } else { None }
    })
}

fn data_argument(data: &Path) -> String {
    format!("--data-dir={}", data.display())
}

/// What the file itself says. The etcd that runs on it may have counted on by the time that it is asked.
async fn revision_of(programs: &Programs, snapshot: &Path) -> Result<i64, Error> {
    #[derive(Deserialize)]
    struct Status {
        revision: i64,
    }
    let mut command = Command::new(&programs.restorer);
    let said = run(programs, command.args(["snapshot", "status", "--write-out=json"]).arg(snapshot)).await?;
    let told: Result<Status, _> = serde_json::from_slice(&said);
    told.map(|status| status.revision).map_err(|error| Error::Throwaway {
        why: format!("could not be restored: cannot read its exit status: {error}"),
    })
}

/// Where the last revisions were deletions and are compacted, no key bears the last one, and the file says less than etcd counts. etcd
/// begins with one.
async fn counted(client: &Client, revision: i64) -> Result<i64, Error> {
    match client.status().await?.revision == revision {
        true => Ok(revision),
        false => Ok(revision.max(client.hash_kv(0).await?.compact_revision).max(1)),
    }
}

async fn restore(
    programs: &Programs,
    snapshot: &Path,
    place: &PrivateDirectory,
    bump_revision: u64,
) -> Result<(), Error> {
    let mut command = Command::new(&programs.restorer);
    command.args(["snapshot", "restore"]).arg(snapshot).args([
        data_argument(&place.data()).as_str(),
        "--name=throwaway",
        "--initial-cluster=throwaway=http://localhost:2380",
    ]);
    if bump_revision > 0 {
        command.arg(format!("--bump-revision={bump_revision}")).arg("--mark-compacted");
    }
    run(programs, &mut command).await.map(drop)
}

async fn run(programs: &Programs, command: &mut Command) -> Result<Vec<u8>, Error> {
    let done = timeout(RESTORING, clean(command).output()).await;
    let failed = |why: String| Error::Throwaway { why: format!("could not be restored: {why}") };
    let output = done
        .map_err(|_| failed(format!("it took longer than {} s", RESTORING.as_secs())))?
        .map_err(Error::file("run", &programs.restorer))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(said.trim().lines().last().unwrap_or_default().to_owned()))
}

fn spawn(programs: &Programs, place: &PrivateDirectory, endpoint: &str, snapshot_bytes: u64) -> Result<Child, Error> {
    let log = place.root.path().join("etcd.log");
    let log = File::create(&log).map_err(Error::file("make", &log))?;
    let errors = log.try_clone().map_err(Error::file("make the log in", place.root.path()))?;
    // Replaying adds to what was within the cluster's own quota.
    let quota = (8_u64 << 30).max(snapshot_bytes.saturating_mul(3));
    let mut command = Command::new(&programs.etcd);
    command.arg(data_argument(&place.data())).args([
        "--name=throwaway",
        &format!("--listen-client-urls={endpoint}"),
        &format!("--advertise-client-urls={endpoint}"),
        // A socket in the private directory: nobody else is to join.
        "--listen-peer-urls=unix://peer:0",
        "--cert-file=server.crt",
        "--key-file=server.key",
        "--trusted-ca-file=ca.crt",
        "--client-cert-auth=true",
        "--enable-grpc-gateway=false",
        "--max-txn-ops=100000000",
        "--max-request-bytes=1073741824",
        &format!("--quota-backend-bytes={quota}"),
        "--logger=zap",
        "--log-level=warn",
    ]);
    if !programs.version.starts_with("3.4.") {
        command.arg("--unsafe-no-fsync");
    }
    clean(&mut command).current_dir(place.root.path()).stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().map_err(Error::file("run", &programs.etcd))
}

/// Settings of this process's environment are not meant for it.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD") {
            command.env_remove(name);
        }
    }
    command.kill_on_drop(true)
}

/// Until it leads itself and answers.
async fn ready(etcd: &mut Child, client: &Client, place: &PrivateDirectory) -> Result<(), Error> {
    let failed = |how: &str| Error::Throwaway { why: format!("{how}: {}", place.last_words()) };
    let until = Instant::now() + STARTING;
    while Instant::now() < until {
        if let Ok(Some(status)) = etcd.try_wait() {
            return Err(failed(&format!("ended ({status})")));
        }
        if client.linearizable_read_ok().await.is_ok() {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
    Err(failed("did not answer in time"))
}

fn free_port(address: IpAddr) -> io::Result<u16> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}

struct Credentials {
    ca_pem: String,
    chain: String,
    key: String,
}

impl Credentials {
    /// Writes the server's into the directory, and keeps root's.
    fn make(place: &PrivateDirectory, address: IpAddr) -> Result<Self, Error> {
        let now = Timestamp::now();
        let subject = AuthoritySubject { common_name: String::from("throwaway"), organization: None };
        let authority = Authority::generate(&subject, KeyAlgorithm::P256, DAY, now)?;
        let leaf = |name: &str, server: bool| -> Result<(String, String), Error> {
            let key = KeyPair::generate(KeyAlgorithm::P256)?;
            let wish = LeafWish {
                common_name: name.to_owned(),
                organization: None,
                dns: Vec::new(),
                addresses: if server { vec![address] } else { Vec::new() },
                server,
                client: true,
                validity: DAY,
            };
            Ok((authority.sign(&key.csr(name)?, &wish, now)?, key.to_pem().expose().to_owned()))
        };
        let (server, server_key) = leaf("throwaway", true)?;
        let ca_pem = authority.certificate_pem().to_owned();
        for (name, text) in [("ca.crt", &ca_pem), ("server.crt", &server), ("server.key", &server_key)] {
            let path = place.root.path().join(name);
            let written = create_private(&path).and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(Error::file("write", &path))?;
        }
        let (chain, key) = leaf("root", false)?;
        Ok(Credentials { ca_pem, chain, key })
    }

    fn options(&self, endpoint: String) -> ConnectOptions {
        let mut options = ConnectOptions::new(endpoint, self.ca_pem.as_str());
        options.identity = Some((self.chain.clone(), self.key.clone()));
        options.request_timeout = REQUEST;
        options
    }
}

/// The hash at the same revision, and compacted as far as the other was if that is possible: only then do they compare.
pub(crate) async fn hash_as(client: &Client, other: Hash) -> Result<Hash, Error> {
    let hash = hash_at(client, other.revision).await?;
    if hash.compact_revision >= other.compact_revision {
        return Ok(hash);
    }
    client.compact(other.compact_revision, true).await?;
    hash_at(client, other.revision).await
}

/// As [`crate::source::hash_at`].
async fn hash_at(client: &Client, revision: i64) -> Result<Hash, Error> {
    match client.hash_kv(revision).await {
        Err(compacted @ quorate_etcd::Error::Compacted { .. }) => {
            let newest = client.hash_kv(0).await?;
            if newest.revision == revision { Ok(newest.into()) } else { Err(compacted.into()) }
        }
        told => Ok(told?.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_a_killed_process_are_removed_and_directories_in_use_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let left = |name: &str| scratch.path().join(format!("{PREFIX}{name}"));
        // Killed before it had a lock, and after.
        fs::create_dir(left("early")).unwrap();
        fs::create_dir(left("late")).unwrap();
        fs::write(left("late").join(LOCK), "").unwrap();
        fs::create_dir(scratch.path().join("of somebody else")).unwrap();
        let first = PrivateDirectory::make(scratch.path()).unwrap();
        assert!(!left("early").exists() && !left("late").exists() && scratch.path().join("of somebody else").exists());
        let second = PrivateDirectory::make(scratch.path()).unwrap();
        assert!(first.path().exists() && second.path().exists());
    }
}
