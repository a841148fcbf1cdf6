//! Rules of trust: peers must accept each other before, during and after a change of their CA. Who is not seen counts as
//! one that trusts nothing new and shows what is old.

use crate::model::{CertificateUse, Facts, ServiceState, TrustPlane};
use crate::planner::View;

/// Whether every member's etcd trusts this CA for its peers: only then may it sign.
pub fn trusted_by_all(view: &View<'_>, key_id: &str) -> bool {
    every_member(view, |facts| trusts(facts, key_id))
}

/// Whether every member shows its peers a certificate of this CA: only then may the others be dropped.
pub fn signs_for_all(view: &View<'_>, key_id: &str) -> bool {
    let shows = |facts: &Facts| {
        let shown = facts.certificates.get(&CertificateUse::Peer);
        shown.is_some_and(|certificate| certificate.authority_key_id.as_deref() == Some(key_id))
    };
    every_member(view, |facts| shows(facts) && trusts(facts, key_id))
}

fn every_member(view: &View<'_>, holds: impl Fn(&Facts) -> bool) -> bool {
    let View { desired, seen, .. } = *view;
    let mut members = desired.etcd.formation.members().into_iter().flatten();
    members.all(|(member, _)| seen.facts(member).is_some_and(&holds))
}

/// A running etcd trusts what it was started with, one that is stopped what it will read. One that keeps ending is
/// started with settings that nobody tells.
fn trusts(facts: &Facts, key_id: &str) -> bool {
    let Some(trust) = facts.etcd.trust.get(&TrustPlane::Peer) else { return false };
    match facts.etcd.service {
        ServiceState::Running { .. } => trust.running.contains(key_id),
        ServiceState::Stopped => trust.on_disk.contains(key_id),
        ServiceState::BackingOff { .. } | ServiceState::Unknown { .. } => false,
    }
}
