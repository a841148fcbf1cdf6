//! Rules of trust: peers must accept each other before, during and after a change of their CA. An unreachable peer
//! counts as one that trusts only the old CA and presents an old certificate.

use crate::model::{CertificateUse, Facts};
use crate::planner::View;

/// Whether every member trusts this CA for its peers: only then may it sign.
pub fn trusted_by_all(view: &View<'_>, key_id: &str) -> bool {
    every_member(view, |facts| view.desired.trusts(facts, key_id))
}

/// Whether every member presents its peers a certificate of this CA: only then may the others be dropped.
pub fn signs_for_all(view: &View<'_>, key_id: &str) -> bool {
    let shows = |facts: &Facts| {
        let shown = facts.certificates.get(&CertificateUse::Peer);
        shown.is_some_and(|certificate| certificate.authority_key_id.as_deref() == Some(key_id))
    };
    every_member(view, |facts| shows(facts) && view.desired.trusts(facts, key_id))
}

fn every_member(view: &View<'_>, holds: impl Fn(&Facts) -> bool) -> bool {
    let View { desired, seen, .. } = *view;
    desired.all_joined().all(|member| seen.facts(member).is_some_and(&holds))
}
