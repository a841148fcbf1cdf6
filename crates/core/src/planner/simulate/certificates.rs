//! Certificates and trust in the simulated world.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::SimMachine;
use crate::desire::AGENT_VALIDITY;
use crate::model::{CertificateSeen, CertificateUse, Desired, Facts, MemberName, PlaneWish, TrustPlane, TrustSeen};
use crate::planner::certificates;

/// The CAs that a node config brings.
pub(super) fn trusted(desired: &Desired) -> BTreeMap<TrustPlane, TrustSeen> {
    let peers = desired.certificates.peer.iter();
    let seen =
        |peer: &PlaneWish| TrustSeen { on_disk: peer.trusted.values().cloned().collect(), ..TrustSeen::default() };
    peers.map(|peer| (TrustPlane::Peer, seen(peer))).collect()
}

/// An etcd that starts reads its CAs.
pub fn take_up_trust(facts: &mut Facts) {
    for trust in facts.etcd.trust.values_mut() {
        trust.running = trust.on_disk.clone();
    }
}

pub(super) fn certificate(
    desired: &Desired,
    now: Timestamp,
    member: &MemberName,
    machine: &SimMachine,
    of: CertificateUse,
) -> CertificateSeen {
    let wish = &desired.certificates;
    let brought = match of {
        CertificateUse::Member => wish.brought.as_ref().and_then(|b| b.get(member)),
        CertificateUse::Peer => certificates::shared_with_clients(wish).and_then(|b| b.get(member)),
        CertificateUse::Root => wish.brought_root.as_ref(),
        CertificateUse::Agent => None,
    };
    let validity = if of == CertificateUse::Agent { AGENT_VALIDITY } else { wish.validity };
    let (authority, authority_ends) = certificates::authority(wish, of);
    let ends = now.saturating_add(validity).unwrap_or(Timestamp::MAX);
    let ends = authority_ends.map_or(ends, |authority| ends.min(authority));
    CertificateSeen {
        fingerprint: brought.cloned().unwrap_or_default(),
        common_name: None,
        organization: wish.organization.clone(),
        authority_key_id: authority.map(str::to_owned),
        not_before: now,
        not_after: ends,
        sans: certificates::sans(desired, member, &machine.seen, of),
        key_algorithm: String::new(),
    }
}
