//! The required final state of a PostgreSQL cluster after a fault: one bootstrap, one primary, exactly the members of the spec streaming on
//! its timeline, nothing left behind, and a controller that finds nothing to do.

use std::collections::BTreeSet;

use quorate_core::kinds::postgres::Formation;
use serde_json::Value;

use crate::Site;
use crate::settle::{self, Check};

/// Looks once.
pub(super) async fn checks(site: &Site) -> Vec<Check> {
    let status = status(site).await;
    let of = |look: fn(&Value) -> Result<String, String>| status.as_ref().map_err(Clone::clone).and_then(look);
    vec![
        Check::of("one bootstrap", one_formation(site)),
        Check::of("healthy", of(healthy)),
        Check::of("members as in the spec", status.as_ref().map_err(Clone::clone).and_then(|s| members(site, s))),
        Check::of("one timeline", of(one_timeline)),
        Check::of("no machine left over", settle::no_machine_left(site).await),
        Check::of("nothing left to do", settle::nothing_to_do(site).await),
    ]
}

pub(super) async fn status(site: &Site) -> Result<Value, String> {
    let output =
        site.program.output(&["status", &site.cluster, "--output", "json"]).await.map_err(|e| e.to_string())?;
    let told = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let told: Value =
        serde_json::from_slice(&output.stdout).map_err(|_| format!("`quorate status` failed: {}", told()))?;
    let of_this = |clusters: &Vec<Value>| clusters.first().cloned();
    Ok(told.as_array().and_then(of_this).unwrap_or(told))
}

pub(super) fn members_of(status: &Value) -> &[Value] {
    status["members"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn one_formation(site: &Site) -> Result<String, String> {
    let ledger = site.ledger().map_err(|e| e.to_string())?;
    match &ledger.postgres.formation {
        Formation::Formed { token, .. } => settle::one_formation(site, &ledger.cluster_id, token),
        _ => Err(String::from("it is not bootstrapped")),
    }
}

fn healthy(status: &Value) -> Result<String, String> {
    let summary = status["summary"].as_str().unwrap_or_default().to_owned();
    if status["verdict"] == "healthy" { Ok(summary) } else { Err(summary) }
}

fn members(site: &Site, status: &Value) -> Result<String, String> {
    let ledger = site.ledger().map_err(|e| e.to_string())?;
    let wanted: BTreeSet<String> = ledger.spec.members.iter().map(|m| m.name.to_string()).collect();
    let names = members_of(status).iter().filter_map(|member| member["member"].as_str());
    let found: BTreeSet<String> = names.map(str::to_owned).collect();
    let text = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if found == wanted { Ok(text(&found)) } else { Err(format!("{}; the spec has {}", text(&found), text(&wanted))) }
}

fn one_timeline(status: &Value) -> Result<String, String> {
    let timelines: Vec<String> = members_of(status)
        .iter()
        .map(|member| format!("{} {}", member["member"], member["postgres"]["timeline"]))
        .collect();
    let different: BTreeSet<String> =
        members_of(status).iter().map(|member| member["postgres"]["timeline"].to_string()).collect();
    match different.len() {
        1 => Ok(different.into_iter().collect()),
        _ => Err(timelines.join(", ")),
    }
}
