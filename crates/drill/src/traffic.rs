//! A workload as the stage sees it: it runs on a separate thread and runtime, so nothing else in this process can delay it, until it is
//! finished or dropped. Each kind defines what its clients do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use super::mark::{Clock, Mark};

/// How much there is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    pub clients: u32,
    pub watchers: u32,
    pub keys: u32,
    /// Between two operations of one client.
    pub pause: Duration,
    /// Values are at least so many bytes long. What is recorded is what tells them apart, not what fills them up.
    pub value_size: usize,
    /// What the clients choose follows from this.
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Self {
        Load { clients: 6, watchers: 3, keys: 5, pause: Duration::from_millis(15), value_size: 0, seed: 1 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error("the workload cannot be started")]
    Start(#[source] std::io::Error),
    #[error("the cluster does not answer, so there is nothing to rehearse: {why}")]
    NotServing { why: String },
}

/// What the clients are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    GoOn,
    End,
    /// End without looking at what came of it.
    GiveUp,
}

/// Whether the clients are at work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Begun(Arc<AtomicBool>);

impl Begun {
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A workload that runs until it is finished, or dropped.
pub struct Workload<H> {
    clock: Clock,
    order: watch::Sender<Order>,
    begun: Begun,
    marks: Vec<Mark>,
    thread: Option<JoinHandle<Result<H, WorkloadError>>>,
}

impl<H: Send + 'static> Workload<H> {
    /// Begins at once.
    pub(crate) fn start<F>(
        clock: Clock,
        run: impl FnOnce(watch::Receiver<Order>, Begun) -> F + Send + 'static,
    ) -> Result<Self, WorkloadError>
    where
        F: Future<Output = Result<H, WorkloadError>>,
    {
        let (order, orders) = watch::channel(Order::GoOn);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(WorkloadError::Start)?;
        let begun = Begun::default();
        let noted = begun.clone();
        let run = move || runtime.block_on(run(orders, noted));
        let thread = std::thread::Builder::new().name(String::from("workload")).spawn(run);
        let thread = thread.map_err(WorkloadError::Start)?;
        Ok(Workload { clock, order, begun, marks: Vec::new(), thread: Some(thread) })
    }

    /// Lets the clients end, reads the end through every member, and tidies up. The marks come with it.
    pub fn finish(mut self) -> Result<(H, Vec<Mark>), WorkloadError> {
        let _ = self.order.send(Order::End);
        let thread = self.thread.take().expect("it is joined once");
        let history = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((history, std::mem::take(&mut self.marks)))
    }
}

impl<H> Workload<H> {
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether it has ended by itself, which it does only when it could not begin.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether its clients are at work. One that cannot begin ends.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.0.load(Ordering::Relaxed)
    }

    /// Notes what was done to the cluster meanwhile.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.push(mark);
    }
}

impl<H> Drop for Workload<H> {
    fn drop(&mut self) {
        let _ = self.order.send(Order::GiveUp);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Choices that follow from a seed (splitmix64).
pub(crate) struct Chance(pub u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Between 0 and 1.
    pub(crate) fn part(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }
}
