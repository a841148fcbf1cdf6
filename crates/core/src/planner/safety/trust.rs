//! How far an agent's report is believed. Reported numbers are compared with the ledger's and with each other's. Otherwise one
//! absurd number from a compromised machine, or from damaged files, could control or block the whole cluster. Such a number
//! affects only its machine: the agent counts as unreachable, and the others are operated as usual.

use crate::model::{AgentSeen, Distrust, Facts, Ledger, MemberName, Number};

/// How far a fencing number or a generation may be ahead of the ledger. Both increase by one with each run: with a run every
/// second this is reached after 136 years.
const MOST_RUNS: u64 = 1 << 32;

/// Judges an enrolled agent's report. A proxy is not asked for what only members know, and is ignored if it reports it.
pub fn believe(ledger: &Ledger, member: &MemberName, mut facts: Box<Facts>) -> AgentSeen {
    if is_proxy(ledger, member.seat()) {
        (facts.postgres, facts.etcd.status) = (None, None);
        facts.reaches.clear();
    }
    match distrust(ledger, member, &facts) {
        Some(distrust) => AgentSeen::Untrusted(distrust),
        None => AgentSeen::Enrolled(facts),
    }
}

/// Whether no controller can have given out this fencing number after `known`.
pub fn is_absurd_fence(known: u64, told: u64) -> bool {
    is_beyond(known, told, MOST_RUNS)
}

/// Whether a machine that has obeyed a later controller shows that this ledger is not the latest. A machine that the ledger has given up
/// shows nothing: it may have been replaced because it is compromised. Nor does any, once the operator has confirmed this ledger as
/// authoritative: it continues above whatever they remembered then.
pub fn is_witness(ledger: &Ledger, seat: &str, incarnation: u64) -> bool {
    let wanted = ledger.members.iter().find(|(member, _)| member.as_str() == seat).map_or(0, |(_, m)| m.incarnation);
    ledger.older_accepted.is_none() && incarnation >= wanted && !is_proxy(ledger, seat)
}

fn is_proxy(ledger: &Ledger, seat: &str) -> bool {
    ledger.members.get(&seat.into()).is_some_and(|record| record.proxy.is_some())
}

fn distrust(ledger: &Ledger, member: &MemberName, facts: &Facts) -> Option<Distrust> {
    let generation = ledger.members.get(member).map_or(0, |record| record.generation);
    let held = facts.node_config.as_ref().map_or(0, |(generation, _)| *generation);
    let absurd = |what, known: u64, told, is: bool| is.then_some(Distrust { what, known: Some(known), told });
    absurd(Number::Fence, ledger.fence, facts.fence, is_absurd_fence(ledger.fence, facts.fence))
        .or_else(|| absurd(Number::Generation, generation, held, is_beyond(generation, held, MOST_RUNS)))
        .or_else(|| facts.etcd.distrust(&ledger.etcd))
}

fn is_beyond(known: u64, told: u64, most: u64) -> bool {
    told > known.saturating_add(most)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::kinds::etcd::spec::ClientAuth;
    use crate::kinds::etcd::versions;
    use crate::model::{Consent, MemberRecord, ProxyRecord};
    use crate::spec::generated;

    #[test]
    fn a_machine_that_the_ledger_gave_up_is_no_witness_against_it_and_a_later_one_is() {
        let spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("0123456789abcdef"), spec.clusters[0].clone());
        let record = MemberRecord { incarnation: 2, ..MemberRecord::default() };
        ledger.members.insert("etcd-1".into(), record);
        assert!(!is_witness(&ledger, "etcd-1", 1), "it is being replaced");
        assert!(is_witness(&ledger, "etcd-1", 2) && is_witness(&ledger, "etcd-1", 3), "a later ledger made the third");
        assert!(is_witness(&ledger, "etcd-9", 1), "nothing is known of it");
        let record = MemberRecord { proxy: Some(ProxyRecord::default()), ..MemberRecord::default() };
        ledger.members.insert("proxy-1".into(), record);
        assert!(!is_witness(&ledger, "proxy-1", 1), "members do not trust it");
        let shown = String::new();
        ledger.older_accepted = Some(Consent { at: Timestamp::UNIX_EPOCH, by: String::new(), shown });
        assert!(!is_witness(&ledger, "etcd-1", 3));
    }
}
