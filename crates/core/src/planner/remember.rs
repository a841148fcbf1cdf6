//! What the ledger records of a step, before and after it. Pure, so the simulated cluster and the real controller
//! record the same.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};

use super::Action;
use crate::model::{
    Desired, Facts, FixtureSeen, Ledger, MachineSeen, MemberName, MemberRecord, Observation, Power, PowerState,
    RebootOrder, Seen, TrustPlane,
};

/// If a machine was last found unreachable longer ago than this, the time starts again.
const LONGEST_GAP: SignedDuration = SignedDuration::from_hours(1);
const WORTH_A_WRITE: SignedDuration = SignedDuration::from_secs(5);

/// Writes what must be known before the step is done. Says whether the ledger changed.
///
/// Guarantees: what a step may leave behind when it is cut short is in the ledger already.
pub fn before(ledger: &mut Ledger, desired: &Desired, action: &Action, now: Timestamp) -> bool {
    match action {
        Action::RecordReplacement { member, incarnation } => {
            let has = ledger.members.get(member).map_or(1, |r| r.incarnation.max(1));
            has < *incarnation && raise_incarnation(ledger, member)
        }
        Action::RecordRenewal { member, incarnation } => renew(ledger, member, *incarnation),
        // From here on it is unreachable because it is starting, or because it should be off.
        Action::StartMachine { member } | Action::StopMachine { member } => match ledger.members.get_mut(member) {
            Some(record) if record.unseen_since.is_some() => {
                (record.unseen_since, record.unseen_at) = (None, None);
                true
            }
            _ => false,
        },
        Action::RebootMachine { member, boot, .. } => {
            let Some(reboot) = ledger.members.get_mut(member).and_then(|record| record.reboot.as_mut()) else {
                return false;
            };
            reboot.ordered = Some(RebootOrder { boot: boot.clone(), at: now, accepted: None });
            true
        }
        Action::CreateMachine { member, incarnation, .. } => {
            let record = ledger.members.entry(member.clone()).or_default();
            if record.incarnation != *incarnation {
                // Whatever was known of the machine before it.
                *record = MemberRecord {
                    incarnation: *incarnation,
                    renewing: record.renewing,
                    join_failed: record.join_failed.take(),
                    proxy: record.proxy.take(),
                    ..MemberRecord::default()
                };
            }
            record.place = desired.machine(member).and_then(|wish| wish.place.clone());
            let is_proxy = desired.proxies.contains_key(member);
            record.proxy = is_proxy.then(|| record.proxy.take().unwrap_or_default());
            ledger.places.extend(record.place.clone());
            true
        }
        Action::PushConfig { member, generation } => {
            let Some(wish) = desired.machine(member) else { return false };
            let record = ledger.members.entry(member.clone()).or_default();
            let changed = record.generation != *generation || record.digest != wish.digest;
            record.generation = *generation;
            record.digest.clone_from(&wish.digest);
            changed
        }
        // After any interruption, the next run knows where to look.
        Action::PutFixture { fixture, .. } => {
            let is_new = !ledger.fixtures.0.contains_key(fixture);
            ledger.fixtures.0.entry(fixture.clone()).or_default();
            is_new
        }
        Action::RevokeUser { user } => ledger.issued.revoke_user(user),
        Action::RevokeMachine { member, incarnation } => ledger.issued.revoke_machine(member, *incarnation),
        Action::RecordSigner { plane: TrustPlane::Peer, epoch } => {
            let Some(peers) = &mut ledger.authorities.peer else { return false };
            let trusted = peers.trusted.iter().any(|authority| authority.epoch == *epoch);
            trusted && std::mem::replace(&mut peers.signs, *epoch) != *epoch
        }
        Action::RecordDistrust { plane: TrustPlane::Peer, epoch } => {
            let Some(peers) = ledger.authorities.peer.as_mut().filter(|peers| peers.signs != *epoch) else {
                return false;
            };
            let trusted = peers.trusted.len();
            peers.trusted.retain(|authority| authority.epoch != *epoch);
            peers.trusted.len() < trusted
        }
        _ => ledger.record_before(desired, action, now),
    }
}

/// Records what is true only after the step. Returns whether the ledger changed.
pub fn after(ledger: &mut Ledger, desired: &Desired, action: &Action, now: Timestamp) -> bool {
    let of_kind = ledger.record_after(desired, action, now);
    match action {
        Action::RebootMachine { member, .. } => {
            let reboot = ledger.members.get_mut(member).and_then(|record| record.reboot.as_mut());
            let Some(ordered) = reboot.and_then(|reboot| reboot.ordered.as_mut()) else { return of_kind };
            ordered.accepted = Some(desired.fence);
            true
        }
        Action::DestroyMachine { member, .. } => {
            let Some(record) = ledger.members.get_mut(member) else { return of_kind };
            record.generation = 0;
            record.digest.clear();
            (record.enrolment, record.reboot) = (None, None);
            true
        }
        Action::DropFixture { fixture } => ledger.fixtures.0.remove(fixture).is_some() || of_kind,
        _ => of_kind,
    }
}

/// Records what an observation shows: since when a machine is unreachable, the highest revision, and which version all members
/// run. Returns whether the ledger changed.
pub fn sighting(ledger: &mut Ledger, desired: &Desired, seen: &Observation) -> bool {
    let noted = |l: &Ledger| (l.members.clone(), l.etcd.clone(), l.postgres.clone(), l.fixtures.clone());
    let before = noted(ledger);
    if seen.machines.get().is_some() && desired.power == Power::On {
        for (member, record) in &mut ledger.members {
            note_absence(record, matches!(seen.agents.get(member), Some(Seen::At(..))), desired.grace, seen.now);
        }
    }
    note_places(ledger, seen);
    note_fixtures(ledger, seen.fixtures.get().into_iter().flatten());
    note_proxies(ledger, seen.machines.get().into_iter().flatten());
    ledger.record_sighting(desired, seen);
    before != noted(ledger)
}

