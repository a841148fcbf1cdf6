//! One agent: what it knows, the facts it gives, and the orders it obeys, one at a time and none that is older than the
//! newest it has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use quorate_core::kinds::etcd::{EtcdFacts, OlderData};
use quorate_core::model::{Busy, ConfigAttempt, DataSeen, Exit, Facts, Host, Program, ProgramSeen, ServiceState};
use tokio::sync::{OnceCell, Semaphore};

use crate::api::{Envelope, FactsRequest, Order, Refusal, Seed};
use crate::enrolment::requests;
use crate::kinds::etcd;
use crate::kinds::etcd::clients::Clients;
use crate::kinds::etcd::staging::Staging;
use crate::kinds::etcd::trust;
use crate::kinds::etcd::{Access, Change, LogReader, Origin, Prober, Renewal};
use crate::layout::Layout;
use crate::services::{HURRIED, PATIENT, Service};
use crate::state::{InPlace, StateStore};
use crate::tls::Shown;
use crate::upgrade::Upgrades;
use crate::{AgentError, reach, x509};

pub(crate) struct Agent {
    pub(crate) layout: Layout,
    /// Where etcd's programs are kept; other agents may share it.
    pub(crate) cache: PathBuf,
    pub(crate) state: StateStore,
    /// Until the agent is enrolled.
    pub(crate) seed: Mutex<Option<Seed>>,
    pub(crate) shown: Arc<Shown>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) access: Access,
    pub(crate) log: Arc<LogReader>,
    pub(crate) prober: Prober,
    /// Held by the order that is carried out.
    pub(crate) orders: tokio::sync::Mutex<()>,
    /// That order, for whoever looks meanwhile.
    pub(crate) under_way: Mutex<Option<Busy>>,
    pub(crate) staging: Staging,
    /// Whether this is a machine of its own, whose clock, firewall and logs are the agent's affair too.
    pub(crate) keeps_host: bool,
    /// How long the data's disk took for its slowest durable write, in microseconds.
    pub(crate) fsync: OnceCell<Option<u64>>,
    pub(crate) clients: Clients,
    /// For reading calls.
    pub(crate) readings: Arc<Semaphore>,
    /// Why etcd, which should run, does not, though nobody keeps starting it.
    pub(crate) not_started: Mutex<Option<Exit>>,
    /// The last node config whose program was not found, and the fencing number that it came with.
    pub(crate) attempt: Mutex<Option<(u64, ConfigAttempt)>>,
    pub(crate) upgrades: Upgrades,
}

impl Agent {
    pub(crate) async fn obey(self: &Arc<Self>, envelope: Envelope) -> Result<(), Refusal> {
        let Envelope { fence, order } = envelope;
        let _one_at_a_time = self.orders.lock().await;
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        // Before the fence is looked at: whoever raises it afterwards sees that something is under way.
        let _under_way = UnderWay::begin(self, Busy { order: order.name().to_owned(), fence });
        self.state.obey_fence(fence).await?;
        tracing::info!(fence, order = order.name(), "ordered");
        match order {
            Order::Converge { generation, digest, etcd_digest, config, search } => {
                self.converge(fence, InPlace::new(generation, digest, etcd_digest, config), search).await
            }
            Order::InstallCertificates { trust, certificates } => self.install_certificates(trust, certificates).await,
            Order::StartEtcd { expects, bootstrap, peers } => self.start_etcd(expects, bootstrap, peers).await,
            Order::RestartEtcd => self.restart_etcd().await,
            Order::StopEtcd => self.stop_etcd(PATIENT).await,
            Order::HaltEtcd => self.stop_etcd(HURRIED).await,
            Order::WipeData { stamp } => self.wipe_data(stamp).await,
            Order::MoveLeader { to } => self.move_leader(to).await,
            Order::AddLearner { expects, peer_url } => {
                self.change_membership(&expects, Change::AddLearner { peer_url }).await
            }
            Order::Promote { expects, id } => self.change_membership(&expects, Change::Promote { id }).await,
            Order::RemoveMember { expects, id } => self.change_membership(&expects, Change::Remove { id }).await,
            Order::Downgrade { version } => self.downgrade(version).await,
            Order::CancelDowngrade => self.cancel_downgrade().await,
            Order::Rebuild { was, stamp, peer_url, bump_revision } => {
                let initial_cluster = BTreeMap::from([(stamp.member.clone(), peer_url.clone())]);
                let (was, origin) = (DataSeen::Stamped(was), Origin::Survivor);
                self.renew(Renewal { was, stamp, initial_cluster, peer_url, bump_revision, origin }).await
            }
            Order::RestoreData { was, stamp, initial_cluster, peer_url, sha256, bump_revision } => {
                let origin = Origin::Staged { sha256 };
                self.renew(Renewal { was, stamp, initial_cluster, peer_url, bump_revision, origin }).await
            }
            Order::DropStaged => self.drop_staged().await,
            Order::Auth { op, password } => {
                let client = self.access.client(&self.state.get())?;
                Ok(etcd::change_auth(&client, &op, password.as_ref()).await.map_err(AgentError::Etcd)?)
            }
        }
    }

