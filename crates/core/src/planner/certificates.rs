//! Certificates: every machine has those it needs, from the right CA, for its addresses, with enough time left.
//!
//! etcd reads its leaf certificate at each handshake, so replacing it disturbs nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use jiff::{SignedDuration, Timestamp};

use super::{Action, Decision, View, safety};
use crate::desire::AGENT_VALIDITY;
use crate::model::{CertificateSeen, CertificateUse, CertificateWish, Desired, MachineSeen, MemberName};
use crate::text::plural;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if let Err(because) = safety::authority_is_trusted(desired) {
        return decision.block(because);
    }
    for (member, _) in desired.machines() {
        let none = BTreeMap::new();
        let found = match seen.facts(member) {
            None if decision.enrols(member) => &none,
            Some(facts) if !decision.has_business_with(member) => &facts.certificates,
            _ => continue,
        };
        let Some(machine) = seen.machines.get().and_then(|m| m.get(member)) else { continue };
        let mut wanting = wanting(view, member, machine, found);
        // Enrolment installs the agent's own certificate.
        wanting.retain(|(of, _)| *of != CertificateUse::Agent || !decision.enrols(member));
        if let Some((_, why)) = wanting.first() {
            let why = why.clone();
            let uses = wanting.into_iter().map(|(of, _)| of).collect();
            decision.step(Action::InstallCertificates { member: member.clone(), uses }, why);
        }
    }
}

/// Missing or outdated certificates, with the reason.
fn wanting(
    view: &View<'_>,
    member: &MemberName,
    machine: &MachineSeen,
    found: &BTreeMap<CertificateUse, CertificateSeen>,
) -> Vec<(CertificateUse, String)> {
    let mut uses = uses(view.desired, member);
    uses.retain(|of| *of != CertificateUse::Front || view.authenticates());
    uses.into_iter()
        .filter_map(|of| {
            let why = fault(view, member, machine, of, found.get(&of))?;
            Some((of, why))
        })
        .collect()
}

/// The uses of a machine's certificates. With a member's certificates it could replicate, command Patroni or impersonate a member: a
/// proxy gets none of them. A front's certificate names no user.
pub fn uses(desired: &Desired, member: &MemberName) -> Vec<CertificateUse> {
    if desired.is_proxy(member) {
        let fronts = desired.certificates.fronts.contains(member).then_some(CertificateUse::Front);
        return fronts.into_iter().chain([CertificateUse::Agent]).collect();
    }
    let mut uses = vec![CertificateUse::Member];
    if desired.certificates.peer.is_some() {
        uses.push(CertificateUse::Peer);
    }
    if desired.certificates.root {
        uses.push(CertificateUse::Root);
    }
    if desired.certificates.health {
        uses.push(CertificateUse::Health);
    }
    if desired.certificates.fronts.contains(member) {
        uses.push(CertificateUse::Front);
    }
    uses.push(CertificateUse::Agent);
    uses
}

fn fault(
    view: &View<'_>,
    member: &MemberName,
    machine: &MachineSeen,
    of: CertificateUse,
    certificate: Option<&CertificateSeen>,
) -> Option<String> {
    let View { desired, seen, .. } = *view;
    let wish = &desired.certificates;
    let name = of.file_stem();
    let Some(certificate) = certificate else {
        return Some(format!("{member} has no {name} certificate yet"));
    };
    let brought = match of {
        CertificateUse::Member => wish.brought.as_ref().and_then(|b| b.get(member)),
        CertificateUse::Peer => shared_with_clients(wish).and_then(|b| b.get(member)),
        CertificateUse::Root => wish.brought_root.as_ref(),
        CertificateUse::Agent | CertificateUse::Health | CertificateUse::Front => None,
    };
    if let Some(brought) = brought {
        return (certificate.fingerprint != *brought)
            .then(|| format!("the {name} certificate on {member} is not the one that the spec provides"));
    }
    let (authority, authority_ends) = authority(wish, of);
    if certificate.authority_key_id.as_deref() != authority {
        return Some(format!("the {name} certificate of {member} is signed by another CA"));
    }
    if matches!(of, CertificateUse::Member | CertificateUse::Peer | CertificateUse::Front) {
        let lacking = sans(desired, member, machine, of).difference(&certificate.sans).cloned().collect::<Vec<_>>();
        if !lacking.is_empty() {
            return Some(format!("the {name} certificate of {member} lacks {}", lacking.join(", ")));
        }
        if of != CertificateUse::Front && certificate.organization != wish.organization {
            return Some(format!("the {name} certificate of {member} names another organization"));
        }
    }
    let renew_before = renewal_window(of, wish.renew_before);
    let valid = certificate.not_before..certificate.not_after;
    is_due(&valid, authority_ends, renew_before, seen.now)
        .then(|| format!("the {name} certificate of {member} {}", why_due(&valid, renew_before, seen.now)))
}

