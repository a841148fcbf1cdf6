//! Starts and stops etcd, and wipes its data. The rules here are the last defence against two clusters with one name: the
//! data must be what was expected, `new` is used on empty disks only, and lost data is never mistaken for a new machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::kinds::etcd::{SERVICE, pki};
use quorate_core::model::{BinarySeen, CertificateUse, DataSeen, EtcdService, Exit, NodeConfig, ServiceState, Stamp};
use quorate_core::spec::CertificateLayout;
use tokio::time::timeout;

use super::data;
use super::service::data_argument;
use crate::agent::Agent;
use crate::api::{Bootstrap, Refusal};
use crate::error::Obstacle;
use crate::kinds::etcd::binaries::{self, BinaryError};
use crate::kinds::etcd::trust;
use crate::services::static_pod::{self, manifest::Pod};
use crate::services::{Launch, PATIENT};
use crate::stamp::{check_own, describe};
use crate::state::State;
use crate::{AgentError, blocking, reach};

/// How long the network may take after a boot.
const NETWORK: Duration = Duration::from_secs(30);
/// The pause between attempts to start what should run.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// For a program that is to be on the machine. One that is not is fetched by an order, not by a boot.
const FINDING: Duration = Duration::from_secs(15);
/// Below the root: everything that is written for etcd is there, except certificates in kubeadm's layout.
const CONFIGURATION: &str = "etc/etcd";
/// The time limit for etcd's identity.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

impl Agent {
    pub(crate) async fn look_at_data(&self) -> Result<DataSeen, AgentError> {
        let layout = self.layout.clone();
        blocking(move || data::look(&layout)).await
    }

    pub(crate) async fn start_etcd(
        self: &Arc<Self>,
        expects: DataSeen,
        bootstrap: Option<Bootstrap>,
        peers: BTreeSet<String>,
    ) -> Result<(), Refusal> {
        self.find_binary_again().await?;
        let state = self.state.get();
        let launch = self.launch(&state, bootstrap.as_ref())?;
        let found = self.look_at_data().await?;
        if self.runs_already(&launch, &found, bootstrap.as_ref()).await? {
            return Ok(());
        }
        if found != expects {
            return Err(Refusal::not_as_expected(describe(&expects), describe(&found)));
        }
        match (&found, bootstrap) {
            (DataSeen::Empty, Some(bootstrap)) => self.prepare_first_start(&state, bootstrap.stamp).await?,
            (DataSeen::Empty, None) => {
                return Err(Refusal::failed("the data directory is empty, and no bootstrap was named"));
            }
            (DataSeen::Stamped(_), Some(_)) => {
                return Err(Refusal::failed("a first start needs an empty data directory"));
            }
            (DataSeen::Stamped(stamp), None) => {
                // The data may be a copy of the disk of another time.
                if state.etcd.peers.is_empty() {
                    self.state.update(|state| state.etcd.peers = peers).await?;
                }
                self.check_age().await?;
                self.check_still_obeyed()?;
                let stamp = stamp.clone();
                let wanted =
                    |state: &mut State| (state.etcd.last_started, state.etcd.wanted_running) = (Some(stamp), true);
                self.state.update(wanted).await?;
            }
            (DataSeen::Unstamped, _) => {
                return Err(Refusal::failed("the data has no stamp that says which cluster it belongs to"));
            }
        }
        Ok(self.bring_up(launch).await?)
    }

    /// Every start comes through here, except those of systemd or the supervisor.
    async fn bring_up(self: &Arc<Self>, launch: Launch) -> Result<(), AgentError> {
        self.check_program(&launch).await?;
        self.check_log(&launch).await?;
        // What the etcd before gave out means nothing to one that starts on other data.
        self.etcd.access.forget_login();
        self.note_trust(&launch.digest).await?;
        self.etcd.service.start(launch, self.gate()).await?;
        self.etcd.not_started.lock().expect("no holder panics").take();
        self.begin_probing();
        // Those of the previous layout are useless now.
        if let Err(error) = self.put_certificates().await {
            tracing::warn!(error = error.in_full(), "certificates could not be put right");
        }
        Ok(())
    }

    /// A program can be exchanged in its place, as an upgrade of packages does. Another version is a change of the cluster, and those are
    /// planned: one member at a time, and only where etcd can go that way.
    pub(super) async fn check_program(&self, launch: &Launch) -> Result<(), AgentError> {
        let Some(wanted) = &launch.version else { return Ok(()) };
        let found = binaries::version_of(&launch.program, &self.cache).await?;
        if found == *wanted {
            return Ok(());
        }
        let (path, wanted) = (launch.program.clone(), wanted.clone());
        Err(AgentError::Binary(BinaryError::WrongVersion { path, found, wanted }))
    }

