//! The best manual procedure: etcd's own calls from within this process, each as soon as the previous one is answered, with certificates
//! and addresses created beforehand. Flags, certificates and programs are the same as quorate's.

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_core::kinds::etcd::desire::{Peers, etcd_flags};
use quorate_core::kinds::etcd::spec::TokenKind;
use quorate_core::model::{ADDRESS, CLIENT_PORT, PEER_PORT, ROOT};
use quorate_core::spec::{ClusterSpec, MemberSpec};
use quorate_etcd::{Client, ConnectOptions, Error};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::hand::{ONE_DAY, free_addresses, issue};
use crate::{Change, PAUSE, Result, Sample, is_well, let_the_last_lead, measure, program};

/// Between two starts when the cluster is formed.
const STAGGER: Duration = Duration::from_millis(150);
/// Between two tries of a change of the members that etcd refuses for now.
const NEXT_TRY: Duration = Duration::from_millis(50);
/// The second number of its addresses: benchmarks may run in parallel.
const ADDRESSES: u8 = 211;

pub async fn sample(change: Change, before: &ClusterSpec, after: &ClusterSpec) -> Result<Sample> {
    let directory = tempfile::tempdir()?;
    // Declared after the directory, so that it ends the processes before their files go.
    let mut cluster = Cluster::prepare(directory.path(), before)?;
    cluster.form(before).await?;
    let members: Vec<ConnectOptions> = cluster.members.iter().map(|member| member.options.clone()).collect();
    let_the_last_lead(&members).await?;
    let version = after.etcd.version.to_string();
    match change {
        Change::Restart => measure(&members, None, cluster.roll(after)).await,
        Change::Upgrade => measure(&members, Some(&version), cluster.roll(after)).await,
        Change::Replace => measure(&members, None, cluster.replace_leader(after)).await,
    }
}

struct Cluster {
    members: Vec<Member>,
    /// Takes the place of one of them.
    spare: Option<Member>,
}

struct Member {
    spec: MemberSpec,
    address: IpAddr,
    directory: PathBuf,
    /// As root.
    options: ConnectOptions,
    client: Client,
    /// Known once it has started.
    id: u64,
    process: Option<Child>,
}

impl Cluster {
    /// All that needs no etcd.
    fn prepare(directory: &Path, spec: &ClusterSpec) -> Result<Self> {
        let subject = AuthoritySubject { common_name: String::from("by hand"), organization: None };
        let authority = Authority::generate(&subject, KeyAlgorithm::P256, ONE_DAY, Timestamp::now())?;
        let root = issue(&authority, "root", None)?;
        let spare = MemberSpec::named("spare".parse()?);
        let seats: Vec<MemberSpec> = spec.members.iter().cloned().chain([spare]).collect();
        let addresses = free_addresses(ADDRESSES, seats.len())?;
        let prepare = |(seat, address): (MemberSpec, IpAddr)| {
            Member::prepare(&directory.join(seat.name.as_str()), seat, address, &authority, &root)
        };
        let mut members = seats.into_iter().zip(addresses).map(prepare).collect::<Result<Vec<_>>>()?;
        let spare = members.pop();
        Ok(Self { members, spare })
    }

    async fn form(&mut self, spec: &ClusterSpec) -> Result<()> {
        let all: Vec<String> = self.members.iter().map(Member::in_initial_cluster).collect();
        for member in &mut self.members {
            member.start(spec, Some(("new", &all)))?;
            sleep(STAGGER).await;
        }
        for member in &mut self.members {
            member.until_well().await?;
            member.id = member.client.status().await?.member_id;
        }
        let client = &self.members[0].client;
        client.user_add("root", None).await?;
        client.role_add("root").await?;
        client.user_grant_role("root", "root").await?;
        Ok(client.auth_enable().await?)
    }

    /// Restarts every member, the leader last and after it has handed over.
    async fn roll(&mut self, spec: &ClusterSpec) -> Result<()> {
        let leader = self.leader().await?;
        let followers: Vec<usize> = (0..self.members.len()).filter(|at| *at != leader).collect();
        for at in followers.iter().copied() {
            self.restart(at, spec).await?;
        }
        self.hand_over(leader, followers[0]).await?;
        self.restart(leader, spec).await
    }

    async fn restart(&mut self, at: usize, spec: &ClusterSpec) -> Result<()> {
        let member = &mut self.members[at];
        let begun = Instant::now();
        member.stop().await?;
        let stopped = begun.elapsed();
        member.start(spec, None)?;
        member.until_well().await?;
        eprintln!("{}: stopped after {stopped:.1?}, well after {:.1?}", member.spec.name, begun.elapsed());
        Ok(())
    }

