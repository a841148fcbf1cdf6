//! The cluster created and changed by quorate's own commands, as an operator would type them. The environment says where its state is kept.

use std::path::Path;
use std::process::Stdio;

use quorate_etcd::ConnectOptions;
use serde_json::Value;
use tokio::process::Command;

use crate::{Change, Result, Sample, let_the_last_lead, measure, read_spec};

pub async fn sample(quorate: &Path, change: Change, before: &str, after: &str) -> Result<Sample> {
    run(quorate, &["apply", before, "--yes"]).await?;
    let spec = read_spec(after)?;
    let name = spec.name.to_string();
    let members = members(quorate, &name).await?;
    let leader = let_the_last_lead(&members).await?.name;
    let version = spec.etcd.version.to_string();
    match change {
        Change::Restart => measure(&members, None, run(quorate, &["apply", after, "--yes"])).await,
        Change::Upgrade => measure(&members, Some(&version), run(quorate, &["apply", after, "--yes"])).await,
        Change::Replace => measure(&members, None, run(quorate, &["replace", &name, &leader, "--yes"])).await,
    }
}

/// Its progress goes where ours does.
async fn run(quorate: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(quorate);
    command.args(arguments).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().await?;
    if status.success() { Ok(()) } else { Err(format!("quorate {} failed: {status}", arguments.join(" ")).into()) }
}

/// How quorate tells an operator's clients to reach the members.
async fn members(quorate: &Path, cluster: &str) -> Result<Vec<ConnectOptions>> {
    let output = Command::new(quorate).args(["env", cluster, "--output", "json"]).output().await?;
    let variables: Value = serde_json::from_slice(&output.stdout)?;
    let variable = |name: &str| variables[name].as_str().ok_or_else(|| format!("quorate env prints no {name}"));
    let read = |name: &str| -> Result<String> { Ok(std::fs::read_to_string(variable(name)?)?) };
    let (ca, certificate, key) = (read("ETCDCTL_CACERT")?, read("ETCDCTL_CERT")?, read("ETCDCTL_KEY")?);
    let options = |endpoint: &str| ConnectOptions {
        identity: Some((certificate.clone(), key.clone())),
        ..ConnectOptions::new(endpoint, &ca)
    };
    Ok(variable("ETCDCTL_ENDPOINTS")?.split(',').map(options).collect())
}
