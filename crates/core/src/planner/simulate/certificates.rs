//! Certificates and trust in the simulated cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::world::{SimMachine, World};
use crate::desire::AGENT_VALIDITY;
use crate::model::{
    CertificateSeen, CertificateUse, Desired, Facts, MachineCertificate, MemberName, PlaneWish, TrustPlane, TrustSeen,
};
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
        CertificateUse::Agent | CertificateUse::Health | CertificateUse::Front => None,
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

impl World {
    /// Lists of certificates that are refused: what matters is that they differ.
    pub(super) fn make_lists(&mut self) {
        let issued = &mut self.ledger.issued;
        let (of_clients, of_peers) = (issued.refused_of_clients().count(), issued.refused_of_peers().count());
        (issued.client_crl, issued.peer_crl) = (Some(format!("{of_clients:02x}")), Some(format!("{of_peers:02x}")));
        let peers = self.ledger.authorities.peer.iter().flat_map(|peers| &peers.trusted);
        issued.peer_lists = peers.map(|peer| (peer.key_id.clone(), format!("{of_peers:02x}\n"))).collect();
    }

    /// As the controller records what it signs. Brought certificates are not signed here, and an agent's own is known by its name.
    pub(super) fn record_leaves(&mut self, desired: &Desired, member: &MemberName, uses: &BTreeSet<CertificateUse>) {
        let Some(incarnation) = self.machines.get(member).map(|machine| machine.seen.incarnation) else { return };
        let wish = &desired.certificates;
        let is_signed = |of: CertificateUse| match of {
            CertificateUse::Member => wish.brought.is_none(),
            CertificateUse::Peer => certificates::shared_with_clients(wish).is_none(),
            CertificateUse::Root => wish.brought_root.is_none(),
            CertificateUse::Health | CertificateUse::Front => true,
            CertificateUse::Agent => false,
        };
        let given = uses.iter().filter(|of| is_signed(**of)).map(|of| MachineCertificate {
            member: member.clone(),
            incarnation,
            of: *of,
            serial: format!("{member}.{incarnation}.{}", of.file_stem()),
            not_after: Timestamp::MAX,
            recorded: None,
            revoked: false,
        });
        let known = |given: &MachineCertificate| self.ledger.issued.machines.iter().any(|k| k.serial == given.serial);
        let given: Vec<_> = given.filter(|given| !known(given)).collect();
        self.ledger.issued.record_machine(given, self.now);
    }
}
