//! Trust: which CA signs for peers, and which CAs are trusted. A change continues when nothing else is left to do, one
//! ledger entry at a time; `certificates` and `config` then renew leaf certificates and restart members.
//!
//! A cluster that was created before peers had a separate CA gets one here.

use std::collections::BTreeSet;

use super::{Action, Decision, View, safety};
use crate::model::{CertificateUse, MemberName, PlaneWish, SecretKind, TrustPlane};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    if !decision.steps.is_empty() {
        return;
    }
    match &desired.certificates.peer {
        None => separate(view, decision),
        Some(peers) => advance(view, peers, decision),
    }
}

/// Peers share the CA of clients. They get a separate one when every agent can create a key for it: an older one cannot.
fn separate(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let Some(machines) = seen.machines.get() else { return };
    let everyone: BTreeSet<&MemberName> =
        desired.all_joined().chain(desired.members.keys().filter(|m| machines.contains_key(*m))).collect();
    let can = |m: &&MemberName| seen.facts(m).is_some_and(|f| f.requests.contains_key(&CertificateUse::Peer));
    if everyone.iter().all(can) {
        decision.step(
            Action::MakeSecrets { kinds: [SecretKind::PeerAuthority].into() },
            "peers trust the CA of clients, so any user's certificate is valid on the peer port: they get their own CA",
        );
    }
}

fn advance(view: &View<'_>, peers: &PlaneWish, decision: &mut Decision) {
    let plane = TrustPlane::Peer;
    let Some((newest, key_id)) = peers.trusted.last_key_value() else { return };
    if *newest != peers.epoch {
        if safety::trusted_by_all(view, key_id) {
            let why = format!(
                "every {} trusts CA {newest} by now, so no peer refuses a certificate of it",
                view.desired.program_name()
            );
            decision.step(Action::RecordSigner { plane, epoch: *newest }, why);
        }
        return;
    }
    let former = peers.trusted.first_key_value().filter(|(epoch, _)| **epoch != peers.epoch);
    if let Some((epoch, _)) = former.filter(|_| safety::signs_for_all(view, &peers.signs)) {
        let why = format!("every peer shows a certificate of CA {newest} by now, and none of CA {epoch}");
        decision.step(Action::RecordDistrust { plane, epoch: *epoch }, why);
    }
}
