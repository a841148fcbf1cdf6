//! Counts how often something was reached: a model in which nothing happens proves nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    RestoredAgain => "a restore that started over",
    Distrusted => "a CA dropped",
    Revoked => "the certificates of a machine refused",
    Settled => "a settled end",
    LostForGood => "an end with the majority lost for good",
}

pub struct Reached {
    counts: Vec<AtomicUsize>,
    /// Whether there was one of each kind.
    actions: Vec<AtomicBool>,
    refusals: Vec<AtomicBool>,
}

impl Default for Reached {
    fn default() -> Self {
        let counts = Event::ALL.iter().map(|_| AtomicUsize::default()).collect();
        let none = |kinds: &[&str]| kinds.iter().map(|_| AtomicBool::default()).collect();
        Reached { counts, actions: none(&Action::KINDS), refusals: none(&UnsafeBecause::KINDS) }
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
        let note = |seen: &[AtomicBool], kinds: &[&str], kind: &str| {
            let at = kinds.iter().position(|known| *known == kind).expect("every kind is listed");
            seen[at].store(true, Ordering::Relaxed);
        };
        decision.steps.iter().for_each(|step| note(&self.actions, &Action::KINDS, step.action.kind()));
        decision.blocked.iter().for_each(|blocked| note(&self.refusals, &UnsafeBecause::KINDS, blocked.kind()));
    }

    pub fn actions(&self) -> Vec<&'static str> {
        named(&Action::KINDS, &self.actions)
    }

    pub fn refusals(&self) -> Vec<&'static str> {
        named(&UnsafeBecause::KINDS, &self.refusals)
    }
}

fn named(kinds: &[&'static str], seen: &[AtomicBool]) -> Vec<&'static str> {
    kinds.iter().zip(seen).filter(|(_, seen)| seen.load(Ordering::Relaxed)).map(|(kind, _)| *kind).collect()
}