    /// Puts the spare in the leader's place: it learns and votes before the leader goes.
    async fn replace_leader(&mut self, spec: &ClusterSpec) -> Result<()> {
        let leader = self.leader().await?;
        let mut spare = self.spare.take().ok_or("the spare was used")?;
        let added = self.members[leader].client.clone();
        spare.id = when_willing(|| added.member_add(vec![spare.peer_url()], true)).await?.id;
        let all: Vec<String> = self.members.iter().chain([&spare]).map(Member::in_initial_cluster).collect();
        spare.start(spec, Some(("existing", &all)))?;
        when_willing(|| added.member_promote(spare.id)).await?;
        spare.until_well().await?;
        let successor = (leader + 1) % self.members.len();
        self.hand_over(leader, successor).await?;
        let through = self.members[successor].client.clone();
        let old = self.members[leader].id;
        when_willing(|| through.member_remove(old)).await?;
        self.members[leader].stop().await?;
        self.members[leader] = spare;
        Ok(())
    }

    async fn hand_over(&self, leader: usize, to: usize) -> Result<()> {
        Ok(self.members[leader].client.move_leader(self.members[to].id).await?)
    }

    async fn leader(&self) -> Result<usize> {
        let leader = self.members[0].client.status().await?.leader;
        Ok(self.members.iter().position(|member| member.id == leader).ok_or("there is no leader")?)
    }
}

/// etcd refuses changes of its members while a learner has not caught up, and for some seconds after a start.
async fn when_willing<T, F>(change: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = std::result::Result<T, Error>>,
{
    loop {
        match change().await {
            Err(Error::UnhealthyCluster | Error::LearnerNotReady) => sleep(NEXT_TRY).await,
            done => return Ok(done?),
        }
    }
}

impl Member {
    fn prepare(
        directory: &Path,
        spec: MemberSpec,
        address: IpAddr,
        authority: &Authority,
        root: &(String, String),
    ) -> Result<Self> {
        let (certificate, key) = issue(authority, spec.name.as_str(), Some(address))?;
        let ca = authority.certificate_pem();
        let pki = directory.join("etc/etcd/pki");
        fs::create_dir_all(&pki)?;
        fs::create_dir_all(directory.join("var/lib"))?;
        fs::write(pki.join("ca.crt"), ca)?;
        fs::write(pki.join("member.crt"), certificate)?;
        fs::write(pki.join("member.key"), key)?;
        let endpoint = format!("https://{address}:{CLIENT_PORT}");
        let options = ConnectOptions { identity: Some(root.clone()), ..ConnectOptions::new(endpoint, ca) };
        let client = Client::connect(options.clone())?;
        Ok(Self { spec, address, directory: directory.to_owned(), options, client, id: 0, process: None })
    }

    fn peer_url(&self) -> String {
        format!("https://{}:{PEER_PORT}", self.address)
    }

    fn in_initial_cluster(&self) -> String {
        format!("{}={}", self.spec.name, self.peer_url())
    }

    /// `first` is for a first start: into a cluster that is new or existing, and of whom.
    fn start(&mut self, spec: &ClusterSpec, first: Option<(&str, &[String])>) -> Result<()> {
        let fill_in = |value: &str| {
            value.replace(ROOT, &self.directory.display().to_string()).replace(ADDRESS, &self.address.to_string())
        };
        let flags = etcd_flags(spec, &self.spec, TokenKind::Simple, Peers::CaOfClients);
        let mut arguments: Vec<String> =
            flags.iter().map(|(name, value)| format!("--{name}={}", fill_in(value))).collect();
        if let Some((state, all)) = first {
            arguments.extend([
                format!("--initial-cluster={}", all.join(",")),
                format!("--initial-cluster-state={state}"),
                String::from("--initial-cluster-token=by-hand"),
                format!("--initial-advertise-peer-urls={}", self.peer_url()),
            ]);
        }
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(program(spec)?);
        command.args(arguments).env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.spawn()?);
        Ok(())
    }

    async fn stop(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        // One that has ended already, as a removed member does, has no id any more.
        if let Some(pid) = process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            kill_process(pid, Signal::TERM)?;
        }
        process.wait().await?;
        Ok(())
    }

    async fn until_well(&mut self) -> Result<()> {
        while !is_well(&self.client).await {
            if let Some(status) = self.process.as_mut().map(Child::try_wait).transpose()?.flatten() {
                let words = fs::read_to_string(self.log()).unwrap_or_default();
                return Err(format!("etcd ended: {status}\n{}", words.lines().next_back().unwrap_or_default()).into());
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("etcd.log")
    }
}
