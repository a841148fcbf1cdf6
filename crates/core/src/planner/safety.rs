//! The safety rules. Every rule that keeps data and quorum safe is here, by name; the concerns ask, and never argue.

use std::fmt;

use serde::Serialize;

use super::blocked::UnsafeBecause;
use crate::model::{
    AgentSeen, DataSeen, Desired, Destruction, Facts, Formation, MemberName, Observation, Seen, ServiceState, Stamp,
};

/// The rules by name, as refusals cite them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    OneMembershipChange,
    QuorumIsKept,
    NewWithinOneFormation,
    FormationsShareNothing,
    DataDiesOnlyByConsent,
    UnseenIsUnsafe,
    OneDisturbance,
    KnownVersions,
    OneController,
    OneKeyPerToken,
    TrustComesFirst,
    SomeThingsStay,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::OneMembershipChange => "one membership change at a time",
            Rule::QuorumIsKept => "quorum is never given away",
            Rule::NewWithinOneFormation => "`new` is said within one formation only",
            Rule::FormationsShareNothing => "formations never share an identity",
            Rule::DataDiesOnlyByConsent => "data dies only by consent",
            Rule::UnseenIsUnsafe => "unseen is unsafe",
            Rule::OneDisturbance => "one disturbance at a time",
            Rule::KnownVersions => "only known versions and paths",
            Rule::OneController => "one controller at a time",
            Rule::OneKeyPerToken => "an enrolment token is good for one key",
            Rule::TrustComesFirst => "new trust is everywhere before the first that needs it",
            Rule::SomeThingsStay => "what is settled at formation stays",
        })
    }
}

/// The revision of an etcd that no client has written to.
const UNWRITTEN: u64 = 1;

/// How many of `voters` must agree.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// How many more of the healthy voters may fail before the cluster stops.
pub fn failures_survived(voters: usize, healthy: usize) -> usize {
    healthy.saturating_sub(quorum(voters))
}

/// The voters of a formed cluster: how many there are, and how many of them are healthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Voters {
    pub all: usize,
    pub healthy: usize,
}

/// Counts voters. One that could not be seen counts as a voter and not as healthy.
pub fn voters(desired: &Desired, seen: &Observation) -> Voters {
    let names = voter_names(desired);
    let healthy = names.iter().filter(|m| seen.facts(m).is_some_and(is_healthy_voter)).count();
    Voters { all: names.len(), healthy }
}

/// The members that the cluster was formed with vote, whatever the spec says by now.
pub fn voter_names(desired: &Desired) -> Vec<&MemberName> {
    match &desired.formation {
        Formation::Formed { members, .. } => members.keys().collect(),
        Formation::Unformed | Formation::Forming { .. } => desired.members.keys().collect(),
    }
}

pub fn is_healthy_voter(facts: &Facts) -> bool {
    facts.etcd.status.as_ref().is_some_and(|s| s.healthy && !s.is_learner)
}

/// What rule 5 and 6 say of a member's data in the present formation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataVerdict {
    /// Never started here in this formation: it may start as `new` while forming.
    MayBeginAsNew,
    /// Its data is of this formation: it may start on it.
    MayGoOn,
    /// It had data of this formation, and has none now.
    Lost,
    /// A remainder of an earlier formation of ours that no client ever wrote to.
    Leftover(Stamp),
    /// Not ours to touch.
    Foreign(String),
}

/// Judges what is in a member's data directory against the formation's token. `None` means that no formation has begun.
pub fn judge_data(desired: &Desired, member: &MemberName, token: Option<&str>, seen: &Facts) -> DataVerdict {
    let ours = |s: &Stamp| s.cluster_id == desired.cluster_id && s.member == *member;
    let present = |s: &Stamp| ours(s) && Some(s.token.as_str()) == token;
    match &seen.etcd.data {
        DataSeen::Stamped(stamp) if present(stamp) => DataVerdict::MayGoOn,
        DataSeen::Stamped(stamp) if ours(stamp) => DataVerdict::Leftover(stamp.clone()),
        DataSeen::Stamped(stamp) => DataVerdict::Foreign(format!(
            "its stamp says member {} of cluster {}, formation {}",
            stamp.member, stamp.cluster_id, stamp.token
        )),
        DataSeen::Unstamped => DataVerdict::Foreign(String::from("nothing says whose it is")),
        DataSeen::Empty => match &seen.etcd.last_started {
            None => DataVerdict::MayBeginAsNew,
            // A fresh etcd takes a moment until its data is on disk.
            Some(stamp) if present(stamp) && is_running(seen) => DataVerdict::MayGoOn,
            Some(stamp) if present(stamp) => DataVerdict::Lost,
            Some(stamp) => DataVerdict::Leftover(stamp.clone()),
        },
    }
}

