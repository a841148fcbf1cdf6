//! How often something was reached: a model in which nothing happens proves nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quorate_core::planner::{Action, Decision, UnsafeBecause};

macro_rules! events {
    ($($event:ident => $words:literal,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Event { $($event,)* }

        impl Event {
            pub const ALL: &[(Event, &str)] = &[$((Event::$event, $words),)*];
        }
    };
}

events! {
    Abandoned => "a formation abandoned",
    StaleOrderRefused => "an order of a controller that was taken over from refused",
    StaleWriteRefused => "a write of a controller that was taken over from refused",
    NotAsExpected => "an order refused since something was not as expected",
    DeliveredLate => "an order that came late and was obeyed",
    EndedLate => "an order that its controller had given up ended well",
    KilledAtWork => "a controller killed at work",
    OldDecision => "a decision on an old look",
    OldDecisionRefused => "an order from an old look refused",
    Hidden => "a decision with an agent hidden",
    Between => "a decision with a machine between on and off",
    Joined => "a learner added",
    Expelled => "a learner expelled",
    Promoted => "a promotion",
    PromotedAfterCrash => "a promotion after a crash",
    Removed => "a voter removed",
    LeaderMoved => "a leader moved away",
    Restarted => "a restart",
    Rebooted => "a machine rebooted",
    Replaced => "a replacement recorded",
    ReplacedInTakeover => "a replacement while two controllers act",
    RenewalRecorded => "a renewal recorded",
    Renewed => "a machine gone and its data kept",
    Resumed => "a machine made again for data that was kept",
    Destroyed => "a former machine destroyed",
    Recovered => "a rebuilt survivor",
    Restored => "data made from the snapshot",
    SnapshotDropped => "the snapshot of a restore removed",
    RestoredAnew => "a restore begun anew",
    Distrusted => "a CA dropped",
    Revoked => "the certificates of a machine refused",
    Settled => "a settled end",
    LostForGood => "an end with the majority lost for good",
}

pub struct Reached {
    counts: Vec<AtomicUsize>,
    actions: AtomicU64,
    refusals: AtomicU64,
}

impl Default for Reached {
    fn default() -> Self {
        let counts = Event::ALL.iter().map(|_| AtomicUsize::default()).collect();
        Reached { counts, actions: AtomicU64::default(), refusals: AtomicU64::default() }
    }
}

impl Reached {
    pub fn count(&self, event: Event) {
        self.counts[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn times(&self, event: Event) -> usize {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    pub fn decided(&self, decision: &Decision) {
        let bit = |kinds: &[&str], kind: &str| kinds.iter().position(|k| *k == kind).map_or(0, |at| 1 << at);
        let actions = decision.steps.iter().fold(0, |all, s| all | bit(&Action::KINDS, s.action.kind()));
        let refusals = decision.blocked.iter().fold(0, |all, b| all | bit(&UnsafeBecause::KINDS, b.kind()));
        self.actions.fetch_or(actions, Ordering::Relaxed);
        self.refusals.fetch_or(refusals, Ordering::Relaxed);
    }

    pub fn actions(&self) -> Vec<&'static str> {
        named(&Action::KINDS, self.actions.load(Ordering::Relaxed))
    }

    pub fn refusals(&self) -> Vec<&'static str> {
        named(&UnsafeBecause::KINDS, self.refusals.load(Ordering::Relaxed))
    }
}

fn named(kinds: &[&'static str], bits: u64) -> Vec<&'static str> {
    kinds.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, kind)| *kind).collect()
}
