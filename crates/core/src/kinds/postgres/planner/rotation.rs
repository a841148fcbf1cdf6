//! Password changes. Members log in to each other, so no member may be left with a password that others no longer accept. First all members
//! accept each other by certificate alone, then PostgreSQL gets the new passwords, then the configurations of all members, and then
//! passwords are required again. Each stage is recorded when every member has confirmed the previous one.

use crate::kinds::postgres::safety::{self, postgres};
use crate::kinds::postgres::{RotationStage, RotationWish};
use crate::model::MemberName;
use crate::planner::{Action, Decision, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let Some(rotation) = &view.desired.postgres().rotation else { return wait_for_rules(view, decision) };
    if !view.desired.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let (ready, next, why) = match rotation.stage {
        RotationStage::Opening => (
            confirmed(view, rotation, decision),
            Some(RotationStage::Setting),
            String::from("every member lets the others in by certificate, so none needs the old passwords"),
        ),
        RotationStage::Setting => (
            has_passwords(view),
            rotation.mark.as_ref().map(|_| RotationStage::Switching),
            format!("the new passwords of {} are set", rotation.users.join(", ")),
        ),
        RotationStage::Switching => (
            confirmed(view, rotation, decision),
            None,
            // A new user of etcd alone changes no password of PostgreSQL.
            String::from(match rotation.users.is_empty() {
                true => "every member logs in to etcd as the new user",
                false => "every member logs in with the new passwords; they are required again from now on",
            }),
        ),
    };
    if ready {
        decision.step(Action::RecordRotation { stage: next }, why);
    }
}

/// A rotation is over, or was withdrawn, when no member lets others in by certificate alone.
fn wait_for_rules(view: &View<'_>, decision: &mut Decision) {
    let is_open = |member: &&MemberName| {
        let found = view.seen.facts(member).and_then(postgres);
        found.is_some_and(|found| found.rotation.is_some() && found.status.is_some())
    };
    for member in view.desired.members.keys().filter(is_open) {
        let why = String::from("it still lets members in without their passwords");
        decision.wait(WaitingFor::PostgresHealth { member: member.clone(), why });
    }
}

/// `NobodyIsLockedOut`: whether every member with data, leaving or not, has applied what the rotation needs. quorate waits for the others.
fn confirmed(view: &View<'_>, rotation: &RotationWish, decision: &mut Decision) -> bool {
    let Some(mark) = &rotation.mark else { return true };
    let has = |member: &&MemberName| {
        let facts = view.seen.facts(member);
        let in_place = facts.and_then(|facts| facts.node_config.as_ref()).map(|(_, digest)| digest);
        let wanted = view.desired.members.get(*member).map(|wish| &wish.digest);
        let taken = facts.and_then(postgres).and_then(|found| found.rotation.as_ref());
        wanted.is_some() && in_place == wanted && taken == Some(mark)
    };
    let missing: Vec<MemberName> = view.desired.all_joined().filter(|member| !has(member)).cloned().collect();
    for member in &missing {
        let why = String::from("it has not confirmed that it takes part in the change of passwords");
        decision.wait(WaitingFor::PostgresHealth { member: member.clone(), why });
    }
    missing.is_empty()
}

/// Whether the primary has them and every standby streams from it: `catalog` sets what is missing, or waits for it.
fn has_passwords(view: &View<'_>) -> bool {
    let Some(primary) = safety::primary(view) else { return false };
    let catalog = view.seen.facts(primary).and_then(postgres).and_then(|found| found.catalog.as_ref());
    let wanted = &view.desired.postgres().users;
    let set = catalog.is_some_and(|catalog| {
        wanted.iter().all(|(user, fingerprint)| catalog.users.get(user) == Some(&Some(fingerprint.clone())))
    });
    set && view.desired.all_joined().all(|member| view.is_well(member))
}