/// Nothing is left to do or to wait for: the operator's requests are done, or were refused. A recovery or a restore that has begun is
/// neither, and continues.
pub fn answered(ledger: &mut Ledger) {
    (ledger.downtime, ledger.without_grace) = (None, None);
    ledger.members.values_mut().for_each(|record| record.reboot = None);
    ledger.close_requests_of_kind();
}

/// The member keeps its data and gets another machine. The current one is removed for that.
pub fn renew(ledger: &mut Ledger, member: &MemberName, incarnation: u64) -> bool {
    let record = ledger.members.entry(member.clone()).or_default();
    let begins = record.incarnation.max(1) < incarnation && record.renewing != Some(incarnation);
    if begins {
        record.renewing = Some(incarnation);
    }
    begins
}

/// A member whose new machine exists, and its agent's report. An agent that was seen before the current machine was claimed belongs to a
/// previous one.
pub(crate) fn renewed<'a>(
    record: &'a mut MemberRecord,
    member: &MemberName,
    seen: &'a Observation,
) -> Option<(&'a mut MemberRecord, &'a Facts)> {
    let is_claimed = record.enrolment.as_ref().is_some_and(|enrolment| enrolment.bound_key.is_some());
    let machine = seen.machines.get().and_then(|machines| machines.get(member));
    let is_it = machine.is_some_and(|machine| machine.incarnation == record.incarnation);
    let facts = seen.facts(member)?;
    (record.renewing == Some(record.incarnation) && is_claimed && is_it).then_some((record, facts))
}

/// The places of machines. They may have been created before the ledger recorded places, or have another name now.
fn note_places(ledger: &mut Ledger, seen: &Observation) {
    let Ledger { members, places, cluster_id, .. } = ledger;
    for (member, record) in members {
        let machine = seen.machines.get().and_then(|machines| machines.get(member));
        let found = machine.filter(|machine| machine.cluster_id == *cluster_id && machine.power != PowerState::Unknown);
        let place = found.filter(|machine| machine.incarnation == record.incarnation).and_then(|m| m.place.clone());
        if place.is_some() {
            places.extend(place.clone());
            record.place = place;
        }
    }
}

/// The addresses of proxies: members accept them, and clients that connect through them verify that address.
pub(crate) fn note_proxies<'a>(
    ledger: &mut Ledger,
    machines: impl Iterator<Item = (&'a MemberName, &'a MachineSeen)> + Clone,
) {
    for (name, record) in &mut ledger.members {
        let Some(proxy) = &mut record.proxy else { continue };
        let own = machines
            .clone()
            .filter(|(m, machine)| m.seat() == name.as_str() && machine.cluster_id == ledger.cluster_id);
        let addresses: BTreeSet<IpAddr> = own.filter_map(|(_, machine)| machine.address).collect();
        if !addresses.is_empty() {
            proxy.addresses = addresses;
        }
    }
}

/// Names that fixtures got when they were created: clients verify them.
pub(crate) fn note_fixtures<'a>(ledger: &mut Ledger, seen: impl Iterator<Item = &'a FixtureSeen>) {
    for fixture in seen.filter(|fixture| fixture.is_ours) {
        if let Some(record) = ledger.fixtures.0.get_mut(&fixture.id).filter(|_| !fixture.names.is_empty()) {
            record.names.clone_from(&fixture.names);
        }
    }
}

/// The time that a machine is unreachable counts from the first of consecutive observations without long gaps: during a gap, it may have
/// come and gone.
fn note_absence(record: &mut MemberRecord, is_seen: bool, grace: Option<SignedDuration>, now: Timestamp) {
    if is_seen {
        (record.unseen_since, record.unseen_at) = (None, None);
        return;
    }
    let longest = grace.map_or(LONGEST_GAP, |grace| LONGEST_GAP.max(grace.saturating_mul(2)));
    let ago = record.unseen_at.or(record.unseen_since).map(|at| now.duration_since(at));
    if record.unseen_since.is_none() || ago.is_none_or(|ago| ago > longest) {
        (record.unseen_since, record.unseen_at) = (Some(now), Some(now));
    } else if ago.is_some_and(|ago| ago > WORTH_A_WRITE) {
        record.unseen_at = Some(now);
    }
}

/// The member gets another machine. The current one is a former one from now on, and a member until the cluster no longer lists it.
pub fn raise_incarnation(ledger: &mut Ledger, member: &MemberName) -> bool {
    let record = ledger.members.entry(member.clone()).or_default();
    let had = record.incarnation.max(1);
    *record = MemberRecord { incarnation: had + 1, proxy: record.proxy.take(), ..MemberRecord::default() };
    ledger.record_former(member, had);
    true
}

/// Lets an older ledger continue, because the operator confirmed it: its numbers become at least those that the agents remember. The
/// content that agents hold is recorded as it is, so only different content is sent again, under a higher number.
pub fn resume_above(ledger: &mut Ledger, seen: &Observation) {
    let fences = seen.agents.keys().filter_map(|m| Some(seen.facts(m)?.fence));
    ledger.fence = fences.fold(ledger.fence, u64::max);
    for member in seen.agents.keys().filter(|m| !m.is_former()) {
        let Some(facts) = seen.facts(member) else { continue };
        let Some((generation, digest)) = &facts.node_config else { continue };
        let record = ledger.members.entry(member.clone()).or_default();
        if *generation >= record.generation {
            record.generation = *generation;
            record.digest.clone_from(digest);
        }
    }
}
