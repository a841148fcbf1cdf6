//! Bootstrap: one member creates the data, once, and the others clone it. Afterwards keeps the members running.
//!
//! Patroni never creates data. If its state in the DCS is lost, it uses the existing data; with an empty disk it waits until there is
//! a member to clone.

use std::collections::BTreeMap;

use super::restore;
use crate::kinds::postgres::safety::{self, postgres};
use crate::kinds::postgres::{Formation, Known, PostgresFacts, Role};
use crate::model::{
    BinarySeen, ConfigAttempt, DataSeen, Desired, DesiredMember, Facts, MemberName, ServiceState, Stamp,
};
use crate::planner::{Action, Decision, Precondition, UnsafeBecause, View, WaitingFor};
use crate::providers::MachineKind;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    if restore::decide(view, decision) {
        return;
    }
    match &view.desired.postgres().formation {
        Formation::Unformed => begin(view, decision),
        Formation::Forming { token, first, members } => form(view, decision, token, first, members),
        Formation::Formed { token, .. } => keep(view, decision, token),
    }
}

/// Why a machine cannot run what its configuration names.
pub(crate) fn refused_config(
    desired: &Desired,
    member: &MemberName,
    wish: &DesiredMember,
    facts: &Facts,
) -> Option<UnsafeBecause> {
    let found = postgres(facts)?;
    // What was found is what the configuration in place names. Another one may name other programs.
    let (_, in_place) = facts.node_config.as_ref()?;
    (*in_place == wish.digest).then_some(())?;
    let named = [&found.postgres, &found.patroni, &found.pgbackrest];
    let named = named.into_iter().filter(|_| searches_again(desired, wish, facts).is_none());
    let missing = named.into_iter().find_map(|program| match program {
        BinarySeen::Missing { why } => Some(UnsafeBecause::NotReady {
            member: member.clone(),
            why: why.clone(),
            remedy: String::from(
                "install PostgreSQL, Patroni and, for backups, pgBackRest on the machine, or name them in `postgres.programs` and `postgres.patroni.program`",
            ),
        }),
        BinarySeen::Unasked | BinarySeen::Version(_) => None,
    });
    missing.or_else(|| safety::patroni_can(member, wish, &desired.postgres().dcs, found).err())
}

/// Why the configuration is sent again. An agent of this machine searches the PATH of the controller that sent it its configuration, which may
/// lead elsewhere now. Each controller sends it once for that.
pub(crate) fn searches_again(desired: &Desired, wish: &DesiredMember, facts: &Facts) -> Option<String> {
    let found = postgres(facts).filter(|_| desired.machines == MachineKind::Process)?;
    let was_told =
        matches!(&facts.etcd.attempt, ConfigAttempt::WithoutProgram { digest, .. } if *digest == wish.digest);
    let programs = [&found.postgres, &found.patroni, &found.pgbackrest];
    let missing = programs.into_iter().find_map(|program| match program {
        BinarySeen::Missing { why } => Some(why),
        BinarySeen::Unasked | BinarySeen::Version(_) => None,
    });
    missing.filter(|_| !was_told).map(|why| format!("{why}: it searches again, on the PATH of this run"))
}

/// What a member reports once it has its configuration and its certificates.
pub(super) fn ready<'a>(
    view: &View<'a>,
    decision: &Decision,
    member: &MemberName,
) -> Option<(&'a Facts, &'a PostgresFacts)> {
    let facts = view.seen.facts(member)?;
    let wish = view.desired.members.get(member)?;
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    (in_place && !decision.has_business_with(member)).then_some(())?;
    Some((facts, postgres(facts)?))
}

/// No bootstrap has begun: removes leftovers of an abandoned one, and begins when every member is ready and empty.
fn begin(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    if let Err(because) = safety::may_begin_empty(desired.postgres()) {
        return decision.block(because);
    }
    let mut members = BTreeMap::new();
    for member in desired.members.keys() {
        let Some((facts, found)) = ready(view, decision, member) else { continue };
        match (&found.data, &found.last_started) {
            (DataSeen::Empty, None) if found.service == ServiceState::Stopped => {
                members.insert(member.clone(), known(view, member, facts));
            }
            _ => clear(view, decision, member, facts, found),
        }
    }
    let Some(first) = members.keys().next().cloned() else { return };
    if members.len() == desired.members.len() {
        let token = desired.postgres().next_token.clone();
        let why = match members.len() {
            1 => String::from("the only member is ready and empty"),
            all => format!("all {all} members are ready and empty; {first} creates the data, the others clone it"),
        };
        decision.step(Action::RecordInitializing { token, first, members }, why);
    }
}

