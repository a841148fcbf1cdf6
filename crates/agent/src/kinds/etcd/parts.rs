//! What an agent keeps in memory for its etcd.

use std::sync::{Arc, Mutex};

use quorate_core::model::{ConfigAttempt, Exit};
use tokio::sync::{Notify, OnceCell, Semaphore};

use super::access::Access;
use super::clients::Clients;
use super::prober::Prober;
use super::wal::LogReader;
use crate::layout::Layout;
use crate::services::Service;

/// More reading calls than any controller needs.
pub(super) const READINGS: usize = 16;

pub(crate) struct Etcd {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) access: Access,
    pub(super) log: Arc<LogReader>,
    pub(super) prober: Prober,
    pub(super) staging: Staging,
    pub(super) clients: Clients,
    /// For reading calls.
    pub(super) readings: Arc<Semaphore>,
    /// How long the data's disk took for its slowest durable write, in microseconds.
    pub(crate) fsync: OnceCell<Option<u64>>,
    /// Why etcd, which should run, does not, though nobody keeps starting it.
    pub(crate) not_started: Mutex<Option<Exit>>,
    /// The last node config that was not accepted, and the fencing number that it came with.
    pub(crate) attempt: Mutex<Option<(u64, ConfigAttempt)>>,
}

impl Etcd {
    pub(crate) fn new(layout: &Layout, service: Arc<dyn Service>) -> Self {
        Etcd {
            service,
            access: Access::new(layout.clone()),
            log: Arc::default(),
            prober: Prober::default(),
            staging: Staging::default(),
            clients: Clients::default(),
            readings: Arc::new(Semaphore::new(READINGS)),
            fsync: OnceCell::new(),
            not_started: Mutex::new(None),
            attempt: Mutex::new(None),
        }
    }
}

/// The snapshot that is being brought here.
#[derive(Default)]
pub(super) struct Staging {
    /// Held while a snapshot is brought here, or taken away. Taken after that of orders, never before.
    pub(super) one_at_a_time: tokio::sync::Mutex<()>,
    /// Another snapshot is announced.
    pub(super) asked: Notify,
}