/// Whether a certificate is to be renewed. If the CA itself expires, a new one would not last longer.
pub fn is_due(
    valid: &Range<Timestamp>,
    authority_ends: Option<Timestamp>,
    renew_before: SignedDuration,
    now: Timestamp,
) -> bool {
    let gains = authority_ends.is_none_or(|ends| valid.end < ends);
    valid.start > now || (gains && valid.end.duration_since(now) <= renew_before)
}

/// Completes "the certificate …".
pub(crate) fn why_due(valid: &Range<Timestamp>, renew_before: SignedDuration, now: Timestamp) -> String {
    let left = valid.end.duration_since(now);
    if valid.start > now {
        return format!("is not valid before {}", valid.start);
    }
    if left <= SignedDuration::ZERO {
        return String::from("has expired");
    }
    let [left, window] = [left, renew_before].map(|time| plural(time.as_hours() / 24, "day"));
    format!("has {left} left, and is renewed {window} before it expires")
}

/// How long before its end a certificate is renewed. The agent's own is not the operator's concern, and has its own.
pub fn renewal_window(of: CertificateUse, of_leaves: SignedDuration) -> SignedDuration {
    match of {
        CertificateUse::Agent => AGENT_VALIDITY / 3,
        CertificateUse::Member
        | CertificateUse::Peer
        | CertificateUse::Root
        | CertificateUse::Health
        | CertificateUse::Front => of_leaves,
    }
}

/// The key identifier of the CA that signs for this use, and its end.
pub(crate) fn authority(wish: &CertificateWish, of: CertificateUse) -> (Option<&str>, Option<Timestamp>) {
    match of {
        CertificateUse::Agent => (wish.control_authority.as_deref(), wish.control_authority_ends),
        CertificateUse::Peer => (wish.peer.as_ref().map(|p| p.signs.as_str()), wish.peer.as_ref().map(|p| p.ends)),
        CertificateUse::Member | CertificateUse::Root | CertificateUse::Health | CertificateUse::Front => {
            (wish.client_authority.as_deref(), wish.client_authority_ends)
        }
    }
}

/// The operator's certificates of members, while peers use them too: as long as the CA that signs for peers is that of
/// the clients.
pub(crate) fn shared_with_clients(wish: &CertificateWish) -> Option<&BTreeMap<MemberName, String>> {
    let shared = wish.peer.as_ref().is_some_and(|peer| Some(&peer.signs) == wish.client_authority.as_ref());
    wish.brought.as_ref().filter(|_| shared)
}

/// The names and addresses for which a certificate of this member must be good.
///
/// Peers dial each other by address, and etcd compares where a peer comes from with what its certificate holds. A name in there would
/// let in anyone whose reverse DNS says so, wherever they are. Certificates from before have names until they are renewed: to renew them
/// earlier would take nothing from someone who has one.
pub fn sans(desired: &Desired, member: &MemberName, machine: &MachineSeen, of: CertificateUse) -> BTreeSet<String> {
    let mut sans = desired.certificates.extra_sans.clone();
    sans.extend(machine.address.map(|address| address.to_string()));
    // It does not identify a member, not even the one on its machine.
    if of == CertificateUse::Front {
        return sans;
    }
    sans.insert(String::from("127.0.0.1"));
    sans.insert(String::from("localhost"));
    sans.insert(member.to_string());
    if let Some(wish) = desired.machine(member) {
        sans.insert(wish.machine.clone());
    }
    if of == CertificateUse::Member {
        sans.extend(desired.certificates.proxied.iter().map(ToString::to_string));
        sans.extend(desired.machine(member).into_iter().flat_map(|wish| wish.names.iter().cloned()));
    }
    if of == CertificateUse::Peer {
        sans.retain(|san| san.parse::<IpAddr>().is_ok());
    }
    sans
}
