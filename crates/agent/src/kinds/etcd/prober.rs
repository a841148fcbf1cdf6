//! Polls a starting etcd in a cancellable task, and keeps the last result.

use std::sync::Mutex;

use quorate_core::kinds::etcd::EtcdStatus;
use tokio::task::AbortHandle;

/// What was last seen of etcd.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    pub(crate) peer_serving: bool,
    pub(crate) status: Option<EtcdStatus>,
}

#[derive(Default)]
pub(crate) struct Prober {
    task: Mutex<Option<AbortHandle>>,
    /// Present while the prober is at work.
    found: Mutex<Option<Look>>,
}

impl Prober {
    pub(super) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.end();
        *self.found.lock().expect("no holder panics") = Some(Look::default());
        *self.task.lock().expect("no holder panics") = Some(tokio::spawn(work).abort_handle());
    }

    pub(super) fn end(&self) {
        if let Some(task) = self.task.lock().expect("no holder panics").take() {
            task.abort();
        }
        self.forget();
    }

    pub(super) fn forget(&self) {
        self.found.lock().expect("no holder panics").take();
    }

    pub(super) fn found(&self) -> Option<Look> {
        self.found.lock().expect("no holder panics").clone()
    }

    pub(super) fn report(&self, look: Look) {
        if let Some(found) = &mut *self.found.lock().expect("no holder panics") {
            *found = look;
        }
    }
}
