//! The safety rules of PostgreSQL: quorate never causes two primaries, disturbs no member while another does not stream, and deletes data
//! only with consent. Patroni decides who is the primary; these rules limit what quorate may ask of it.

mod patroni;
mod takeover;
mod upgrade;

use super::unfit::{MOST_LAG, Unfit};
use super::{Formation, PatroniStatus, PostgresFacts, Role, Wish, parameters};
use crate::model::{
    AgentSeen, BackupNote, Data, DataSeen, Desired, Destruction, Facts, History, MachineSeen, MemberName, Observation,
    Seen, ServiceState, Stamp,
};
use crate::planner::machines::awaits;
use crate::planner::voters::{Strength, Voters};
use crate::planner::{Action, UnsafeBecause, View};

pub(crate) use patroni::patroni_can;
pub(crate) use takeover::{is_held, member_with_every_commit};
pub use upgrade::has_every_commit;
pub(crate) use upgrade::{kept, machines_can_upgrade, may_go_back, may_upgrade, version_path};

pub(crate) fn postgres(facts: &Facts) -> Option<&PostgresFacts> {
    facts.postgres.as_deref()
}

pub(crate) fn status<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a PatroniStatus> {
    postgres(seen.facts(member)?)?.status.as_ref()
}

/// Whether this member is the primary, and runs.
pub fn leads(view: &View<'_>, member: &MemberName) -> bool {
    status(view.seen, member).is_some_and(|status| status.role == Role::Primary && status.state == "running")
}

/// The primary, if exactly one member reports that role. If two do, there is none.
pub fn primary<'a>(view: &View<'a>) -> Option<&'a MemberName> {
    let mut claim = view.seen.agents.keys().filter(|name| leads(view, name) && !view.desired.is_proxy(name));
    let first = claim.next()?;
    claim.next().is_none().then_some(first)
}

/// Whether this member is healthy: it is the primary, or streams from it on the same timeline.
pub fn is_well(view: &View<'_>, member: &MemberName) -> bool {
    let Some(primary) = primary(view) else { return false };
    let (Some(own), Some(leading)) = (status(view.seen, member), status(view.seen, primary)) else { return false };
    member == primary || (own.role == Role::Replica && own.streaming && own.timeline == leading.timeline)
}

/// The number of members, and of healthy ones.
pub fn members(view: &View<'_>) -> Voters {
    count(view, |member| is_well(view, member))
}

/// The same, where one that is only stopped counts as well.
pub(crate) fn able(view: &View<'_>) -> Voters {
    let token = view.desired.postgres().formation.token();
    let holds = |facts: &PostgresFacts| matches!(&facts.data, DataSeen::Stamped(s) if Some(s.token.as_str()) == token);
    count(view, |member| view.seen.facts(member).and_then(postgres).is_some_and(holds))
}

fn count(view: &View<'_>, counts: impl Fn(&MemberName) -> bool) -> Voters {
    let all: Vec<&MemberName> = view.desired.all_joined().collect();
    Voters { all: all.len(), healthy: all.into_iter().filter(|member| counts(member)).count() }
}

/// The other members that are not healthy.
pub fn unwell_besides(view: &View<'_>, member: &MemberName) -> Vec<MemberName> {
    let others = view.desired.all_joined().filter(|other| *other != member);
    others.filter(|other| !is_well(view, other)).cloned().collect()
}

/// The members whose Patroni has not loaded the configuration in the DCS yet. Whether they must restart is not known.
pub(crate) fn behind_configuration<'a>(view: &View<'a>) -> impl Iterator<Item = &'a MemberName> {
    let View { desired, seen, .. } = *view;
    let config = &desired.postgres().config;
    let is_behind = move |found: &PostgresFacts| found.status.is_some() && found.applied.as_ref() != Some(config);
    desired.members.keys().filter(move |member| seen.facts(member).and_then(postgres).is_some_and(is_behind))
}

