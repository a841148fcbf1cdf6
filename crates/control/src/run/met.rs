//! The first contact with an agent. The fencing numbers that it remembers show whether to believe it, and whether this ledger is the
//! latest.

use jiff::Timestamp;
use quorate_agent::client::{ClientError, Look};
use quorate_core::model::{AgentSeen, Distrust, Facts, Ledger, MemberName, Number, Seen};
use quorate_core::planner::{UnsafeBecause, safety};

/// The agents of an observation.
pub(super) enum Met {
    Agent(AgentSeen),
    /// With its report, if there is one.
    KnowsMore(LaterFence, Option<Box<Facts>>),
}

/// A fencing number above those that this ledger has given out.
pub(super) struct LaterFence {
    known: u64,
    told: u64,
}

impl LaterFence {
    fn is_absurd(&self) -> bool {
        safety::is_absurd_fence(self.known, self.told)
    }

    /// That this ledger is not the latest.
    fn shows(&self, member: &MemberName) -> UnsafeBecause {
        let (ledger, agent) = (self.known, self.told);
        UnsafeBecause::OlderLedger { member: member.clone(), what: "fencing number", ledger, agent }
    }

    /// That the agent is not to be trusted.
    fn distrust(&self) -> Distrust {
        Distrust { what: Number::Fence, known: Some(self.known), told: self.told }
    }
}

/// The result for one agent. If it obeys a later controller, either this ledger is not the latest, or the agent is not trusted.
pub(super) fn judge(
    met: Result<Met, ClientError>,
    member: &MemberName,
    counts: bool,
    now: Timestamp,
) -> (Seen<AgentSeen>, Option<UnsafeBecause>) {
    match met {
        Ok(Met::Agent(agent)) => (Seen::At(Timestamp::now(), agent), None),
        Ok(Met::KnowsMore(later, facts)) if counts && !later.is_absurd() => {
            let refused = || Seen::Unreachable { since: now, why: String::from("it obeys a later controller") };
            let seen = facts.map(|facts| Seen::At(Timestamp::now(), AgentSeen::Enrolled(facts)));
            (seen.unwrap_or_else(refused), Some(later.shows(member)))
        }
        Ok(Met::KnowsMore(later, _)) => (Seen::At(Timestamp::now(), AgentSeen::Untrusted(later.distrust())), None),
        Err(e) => (Seen::Unreachable { since: now, why: e.to_string() }, None),
    }
}

/// Contacts one agent. If it never heard `number`, it is first asked what it remembers, and hears nothing if that is later. `tell` is
/// called before it hears the number: it may obey it although its answer comes too late, and must not count as having heard it from
/// others.
pub(super) async fn look_first(
    ask: impl AsyncFn(Option<u64>) -> Result<Look, ClientError>,
    ledger: &Ledger,
    member: &MemberName,
    (number, tell): (Option<u64>, impl FnOnce()),
    fence: Option<u64>,
) -> Result<Met, ClientError> {
    let look = async |fence, known: Option<u64>| {
        let facts = match ask(fence).await {
            Ok(Look::Facts(facts)) => facts,
            Ok(Look::OtherProtocol { program, fence }) => {
                let later = known.zip(fence).filter(|(known, told)| told > known);
                let later = later.map(|(known, told)| Met::KnowsMore(LaterFence { known, told }, None));
                return Ok(later.unwrap_or(Met::Agent(AgentSeen::OtherProtocol(program))));
            }
            Ok(Look::Unenrolled { public_key }) => return Ok(Met::Agent(AgentSeen::Unenrolled { public_key })),
            Err(e) => match e.obeyed() {
                Some(told) => return Ok(Met::KnowsMore(LaterFence { known: fence.unwrap_or(0), told }, None)),
                None => return Err(e),
            },
        };
        // An agent that accepts this number and claims a later one is not believed at all.
        Ok(match known.filter(|known| facts.fence > *known) {
            Some(known) => Met::KnowsMore(LaterFence { known, told: facts.fence }, Some(facts)),
            None => Met::Agent(safety::believe(ledger, member, facts)),
        })
    };
    if let Some(number) = number {
        match look(None, Some(number.saturating_sub(1))).await? {
            Met::Agent(AgentSeen::Enrolled(_)) => tell(),
            other => return Ok(other),
        }
    }
    look(fence, fence).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::spec::generated;

    use super::*;

    /// Of an agent that has done nothing but remember this number.
    fn facts(fence: u64) -> Box<Facts> {
        let etcd = serde_json::json!({
            "binary": "unasked", "service": "stopped", "data": "empty", "last_started": null, "peer_serving": false,
            "status": null, "log": null, "older": null
        });
        let facts = serde_json::json!({
            "machine_id": "m", "fence": fence, "node_config": null, "certificates": {}, "requests": {}, "etcd": etcd,
            "host": {"memory_bytes": 1, "disk_free_bytes": 1, "clock": null}, "reaches": {}
        });
        serde_json::from_value(facts).unwrap()
    }

    #[tokio::test]
    async fn an_agent_that_obeyed_our_number_and_answered_too_late_did_not_hear_it_from_others() {
        let spec = generated("demo", 1, DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
        let (ledger, member) = (Ledger::new(String::from("c"), spec), MemberName::from("etcd-1"));
        let (remembers, told) = (Cell::new(6), Cell::new(false));
        let ask = async |fence: Option<u64>| {
            let before = remembers.replace(fence.unwrap_or(remembers.get()));
            if remembers.get() == before {
                return Ok(Look::Facts(facts(before)));
            }
            let address = (Ipv4Addr::LOCALHOST, 1).into();
            Err(ClientError::Unreachable { address, why: String::from("no answer in time") })
        };
        let look = async || {
            let number = Some(7).filter(|_| !told.get());
            look_first(ask, &ledger, &member, (number, || told.set(true)), Some(7)).await
        };
        assert!(matches!(look().await, Err(ClientError::Unreachable { .. })));
        assert_eq!(remembers.get(), 7);
        assert!(matches!(look().await, Ok(Met::Agent(AgentSeen::Enrolled(_)))));
    }
}
