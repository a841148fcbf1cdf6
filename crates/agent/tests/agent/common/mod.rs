//! A machine for tests: a root directory, an address, and the two CAs of a controller. The agent runs on a thread with
//! a separate runtime, which is dropped as abruptly as by a kill.

#![allow(dead_code, reason = "what is made for several tests may be used by none of them")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use quorate_agent::api::{
    Bootstrap, Certificate, EnrolRequest, Envelope, EtcdOrder, FactsRequest, Identity, Order, Refusal, Seed,
};
use quorate_agent::client::{AgentClient, ClientError, Look};
use quorate_agent::{Options, Supervisor};
use quorate_core::Secret;
use quorate_core::kinds::etcd::AuthOp;
use quorate_core::kinds::etcd::Membership;
use quorate_core::model::{
    AGENT_PORT, BinarySource, CertificateUse, ConfigFile, DataSeen, EtcdService, Facts, MemberName, NodeConfig, Runs,
    ServiceConfig, Stamp,
};
use quorate_core::spec::CertificateLayout;
use quorate_etcd::ConnectOptions;
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::oneshot;

pub const VERSION: &str = "3.5.30";
const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

pub struct Machine {
    pub directory: tempfile::TempDir,
    pub address: IpAddr,
    pub member: MemberName,
    pub control: Arc<Authority>,
    pub etcd: Arc<Authority>,
    pub token: Secret,
    agent: Option<Running>,
}

struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Machine {
    /// A machine whose agent runs.
    pub async fn new() -> Self {
        let mut machine = Self::off();
        machine.begin().await;
        machine
    }

    /// Another machine of the same cluster, whose agent is enrolled and whose etcd can be started.
    pub async fn beside(&self, member: &str, config: &NodeConfig) -> (Self, AgentClient) {
        let mut machine = Self::off();
        (machine.member, machine.control, machine.etcd) = (member.into(), self.control.clone(), self.etcd.clone());
        machine.begin().await;
        let client = machine.made_ready(config).await;
        (machine, client)
    }

    async fn begin(&mut self) {
        self.seed(self.token.clone(), Timestamp::now() + SignedDuration::from_hours(1));
        self.start_agent().await;
    }

    async fn made_ready(&self, config: &NodeConfig) -> AgentClient {
        let client = self.client();
        self.enrol(&client).await;
        self.install_certificates(&client).await;
        order(&client, 1, Order::converge(1, config.clone(), None)).await.unwrap();
        client
    }

    pub fn off() -> Self {
        Machine {
            directory: tempfile::tempdir().unwrap(),
            address: free_address(),
            member: identity().member,
            control: Arc::new(authority("control")),
            etcd: Arc::new(authority("etcd")),
            token: quorate_pki::random_token(),
            agent: None,
        }
    }

    pub fn identity(&self) -> Identity {
        Identity { member: self.member.clone(), ..identity() }
    }

    pub fn stamp(&self, token: &str) -> Stamp {
        Stamp { member: self.member.clone(), ..stamp(token) }
    }

    pub fn peer_url(&self) -> String {
        format!("https://{}:2380", self.address)
    }

    /// etcd as its user root, by certificate.
    pub fn root_client(&self) -> quorate_etcd::Client {
        let (chain, key) = self.leaf(&self.etcd, "root", false, true);
        let mut options =
            ConnectOptions::new(format!("https://{}:2379", self.address), self.etcd.certificate_pem().to_owned());
        options.identity = Some((chain, key.expose().to_owned()));
        quorate_etcd::Client::connect(options).unwrap()
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn seed_file(&self) -> PathBuf {
        self.directory.path().join("seed.json")
    }

    pub fn seed(&self, token: Secret, token_expires: Timestamp) {
        let Identity { cluster_id, member, incarnation } = self.identity();
        let seed = Seed {
            cluster: String::from("test"),
            cluster_id,
            member,
            incarnation,
            address: self.address,
            control_ca: self.control.certificate_pem().to_owned(),
            token,
            token_expires,
        };
        fs::write(self.seed_file(), serde_json::to_vec(&seed).unwrap()).unwrap();
    }

    pub async fn start_agent(&mut self) {
        self.start(false).await;
    }

    /// As the agent of a machine whose older program waits for its success.
    pub async fn start_agent_on_trial(&mut self) {
        self.start(true).await;
    }

    async fn start(&mut self, on_trial: bool) {
        let options = Options {
            root: self.root(),
            seed: self.seed_file(),
            cache: Some(self.directory.path().join("cache")),
            supervisor: Supervisor::Child,
            channel: None,
            on_trial,
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    ended = quorate_agent::serve(options, None) => panic!("the agent ended: {ended:?}"),
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        self.agent = Some(Running { stop, thread });
        until("the agent answers", async || tokio::net::TcpStream::connect((self.address, AGENT_PORT)).await.ok())
            .await;
    }

    pub fn stop_agent(&mut self) {
        if let Some(Running { stop, thread }) = self.agent.take() {
            let _ = stop.send(());
            thread.join().unwrap();
        }
    }

    /// A leaf and its key from one of the CAs.
    pub fn leaf(&self, authority: &Authority, name: &str, server: bool, client: bool) -> (String, Secret) {
        let key = KeyPair::generate(KeyAlgorithm::P256).unwrap();
        let wish = wish(name, Vec::new(), server, client);
        (authority.sign(&key.csr(name).unwrap(), &wish, Timestamp::now()).unwrap(), key.to_pem())
    }

    pub fn client(&self) -> AgentClient {
        let controller = self.leaf(&self.control, "controller", false, true);
        AgentClient::new(self.address, self.control.certificate_pem(), controller, self.identity()).unwrap()
    }

    /// Signs a request for a server and client at this machine's address.
    pub fn sign(&self, authority: &Authority, request: &str, name: &str) -> String {
        authority.sign(request, &wish(name, vec![self.address], true, true), Timestamp::now()).unwrap()
    }

    pub fn sign_agent(&self, request: &str) -> String {
        self.sign_agent_for(request, YEAR)
    }

    pub fn sign_agent_for(&self, request: &str, validity: SignedDuration) -> String {
        let wish = LeafWish { validity, ..wish(&self.identity().common_name(), vec![self.address], true, false) };
        self.control.sign(request, &wish, Timestamp::now()).unwrap()
    }

    /// Enrols the agent as a controller does.
    pub async fn enrol(&self, client: &AgentClient) {
        let request = EnrolRequest { nonce: String::from("nonce"), key_algorithm: KeyAlgorithm::P256 };
        // As a controller does, it asks again while a busy machine does not answer in time.
        let mut enrolled = client.enrol(&request).await;
        for _ in 0..20 {
            match &enrolled {
                Err(ClientError::Unreachable { .. }) => enrolled = client.enrol(&request).await,
                _ => break,
            }
        }
        let (answer, served) = enrolled.unwrap();
        assert!(answer.proves(&self.token, "nonce", &served));
        let chain = self.sign_agent(&answer.requests[&CertificateUse::Agent]);
        client.enrol_certificate(chain).await.unwrap();
    }

    /// Signs what the agent asks for and has it installed.
    pub async fn install_certificates(&self, client: &AgentClient) {
        let Look::Facts(facts) =
            client.look(&FactsRequest { fence: None, auth: false, reach: Default::default() }).await.unwrap()
        else {
            panic!("the agent is not enrolled");
        };
        let requests = facts.requests;
        let sign = |of: CertificateUse, name: &str| {
            let addresses = vec![self.address, "127.0.0.1".parse().unwrap()];
            let wish = wish(name, addresses, of == CertificateUse::Member, true);
            let chain = self.etcd.sign(&requests[&of], &wish, Timestamp::now()).unwrap();
            (of, Certificate { chain, key: None })
        };
        let certificates =
            BTreeMap::from([sign(CertificateUse::Member, self.member.as_str()), sign(CertificateUse::Root, "root")]);
        let trust = self.etcd.certificate_pem().to_owned();
        order(client, 1, Order::InstallCertificates { trust, certificates }).await.unwrap();
    }

    /// Enrolled, with certificates and node config, ready to start etcd.
    pub async fn ready() -> (Self, AgentClient) {
        Self::ready_with(&config()).await
    }

    pub async fn ready_with(config: &NodeConfig) -> (Self, AgentClient) {
        let machine = Self::new().await;
        let client = machine.made_ready(config).await;
        (machine, client)
    }

    pub fn bootstrap(&self, token: &str) -> Bootstrap {
        let initial_cluster = BTreeMap::from([(self.member.clone(), self.peer_url())]);
        Bootstrap { stamp: self.stamp(token), initial_cluster, existing: false }
    }

    pub async fn start_etcd(&self, client: &AgentClient, token: &str) -> Result<(), Refusal> {
        let bootstrap = Some(self.bootstrap(token));
        order(client, 1, Order::Etcd(EtcdOrder::Start { expects: DataSeen::Empty, bootstrap, peers: BTreeSet::new() }))
            .await
    }

    /// Three members of one cluster, healthy.
    pub async fn three(config: &NodeConfig) -> [(Self, AgentClient); 3] {
        let one = Self::ready_with(config).await;
        let two = one.0.beside("etcd-2", config).await;
        let three = one.0.beside("etcd-3", config).await;
        let all = [one, two, three];
        let urls = all.iter().map(|(machine, _)| (machine.member.clone(), machine.peer_url()));
        let initial_cluster = BTreeMap::from_iter(urls);
        for (machine, client) in &all {
            let (stamp, initial_cluster) = (machine.stamp("t-1"), initial_cluster.clone());
            let bootstrap = Some(Bootstrap { stamp, initial_cluster, existing: false });
            order(
                client,
                1,
                Order::Etcd(EtcdOrder::Start { expects: DataSeen::Empty, bootstrap, peers: BTreeSet::new() }),
            )
            .await
            .unwrap();
        }
        for (machine, client) in &all {
            machine.healthy(client).await;
        }
        all
    }

    /// 3.4 has no etcdutl of its own.
    pub fn lend_etcdutl(&self) {
        let cache = self.directory.path().join("cache/etcdutl");
        fs::create_dir_all(&cache).unwrap();
        std::os::unix::fs::symlink(programs(VERSION).join("etcdutl"), cache.join("etcdutl")).unwrap();
    }

    pub fn data(&self) -> PathBuf {
        self.root().join("var/lib/etcd")
    }

    /// Starts a member that has been added to the cluster of `others`.
    pub async fn join(&self, client: &AgentClient, token: &str, others: &[&Machine]) -> Result<(), Refusal> {
        let mut bootstrap = Bootstrap { existing: true, ..self.bootstrap(token) };
        // What the others are called is of no account.
        let urls = others.iter().enumerate().map(|(n, other)| (format!("other#{n}").into(), other.peer_url()));
        bootstrap.initial_cluster.extend(urls);
        order(
            client,
            1,
            Order::Etcd(EtcdOrder::Start {
                expects: DataSeen::Empty,
                bootstrap: Some(bootstrap),
                peers: BTreeSet::new(),
            }),
        )
        .await
    }

    pub async fn healthy(&self, client: &AgentClient) -> Facts {
        until("etcd is healthy", async || {
            let facts = facts(client).await;
            facts.etcd.status.as_ref().is_some_and(|status| status.healthy).then_some(facts)
        })
        .await
    }

    /// The etcd processes on this machine's data.
    pub fn etcds(&self) -> Vec<i32> {
        let argument = format!("--data-dir={}", self.root().join("var/lib/etcd").display());
        let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let ours = |pid: &i32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|one| one == argument.as_bytes())
        };
        pids.filter(ours).collect()
    }

    /// One that is killed has ended afterwards: until then an agent that starts would find it, and files come and go. One that is stopped
    /// stands still: the kernel stops threads that run elsewhere some time later, and until then they answer.
    pub fn signal_etcd(&self, signal: Signal) {
        for pid in self.etcds().into_iter().filter_map(Pid::from_raw) {
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            let _ = pidfd_send_signal(&process, signal);
            if signal == Signal::KILL {
                let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
                let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience));
                assert_eq!(ended, Ok(1), "it does not end");
            }
            if signal == Signal::STOP {
                eventually_still(pid);
            }
        }
    }
}

