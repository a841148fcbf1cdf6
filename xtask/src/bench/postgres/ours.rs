//! The side that quorate creates and changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::CLUSTER;
use super::{CONNECTIONS, Ground, LOOP_WAIT, MEMBERS, Programs, RETRY_TIMEOUT, Release, Side, TTL, host, until};
use crate::postgres::PROGRAMS_DIRECTORY;

/// The etcd cluster below.
const DCS: &str = "bench-dcs";

pub struct Ours<'a> {
    ground: &'a Ground,
    spec: PathBuf,
    etcd: String,
    path: String,
    release: Release,
    connections: u32,
    has_proxy: bool,
}

impl<'a> Ours<'a> {
    /// Its etcd runs from now on, as on the other side.
    pub fn prepare(ground: &'a Ground, programs: &Programs) -> Result<Self> {
        let spec = ground.directory("ours")?.join("spec.yaml");
        let Programs { etcd, version, patroni } = programs;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{PROGRAMS_DIRECTORY}:{path}", patroni.display());
        let etcd = format!(
            "  - name: {DCS}\n    members: [{{name: etcd-1}}]\n    etcd:\n      version: {version}\n      \
             binary: {{path: {:?}}}\n      client_auth: password\n      grpc_gateway: true\n      \
             flags: {{bcrypt-cost: 4}}\n",
            etcd.join("etcd").display().to_string()
        );
        let release = Release::install(ground.directory("ours")?.join("programs"))?;
        let ours = Self { ground, spec, etcd, path, release, connections: CONNECTIONS, has_proxy: false };
        ours.write()?;
        host::read(ours.quorate().args(["apply"]).arg(&ours.spec).args(["--cluster", DCS, "--yes"]))?;
        Ok(ours)
    }

    fn write(&self) -> Result<()> {
        let members = MEMBERS.map(|name| format!("{{name: {name}}}")).join(", ");
        let (connections, programs) = (self.connections, self.release.directory().display());
        let proxy = if self.has_proxy { "      haproxy: {}\n" } else { "" };
        let text = format!(
            "quorate: 1\nclusters:\n  - name: {CLUSTER}\n    members: [{members}]\n    postgres:\n      version: 15\n      \
             programs: {programs}\n      dcs: {{cluster: {DCS}}}\n      parameters: {{max_connections: {connections}}}\n      \
             patroni: {{ttl: {TTL}s, loop_wait: {LOOP_WAIT}s, retry_timeout: {RETRY_TIMEOUT}s}}\n{proxy}{}",
            self.etcd
        );
        fs::write(&self.spec, text).with_context(|| format!("cannot write {}", self.spec.display()))
    }

    /// HAProxy on every member, which is waited for.
    pub fn add_proxy(&mut self) -> Result<()> {
        self.has_proxy = true;
        self.write()?;
        self.apply()?;
        let answers = |side: &Self| {
            Ok(host::read(Command::new("psql").args(["-c", "select 1"]).envs(side.through_proxy()?)).is_ok())
        };
        until("HAProxy", || answers(self))
    }

    fn apply(&self) -> Result<()> {
        let mut apply = self.quorate();
        host::read(apply.arg("apply").arg(&self.spec).args(["--cluster", CLUSTER, "--now", "--yes"])).map(drop)
    }

    fn quorate(&self) -> Command {
        let mut command = self.ground.quorate("".as_ref());
        command.env("PATH", &self.path);
        command
    }
}

impl Side for Ours<'_> {
    fn name(&self) -> &'static str {
        "quorate"
    }

    fn bring_up(&mut self) -> Result<()> {
        self.connections = CONNECTIONS;
        self.write()?;
        self.apply()
    }

    fn variables(&self) -> Result<Vec<(String, String)>> {
        let told = host::read(self.quorate().args(["env", CLUSTER, "--output", "json"]))?;
        let told: Value = serde_json::from_str(&told).context("`quorate env` printed no JSON")?;
        let variables = told.as_object().context("`quorate env` printed no variables")?;
        Ok(variables.iter().filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect())
    }

    /// Of the first member.
    fn through_proxy(&self) -> Result<Vec<(String, String)>> {
        let mut variables = self.variables()?;
        for (name, value) in &mut variables {
            match name.as_str() {
                "PGHOST" => value.truncate(value.find(',').unwrap_or(value.len())),
                "PGPORT" => *value = String::from("5000"),
                _ => {}
            }
        }
        Ok(variables)
    }

    fn primary(&self) -> Result<String> {
        // Its exit code says whether the cluster is healthy, which does not matter here.
        let told = self.quorate().args(["status", CLUSTER, "--output", "json"]).output()?.stdout;
        let status: Value = serde_json::from_slice(&told).context("`quorate status` printed no JSON")?;
        let status = status.get(0).unwrap_or(&status);
        let mut members = status["members"].as_array().into_iter().flatten();
        let primary = members.find(|member| member["role"] == "primary");
        let name = primary.and_then(|member| member["member"].as_str());
        name.map(str::to_owned).with_context(|| format!("no primary in {status}"))
    }

    fn directory(&self, member: &str) -> PathBuf {
        self.ground.machines().join(member)
    }

    fn switch_over(&mut self) -> Result<()> {
        host::read(self.quorate().args(["switchover", CLUSTER, "--yes"])).map(drop)
    }

    fn set_connections(&mut self, connections: u32) -> Result<()> {
        self.connections = connections;
        self.write()?;
        self.apply()
    }

    fn take_release(&mut self, release: &Path) -> Result<()> {
        self.release.put(release)?;
        self.apply()
    }

    fn bring_back(&mut self, _: &str) -> Result<()> {
        self.apply()
    }

    fn take_down(&mut self) -> Result<()> {
        host::read(self.quorate().args(["destroy", CLUSTER, "--yes", "--without-backup"])).map(drop)
    }
}
