//! What the ledger keeps of a step: some of it before the step is done, some after. Pure, so that the simulated world
//! and the real controller remember alike.

use super::Action;
use crate::model::{AuthOp, Desired, Formation, Ledger, Observation, OwnedUser};

/// Writes what must be known before the step is done. Says whether the ledger changed.
///
/// Guarantees: what a step may leave behind when it is cut short is in the ledger already.
pub fn before(ledger: &mut Ledger, desired: &Desired, action: &Action) -> bool {
    match action {
        Action::CreateMachine { member, incarnation } => {
            let record = ledger.members.entry(member.clone()).or_default();
            record.incarnation = *incarnation;
            true
        }
        Action::PushConfig { member, generation } => {
            let Some(wish) = desired.members.get(member) else { return false };
            let record = ledger.members.entry(member.clone()).or_default();
            let changed = record.generation != *generation || record.digest != wish.digest;
            record.generation = *generation;
            record.digest.clone_from(&wish.digest);
            changed
        }
        Action::RecordForming { token, members } => {
            ledger.formation = Formation::Forming { token: token.clone(), members: members.clone() };
            true
        }
        Action::AbandonFormation { token } => abandon(ledger, token),
        Action::RecordFormed { etcd_cluster_id } => formed(ledger, desired, *etcd_cluster_id),
        Action::Auth { op: AuthOp::AddUser { user }, .. } => {
            let made = OwnedUser { password: password(desired, user), adopted: false };
            ledger.auth.users.insert(user.clone(), made);
            true
        }
        Action::Auth { op: AuthOp::AddRole { role }, .. } => ledger.auth.roles.insert(role.clone()),
        _ => false,
    }
}

/// Writes what only holds once the step is done. Says whether the ledger changed.
pub fn after(ledger: &mut Ledger, desired: &Desired, action: &Action) -> bool {
    match action {
        Action::DestroyMachine { member } => {
            let Some(record) = ledger.members.get_mut(member) else { return false };
            record.generation = 0;
            record.digest.clear();
            record.enrolment = None;
            true
        }
        Action::Auth { op: AuthOp::SetPassword { user }, .. } => {
            let known = OwnedUser { password: None, adopted: true };
            ledger.auth.users.entry(user.clone()).or_insert(known).password = password(desired, user);
            true
        }
        Action::Auth { op: AuthOp::DeleteUser { user }, .. } => ledger.auth.users.remove(user).is_some(),
        Action::Auth { op: AuthOp::DeleteRole { role }, .. } => ledger.auth.roles.remove(role),
        _ => false,
    }
}

/// Lets an older ledger go on, on the operator's word: its numbers become at least those that the agents remember. What
/// an agent holds is noted as it is, so that only other content is sent anew, under a number above.
pub fn resume_above(ledger: &mut Ledger, seen: &Observation) {
    for member in seen.agents.keys() {
        let Some(facts) = seen.facts(member) else { continue };
        ledger.fence = ledger.fence.max(facts.fence);
        let Some((generation, digest)) = &facts.node_config else { continue };
        let record = ledger.members.entry(member.clone()).or_default();
        if *generation >= record.generation {
            record.generation = *generation;
            record.digest.clone_from(digest);
        }
    }
}

fn password(desired: &Desired, user: &str) -> Option<String> {
    let wish = desired.auth.as_ref()?;
    match wish.users.get(user) {
        Some(user) => user.password.clone(),
        None => wish.root_password.clone(),
    }
}

fn abandon(ledger: &mut Ledger, abandoned: &str) -> bool {
    match &ledger.formation {
        Formation::Forming { token, .. } if token == abandoned => {
            ledger.formation = Formation::Unformed;
            ledger.abandoned.insert(abandoned.to_owned());
            true
        }
        _ => false,
    }
}

fn formed(ledger: &mut Ledger, desired: &Desired, etcd_cluster_id: u64) -> bool {
    let Formation::Forming { token, members } = &ledger.formation else { return false };
    ledger.formation = Formation::Formed { token: token.clone(), etcd_cluster_id, members: members.clone() };
    ledger.formed_with = Some(desired.form_with.clone());
    true
}
