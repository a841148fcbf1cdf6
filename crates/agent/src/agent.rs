//! One agent: its state, which all orders share. `orders` carries them out, `facts` reports.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use quorate_core::model::Busy;

use crate::api::{Refusal, Seed};
use crate::kinds::etcd::Etcd;
use crate::kinds::postgres::Postgres;
use crate::layout::Layout;
use crate::reboot::Reboots;
use crate::services::Services;
use crate::state::StateStore;
use crate::tls::Shown;
use crate::upgrade::Upgrades;

pub(crate) struct Agent {
    pub(crate) layout: Layout,
    /// The directory of etcd's programs; other agents may share it.
    pub(crate) cache: PathBuf,
    pub(crate) state: StateStore,
    /// Until the agent is enrolled.
    pub(crate) seed: Mutex<Option<Seed>>,
    pub(crate) shown: Arc<Shown>,
    pub(crate) services: Services,
    pub(crate) etcd: Etcd,
    pub(crate) postgres: Postgres,
    /// Held by the order that is carried out.
    pub(crate) orders: tokio::sync::Mutex<()>,
    /// That order, for facts requests meanwhile.
    pub(crate) under_way: Mutex<Option<Busy>>,
    /// Whether the agent also manages the clock, the firewall and the logs of this machine.
    pub(crate) keeps_host: bool,
    pub(crate) upgrades: Upgrades,
    pub(crate) reboots: Reboots,
}

impl Agent {
    /// Checked again by orders that wait before they act: another controller may have come meanwhile.
    pub(crate) fn check_still_obeyed(&self) -> Result<(), Refusal> {
        let carried = self.under_way.lock().expect("no holder panics").as_ref().map(|order| order.fence);
        let obeyed = self.state.get().fence;
        match carried {
            Some(carried) if carried < obeyed => Err(Refusal::StaleFence { obeyed, carried }),
            _ => Ok(()),
        }
    }
}

/// Marks an order as running until it is dropped.
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
