//! A cluster of PostgreSQL with the database of a shop, whatever its machines are.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::{PSQL, Run, Sandbox, eventually};

pub const MEMBERS: [&str; 3] = ["pg-1", "pg-2", "pg-3"];

/// All members stream, and nothing is left to do.
#[track_caller]
pub fn assert_healthy(sandbox: &Sandbox, cluster: &str) {
    eventually("a healthy cluster", 60, || sandbox.status(cluster)["verdict"] == "healthy");
    let plan = sandbox.quorate(&["plan", "cluster.yaml"]).ok().stdout;
    assert!(plan.contains(&format!("cluster {cluster}: nothing to do")), "{plan}");
}

pub fn env(sandbox: &Sandbox, cluster: &str, user: &[&str]) -> BTreeMap<String, String> {
    let arguments: Vec<&str> = ["env", cluster, "--output", "json"].into_iter().chain(user.iter().copied()).collect();
    let shown = sandbox.quorate(&arguments).ok().json();
    shown.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect()
}

/// Empty while there is none.
pub fn primary(sandbox: &Sandbox, cluster: &str) -> String {
    sandbox.status(cluster)["postgres"]["primary"].as_str().unwrap_or_default().to_owned()
}

pub fn replica(sandbox: &Sandbox, cluster: &str) -> String {
    let primary = primary(sandbox, cluster);
    MEMBERS.into_iter().find(|member| *member != primary).expect("a replica").to_owned()
}

pub fn psql(env: &BTreeMap<String, String>, sql: &str) -> Run {
    psql_waiting(env, 3, sql)
}

/// The same, waiting so many seconds for each host.
pub fn psql_waiting(env: &BTreeMap<String, String>, connecting: u32, sql: &str) -> Run {
    let mut command = Command::new(PSQL);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("PGCONNECT_TIMEOUT", connecting.to_string()).envs(env);
    command.args(["--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", sql]).output().expect("psql runs").into()
}
