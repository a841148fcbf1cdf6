//! A recovery or a restore is confirmed for one situation. The request survives interrupted runs, and must never be carried out in a
//! different situation later.

use crate::kinds::etcd::{Formation, LogEnd, LostMajority, Record, RecoveryRequest};
use crate::model::{Consent, DataSeen, Facts, Ledger, MemberName, Observation};
use crate::planner::UnsafeBecause;

impl Record {
    /// Removes requests that are no longer valid, except what has begun: that is completed.
    pub(crate) fn drop_stale(&mut self, counts: impl Fn(&Consent) -> bool) {
        if !matches!(self.formation, Formation::Recovering { .. }) {
            let token = self.formation.token();
            let of_this = |request: &RecoveryRequest| request.of.as_ref().map(|of| of.token.as_str()) == token;
            self.recovery = self.recovery.take().filter(|request| counts(&request.consent) && of_this(request));
        }
        if !matches!(self.formation, Formation::Restoring { .. }) {
            self.restore = self.restore.take().filter(|wish| counts(&wish.consent));
        }
    }
}

/// What is left of a cluster, as shown to the operator before a recovery is confirmed.
pub fn lost_majority(ledger: &Ledger, seen: &Observation) -> Option<LostMajority> {
    let (Formation::Formed { token, members, .. } | Formation::Recovering { was: token, members, .. }) =
        &ledger.etcd.formation
    else {
        return None;
    };
    let held = |member: &&MemberName| seen.facts(member).is_some_and(|f| holds(f, &ledger.cluster_id, token));
    let survivors: Vec<&MemberName> = members.keys().filter(held).collect();
    let ends = survivors.iter().filter_map(|member| end(seen.facts(member)?));
    Some(LostMajority {
        token: token.clone(),
        index: ends.max().unwrap_or(0),
        survivors: survivors.into_iter().cloned().collect(),
    })
}

/// Whether a machine holds the current data of this bootstrap.
pub fn holds(facts: &Facts, cluster_id: &str, token: &str) -> bool {
    matches!(&facts.etcd.data, DataSeen::Stamped(s) if s.token == token && s.cluster_id == cluster_id)
        && facts.etcd.older.is_none()
}

/// The end of a log, if it is known.
fn end(facts: &Facts) -> Option<u64> {
    facts.etcd.log.filter(|log| *log != LogEnd::UNREAD).map(|log| log.index)
}

/// Whether what is left is what was confirmed: the same formation, the same survivors, and none of their logs cut short. Otherwise
/// other data would be lost than the operator agreed to.
pub fn loss_is_as_confirmed(
    confirmed: Option<&LostMajority>,
    token: &str,
    survivors: &[(&MemberName, &Facts)],
) -> Result<(), UnsafeBecause> {
    let now: Vec<MemberName> = survivors.iter().map(|(member, _)| (*member).clone()).collect();
    let before = confirmed.map(|c| c.survivors.iter().cloned().collect()).unwrap_or_default();
    let differs = UnsafeBecause::OtherLoss { before, now: now.clone() };
    let Some(confirmed) = confirmed.filter(|c| c.token == token && c.survivors.iter().eq(&now)) else {
        return Err(differs);
    };
    let ends: Option<Vec<u64>> = survivors.iter().map(|(_, facts)| end(facts)).collect();
    match ends.and_then(|ends| ends.into_iter().max()) {
        Some(index) if index < confirmed.index => Err(differs),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::kinds::etcd::spec::ClientAuth;
    use crate::kinds::etcd::versions;
    use crate::model::{MemberRecord, Reboot, RebootOrder};
    use crate::planner::safety::requests::{CONFIRMED_FOR, drop_stale};
    use crate::spec::generated;

    fn ledger(formation: Formation) -> Ledger {
        let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        ledger.etcd.formation = formation;
        ledger
    }

    fn formed(token: &str) -> Formation {
        Formation::Formed { token: token.to_owned(), etcd_cluster_id: 1, members: BTreeMap::new() }
    }

    fn consent() -> Consent {
        Consent { at: Timestamp::UNIX_EPOCH, by: String::from("me"), shown: String::from("the plan") }
    }

    fn asked(token: &str) -> Ledger {
        let of = LostMajority { token: token.to_owned(), survivors: ["etcd-1".into()].into(), index: 7 };
        let mut ledger = ledger(formed("t"));
        ledger.etcd.recovery = Some(RecoveryRequest { consent: consent(), of: Some(of) });
        (ledger.downtime, ledger.without_grace) = (Some(consent()), Some(consent()));
        ledger
    }

    #[test]
    fn a_request_outlives_the_run_that_was_interrupted_but_not_its_time() {
        let soon = Timestamp::UNIX_EPOCH + CONFIRMED_FOR;
        let mut open = asked("t");
        drop_stale(&mut open, soon, false);
        assert!(open.etcd.recovery.is_some() && open.downtime.is_some());
        assert!(open.without_grace.is_none(), "another machine may be unreachable now");
        for later in [soon + SignedDuration::from_secs(1), Timestamp::UNIX_EPOCH - CONFIRMED_FOR * 2] {
            let mut late = asked("t");
            drop_stale(&mut late, later, false);
            assert!(late.etcd.recovery.is_none() && late.downtime.is_none() && late.without_grace.is_none());
        }
    }

    #[test]
    fn a_reboot_counts_for_as_long_after_its_confirmation_or_its_last_order() {
        let late = Timestamp::UNIX_EPOCH + CONFIRMED_FOR + SignedDuration::from_secs(1);
        let order = |at| Some(RebootOrder { boot: String::from("b"), at, accepted: None });
        let stays = |ordered, now| {
            let mut open = ledger(formed("t"));
            let reboot = Some(Reboot { consent: consent(), upgrade_packages: false, ordered });
            open.members.insert("etcd-1".into(), MemberRecord { reboot, ..MemberRecord::default() });
            drop_stale(&mut open, now, true);
            open.members[&MemberName::from("etcd-1")].reboot.is_some()
        };
        assert!(stays(None, Timestamp::UNIX_EPOCH + CONFIRMED_FOR) && !stays(None, late));
        assert!(stays(order(late), late) && !stays(order(Timestamp::UNIX_EPOCH), late));
        assert!(!stays(order(late), late + SignedDuration::from_hours(24)));
    }

    #[test]
    fn consent_is_for_one_plan_and_a_recovery_for_one_formation() {
        let mut open = asked("before");
        drop_stale(&mut open, Timestamp::UNIX_EPOCH, true);
        assert!(open.etcd.recovery.is_none() && open.downtime.is_none() && open.without_grace.is_none());
    }

    #[test]
    fn a_recovery_that_has_begun_is_never_stale() {
        let members = BTreeMap::new();
        let (was, token, from) = (String::from("t"), String::from("u"), "etcd-1".into());
        let mut begun = asked("t");
        begun.etcd.formation = Formation::Recovering { was, token, from, members };
        begun.etcd.recovery.as_mut().unwrap().of = None;
        drop_stale(&mut begun, Timestamp::UNIX_EPOCH + CONFIRMED_FOR * 100, false);
        assert!(begun.etcd.recovery.is_some());
    }

    #[test]
    fn a_request_that_an_older_quorate_wrote_is_read_and_begins_nothing() {
        let older = r#"{"at":"1970-01-01T00:00:00Z","by":"me","shown":"the plan"}"#;
        let request: RecoveryRequest = serde_json::from_str(older).unwrap();
        assert_eq!(request, RecoveryRequest { consent: consent(), of: None });
        assert!(loss_is_as_confirmed(request.of.as_ref(), "t", &[]).is_err());
    }
}