    /// Stamp and memory first: once etcd may have written, nobody must take this disk for a fresh one.
    async fn prepare_first_start(&self, state: &State, stamp: Stamp) -> Result<(), Refusal> {
        // Also when that was another formation: a member that begins again was wiped first, and this order is a late one.
        if let Some(earlier) = &state.etcd.last_started {
            let why = format!("etcd was started in bootstrap {} before, and its data is lost", earlier.token);
            return Err(Refusal::Failed { why });
        }
        check_own(state, &stamp)?;
        let (layout, written) = (self.layout.clone(), stamp.clone());
        blocking(move || data::prepare(&layout, &written)).await?;
        let wanted = |state: &mut State| (state.etcd.last_started, state.etcd.wanted_running) = (Some(stamp), true);
        Ok(self.state.update(wanted).await?)
    }

    /// An order whose answer was lost may be repeated.
    async fn runs_already(
        &self,
        launch: &Launch,
        found: &DataSeen,
        bootstrap: Option<&Bootstrap>,
    ) -> Result<bool, Refusal> {
        let digest = match self.etcd.service.look().await {
            ServiceState::Stopped => return Ok(false),
            ServiceState::Unknown { why } => {
                return Err(Refusal::failed(format!("cannot tell whether etcd is running: {why}")));
            }
            ServiceState::Running { digest, .. } => digest,
            // It is being started as it is.
            ServiceState::BackingOff { .. } => return Ok(true),
        };
        let other_formation =
            bootstrap.is_some_and(|bootstrap| matches!(found, DataSeen::Stamped(stamp) if *stamp != bootstrap.stamp));
        if digest != launch.digest || other_formation {
            return Err(Refusal::failed("etcd runs already, with other inputs"));
        }
        Ok(true)
    }

    pub(crate) async fn restart_etcd(self: &Arc<Self>) -> Result<(), Refusal> {
        let launch = self.launch_as_now().await?;
        self.restart_with(launch).await
    }

    /// How an etcd that is meant to run is started again.
    pub(super) async fn launch_as_now(&self) -> Result<Launch, Refusal> {
        if !self.state.get().etcd.wanted_running {
            return Err(Refusal::failed("etcd is not meant to run; order a start"));
        }
        self.find_binary_again().await?;
        self.launch(&self.state.get(), None)
    }

    pub(super) async fn restart_with(self: &Arc<Self>, launch: Launch) -> Result<(), Refusal> {
        self.check_program(&launch).await?;
        self.check_log(&launch).await?;
        self.check_data(&self.state.get()).await.map_err(Refusal::failed)?;
        match self.etcd.service.look().await {
            // The order has come before, or late: one restart more would take a healthy member away for nothing.
            ServiceState::Running { digest, .. } if digest == launch.digest && !self.runs_other(&launch).await => {
                return Ok(());
            }
            // Data that is in use until the restart is not outdated.
            ServiceState::Running { .. } => {}
            ServiceState::Unknown { why } => {
                return Err(Refusal::failed(format!("cannot tell whether etcd is running: {why}")));
            }
            ServiceState::Stopped | ServiceState::BackingOff { .. } => self.check_age().await?,
        }
        self.check_still_obeyed()?;
        self.etcd.prober.end();
        self.note_trust(&launch.digest).await?;
        self.etcd.service.stop(PATIENT).await?;
        Ok(self.bring_up(launch).await?)
    }

    /// Whether the running etcd reports another version.
    async fn runs_other(&self, launch: &Launch) -> bool {
        let Ok(client) = self.etcd.access.client(&self.state.get()) else { return false };
        let Ok(Ok(status)) = timeout(ANSWER, client.status()).await else { return false };
        launch.version.as_ref().is_some_and(|wanted| *wanted != status.version)
    }

    pub(crate) async fn stop_etcd(&self, patience: Duration) -> Result<(), Refusal> {
        self.state.update(|state| state.etcd.wanted_running = false).await?;
        self.etcd.prober.end();
        self.etcd.not_started.lock().expect("no holder panics").take();
        Ok(self.etcd.service.stop(patience).await?)
    }