/// `CommitsSurvive`: may this member restart, or leave, now? Without it there must still be as many standbys as a commit waits for, and
/// a primary. The caller has waited for members that do not stream (`unwell_besides`).
pub fn may_disturb(view: &View<'_>, member: &MemberName) -> Result<(), UnsafeBecause> {
    let desired = view.desired;
    let needed = desired.postgres().synchronous.unwrap_or(0);
    let left = desired.all_joined().filter(|other| *other != member && is_well(view, other)).count();
    let is_alone = left == 0;
    if desired.downtime || (!is_alone && left > needed) {
        return Ok(());
    }
    Err(UnsafeBecause::CommitsWait { member: member.clone(), left: left.saturating_sub(1), needed })
}

/// The number of standbys that Patroni has recorded as synchronous, and the number that commits wait for, if that is higher.
pub fn too_few_synchronous(view: &View<'_>) -> Option<(usize, usize)> {
    let needed = view.desired.postgres().synchronous?;
    let status = status(view.seen, primary(view)?)?;
    let chosen = status.standbys.values().filter(|standby| standby.synchronous).count();
    (chosen < needed).then_some((chosen, needed))
}

/// `StandbyIsReady`: why this member may not take over from the primary now. Patroni has similar checks; quorate does not ask it for what
/// it would refuse.
pub fn unfit(view: &View<'_>, primary: &MemberName, member: &MemberName) -> Option<Unfit> {
    let Some(wish) = view.desired.members.get(member) else { return Some(Unfit::Leaves) };
    if view.desired.postgres().never_primary.contains(member) {
        return Some(Unfit::NeverPrimary);
    }
    let (Some(leading), Some(own)) = (status(view.seen, primary), status(view.seen, member)) else {
        return Some(Unfit::Silent);
    };
    if !is_well(view, member) {
        return Some(Unfit::NotStreaming);
    }
    let called = view.desired.postgres().formation.patroni_name(member, wish.incarnation);
    let confirms = leading.standbys.get(&called).is_some_and(|standby| standby.synchronous);
    if view.desired.postgres().synchronous.is_some() && !confirms {
        let standbys = leading.standbys.iter().filter(|(_, standby)| standby.synchronous);
        return Some(Unfit::NotSynchronous { standbys: standbys.map(|(name, _)| name.clone()).collect() });
    }
    match (leading.location, own.location) {
        (Some(end), Some(here)) if end.saturating_sub(here) <= MOST_LAG => None,
        (Some(end), Some(here)) => Some(Unfit::Lags { bytes: end - here }),
        _ => Some(Unfit::Silent),
    }
}

/// The standby that should take over from this primary: the one that the operator asked for, or else the furthest.
pub fn successor(view: &View<'_>, primary: &MemberName) -> Option<MemberName> {
    let asked = view.desired.postgres().switchover.as_ref().and_then(|request| request.to.as_ref());
    let location = |member: &MemberName| status(view.seen, member).and_then(|status| status.location);
    let fit = view.desired.members.keys().filter(|member| *member != primary && unfit(view, primary, member).is_none());
    fit.min_by_key(|member| (Some(*member) != asked, std::cmp::Reverse(location(member)), *member)).cloned()
}

/// `StandbyKeepsUp`: the limits that the primary waits to have lowered. It must restart before its standbys then: one with less than its
/// primary does not start. Where others are to be raised at the same time, the standbys would have to come first: that takes two changes.
pub fn lowered_limits(view: &View<'_>) -> Result<Vec<String>, UnsafeBecause> {
    let Some(status) = primary(view).and_then(|primary| status(view.seen, primary)) else { return Ok(Vec::new()) };
    one_direction(parameters::moved_limits(&status.pending))
}

/// The same of a configuration that is not written yet.
pub(crate) fn limits_of_change(version: &str, before: &str, after: &str) -> Result<(), UnsafeBecause> {
    let changed = parameters::restarts(version.parse().unwrap_or_default(), before, after);
    one_direction(parameters::moved_limits(&changed)).map(drop)
}

fn one_direction((lowered, raised): (Vec<String>, Vec<String>)) -> Result<Vec<String>, UnsafeBecause> {
    match lowered.is_empty() || raised.is_empty() {
        true => Ok(lowered),
        false => Err(UnsafeBecause::LimitsBothWays { lowered, raised }),
    }
}