/// Leftovers of an abandoned bootstrap of this cluster are wiped. quorate never touches anything else.
fn clear(view: &View<'_>, decision: &mut Decision, member: &MemberName, facts: &Facts, found: &PostgresFacts) {
    if let Err(because) = safety::formation_is_known(view.desired, member, facts) {
        return decision.block(because);
    }
    let left = match &found.data {
        DataSeen::Stamped(stamp) => Some(stamp),
        DataSeen::Empty => found.last_started.as_ref(),
        DataSeen::Unstamped => None,
    };
    let ours = left.filter(|stamp| stamp.cluster_id == view.desired.cluster_id);
    // Clients may have written to what a restore or an upgrade was to replace.
    if let Some(stamp) = ours.filter(|stamp| view.desired.postgres().replaced.contains(&stamp.token)) {
        return decision.block(UnsafeBecause::RestoreUnfinished { token: stamp.token.clone() });
    }
    match ours {
        _ if found.service != ServiceState::Stopped => {
            let why = "it runs on the data of an abandoned bootstrap";
            decision.step(Action::StopPatroni { member: member.clone() }, why);
        }
        Some(stamp) => {
            let why = "an abandoned bootstrap left it; no client has written to it";
            decision.step(Action::WipePostgres { member: member.clone(), stamp: stamp.clone() }, why);
        }
        None => {
            let found = match left {
                Some(stamp) => format!("its stamp says member {} of cluster {}", stamp.member, stamp.cluster_id),
                None => String::from("it has no stamp that says which cluster it belongs to"),
            };
            decision.block(UnsafeBecause::ForeignData { member: member.clone(), found });
        }
    }
}

/// The first member creates the data and becomes the primary. No other member starts before that.
fn form(
    view: &View<'_>,
    decision: &mut Decision,
    token: &str,
    first: &MemberName,
    members: &BTreeMap<MemberName, Known>,
) {
    let Some(began) = members.get(first).filter(|_| view.desired.members.contains_key(first)) else {
        let why = format!("the spec no longer names {first}, which was to create the data; no client has written yet");
        return restore::abandon(view, decision, token, why);
    };
    let Some((facts, found)) = ready(view, decision, first) else { return };
    if facts.machine_id != began.machine_id {
        let why = format!("{first} got another machine after the bootstrap began; no client has written yet");
        return restore::abandon(view, decision, token, why);
    }
    if restore::put(view, decision, token, first, found) {
        return;
    }
    let stamp = stamp(view, first, token);
    match (&found.data, &found.service) {
        (DataSeen::Stamped(there), ServiceState::Stopped) if *there == stamp => start(decision, first, found),
        (DataSeen::Stamped(there), _) if *there == stamp => record_initialized(view, decision, first, found),
        (DataSeen::Empty, ServiceState::Stopped) if found.last_started.is_none() => {
            if let Err(because) = safety::may_begin_empty(view.desired.postgres()) {
                return decision.block(because);
            }
            let why = format!("all members are ready and empty; {first} goes first");
            decision.step_expecting(
                Action::InitializePostgres { member: first.clone(), stamp },
                why,
                Precondition::Data(DataSeen::Empty),
            );
        }
        (DataSeen::Empty, ServiceState::Stopped) if found.last_started.as_ref() == Some(&stamp) => {
            let why = format!("{first} lost the data of this bootstrap; no client has written yet");
            restore::abandon(view, decision, token, why);
        }
        _ => clear(view, decision, first, facts, found),
    }
}

fn record_initialized(view: &View<'_>, decision: &mut Decision, first: &MemberName, found: &PostgresFacts) {
    let system_id = found.status.as_ref().and_then(|status| status.system_id.clone());
    match system_id.filter(|_| safety::leads(view, first)) {
        Some(system_id) => {
            let why =
                format!("{first} is the primary; from now on a member with an empty disk is cloned, never initialized");
            decision.step(Action::RecordInitialized { system_id }, why);
        }
        None => wait(decision, first, found),
    }
}