    /// What touches data needs an etcd that is known to be stopped; one of which nothing is known may run.
    pub(super) async fn check_stopped(&self) -> Result<(), Refusal> {
        let expected = || String::from("a stopped etcd");
        match self.etcd.service.look().await {
            _ if self.state.get().etcd.wanted_running => {
                Err(Refusal::not_as_expected(expected(), String::from("one that runs or is meant to")))
            }
            ServiceState::Stopped => Ok(()),
            ServiceState::Unknown { why } => {
                Err(Refusal::not_as_expected(expected(), format!("one whose state is unknown: {why}")))
            }
            ServiceState::Running { .. } | ServiceState::BackingOff { .. } => {
                Err(Refusal::not_as_expected(expected(), String::from("one that runs or is meant to")))
            }
        }
    }

    pub(crate) async fn wipe_data(&self, stamp: Stamp) -> Result<(), Refusal> {
        let state = self.state.get();
        self.check_stopped().await?;
        let layout = self.layout.clone();
        let (found, marked) =
            blocking(move || Ok::<_, AgentError>((data::look(&layout)?, data::read_stamp(&layout)?))).await?;
        let remembered = state.etcd.last_started.as_ref();
        match (&found, &marked) {
            (_, Some(marked)) if *marked == stamp => {}
            // An earlier wipe was interrupted, or its answer was lost.
            (DataSeen::Empty, None) if remembered.is_none_or(|remembered| *remembered == stamp) => {}
            _ => return Err(Refusal::not_as_expected(describe(&DataSeen::Stamped(stamp)), describe(&found))),
        }
        let layout = self.layout.clone();
        blocking(move || data::wipe(&layout)).await?;
        Ok(self.state.update(|state| state.etcd.forget_formation()).await?)
    }

