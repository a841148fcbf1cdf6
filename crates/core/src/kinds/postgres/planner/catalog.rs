//! What all members share: the configuration in the DCS, databases and users. Changed through the primary when every member is healthy,
//! because with strict synchronous replication a change waits for a standby.

use crate::kinds::postgres::safety::{self, postgres};
use crate::kinds::postgres::{Catalog, CatalogOp, Wish};
use crate::model::MemberName;
use crate::planner::config::with_changes;
use crate::planner::{Action, Decision, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let Some(primary) = safety::primary(view).filter(|_| desired.is_formed()) else { return };
    let Some(status) = safety::status(view.seen, primary) else { return };
    let wish = desired.postgres();
    if status.config.as_ref() != Some(&wish.config) {
        let before = status.config.as_deref().unwrap_or(&wish.config);
        if let Err(because) = safety::limits_of_change(&wish.form_with.version, before, &wish.config) {
            return decision.block(because);
        }
        let action = Action::ConfigurePatroni { member: primary.clone(), config: wish.config.clone() };
        let why = match &status.config {
            Some(_) => with_changes(desired, String::from("the configuration in the DCS differs")),
            None => String::from("the DCS holds no configuration"),
        };
        return decision.step(action, why);
    }
    for member in safety::behind_configuration(view) {
        let why = String::from("Patroni has not loaded the configuration yet");
        decision.wait(WaitingFor::PostgresHealth { member: member.clone(), why });
    }
    wait_for_synchronous(view, primary, decision);
    let all_well = desired.members.keys().all(|member| view.is_well(member));
    if wish.databases.is_empty() && wish.users.is_empty() || !all_well || !decision.steps.is_empty() {
        return;
    }
    match view.seen.facts(primary).and_then(postgres).and_then(|found| found.catalog.as_ref()) {
        None => decision.wait(WaitingFor::AuthSight),
        Some(catalog) => {
            for (op, why) in differences(wish, catalog) {
                decision.step(Action::Catalog { member: primary.clone(), op }, why);
            }
        }
    }
}

/// Until Patroni has recorded enough standbys, none could take over.
fn wait_for_synchronous(view: &View<'_>, primary: &MemberName, decision: &mut Decision) {
    if let Some((chosen, needed)) = safety::too_few_synchronous(view) {
        let why =
            format!("Patroni has recorded {chosen} of {needed} synchronous standbys that may take over from {primary}");
        decision.wait(WaitingFor::Primary { why });
    }
}

/// Users come before the databases that they own, databases before their extensions.
fn differences(wish: &Wish, catalog: &Catalog) -> Vec<(CatalogOp, String)> {
    let mut ops = Vec::new();
    for (user, fingerprint) in &wish.users {
        let why = match catalog.users.get(user) {
            None if wish.rotation.as_ref().is_some_and(|rotation| rotation.users.contains(user)) => {
                format!("the password of {user} changes")
            }
            None => format!("the spec declares user {user}"),
            Some(known) if known.as_ref() != Some(fingerprint) => format!("the password of {user} has changed"),
            Some(_) => continue,
        };
        ops.push((CatalogOp::SetUser { user: user.clone() }, why));
    }
    for (database, owner) in &wish.databases {
        let (database, owner) = (database.clone(), owner.clone());
        match catalog.databases.get(&database) {
            None => {
                let why = format!("the spec declares database {database}");
                ops.push((CatalogOp::CreateDatabase { database, owner }, why));
            }
            Some(known) if *known != owner => {
                let why = format!("database {database} is owned by {known}");
                ops.push((CatalogOp::SetOwner { database, owner }, why));
            }
            Some(_) => {}
        }
    }
    for (database, extensions) in wish.extensions.iter().filter(|(name, _)| catalog.databases.contains_key(*name)) {
        let there = catalog.extensions.get(database);
        for extension in extensions.iter().filter(|name| there.is_none_or(|there| !there.contains(*name))) {
            let why = format!("the spec declares it for database {database}");
            let op = CatalogOp::CreateExtension { database: database.clone(), extension: extension.clone() };
            ops.push((op, why));
        }
    }
    ops
}
