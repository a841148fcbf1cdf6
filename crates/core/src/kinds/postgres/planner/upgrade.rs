//! Major version upgrades. When all members have stopped, `pg_upgrade` converts a copy of the primary's data to the new version, and the
//! others clone it. Every member keeps the previous data next to it.
//!
//! The upgrade is rehearsed on a copy first, while the cluster serves. Once the ledger records that it has begun, it is either completed,
//! or the cluster starts again with the previous version, without asking the operator again.

use std::collections::BTreeMap;

use super::formation::{known, ready, stamp};
use super::restore::{self, Stopped};
use crate::kinds::postgres::safety::{self, postgres};
use crate::kinds::postgres::{PostgresFacts, Previous, RestoreState, TaskSeen, Upgrade};
use crate::model::{BinarySeen, DataSeen, MemberName, ServiceState};
use crate::planner::{Action, Decision, Precondition, UnsafeBecause, View, WaitingFor};

/// How an upgrade restricts everything else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrading {
    No,
    /// Members are kept as they are, and nothing else is changed.
    Pending,
    /// They are stopped, and none is started.
    UnderWay,
}

/// An upgrade that has begun continues whatever the spec says: no member may start meanwhile.
pub(crate) fn decide(view: &View<'_>, as_formed: bool, decision: &mut Decision) -> Upgrading {
    let wish = view.desired.postgres();
    let in_formation = |upgrade: &&Upgrade| wish.formation.token() == Some(&upgrade.token);
    match (&wish.restore, &wish.upgrade, wish.version_change()) {
        (Some(_), ..) => Upgrading::No,
        (None, Some(upgrade), _) if in_formation(&upgrade) => Upgrading::No,
        (None, Some(upgrade), _) => {
            under_way(view, upgrade, decision);
            Upgrading::UnderWay
        }
        (None, None, Some((from, to))) if as_formed => {
            if let Err(because) = begin(view, from, to, decision) {
                decision.block(because);
            }
            Upgrading::Pending
        }
        (None, None, _) => Upgrading::No,
    }
}

/// Checks everything that can be known before any member stops.
fn begin(view: &View<'_>, from: &str, to: &str, decision: &mut Decision) -> Result<(), UnsafeBecause> {
    safety::version_path(view.desired.postgres(), from, to)?;
    // Configurations name the programs of the new version, too.
    if !decision.steps.is_empty() {
        return Ok(());
    }
    safety::machines_can_upgrade(view, to)?;
    let Some(primary) = safety::primary(view).filter(|_| all_well(view, decision)) else { return Ok(()) };
    safety::may_upgrade(view, primary, from, to)?;
    let workshop = view.desired.members.keys().find(|member| *member != primary).unwrap_or(primary);
    let Some(seconds) = rehearsed(view, workshop, (from, to), decision)? else { return Ok(()) };
    let why = format!(
        "{workshop} has rehearsed it on a copy of the data, in {seconds} s; from here on it is completed, or PostgreSQL {from} starts again"
    );
    let token = format!("{}-{to}", view.desired.postgres().next_token);
    decision.step(Action::RecordUpgrading { token, from: from.to_owned(), to: to.to_owned() }, why);
    Ok(())
}

/// Waits for members that are not ready, unless another concern does.
fn all_well(view: &View<'_>, decision: &mut Decision) -> bool {
    let unwell: Vec<&MemberName> = view.desired.members.keys().filter(|member| !view.is_well(member)).collect();
    for member in &unwell {
        let why = String::from("all members must be healthy before an upgrade");
        decision.wait(WaitingFor::PostgresHealth { member: (*member).clone(), why });
    }
    let leaving = view.desired.all_joined().any(|member| !view.desired.members.contains_key(member));
    if leaving {
        decision
            .wait(WaitingFor::Primary { why: String::from("members that leave must be removed before an upgrade") });
    }
    unwell.is_empty() && !leaving
}

