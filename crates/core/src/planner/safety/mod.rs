//! The safety rules that all clusters share. Every rule that protects data and availability is here or in the folder of its kind
//! (`kinds/NAME/safety`), by name. Concerns ask these rules and never override them.

mod absence;
mod agents;
mod orders;
mod peers;
mod proxies;
pub mod reboots;
pub mod requests;
mod revocation;
mod trust;

use super::blocked::UnsafeBecause;
use crate::model::{Desired, DesiredMember, Facts, MemberName};
use crate::planner::View;

pub use absence::{Absence, judge_absence, peers_miss};
pub use agents::another_agent_is_away;
pub use orders::orders_under_way;
pub use peers::{signs_for_all, trusted_by_all};
pub use proxies::{held, may_clear_away_proxy, may_configure_proxy, may_disturb_proxy, roles_are_kept, serves};
pub use revocation::is_gone;
pub use trust::{believe, is_absurd_fence, is_witness};

/// Settings that a running cluster cannot change: each one that the spec changes is refused on its own.
pub fn fixed_at_formation(desired: &Desired) -> Vec<UnsafeBecause> {
    if !desired.may_hold_data() {
        return Vec::new();
    }
    let of_kind = desired.settings_of_kind();
    let shared = desired.formed_with.iter().flat_map(|then| {
        let now = &desired.form_with;
        let settings = [
            ("namespace", &then.namespace, &now.namespace),
            ("tls.key_algorithm", &then.key_algorithm, &now.key_algorithm),
            ("provider", &then.provider, &now.provider),
        ];
        // If the provider changes, so do its settings; the provider alone is enough to report.
        let machines =
            then.machines.iter().filter_map(|(field, was)| Some((field.as_str(), was, now.machines.get(field)?)));
        settings.into_iter().chain(machines)
    });
    let different = of_kind.into_iter().chain(shared).filter(|(_, was, wanted)| was != wanted);
    let refused = |(field, was, wanted): (&str, &String, &String)| UnsafeBecause::FixedAtFormation {
        field: field.to_owned(),
        was: was.clone(),
        wanted: wanted.clone(),
    };
    different.map(refused).collect()
}

/// Rule 3: a pinned address is free, or its holder is about to leave it.
pub fn address_is_free(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let Some(address) = wish.address else { return Ok(()) };
    let machines = seen.machines.get().into_iter().flatten();
    let stays = |other: &MemberName| desired.machine(other).is_some_and(|w| w.address.is_none_or(|a| a == address));
    let holder =
        machines.filter(|(m, machine)| *m != member && machine.address == Some(address)).find(|(m, _)| stays(m));
    match holder {
        None => Ok(()),
        Some((by, _)) => {
            Err(UnsafeBecause::AddressHeld { member: member.clone(), address: address.to_string(), by: by.clone() })
        }
    }
}

/// A CA that the members do not trust yet would cut them off from each other with the first certificate it signs.
pub fn authority_is_trusted(desired: &Desired) -> Result<(), UnsafeBecause> {
    let wish = &desired.certificates;
    match (&wish.client_authority, &wish.brought_authority) {
        (Some(ledger), Some(brought)) if ledger != brought => {
            Err(UnsafeBecause::AuthorityDiffers { ledger: ledger.clone(), brought: brought.clone() })
        }
        _ => Ok(()),
    }
}

/// Rule 11: an agent that has obeyed a later controller than the `last` one of this ledger shows that the ledger is not the latest.
pub fn fence_is_current(last: u64, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    let (ledger, agent) = (last, facts.fence);
    if agent <= ledger {
        return Ok(());
    }
    Err(UnsafeBecause::OlderLedger { member: member.clone(), what: "fencing number", ledger, agent })
}

/// Rule 11: a ledger that knows less than the agents is not the one that configured them.
pub fn ledger_is_current(desired: &Desired, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    fence_is_current(desired.fence, member, facts)?;
    let older = |what, ledger, agent| UnsafeBecause::OlderLedger { member: member.clone(), what, ledger, agent };
    let recorded = desired.machine(member).map_or(0, |m| m.generation);
    let digest = desired.machine(member).map(|m| &m.digest);
    match &facts.node_config {
        Some((generation, _)) if *generation > recorded => Err(older("configuration", recorded, *generation)),
        // The agent would refuse it: different content under a generation that it already has.
        Some((generation, held)) if *generation == recorded && Some(held) != digest => {
            Err(older("configuration", recorded, *generation))
        }
        _ => Ok(()),
    }
}
