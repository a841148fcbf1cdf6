//! The required final state of any cluster after a fault.

use std::collections::BTreeSet;

use quorate_control::run::observe::by_name;
use quorate_core::model::Stamp;
use serde::Serialize;

use super::Site;

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    pub check: &'static str,
    pub passed: bool,
    /// What was found.
    pub found: String,
}

impl Check {
    pub(super) fn of(check: &'static str, result: Result<String, String>) -> Self {
        let (passed, found) = match result {
            Ok(found) => (true, found),
            Err(found) => (false, found),
        };
        Check { check, passed, found }
    }
}

/// Every data directory has the stamp of this bootstrap.
pub(super) fn one_formation(site: &Site, cluster_id: &str, token: &str) -> Result<String, String> {
    for machine in site.machines() {
        match machine.stamp() {
            Some(Stamp { token: found, cluster_id: of, .. }) if found == token && of == cluster_id => {}
            Some(stamp) => return Err(format!("{} is of bootstrap {}, not {token}", machine.member, stamp.token)),
            None => return Err(format!("the data of {} has no stamp", machine.member)),
        }
    }
    Ok(format!("all are of {token}"))
}

/// Every machine that the provider has is one of a member or a proxy, and its newest.
pub(super) async fn no_machine_left(site: &Site) -> Result<String, String> {
    let ledger = site.ledger().map_err(|e| e.to_string())?;
    let machines = site.home.provider(&ledger).machines().await.map_err(|e| e.to_string())?;
    let count = machines.found.len();
    let wished: BTreeSet<String> = ledger.spec.machines().map(|machine| machine.name.to_string()).collect();
    let left: Vec<String> = by_name(&ledger, machines.found)
        .into_keys()
        .filter(|name| !wished.contains(name.as_str()))
        .map(|name| name.to_string())
        .collect();
    if left.is_empty() { Ok(format!("{count} machines")) } else { Err(format!("left over: {}", left.join(", "))) }
}

/// A new controller looks, and is content.
pub(super) async fn nothing_to_do(site: &Site) -> Result<String, String> {
    let output = site.program.output(&["plan", &site.cluster, "--output", "json"]).await.map_err(|e| e.to_string())?;
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("`quorate plan` failed: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let summary = &plan["summary"];
    let left: Vec<String> = ["steps", "waiting", "blocked"]
        .iter()
        .filter(|of| summary[**of].as_u64() != Some(0))
        .map(|of| format!("{of}: {}", summary[*of]))
        .collect();
    if left.is_empty() { Ok(String::from("a plan without steps")) } else { Err(left.join(", ")) }
}
