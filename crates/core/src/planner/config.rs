//! The configuration, which is sent to every machine. The kind's folder has its requirements on programs, and the restart that applies it.

use super::{Action, Decision, View, proxies};
use crate::model::Desired;
use crate::spec::Change;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !view.may_configure(decision) {
        return;
    }
    for (member, wish) in desired.machines() {
        if proxies::config_must_wait(view, decision, member) {
            continue;
        }
        let why = match seen.facts(member) {
            None if decision.enrols(member) => Ok(Some(format!("{member} has no configuration yet"))),
            Some(facts) if !decision.has_business_with(member) => match &facts.node_config {
                _ if let Some(because) = view.refused_config(member, wish, facts) => Err(because),
                Some((generation, digest)) if *generation == wish.generation && *digest == wish.digest => {
                    view.same_config_again(member, wish, facts)
                }
                None => Ok(Some(format!("{member} has no configuration yet"))),
                Some(_) => Ok(Some(with_changes(desired, String::from("configuration differs")))),
            },
            _ => Ok(None),
        };
        match why {
            Ok(Some(why)) => {
                decision.step(Action::PushConfig { member: member.clone(), generation: wish.generation }, why);
            }
            Ok(None) => {}
            Err(because) => decision.block(because),
        }
    }
}

/// At most this many changes are named in a reason; the plan lists them all.
const NAMED: usize = 3;

/// A reason with the changed settings that affect the machine.
pub(crate) fn with_changes(desired: &Desired, why: String) -> String {
    let reaches = |change: &&Change| {
        [desired.section(), "tls.", "host."].iter().any(|section| change.path.starts_with(section))
            || change.path.contains(".tags")
    };
    let changes: Vec<String> = desired.changes.iter().filter(reaches).map(Change::brief).collect();
    match changes.len() {
        0 => why,
        few @ 1..=NAMED => format!("{why}: {}", changes[..few].join(", ")),
        many => format!("{why}: {}, and {} more", changes[..NAMED].join(", "), many - NAMED),
    }
}
