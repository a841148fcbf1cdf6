//! Facts: what the agent reports about its machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use quorate_core::model::{AGENT_PORT, Facts, Host, PEER_PORT, Program, ProgramSeen};

use crate::agent::Agent;
use crate::api::{FactsRequest, Refusal};
use crate::{reach, x509};

/// A machine that accepts a connection at one of these is there.
const PORTS: [u16; 2] = [AGENT_PORT, PEER_PORT];

impl Agent {
    /// Does not wait for an order that is carried out.
    pub(crate) async fn facts(self: &Arc<Self>, request: FactsRequest) -> Result<Facts, Refusal> {
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        if self.upgrades.is_on_trial() {
            // One that cannot look at its etcd does not replace the program before it, which could.
            self.etcd_facts(false, None).await?;
            self.confirm_trial().await?;
        }
        if let Some(fence) = request.fence {
            self.state.obey_fence(fence).await?;
        }
        // Before anything else is looked at: what has ended by now, the rest shows.
        let busy = self.under_way.lock().expect("no holder panics").clone();
        let (etcd, postgres, reaches) = tokio::join!(
            self.etcd_facts(request.auth, request.fence),
            self.postgres_facts(request.auth),
            reach::all(request.reach, &PORTS)
        );
        let (etcd, postgres) = (etcd?, postgres?);
        let state = self.state.get();
        let program = ProgramSeen { runs: Program::this().clone(), failed: self.upgrades.failed(request.fence) };
        let certificates = state.chains.iter().filter_map(|(of, chain)| Some((*of, x509::seen(chain)?)));
        Ok(Facts {
            program,
            machine_id: state.machine_id.clone(),
            fence: state.fence,
            node_config: state.node_config.as_ref().map(|known| (known.generation, known.digest.clone())),
            certificates: BTreeMap::from_iter(certificates),
            requests: state.requests(),
            host: self.host(self.fsync_micros(&etcd.data).await).await,
            etcd,
            postgres,
            services: self.service_facts().await,
            reaches,
            busy,
            reboot: self.reboots.seen(request.fence),
            holds_clients: self.holds_clients(),
        })
    }

    async fn host(&self, fsync_micros: Option<u64>) -> Host {
        let memory = rustix::system::sysinfo();
        let disk = rustix::fs::statvfs(self.layout.root());
        Host {
            memory_bytes: memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
            disk_free_bytes: disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)).unwrap_or_default(),
            clock: Some(Timestamp::now()),
            fsync_micros,
            clients: self.etcd_clients().await,
            log_source_trouble: crate::follow::trouble(&self.layout),
            boot: self.boot(),
            packages: self.state.get().packages.clone(),
        }
    }
}