/// Every member that belongs to the cluster runs on its data. One without data is cloned.
fn keep(view: &View<'_>, decision: &mut Decision, token: &str) {
    for member in view.desired.members.keys() {
        let Some((facts, found)) = ready(view, decision, member) else { continue };
        if restore::set_aside(view, decision, member, found) {
            continue;
        }
        let stamp = stamp(view, member, token);
        match (&found.data, &found.service) {
            (_, ServiceState::Running { .. }) if view.is_well(member) => {}
            (_, ServiceState::Running { .. } | ServiceState::BackingOff { .. } | ServiceState::Unknown { .. }) => {
                wait(decision, member, found);
            }
            (DataSeen::Stamped(there), ServiceState::Stopped) if is_its_own(there, &stamp) => {
                start(decision, member, found);
            }
            (DataSeen::Empty, ServiceState::Stopped) => clone(view, decision, member, facts, found, stamp),
            _ => clear_of_living(view, decision, member, facts, found),
        }
    }
}

/// Data that outlived a machine has the incarnation of the machine on which it was created.
fn is_its_own(there: &Stamp, wanted: &Stamp) -> bool {
    let Stamp { cluster_id, token, member, incarnation } = there;
    (cluster_id, token, member) == (&wanted.cluster_id, &wanted.token, &wanted.member)
        && *incarnation <= wanted.incarnation
}

/// It gets a copy of the data from the member that Patroni chooses. That needs a primary.
fn clone(
    view: &View<'_>,
    decision: &mut Decision,
    member: &MemberName,
    facts: &Facts,
    found: &PostgresFacts,
    stamp: Stamp,
) {
    let Some(primary) = safety::primary(view) else {
        return decision.wait(WaitingFor::Primary { why: format!("{member} has no data and must clone it") });
    };
    let why = match view.desired.belongs(member) && found.last_started.is_some() {
        true => format!("its data is lost; {primary} is the primary and has all of it"),
        false => format!("{primary} is the primary; {member} clones its data"),
    };
    let joining = known(view, member, facts);
    decision.step_expecting(
        Action::JoinPostgres { member: member.clone(), stamp, joining },
        why,
        Precondition::Data(DataSeen::Empty),
    );
}

/// In a cluster with data, nothing is wiped without a request.
fn clear_of_living(
    view: &View<'_>,
    decision: &mut Decision,
    member: &MemberName,
    facts: &Facts,
    found: &PostgresFacts,
) {
    if let Err(because) = safety::formation_is_known(view.desired, member, facts) {
        return decision.block(because);
    }
    let found = match &found.data {
        DataSeen::Stamped(stamp) => format!(
            "its stamp says machine {}.{} of cluster {}, bootstrap {}",
            stamp.member, stamp.incarnation, stamp.cluster_id, stamp.token
        ),
        DataSeen::Empty | DataSeen::Unstamped => String::from("it has no stamp that says which cluster it belongs to"),
    };
    decision.block(UnsafeBecause::ForeignData { member: member.clone(), found });
}

fn start(decision: &mut Decision, member: &MemberName, found: &PostgresFacts) {
    let why = format!("{member} holds data of the cluster and does not run");
    let action = Action::StartPatroni { member: member.clone() };
    decision.step_expecting(action, why, Precondition::Data(found.data.clone()));
}

fn wait(decision: &mut Decision, member: &MemberName, found: &PostgresFacts) {
    match (&found.service, &found.status) {
        (ServiceState::BackingOff { restarts, last_exit }, _) => decision.wait(WaitingFor::ServiceToStay {
            member: member.clone(),
            service: String::from("Patroni"),
            restarts: *restarts,
            how: last_exit.how.clone(),
            last_words: last_exit.last_words.clone(),
        }),
        (_, None) => {
            let why = String::from("Patroni does not answer yet");
            decision.wait(WaitingFor::PostgresHealth { member: member.clone(), why });
        }
        (_, Some(status)) => {
            let why = match status.role {
                Role::Primary | Role::Replica => format!("{} ({})", status.state, status.role),
                Role::Unknown => status.state.clone(),
            };
            decision.wait(WaitingFor::PostgresHealth { member: member.clone(), why });
        }
    }
}

pub(super) fn stamp(view: &View<'_>, member: &MemberName, token: &str) -> Stamp {
    let desired = view.desired;
    Stamp {
        cluster_id: desired.cluster_id.clone(),
        token: token.to_owned(),
        member: member.clone(),
        incarnation: desired.members.get(member).map_or(1, |wish| wish.incarnation),
    }
}

pub(super) fn known(view: &View<'_>, member: &MemberName, facts: &Facts) -> Known {
    let machine = view.seen.machines.get().and_then(|machines| machines.get(member));
    let before = view.desired.postgres().formation.members().and_then(|members| members.get(member)?.number);
    let number = before.or_else(|| view.desired.members.get(member).map(|wish| wish.incarnation));
    Known { machine_id: facts.machine_id.clone(), address: machine.and_then(|machine| machine.address), number }
}