/// How long a rehearsal took, once one has succeeded. One that failed before this controller began is repeated.
fn rehearsed(
    view: &View<'_>,
    workshop: &MemberName,
    (from, to): (&str, &str),
    decision: &mut Decision,
) -> Result<Option<u64>, UnsafeBecause> {
    let formation = view.desired.postgres().formation.token().unwrap_or_default();
    let what = format!("upgrade {formation} to {to}");
    let id = format!("{what}, {}", view.desired.fence);
    let seen = task(view, workshop).filter(|task| task.id.starts_with(&format!("{what}, ")));
    match seen {
        Some(TaskSeen { state: RestoreState::Ready, seconds, .. }) => return Ok(Some(seconds.unwrap_or(0))),
        Some(TaskSeen { state: RestoreState::Running { doing }, .. }) => {
            decision.wait(WaitingFor::Task { member: workshop.clone(), doing: doing.clone() });
        }
        Some(TaskSeen { state: RestoreState::Failed { why }, id: known, .. }) if *known == id => {
            return Err(UnsafeBecause::RehearsalFailed {
                member: workshop.clone(),
                from: from.to_owned(),
                to: to.to_owned(),
                why: why.clone(),
            });
        }
        Some(_) | None => {
            let why = "problems should appear on a copy, while the cluster serves";
            let action = Action::RehearseUpgrade { member: workshop.clone(), id, to: to.to_owned() };
            decision.step(action, why);
        }
    }
    Ok(None)
}

fn task<'a>(view: &View<'a>, member: &MemberName) -> Option<&'a TaskSeen> {
    view.seen.facts(member).and_then(postgres)?.task.as_ref()
}

/// Until the bootstrap with the upgraded data begins.
fn under_way(view: &View<'_>, upgrade: &Upgrade, decision: &mut Decision) {
    let Some(source) = &upgrade.source else { return stop(view, upgrade, decision) };
    let is_gone = view.seen.machines.get().is_some_and(|machines| !machines.contains_key(source));
    if is_gone {
        let why = format!("the machine of {source} is missing, and with it the data that was being upgraded");
        return abandon(decision, upgrade, why);
    }
    let Some(found) = view.seen.facts(source).and_then(postgres) else {
        let why = format!("its data is being upgraded to PostgreSQL {}", upgrade.to);
        return decision.wait(WaitingFor::Agent { member: source.clone(), why });
    };
    if !holds(view, source, found) {
        let why = format!("{source} has lost the data that was being upgraded");
        return abandon(decision, upgrade, why);
    }
    match restore::prepared(view, source, &upgrade.token) {
        Some(RestoreState::Ready) => match restore::stop_all(view, decision, "the upgraded data is ready") {
            Stopped::All => start_over(view, upgrade, source, decision),
            Stopped::NotYet => {}
        },
        Some(RestoreState::Running { doing }) => {
            decision.wait(WaitingFor::Task { member: source.clone(), doing: doing.clone() });
        }
        Some(RestoreState::Failed { why }) => abandon(decision, upgrade, why.clone()),
        None => upgrade_data(view, upgrade, source, found, decision),
    }
}

/// Replicas first, so nobody takes over; then the primary, which has every commit and says so.
fn stop(view: &View<'_>, upgrade: &Upgrade, decision: &mut Decision) {
    if nobody_will_lead(view) {
        return abandon(decision, upgrade, String::from("the primary was lost while members were stopping"));
    }
    let runs =
        |member: &MemberName| view.seen.facts(member).and_then(postgres).is_some_and(|found| found.status.is_some());
    if safety::primary(view).is_none() && view.desired.all_joined().any(runs) {
        let why = String::from("it must be known which member has every commit before any member stops");
        return decision.wait(WaitingFor::Primary { why });
    }
    let why = format!("all data is upgraded to PostgreSQL {}; the primary stops last and has every commit", upgrade.to);
    if restore::stop_all(view, decision, &why) == Stopped::NotYet {
        return;
    }
    match safety::has_every_commit(view) {
        Ok(source) => {
            let Some(found) = view.seen.facts(source).and_then(postgres) else { return };
            upgrade_data(view, upgrade, source, found, decision);
        }
        Err(why) => abandon(decision, upgrade, why),
    }
}

/// A stopped member may be the only one that can take over. Patroni reports all running ones as not leading.
fn nobody_will_lead(view: &View<'_>) -> bool {
    let found = |member: &MemberName| view.seen.facts(member).and_then(postgres);
    let all: Vec<Option<&PostgresFacts>> = view.desired.all_joined().map(found).collect();
    let is_stopped = |found: &&PostgresFacts| found.service == ServiceState::Stopped;
    let running: Vec<&PostgresFacts> = all.iter().flatten().copied().filter(|found| !is_stopped(found)).collect();
    let silent = all.iter().any(Option::is_none) || running.iter().any(|found| found.status.is_none());
    !running.is_empty() && running.len() < all.len() && !silent && safety::primary(view).is_none()
}