fn eventually_still(pid: Pid) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !stands_still(pid) {
        assert!(Instant::now() < deadline, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether every thread is stopped, or has ended.
fn stands_still(pid: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return true };
    let state = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    threads.flatten().filter_map(state).all(|state| matches!(state, 'T' | 'X' | 'Z'))
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The agent first, so that it brings nothing back.
        if let Some(Running { stop, thread }) = self.agent.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
        self.signal_etcd(Signal::KILL);
    }
}

pub fn identity() -> Identity {
    Identity { cluster_id: String::from("c0ffee"), member: "etcd-1".into(), incarnation: 1 }
}

pub fn stamp(token: &str) -> Stamp {
    let Identity { cluster_id, member, incarnation } = identity();
    Stamp { cluster_id, token: token.to_owned(), member, incarnation }
}

pub fn authority(name: &str) -> Authority {
    let subject = AuthoritySubject { common_name: name.to_owned(), organization: None };
    Authority::generate(&subject, KeyAlgorithm::P256, YEAR, Timestamp::now()).unwrap()
}

fn wish(name: &str, addresses: Vec<IpAddr>, server: bool, client: bool) -> LeafWish {
    LeafWish {
        common_name: name.to_owned(),
        organization: None,
        dns: Vec::new(),
        addresses,
        server,
        client,
        validity: YEAR,
    }
}