    /// Called once, when the agent starts: finds the etcd of an earlier agent, or brings back what should run. What is in the way may go
    /// away by itself, as when a program is put back or a disk has room again: it is tried again, after pauses that grow.
    pub(crate) async fn resume_etcd(self: &Arc<Self>) {
        let Err(why) = self.try_to_resume().await else { return };
        self.note_not_started(&why);
        let agent = self.clone();
        tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            while agent.is_not_started() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                let _no_order = agent.orders.lock().await;
                if !agent.is_not_started() {
                    return;
                }
                match agent.try_to_resume().await {
                    Ok(()) => *agent.etcd.not_started.lock().expect("no holder panics") = None,
                    Err(why) => agent.note_not_started(&why),
                }
            }
        });
    }

    fn is_not_started(&self) -> bool {
        self.etcd.not_started.lock().expect("no holder panics").is_some()
    }

    fn note_not_started(&self, why: &str) {
        tracing::error!(why, "etcd is not started");
        let exit = Exit { at: Timestamp::now(), how: format!("not started: {why}"), last_words: String::new() };
        *self.etcd.not_started.lock().expect("no holder panics") = Some(exit);
    }

    async fn try_to_resume(self: &Arc<Self>) -> Result<(), String> {
        let in_full = |error: AgentError| error.in_full();
        if !self.state.get().etcd.wanted_running {
            // The agent may have ended before etcd did.
            return self.etcd.service.stop(PATIENT).await.map_err(in_full);
        }
        if self.etcd.service.adopt(self.gate()).await {
            self.begin_probing();
            return Ok(());
        }
        if let ServiceState::Unknown { why } = self.etcd.service.look().await {
            return Err(format!("cannot tell whether it is running: {why}"));
        }
        // Fetching can take minutes, and anyone who asks for facts must not wait for it.
        if let Ok(found) = timeout(FINDING, self.find_binary_again()).await {
            found.map_err(in_full)?;
        }
        let state = self.state.get();
        let launch = self.launch(&state, None).map_err(|refusal| refusal.to_string())?;
        self.check_data(&state).await?;
        // Before there is a network nobody can be asked, and a member that holds more than this disk would count as silent.
        if self.keeps_host && !reach::is_bound(state.address, NETWORK).await {
            tracing::warn!(address = %state.address, "this machine does not have its address yet");
        }
        self.check_age().await.map_err(in_full)?;
        self.bring_up(launch).await.map_err(in_full)
    }

    /// The data's stamp must be the one that etcd was last started with.
    async fn check_data(&self, state: &State) -> Result<(), String> {
        let found = self.look_at_data().await.map_err(|error| error.in_full())?;
        match (&found, &state.etcd.last_started) {
            (DataSeen::Stamped(stamp), Some(last)) if stamp == last => Ok(()),
            (_, Some(last)) => {
                Err(format!("expected {}, found {}", describe(&DataSeen::Stamped(last.clone())), describe(&found)))
            }
            (_, None) => Err(String::from("etcd was never started here")),
        }
    }

    /// How to start etcd with everything that is in place now.
    fn launch(&self, state: &State, bootstrap: Option<&Bootstrap>) -> Result<Launch, Refusal> {
        let (etcd, program) = self.etcd_in_place(state)?;
        let in_place = state.node_config.as_ref();
        let digest = in_place.map(|in_place| in_place.service_digest(SERVICE)).unwrap_or_default();
        let own = in_place.and_then(|in_place| trust::peer_bundle(&in_place.config)).map(|_| CertificateUse::Peer);
        let mut needed = [Some(CertificateUse::Member), own].into_iter().flatten();
        if state.trust.is_none() || !needed.all(|of| state.chains.contains_key(&of)) {
            return Err(Refusal::failed("there are no certificates for etcd yet"));
        }
        let first_args = bootstrap.map(|bootstrap| first_args(state, bootstrap)).transpose()?.unwrap_or_default();
        let version = Some(etcd.version.clone());
        let (args, pod) = (self.args(state, etcd), self.pod(etcd)?);
        Ok(Launch { program, args, first_args, env: BTreeMap::new(), digest, version, pod })
    }

    /// How the kubelet runs etcd, if it does. The program on the machine is for etcd's tools then, and for what is read from its data.
    fn pod(&self, etcd: &EtcdService) -> Result<Option<Pod>, Refusal> {
        let Some(wanted) = &etcd.pod else { return Ok(None) };
        let manifests = static_pod::place(&self.layout, wanted)
            .ok_or_else(|| Refusal::Failed { why: format!("{:?} is not a path for manifests", wanted.manifests) })?;
        let kubeadm = (etcd.layout == CertificateLayout::Kubeadm).then_some(pki::KUBEADM_DIRECTORY);
        let reads =
            [Some(CONFIGURATION), kubeadm].into_iter().flatten().map(|path| self.layout.root().join(path)).collect();
        let log_argument = format!("--log-outputs=stderr,{}", self.layout.service_log(SERVICE).display());
        let (image, command) = (wanted.image.clone(), SERVICE.to_owned());
        Ok(Some(Pod { image, command, manifests, reads, log_argument }))
    }

    /// Why this machine cannot run etcd as a pod.
    pub(crate) fn pod_in_the_way(&self, config: &NodeConfig) -> Option<Obstacle> {
        static_pod::obstacle(&self.layout, config.etcd()?.pod.as_ref()?, SERVICE)
    }

    /// etcd's part of the node config, and the program that it asks for.
    pub(super) fn etcd_in_place<'a>(&self, state: &'a State) -> Result<(&'a EtcdService, PathBuf), Refusal> {
        let in_place = state.node_config.as_ref().ok_or_else(|| Refusal::failed("there is no configuration yet"))?;
        let etcd = in_place.config.etcd().ok_or_else(|| Refusal::failed("the configuration has no etcd"))?;
        match (&state.etcd.binary.path, &state.etcd.binary.seen) {
            (Some(path), BinarySeen::Version(version)) if *version == etcd.version => Ok((etcd, path.clone())),
            (_, BinarySeen::Version(found)) => {
                Err(Refusal::not_as_expected(format!("etcd {}", etcd.version), format!("etcd {found}")))
            }
            (_, BinarySeen::Missing { why }) => Err(Refusal::failed(why)),
            (None, BinarySeen::Unasked) | (Some(_), BinarySeen::Unasked) => {
                Err(Refusal::failed("the agent has not searched for etcd yet"))
            }
        }
    }

    fn args(&self, state: &State, etcd: &EtcdService) -> Vec<String> {
        let mut flags = etcd.flags.clone();
        // The agent decides where the data is: it looks there, and knows its etcd by it.
        flags.remove("data-dir");
        flags.entry(String::from("name")).or_insert_with(|| state.identity.member.to_string());
        let given = flags.iter().map(|(name, value)| format!("--{name}={}", self.layout.fill_in(value, state.address)));
        [data_argument(&self.layout)].into_iter().chain(given).collect()
    }
}

fn first_args(state: &State, bootstrap: &Bootstrap) -> Result<Vec<String>, Refusal> {
    let Bootstrap { stamp, initial_cluster, existing } = bootstrap;
    let own = initial_cluster.get(&state.identity.member);
    let own = own.ok_or_else(|| Refusal::failed("this member is not part of the bootstrap"))?;
    let all: Vec<String> = initial_cluster.iter().map(|(member, url)| format!("{member}={url}")).collect();
    Ok(vec![
        format!("--initial-cluster={}", all.join(",")),
        format!("--initial-cluster-token={}", stamp.token),
        format!("--initial-cluster-state={}", if *existing { "existing" } else { "new" }),
        format!("--initial-advertise-peer-urls={own}"),
    ])
}