/// Why the primary can never hand over: the tags of all others prevent it.
pub(crate) fn never_replaced(view: &View<'_>, primary: &MemberName) -> Option<UnsafeBecause> {
    let others: Vec<&MemberName> = view.desired.members.keys().filter(|member| *member != primary).collect();
    let barred = &view.desired.postgres().never_primary;
    let unfit = || others.iter().map(|member| ((*member).clone(), Unfit::NeverPrimary)).collect();
    let all = others.iter().all(|member| barred.contains(*member));
    all.then(|| UnsafeBecause::NoSuccessor { from: primary.clone(), unfit: unfit() })
}

/// With another etcd, Patroni on the first configured members would find no leader, and one of them would become a second primary. For an
/// etcd that others operate only the endpoints are known. They change, but not all at once.
fn is_same_dcs(then: &str, now: &str) -> bool {
    then.split(',').any(|endpoint| now.split(',').any(|other| other == endpoint))
}

/// Fixed settings of an existing cluster: the field, its value at creation, and the spec's value now.
pub(crate) fn fixed_at_formation(wish: &Wish) -> Vec<(&'static str, &String, &String)> {
    let Some(then) = &wish.formed_with else { return Vec::new() };
    let now = &wish.form_with;
    vec![
        ("postgres.dcs", &then.dcs, if is_same_dcs(&then.dcs, &now.dcs) { &then.dcs } else { &now.dcs }),
        ("postgres.namespace and postgres.scope", &then.key, &now.key),
        ("postgres.locale", &then.locale, &now.locale),
    ]
}

/// PostgreSQL reloads its CAs, so it trusts those on the machine.
pub(crate) fn trusts(facts: &Facts, key_id: &str) -> bool {
    let trust = facts.etcd.trust.get(&crate::model::TrustPlane::Peer);
    trust.is_some_and(|trust| trust.on_disk.contains(key_id))
}

/// `DataDiesOnlyByConsent`, `NewWithinOneFormation`: data of a bootstrap that this ledger neither began nor abandoned belongs to a cluster
/// that it does not know.
pub(crate) fn formation_is_known(desired: &Desired, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    let wish = desired.postgres();
    let Some(found) = postgres(facts) else { return Ok(()) };
    let unknown = |stamp: &&Stamp| {
        let is_current = Some(stamp.token.as_str()) == wish.formation.token();
        let is_over = wish.abandoned.contains(&stamp.token) || wish.replaced.contains(&stamp.token);
        stamp.cluster_id == desired.cluster_id && !is_current && !is_over
    };
    let in_data = match &found.data {
        DataSeen::Stamped(stamp) => Some(stamp),
        DataSeen::Empty | DataSeen::Unstamped => None,
    };
    match in_data.into_iter().chain(&found.last_started).find(unknown) {
        Some(stamp) => Err(UnsafeBecause::UnknownFormation { member: member.clone(), token: stamp.token.clone() }),
        None => Ok(()),
    }
}

/// `DataDiesOnlyByConsent`: data of this cluster was given up for data that is still to come. The cluster is not created empty instead, and nothing
/// that is left of it is wiped: what was given up may be stored next to that.
pub(crate) fn may_begin_empty(wish: &Wish) -> Result<(), UnsafeBecause> {
    match wish.replaced.last() {
        Some(token) => Err(UnsafeBecause::RestoreUnfinished { token: token.clone() }),
        None => Ok(()),
    }
}

/// `DataDiesOnlyByConsent` for the whole cluster: once clients may have written, a verified backup must hold all commits, or the operator
/// must have said that none is needed.
pub(crate) fn may_destroy(view: &View<'_>, word: &Destruction) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let machines = seen.machines.get().into_iter().flatten();
    let mut ours = machines.filter(|(_, machine)| machine.cluster_id == desired.cluster_id);
    match word {
        Destruction::BackupWaived => Ok(()),
        _ if !desired.is_formed() && ours.all(|(member, _)| was_never_used(seen, member)) => Ok(()),
        Destruction::BackupMissing => Err(UnsafeBecause::NoBackup),
        Destruction::BackupVerified(backup) => is_in_backup(view, backup),
    }
}