/// A node config of a member, known by certificates.
pub fn config() -> NodeConfig {
    config_of(VERSION)
}

pub fn config_of(version: &str) -> NodeConfig {
    let pki = "{root}/etc/etcd/pki";
    let flags = [
        ("listen-client-urls", String::from("https://{address}:2379")),
        ("advertise-client-urls", String::from("https://{address}:2379")),
        ("listen-peer-urls", String::from("https://{address}:2380")),
        ("cert-file", format!("{pki}/member.crt")),
        ("key-file", format!("{pki}/member.key")),
        ("trusted-ca-file", format!("{pki}/ca.crt")),
        ("client-cert-auth", String::from("true")),
        ("peer-cert-file", format!("{pki}/member.crt")),
        ("peer-key-file", format!("{pki}/member.key")),
        ("peer-trusted-ca-file", format!("{pki}/ca.crt")),
        ("peer-client-cert-auth", String::from("true")),
    ];
    NodeConfig {
        files: vec![file("etc/quorate/note", "one")],
        services: vec![ServiceConfig {
            name: String::from("etcd"),
            user: String::from("etcd"),
            runs: Runs::Etcd(EtcdService {
                version: version.to_owned(),
                binary: BinarySource::Path(programs(version).display().to_string()),
                flags: flags.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                layout: CertificateLayout::Standard,
                pod: None,
            }),
            inputs: BTreeSet::new(),
        }],
        host: None,
    }
}

pub fn file(path: &str, content: &str) -> ConfigFile {
    ConfigFile::text(path, 0o600, Secret::new(content))
}

/// One version of each minor; a test that finds one missing says so.
pub const VERSIONS: [&str; 4] = ["3.4.23", VERSION, "3.6.16", "3.7.3"];

/// Where xtask puts programs for tests.
pub fn lab() -> PathBuf {
    let cache = || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let lab = std::env::var_os("QUORATE_LAB").map(PathBuf::from);
    lab.unwrap_or_else(|| cache().or_else(home).unwrap().join("quorate-lab"))
}

pub fn programs(version: &str) -> PathBuf {
    let directory = lab().join("etcd").join(version);
    assert!(directory.join("etcd").exists(), "etcd {version} is not at hand: run `cargo xtask etcd`");
    directory
}

pub async fn order(client: &AgentClient, fence: u64, order: Order) -> Result<(), Refusal> {
    match client.order(&Envelope { fence, order }).await {
        Ok(()) => Ok(()),
        Err(ClientError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

/// Makes root known, by certificate or password, and turns authentication on.
pub async fn turn_auth_on(client: &AgentClient, password: Option<&str>) {
    let root = || String::from("root");
    let (user, role) = (root(), root());
    let ops = [
        (AuthOp::AddUser { user: root() }, password.map(Secret::new)),
        (AuthOp::AddRole { role: root() }, None),
        (AuthOp::GrantRole { user, role }, None),
        (AuthOp::Enable, None),
    ];
    for (op, password) in ops {
        order(client, 1, Order::Etcd(EtcdOrder::Auth { op, password })).await.unwrap();
    }
}

/// Copies a directory with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub async fn facts(client: &AgentClient) -> Facts {
    match client.look(&FactsRequest { fence: None, auth: false, reach: Default::default() }).await.unwrap() {
        Look::Facts(facts) => *facts,
        look => panic!("{look:?}"),
    }
}

/// The members as etcd lists them there.
pub fn membership(facts: &Facts) -> Membership {
    let status = facts.etcd.status.as_ref().expect("etcd gives its status");
    status.members.iter().map(|member| (member.id, member.is_learner)).collect()
}

/// Asks until there is an answer, for 20 s.
pub async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An address in 127.201.0.0/16 that nobody uses, other test runs included.
fn free_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = std::process::id().wrapping_mul(7919).wrapping_add(next);
        let address = IpAddr::from([127, 201, (place >> 8) as u8, place as u8 % 254 + 1]);
        if [2379, 2380, AGENT_PORT, 2391].into_iter().all(|port| TcpListener::bind((address, port)).is_ok()) {
            return address;
        }
    }
}