    /// Asked again by orders that wait before they act: another controller may have come meanwhile.
    pub(crate) fn check_still_obeyed(&self) -> Result<(), Refusal> {
        let carried = self.under_way.lock().expect("no holder panics").as_ref().map(|order| order.fence);
        let obeyed = self.state.get().fence;
        match carried {
            Some(carried) if carried < obeyed => Err(Refusal::StaleFence { obeyed, carried }),
            _ => Ok(()),
        }
    }

    async fn move_leader(&self, to: u64) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        if client.status().await.map_err(AgentError::Etcd)?.leader == to {
            return Ok(());
        }
        Ok(client.move_leader(to).await.map_err(AgentError::Etcd)?)
    }

    /// Does not wait for an order that is carried out.
    pub(crate) async fn facts(self: &Arc<Self>, request: FactsRequest) -> Result<Facts, Refusal> {
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        if let Some(fence) = request.fence {
            self.state.obey_fence(fence).await?;
        }
        // Before anything else is looked at: what has ended by now, the rest shows.
        let busy = self.under_way.lock().expect("no holder panics").clone();
        let (etcd, reaches) = tokio::join!(self.etcd_facts(request.auth), reach::all(request.reach));
        let etcd = EtcdFacts { attempt: self.attempt_of(request.fence), ..etcd? };
        let state = self.state.get();
        self.confirm_trial().await?;
        let program = ProgramSeen { runs: Program::this().clone(), failed: self.upgrades.failed(request.fence) };
        let certificates = state.chains.iter().filter_map(|(of, chain)| Some((*of, x509::seen(chain)?)));
        Ok(Facts {
            program,
            machine_id: state.machine_id.clone(),
            fence: state.fence,
            node_config: state.node_config.as_ref().map(|known| (known.generation, known.digest.clone())),
            certificates: BTreeMap::from_iter(certificates),
            requests: requests(&state),
            host: self.host(self.fsync_micros(&etcd.data).await).await,
            etcd,
            reaches,
            busy,
        })
    }

    async fn etcd_facts(self: &Arc<Self>, auth: bool) -> Result<EtcdFacts, AgentError> {
        let service = match self.service.look().await {
            ServiceState::Stopped => match self.not_started.lock().expect("no holder panics").clone() {
                Some(last_exit) => ServiceState::BackingOff { restarts: 0, last_exit },
                None => ServiceState::Stopped,
            },
            state => state,
        };
        let data = self.look_at_data().await?;
        let (mut look, log) = match service {
            // One that may run is asked: it says more than who keeps it.
            ServiceState::Running { .. } | ServiceState::Unknown { .. } => (self.look_at_etcd().await, Ok(None)),
            ServiceState::Stopped | ServiceState::BackingOff { .. } => {
                (etcd::Look::default(), self.log_end(&data).await)
            }
        };
        let binary = self.binary_now().await.seen;
        if let Some(status) = look.status.as_mut().filter(|_| auth)
            && let Ok(client) = self.access.client(&self.state.get())
        {
            status.auth = etcd::ask_auth(&client).await;
        }
        let state = self.state.get();
        let still_older = |older: &OlderData| {
            data != DataSeen::Empty && !matches!(log, Ok(Some(end)) if end.index >= older.acknowledged)
        };
        let trust = trust::seen(&state, &service);
        Ok(EtcdFacts {
            binary,
            service,
            data: data.clone(),
            last_started: state.last_started.clone(),
            peer_serving: look.peer_serving,
            status: look.status,
            log: log.clone().unwrap_or_default(),
            log_damage: log.clone().err(),
            older: state.older.clone().filter(still_older),
            staged: self.look_at_staged().await?,
            attempt: ConfigAttempt::Taken,
            trust,
        })
    }

    /// Only the controller that gave the config hears of it: a later one is to try again.
    fn attempt_of(&self, fence: Option<u64>) -> ConfigAttempt {
        match &*self.attempt.lock().expect("no holder panics") {
            Some((of, attempt)) if Some(*of) == fence => attempt.clone(),
            _ => ConfigAttempt::Taken,
        }
    }

    async fn host(&self, fsync_micros: Option<u64>) -> Host {
        let memory = rustix::system::sysinfo();
        let disk = rustix::fs::statvfs(self.layout.root());
        Host {
            memory_bytes: memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
            disk_free_bytes: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)).unwrap_or_default(),
            clock: Some(Timestamp::now()),
            fsync_micros,
            clients: if self.keeps_host { self.clients.connected().await } else { BTreeSet::new() },
            log_source_trouble: crate::follow::trouble(&self.layout),
        }
    }
}

/// Says that an order is carried out, until it is dropped.
pub(crate) struct UnderWay<'a>(&'a Agent);

impl<'a> UnderWay<'a> {
    pub(crate) fn begin(agent: &'a Agent, order: Busy) -> Self {
        *agent.under_way.lock().expect("no holder panics") = Some(order);
        UnderWay(agent)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().expect("no holder panics").take();
    }
}