/// The primary that knows all commits, because it reaches the DCS.
fn knowing<'a>(view: &View<'a>) -> Option<(&'a PostgresFacts, &'a PatroniStatus)> {
    let found = postgres(view.seen.facts(primary(view)?)?)?;
    Some((found, found.status.as_ref().filter(|status| status.dcs)?))
}

/// The primary reports the number of its last transaction only when asked.
pub(crate) fn can_tell_more(view: &View<'_>) -> bool {
    knowing(view).is_some_and(|(found, _)| found.transaction.is_none())
}

/// `DataDiesOnlyByConsent`, `UnseenIsUnsafe`: whether no transaction ended after the backup began. Only a primary that reaches the DCS
/// knows all commits: another may have been promoted since. After a failover or a restore the same numbers may mean other transactions.
/// If no machine is left, there is nothing to lose.
fn is_in_backup(view: &View<'_>, backup: &BackupNote) -> Result<(), UnsafeBecause> {
    let ours = |machine: &MachineSeen| machine.cluster_id == view.desired.cluster_id;
    if view.seen.machines.get().is_some_and(|machines| !machines.values().any(ours)) {
        return Ok(());
    }
    let (id, at) = (backup.id.clone(), backup.at);
    let told = knowing(view).and_then(|(found, status)| Some((found, status, found.transaction?)));
    let Some((found, status, data)) = told else {
        return Err(UnsafeBecause::BackupBehind { id, at, backup: backup.revision, data: None });
    };
    let history =
        found.system_id.clone().zip(status.timeline).map(|(system_id, timeline)| History { system_id, timeline });
    if history.is_none() || history != backup.history {
        return Err(UnsafeBecause::BackupOfOtherHistory { id, at });
    }
    match data <= backup.revision {
        true => Ok(()),
        false => Err(UnsafeBecause::BackupBehind { id, at, backup: backup.revision, data: Some(data) }),
    }
}

fn was_never_used(seen: &Observation, member: &MemberName) -> bool {
    match seen.agents.get(member).and_then(Seen::get) {
        Some(AgentSeen::Unenrolled { .. }) => true,
        Some(AgentSeen::Enrolled(facts)) => {
            let is_blank = |found: &PostgresFacts| {
                found.data == DataSeen::Empty && found.last_started.is_none() && found.replaced.is_none()
            };
            postgres(facts).is_none_or(is_blank)
        }
        Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None => false,
    }
}

/// Whether every wanted member is healthy, or has no machine because it needs the place of this one.
pub(crate) fn all_others_are_well(view: &View<'_>, leaving: &MemberName) -> bool {
    view.desired.members.keys().all(|wanted| is_well(view, wanted) || awaits(view, wanted, leaving))
}

/// `DataDiesOnlyByConsent`: the machine of a former member is destroyed when it has left the cluster and every wanted member is healthy,
/// or needs its place.
pub(crate) fn may_clear_away(view: &View<'_>, member: &MemberName) -> bool {
    let desired = view.desired;
    let runs = view.seen.facts(member).and_then(postgres).is_some_and(|found| found.service != ServiceState::Stopped);
    desired.joined(member).is_none() && !runs && all_others_are_well(view, member)
}

/// The fault tolerance while a step runs: how many members may fail before none is left to take over.
pub(crate) fn strength_during(view: &View<'_>, action: &Action) -> Option<Strength> {
    let Formation::Formed { .. } = &view.desired.postgres().formation else { return None };
    let Voters { all, healthy } = members(view);
    let disturbed = match action {
        Action::RestartPatroni { member }
        | Action::RestartPostgres { member }
        | Action::StopPatroni { member }
        | Action::RebootMachine { member, .. }
        | Action::StopMachine { member }
        | Action::DestroyMachine { member, data: Data::Stays } => usize::from(is_well(view, member)),
        _ => 0,
    };
    let healthy = healthy.saturating_sub(disturbed);
    Some(Strength { voters: all, healthy, quorum: 1, failures_survived: healthy.saturating_sub(1) })
}
