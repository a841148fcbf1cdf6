//! The safety rules of PostgreSQL: never two primaries by our hand, nobody is disturbed while another does not stream, and data dies only by
//! consent. Who is primary is Patroni's decision; these rules say what may be asked of it.

use super::{Formation, PatroniStatus, PostgresFacts, Role, Wish};
use crate::model::{
    AgentSeen, Data, DataSeen, Desired, Destruction, Facts, MemberName, Observation, Seen, ServiceState, Stamp,
};
use crate::planner::voters::{Strength, Voters};
use crate::planner::{Action, UnsafeBecause, View};

/// A standby that lags by more is not switched over to: clients would wait for it.
pub const MOST_LAG: u64 = 16 << 20;

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

/// The primary, if exactly one member says that it is. Two that say so are nobody's to choose from.
pub fn primary<'a>(view: &View<'a>) -> Option<&'a MemberName> {
    let mut claim = view.seen.agents.keys().filter(|member| leads(view, member));
    let first = claim.next()?;
    claim.next().is_none().then_some(first)
}

/// Whether this member does its work: it is the primary, or streams from it on the same timeline.
pub fn is_well(view: &View<'_>, member: &MemberName) -> bool {
    let Some(primary) = primary(view) else { return false };
    let (Some(own), Some(leading)) = (status(view.seen, member), status(view.seen, primary)) else { return false };
    member == primary || (own.role == Role::Replica && own.streaming && own.timeline == leading.timeline)
}

/// How many members there are, and how many of them do their work.
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

/// The members besides this one that do not do their work.
pub fn unwell_besides(view: &View<'_>, member: &MemberName) -> Vec<MemberName> {
    let others = view.desired.all_joined().filter(|other| *other != member);
    others.filter(|other| !is_well(view, other)).cloned().collect()
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

/// How many standbys Patroni has recorded as synchronous, and how many commits wait for, where those are more.
pub fn too_few_synchronous(view: &View<'_>) -> Option<(usize, usize)> {
    let needed = view.desired.postgres().synchronous?;
    let status = status(view.seen, primary(view)?)?;
    let chosen = status.standbys.values().filter(|standby| standby.synchronous).count();
    (chosen < needed).then_some((chosen, needed))
}

/// The standby that should take over from this primary: one that confirms commits if there is one, and of those the furthest.
pub fn successor(view: &View<'_>, primary: &MemberName) -> Option<MemberName> {
    let leading = status(view.seen, primary)?;
    let end = leading.location?;
    let candidates = view.desired.members.iter().filter(|(name, _)| *name != primary && is_well(view, name));
    let near = candidates.filter_map(|(name, wish)| {
        let own = status(view.seen, name)?;
        let lag = end.saturating_sub(own.location?);
        let called = super::desire::patroni_name(name.as_str(), wish.incarnation);
        let synchronous = leading.standbys.get(&called).is_some_and(|standby| standby.synchronous);
        (lag <= MOST_LAG).then_some((!synchronous, lag, name))
    });
    near.min().map(|(.., name)| name.clone())
}

/// What a living cluster keeps: the field, what it was then, and what the spec has now.
pub(crate) fn fixed_at_formation(wish: &Wish) -> Vec<(&'static str, &String, &String)> {
    let Some(then) = &wish.formed_with else { return Vec::new() };
    let now = &wish.form_with;
    vec![
        ("postgres.version", &then.version, &now.version),
        ("postgres.dcs.cluster", &then.dcs, &now.dcs),
        ("postgres.namespace and postgres.scope", &then.key, &now.key),
        ("postgres.locale", &then.locale, &now.locale),
    ]
}

/// PostgreSQL reads its CAs again when it is told to, so it trusts what the machine has.
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

/// `DataDiesOnlyByConsent` for the whole cluster. Nothing proves yet that a backup holds all commits, so once clients may have written, only
/// the operator's word that no backup is needed counts.
pub(crate) fn may_destroy(view: &View<'_>, word: &Destruction) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let machines = seen.machines.get().into_iter().flatten();
    let mut ours = machines.filter(|(_, machine)| machine.cluster_id == desired.cluster_id);
    match word {
        Destruction::BackupWaived => Ok(()),
        _ if !desired.is_formed() && ours.all(|(member, _)| was_never_used(seen, member)) => Ok(()),
        Destruction::BackupMissing | Destruction::BackupVerified(_) => Err(UnsafeBecause::NoBackup),
    }
}

fn was_never_used(seen: &Observation, member: &MemberName) -> bool {
    match seen.agents.get(member).and_then(Seen::get) {
        Some(AgentSeen::Unenrolled { .. }) => true,
        Some(AgentSeen::Enrolled(facts)) => {
            postgres(facts).is_none_or(|found| found.data == DataSeen::Empty && found.last_started.is_none())
        }
        Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None => false,
    }
}

/// `DataDiesOnlyByConsent`: the machine of a former member is destroyed when it left the cluster and every wanted member is well.
pub(crate) fn may_clear_away(view: &View<'_>, member: &MemberName) -> bool {
    let desired = view.desired;
    let runs = view.seen.facts(member).and_then(postgres).is_some_and(|found| found.service != ServiceState::Stopped);
    let complete = desired.members.keys().all(|wanted| is_well(view, wanted));
    desired.joined(member).is_none() && !runs && complete
}

/// How strong the cluster is while a step runs: how many members may fail before nobody is left to take over.
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