fn upgrade_data(
    view: &View<'_>,
    upgrade: &Upgrade,
    source: &MemberName,
    found: &PostgresFacts,
    decision: &mut Decision,
) {
    let stamp = stamp(view, source, &upgrade.token);
    let why = format!("{source} was the primary and has every commit; its data is copied, and stays as it is");
    let action = Action::UpgradeData { member: source.clone(), stamp, to: upgrade.to.clone() };
    decision.step_expecting(action, why, Precondition::Data(found.data.clone()));
}

fn start_over(view: &View<'_>, upgrade: &Upgrade, source: &MemberName, decision: &mut Decision) {
    let Some((facts, _)) = ready(view, decision, source) else { return };
    let members = BTreeMap::from([(source.clone(), known(view, source, facts))]);
    let why = format!("the upgraded data on {source} is ready and no member runs; the others clone it");
    let action = Action::RecordInitializing { token: upgrade.token.clone(), first: source.clone(), members };
    decision.step(action, why);
}

fn holds(view: &View<'_>, member: &MemberName, found: &PostgresFacts) -> bool {
    let token = view.desired.postgres().formation.token();
    matches!(&found.data, DataSeen::Stamped(stamp) if stamp.member == *member && Some(stamp.token.as_str()) == token)
}

pub(super) fn abandon(decision: &mut Decision, upgrade: &Upgrade, why: String) {
    let action = Action::AbandonUpgrade { token: upgrade.token.clone(), to: upgrade.to.clone(), why: why.clone() };
    decision.step(action, format!("{why}; PostgreSQL {} starts again", upgrade.from));
}

/// After an upgrade: `pg_upgrade` leaves no statistics, and without them PostgreSQL plans badly.
pub(crate) fn finish(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let Some(Previous { analyzed: false, .. }) = &desired.postgres().previous else { return };
    let Some(primary) = safety::primary(view).filter(|_| decision.steps.is_empty()) else { return };
    if !desired.members.keys().all(|member| view.is_well(member)) {
        return;
    }
    let what = format!("statistics of {}", desired.postgres().formation.token().unwrap_or_default());
    let id = format!("{what}, {}", desired.fence);
    match task(view, primary).filter(|task| task.id.starts_with(&format!("{what}, "))) {
        Some(TaskSeen { state: RestoreState::Ready, .. }) => {
            decision.step(Action::RecordAnalyzed, "PostgreSQL has statistics of all tables again");
        }
        Some(TaskSeen { state: RestoreState::Running { doing }, .. }) => {
            decision.wait(WaitingFor::Task { member: primary.clone(), doing: doing.clone() });
        }
        Some(TaskSeen { state: RestoreState::Failed { why }, id: known, .. }) if *known == id => {
            decision.block(UnsafeBecause::NotReady {
                member: primary.clone(),
                why: format!("the statistics that an upgrade drops could not be collected again: {why}"),
                remedy: String::from("run `quorate apply` again, or `vacuumdb --all --analyze-in-stages`"),
            });
        }
        Some(_) | None => {
            let why = "pg_upgrade does not keep statistics, and without them query plans are poor";
            decision.step(Action::AnalyzePostgres { member: primary.clone(), id }, why);
        }
    }
}

/// `DataDiesOnlyByConsent`: what was replaced is deleted when the operator has said so and every member is well with what replaced it.
pub(crate) fn discard(view: &View<'_>, decision: &mut Decision) {
    let (desired, wish) = (view.desired, view.desired.postgres());
    let complete = || desired.members.keys().all(|member| view.is_well(member));
    if !wish.discard || wish.exchanges_data() || !desired.is_formed() || !decision.steps.is_empty() || !complete() {
        return;
    }
    for member in desired.members.keys() {
        let Some(kept) = view.seen.facts(member).and_then(postgres).and_then(|found| found.replaced.as_ref()) else {
            continue;
        };
        if Some(kept.stamp.token.as_str()) != wish.formation.token() {
            let action = Action::DiscardReplaced { member: member.clone(), stamp: kept.stamp.clone() };
            decision.step(action, "the operator confirmed that it is not needed any more");
        }
    }
    if decision.steps.is_empty() {
        decision.step(Action::RecordDiscarded, "no member keeps data that was replaced");
    }
}

/// Obstacles to an upgrade on the machines, the first member's first.
pub(crate) fn missing_programs<'a>(view: &View<'a>) -> Option<(&'a MemberName, &'a str)> {
    view.desired.members.keys().find_map(|member| match &view.seen.facts(member).and_then(postgres)?.next {
        BinarySeen::Missing { why } => Some((member, why.as_str())),
        BinarySeen::Unasked | BinarySeen::Version(_) => None,
    })
}