/// Rule 5: whether this member was part of the formed cluster, so that a machine without its data is no beginning.
pub fn held_data(desired: &Desired, member: &MemberName) -> bool {
    matches!(&desired.formation, Formation::Formed { members, .. } if members.contains_key(member))
}

/// Rule 7 again: an etcd that was written to shows that the ledger, which knows of no formed cluster, is not the latest.
/// Nothing is wiped on the word of such a ledger.
pub fn no_client_wrote(desired: &Desired, seen: &Observation) -> Result<(), UnsafeBecause> {
    let wrote = |member: &MemberName| {
        let revision = seen.facts(member)?.etcd.status.as_ref()?.revision;
        (revision > UNWRITTEN).then(|| (member.clone(), revision))
    };
    match desired.members.keys().find_map(wrote) {
        None => Ok(()),
        Some((member, revision)) => Err(UnsafeBecause::ClientsWrote { member, revision }),
    }
}

fn is_running(facts: &Facts) -> bool {
    matches!(facts.etcd.service, ServiceState::Running { .. })
}

/// Rule 7 for what is left of formations: only while the cluster was never formed can no client have written.
pub fn may_wipe_leftover(formation: &Formation) -> bool {
    !matches!(formation, Formation::Formed { .. })
}

/// Rule 7 for the whole cluster: once clients may have written, the word that it goes is not yet the word that no
/// backup is needed.
///
/// The ledger's word that nothing was formed is not enough, as it may be an older one: what is not seen to be empty may
/// hold data.
pub fn may_destroy(desired: &Desired, seen: &Observation, word: Destruction) -> Result<(), UnsafeBecause> {
    let machines = seen.machines.get().into_iter().flatten();
    let mut ours = machines.filter(|(_, machine)| machine.cluster_id == desired.cluster_id);
    let formed = matches!(desired.formation, Formation::Formed { .. });
    match word {
        Destruction::BackupMissing if formed || !ours.all(|(m, _)| was_never_used(seen, m)) => {
            Err(UnsafeBecause::NoBackup)
        }
        Destruction::BackupMissing | Destruction::BackupWaived => Ok(()),
    }
}

/// Whether it was seen that no etcd ever ran on this member's machine.
fn was_never_used(seen: &Observation, member: &MemberName) -> bool {
    match seen.agents.get(member).and_then(Seen::get) {
        Some(AgentSeen::Unenrolled { .. }) => true,
        Some(AgentSeen::Enrolled(facts)) => facts.etcd.data == DataSeen::Empty && facts.etcd.last_started.is_none(),
        None => false,
    }
}

/// Rules 5 and 7: data of a formation that this ledger neither began nor gave up belongs to a cluster that it does not
/// know, though it bears the cluster's name.
pub fn formation_is_known(desired: &Desired, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    let current = match &desired.formation {
        Formation::Unformed => None,
        Formation::Forming { token, .. } | Formation::Formed { token, .. } => Some(token),
    };
    let unknown = |s: &&Stamp| {
        s.cluster_id == desired.cluster_id && Some(&s.token) != current && !desired.abandoned.contains(&s.token)
    };
    let in_data = match &facts.etcd.data {
        DataSeen::Stamped(stamp) => Some(stamp),
        DataSeen::Empty | DataSeen::Unstamped => None,
    };
    match in_data.into_iter().chain(&facts.etcd.last_started).find(unknown) {
        Some(stamp) => Err(UnsafeBecause::UnknownFormation { member: member.clone(), token: stamp.token.clone() }),
        None => Ok(()),
    }
}

