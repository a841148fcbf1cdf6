//! The rules of an upgrade to another major version, and of the way back.

use super::{postgres, status};
use crate::kinds::postgres::planner::upgrade::missing_programs;
use crate::kinds::postgres::{ControlSeen, DataState, ReplacedSeen, Wish};
use crate::model::{BinarySeen, MemberName};
use crate::planner::{UnsafeBecause, View};

/// The first pgBackRest that knows a major version of PostgreSQL.
const FIRST_PGBACKREST: [(u16, (u32, u32)); 4] = [(15, (2, 41)), (16, (2, 48)), (17, (2, 54)), (18, (2, 57))];

/// `KnownVersions`: data is upgraded to newer versions only. A restore returns to the data from before the last upgrade.
pub(crate) fn version_path(wish: &Wish, from: &str, to: &str) -> Result<(), UnsafeBecause> {
    let number = |version: &str| version.parse::<u16>().unwrap_or_default();
    let previous = wish.previous.as_ref();
    if number(to) < number(from) {
        let back = previous.is_some_and(|previous| previous.version == to);
        return Err(UnsafeBecause::MajorDowngrade { from: from.to_owned(), to: to.to_owned(), back });
    }
    // Only one previous version is kept, and the next upgrade needs its place.
    match previous {
        Some(previous) => Err(UnsafeBecause::UpgradeKept { version: previous.version.clone() }),
        None => Ok(()),
    }
}

/// `MachineIsReady`: every member has the programs of the new version.
pub(crate) fn machines_can_upgrade(view: &View<'_>, to: &str) -> Result<(), UnsafeBecause> {
    let not_ready = |member: &MemberName, why: String, remedy: String| {
        Err(UnsafeBecause::NotReady { member: member.clone(), why, remedy })
    };
    if let Some((member, why)) = missing_programs(view) {
        let remedy = format!(
            "install PostgreSQL {to} on the machines, next to the version that runs (`apt-get install postgresql-{to}`)"
        );
        return not_ready(member, why.to_owned(), remedy);
    }
    let Some((_, needed)) = FIRST_PGBACKREST.into_iter().find(|(version, _)| version.to_string() == to) else {
        return Ok(());
    };
    for member in view.desired.members.keys() {
        let Some(found) = view.seen.facts(member).and_then(postgres) else { continue };
        if let BinarySeen::Version(version) = &found.pgbackrest
            && numbers(version).is_some_and(|version| version < needed)
        {
            let why = format!("pgBackRest {version} cannot back up PostgreSQL {to}");
            let remedy = format!("install pgBackRest {}.{} or newer on the machines", needed.0, needed.1);
            return not_ready(member, why, remedy);
        }
    }
    Ok(())
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// `StopsByConsent`, `OneDisturbance`: what the operator must have confirmed, and which other requests must not be open.
pub(crate) fn may_upgrade(view: &View<'_>, primary: &MemberName, from: &str, to: &str) -> Result<(), UnsafeBecause> {
    let desired = view.desired;
    let (wish, text) = (desired.postgres(), str::to_owned);
    let config = status(view.seen, primary).and_then(|status| status.config.as_ref());
    if config.is_some_and(|config| *config != wish.config) || wish.rotation.is_some() || wish.switchover.is_some() {
        return Err(UnsafeBecause::UpgradeAlone { from: text(from), to: text(to) });
    }
    match &wish.upgrade_failed {
        Some(failed) if failed.to == to && (failed.fence == desired.fence || !desired.downtime) => {
            Err(UnsafeBecause::MajorUpgradeFailed { from: text(from), to: text(to), why: failed.why.clone() })
        }
        _ if !desired.downtime => Err(UnsafeBecause::UpgradeStops { from: text(from), to: text(to) }),
        _ => Ok(()),
    }
}

/// `NoCommitIsLeftBehind`: of members that are all stopped, the one whose data is upgraded. It was shut down as a primary, which writes its
/// last checkpoint when no client is connected any more, and no other member knows of anything later.
pub fn has_every_commit<'a>(view: &View<'a>) -> Result<&'a MemberName, String> {
    let wish = view.desired.postgres();
    let Some(members) = wish.formation.members() else { return Err(String::from("no member is known")) };
    let control = |member: &MemberName| view.seen.facts(member).and_then(postgres).and_then(|found| found.control);
    let place = |seen: &ControlSeen| (seen.timeline, seen.checkpoint);
    let mut clean = view.desired.members.keys().filter(|member| {
        members.contains_key(*member) && control(member).is_some_and(|seen| seen.state == DataState::ShutDown)
    });
    let (Some(source), None) = (clean.next(), clean.next()) else {
        return Err(String::from("no member, or more than one, was shut down as the primary"));
    };
    let end = control(source).map(|seen| place(&seen)).unwrap_or_default();
    let ahead = members.keys().find(|member| {
        *member != source && control(member).is_none_or(|seen| place(&seen) > end || seen.state == DataState::InUse)
    });
    match ahead {
        Some(other) => Err(format!("{source} was shut down as the primary, and {other} may have later commits")),
        None => Ok(source),
    }
}

/// The data from before the last upgrade on this member, if it has every commit of that time.
pub(crate) fn kept<'a>(view: &View<'a>, member: &MemberName) -> Option<&'a ReplacedSeen> {
    let previous = view.desired.postgres().previous.as_ref().filter(|previous| previous.member == *member)?;
    let kept = view.seen.facts(member).and_then(postgres)?.replaced.as_ref()?;
    let whole = kept.control.state == DataState::ShutDown;
    (kept.stamp.cluster_id == view.desired.cluster_id && kept.stamp.token == previous.token && whole).then_some(kept)
}

/// `DataDiesOnlyByConsent`: what the operator wants to go back to must be there, and be what the spec wants.
pub(crate) fn may_go_back(view: &View<'_>) -> Result<(), UnsafeBecause> {
    let wish = view.desired.postgres();
    let Some(previous) = &wish.previous else {
        return Err(UnsafeBecause::NoWayBack { why: String::from("no upgrade has replaced any data") });
    };
    if wish.form_with.version != previous.version {
        let (version, now) = (&previous.version, &wish.form_with.version);
        let why = format!("the data from before the upgrade is of PostgreSQL {version}, and the spec wants {now}");
        return Err(UnsafeBecause::NoWayBack { why });
    }
    if let Some((member, why)) = missing_programs(view) {
        return Err(UnsafeBecause::NoWayBack { why: format!("on {member}, {why}") });
    }
    let member = &previous.member;
    let is_prepared = |token: &String| {
        let found = view.seen.facts(member).and_then(postgres).and_then(|found| found.restored.as_ref());
        found.is_some_and(|restored| restored.token == *token)
    };
    // No other member keeps all of it. Once members have stopped for it, nobody would be left to wait for.
    if view.seen.machines.get().is_some_and(|machines| !machines.contains_key(member)) {
        let why = format!("the machine of {member}, which kept the data from before the upgrade, is missing");
        return Err(UnsafeBecause::NoWayBack { why });
    }
    let ready = wish.restore.as_ref().is_some_and(|restore| is_prepared(&restore.token));
    // Another concern waits for an agent that does not answer.
    if view.seen.facts(member).is_some() && !ready && kept(view, member).is_none() {
        let why = format!("{member} does not keep the data from before the upgrade, or that data is damaged");
        return Err(UnsafeBecause::NoWayBack { why });
    }
    Ok(())
}