/// What a living cluster keeps, whatever the spec says by now: each difference is a refusal of its own.
pub fn fixed_at_formation(desired: &Desired) -> Vec<UnsafeBecause> {
    let Formation::Formed { members, .. } = &desired.formation else { return Vec::new() };
    let Some(then) = &desired.formed_with else { return Vec::new() };
    let now = &desired.form_with;
    // Authentication may be turned on later, but not off again.
    let bootstrap = if now.bootstrap == "true" { &now.bootstrap } else { &then.bootstrap };
    let settings = [
        ("etcd.client_auth", &then.client_auth, &now.client_auth),
        ("auth.bootstrap", bootstrap, &now.bootstrap),
        ("namespace", &then.namespace, &now.namespace),
        ("tls.key_algorithm", &then.key_algorithm, &now.key_algorithm),
        ("network", &then.network, &now.network),
    ];
    let settings = settings.map(|(field, was, wanted)| (field.to_owned(), was.clone(), wanted.clone()));
    let addresses = members.iter().filter_map(|(member, formed)| {
        let wanted = desired.members.get(member)?.address?.to_string();
        let was = formed.peer_url.trim_start_matches("https://").rsplit_once(':')?.0.to_owned();
        Some((format!("members.{member}.address"), was, wanted))
    });
    let all = settings.into_iter().chain(addresses).filter(|(_, was, wanted)| was != wanted);
    all.map(|(field, was, wanted)| UnsafeBecause::FixedAtFormation { field, was, wanted }).collect()
}

/// Rules 3, 8 and 9: may this member be taken out for a restart now? All others must be healthy; it need not be so itself,
/// since the restart may be what heals it.
pub fn may_disturb(desired: &Desired, seen: &Observation, member: &MemberName) -> Result<(), UnsafeBecause> {
    let Voters { all, healthy } = voters(desired, seen);
    let itself = usize::from(seen.facts(member).is_some_and(is_healthy_voter));
    let others = healthy - itself;
    if others < all - 1 {
        return Err(UnsafeBecause::Quorum { member: member.clone(), voters: all, healthy, quorum: quorum(all) });
    }
    if healthy >= quorum(all) && others < quorum(all) && !desired.downtime {
        return Err(UnsafeBecause::Outage { member: member.clone(), voters: all });
    }
    Ok(())
}

/// A CA that the members do not trust yet would cut them off from each other with the first certificate it signs.
pub fn authority_is_trusted(desired: &Desired) -> Result<(), UnsafeBecause> {
    let wish = &desired.certificates;
    match (&wish.etcd_authority, &wish.brought_authority) {
        (Some(ledger), Some(brought)) if ledger != brought => {
            Err(UnsafeBecause::AuthorityDiffers { ledger: ledger.clone(), brought: brought.clone() })
        }
        _ => Ok(()),
    }
}

/// Rule 11: an agent that has obeyed a later controller shows that this ledger is not the latest.
pub fn fence_is_current(desired: &Desired, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    let (ledger, agent) = (desired.fence, facts.fence);
    if agent <= ledger {
        return Ok(());
    }
    Err(UnsafeBecause::OlderLedger { member: member.clone(), what: "fencing number", ledger, agent })
}

/// Rule 11: a ledger that knows less than the agents is not the one that led them here.
pub fn ledger_is_current(desired: &Desired, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    fence_is_current(desired, member, facts)?;
    let older = |what, ledger, agent| UnsafeBecause::OlderLedger { member: member.clone(), what, ledger, agent };
    let recorded = desired.members.get(member).map_or(0, |m| m.generation);
    let digest = desired.members.get(member).map(|m| &m.digest);
    match &facts.node_config {
        Some((generation, _)) if *generation > recorded => Err(older("generation", recorded, *generation)),
        // The agent would refuse it: other content under a generation that it holds already.
        Some((generation, held)) if *generation == recorded && Some(held) != digest => {
            Err(older("generation", recorded, *generation))
        }
        _ => Ok(()),
    }
}
