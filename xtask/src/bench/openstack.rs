//! `cargo xtask bench openstack`: what clusters cost a region of OpenStack in calls. `quorate plan` and
//! `quorate status` look at 1, 10 and 100 clusters of three servers, and the calls are counted where they arrive: in a
//! scripted cloud on this machine, which answers at once. So the times are those of the programs alone. `quorate apply`
//! itself has created the servers, and was killed when all were there, because nothing boots in them. Where Terraform
//! is on the PATH, a plan of it refreshes as many servers.

mod terraform;

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_scripted_cloud::{self as cloud, Calls, Server};

use super::figures::{Samples, table, verdict};
use super::{Ground, Programs};
use crate::etcd;
use crate::lab::{Lab, Version};
use terraform::Terraform;

const SIZES: [usize; 3] = [1, 10, 100];
const MEMBERS: usize = 3;
/// Whatever the number of clusters: one list by a tag, and one of all servers.
const MOST_CALLS: usize = 2;
const MOST_LOGINS: usize = 1;
const CREATION: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);
/// What a plan says of a machine that is there and does not answer.
const FOUND: &str = "waiting for the agent of ";
/// What `quorate status` exits with while no agent answers.
const DOWN: i32 = 6;

#[derive(clap::Args)]
pub struct Options {
    /// How often each command runs at each size
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure this quorate instead of building one
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let version = etcd::ensure_any(lab)?;
    let ground = match &options.program {
        Some(program) => Ground::prepare_for(lab, fs::canonicalize(program)?, PathBuf::new())?,
        None => Ground::prepare_with(lab, Programs::Release)?,
    };
    let etcd = lab.etcd(version);
    let fleet = Fleet { ground: &ground, version, etcd, server: Server::start()? };
    let terraform = Terraform::prepare(lab, &ground)?;
    let mut outcomes = Vec::new();
    let mut before = 0;
    for clusters in SIZES {
        fleet.grow(before, clusters)?;
        before = clusters;
        if let Some(terraform) = &terraform {
            terraform.grow(clusters * MEMBERS)?;
        }
        outcomes.push(measure(&fleet, terraform.as_ref(), clusters, options.runs)?);
    }
    print(&outcomes, options.runs);
    ensure!(outcomes.iter().all(Outcome::kept), "quorate asks a region more often than it may");
    Ok(())
}

/// They take turns.
fn measure(fleet: &Fleet<'_>, terraform: Option<&Terraform>, clusters: usize, runs: u32) -> Result<Outcome> {
    let (mut plan, mut status) = (Runs::default(), Runs::default());
    let mut theirs = terraform.map(|terraform| (terraform, Runs::default()));
    for run in 1..=runs {
        plan.add(fleet.plan(clusters)?);
        status.add(fleet.status(clusters)?);
        if let Some((terraform, runs)) = &mut theirs {
            runs.add(terraform.plan(clusters * MEMBERS)?);
        }
        eprintln!("{clusters} clusters, {run}/{runs}");
    }
    Ok(Outcome { clusters, plan, status, terraform: theirs.map(|(_, runs)| runs) })
}

/// A command that was run, and what it asked the cloud.
struct Asked {
    command: String,
    code: Option<i32>,
    printed: String,
    complaints: String,
    measured: Measured,
}

struct Measured {
    time: Duration,
    calls: Calls,
}

impl Asked {
    fn of(server: &Server, command: &mut Command) -> Result<Self> {
        server.cloud().take_calls();
        let begun = Instant::now();
        let output = command.stdin(Stdio::null()).output();
        let time = begun.elapsed();
        let command = format!("{command:?}");
        let output = output.with_context(|| format!("cannot start {command}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let measured = Measured { time, calls: server.cloud().take_calls() };
        let (printed, complaints) = (text(&output.stdout), text(&output.stderr));
        Ok(Asked { command, code: output.status.code(), printed, complaints, measured })
    }

    /// A command that did not see what it should have seen is not worth measuring.
    fn expect(self, code: i32, is_right: impl Fn(&str) -> bool, what: &str) -> Result<Measured> {
        let Asked { command, code: ended, printed, complaints, measured } = self;
        if ended != Some(code) || !is_right(&printed) {
            bail!("expected {what} and exit code {code}, found {ended:?}: {command}\n{printed}{complaints}");
        }
        Ok(measured)
    }
}

/// Says to a program where this cloud is, and nothing else.
fn log_in(command: &mut Command, server: &Server) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OS_")) {
        command.env_remove(name);
    }
    command.env("OS_AUTH_URL", format!("{}/identity/v3", server.url)).env("OS_REGION_NAME", cloud::REGION);
    command.env("OS_USERNAME", "bench").env("OS_PASSWORD", "bench").env("OS_PROJECT_NAME", "bench");
    command.env("OS_USER_DOMAIN_NAME", "Default").env("OS_PROJECT_DOMAIN_NAME", "Default");
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
}

/// Clusters of quorate.
struct Fleet<'a> {
    ground: &'a Ground,
    version: Version,
    etcd: PathBuf,
    server: Server,
}

impl Fleet<'_> {
    fn quorate(&self, arguments: &[&str]) -> Command {
        let mut command = self.ground.quorate(&self.etcd);
        log_in(&mut command, &self.server);
        command.args(arguments);
        command
    }

    fn write_spec(&self, from: usize, to: usize) -> Result<PathBuf> {
        let path = self.ground.directory("openstack")?.join("fleet.yaml");
        let text = spec(from, to, self.version, &self.etcd);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// From so many clusters to so many.
    fn grow(&self, from: usize, to: usize) -> Result<()> {
        eprintln!("quorate creates the servers of {} clusters", to - from);
        (from + 1..=to).try_for_each(|number| self.create(number))
    }

    /// Creates the servers of one cluster. Nothing boots in them, so `apply` is killed when all are there.
    fn create(&self, number: usize) -> Result<()> {
        let spec = self.write_spec(number, number)?;
        let complaints = spec.with_file_name("complaints");
        let file = File::create(&complaints).with_context(|| format!("cannot write {}", complaints.display()))?;
        let mut apply = self.quorate(&["apply", "--yes"]);
        apply.arg(&spec).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut apply = apply.spawn().context("cannot start quorate")?;
        let created = self.wait_for(&name(number), &mut apply);
        apply.kill().and_then(|()| apply.wait()).context("cannot end quorate")?;
        created.with_context(|| fs::read_to_string(&complaints).unwrap_or_default())
    }

    fn wait_for(&self, cluster: &str, apply: &mut Child) -> Result<()> {
        let begun = Instant::now();
        let whole = [("quorate.cluster", cluster), ("quorate.state", "whole")];
        while self.server.cloud().servers_with(&whole) < MEMBERS {
            if let Some(status) = apply.try_wait()? {
                bail!("quorate ended without {MEMBERS} servers of {cluster}: {status}");
            }
            ensure!(begun.elapsed() < CREATION, "{cluster} had no {MEMBERS} servers after {CREATION:?}");
            sleep(LOOK);
        }
        Ok(())
    }

    /// Of clusters whose servers are there.
    fn plan(&self, clusters: usize) -> Result<Measured> {
        let spec = self.write_spec(1, clusters)?;
        let asked = Asked::of(&self.server, self.quorate(&["plan"]).arg(&spec))?;
        let sees_all = |printed: &str| printed.matches(FOUND).count() == clusters * MEMBERS;
        asked.expect(0, sees_all, "a plan that has found every machine")
    }

    fn status(&self, clusters: usize) -> Result<Measured> {
        let asked = Asked::of(&self.server, &mut self.quorate(&["status", "--output", "json"]))?;
        let sees_all = |printed: &str| addresses(printed) == clusters * MEMBERS;
        asked.expect(DOWN, sees_all, "the status of clusters whose servers have addresses")
    }
}

fn name(number: usize) -> String {
    format!("c{number:03}")
}

fn spec(from: usize, to: usize, version: Version, etcd: &Path) -> String {
    let mut spec = String::from("quorate: 1\nclusters:\n");
    let binary = etcd.join("etcd").display().to_string();
    for number in from..=to {
        let members: Vec<String> = (1..=MEMBERS).map(|member| format!("{{name: etcd-{member}}}")).collect();
        writeln!(
            spec,
            "  - name: {}\n    provider:\n      openstack: {{image: {}, flavor: {}, network: {}, security_groups: [], \
             spread: none}}\n    members: [{}]\n    etcd: {{version: {version}, binary: {{path: {binary:?}}}}}",
            name(number),
            cloud::IMAGE,
            cloud::FLAVOR,
            cloud::NETWORK,
            members.join(", "),
        )
        .expect("writing to a string does not fail");
    }
    spec
}

/// Of members whose machines were found: the cloud chose the addresses, so only its answer has them.
fn addresses(status: &str) -> usize {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    let members = status.as_array().into_iter().flatten().filter_map(|cluster| cluster["members"].as_array()).flatten();
    members.filter(|member| member["address"].is_string()).count()
}

/// Equal runs of one command.
#[derive(Default)]
struct Runs {
    times: Samples,
    /// Of the run that asked most.
    calls: Calls,
}

impl Runs {
    fn add(&mut self, Measured { time, calls }: Measured) {
        self.times.add(time);
        if calls.all() >= self.calls.all() {
            self.calls = calls;
        }
    }

    /// Without those to log in.
    fn lists(&self) -> usize {
        self.calls.all() - self.calls.logins()
    }

    fn kept(&self) -> bool {
        self.calls.logins() <= MOST_LOGINS && self.lists() <= MOST_CALLS
    }
}

struct Outcome {
    clusters: usize,
    plan: Runs,
    status: Runs,
    terraform: Option<Runs>,
}

impl Outcome {
    fn kept(&self) -> bool {
        self.plan.kept() && self.status.kept()
    }

    fn row(&self) -> [String; 5] {
        let shown = |runs: &Runs| format!("{} calls, {}", runs.calls.all(), runs.times);
        let terraform = self.terraform.as_ref().map_or_else(|| String::from("not measured"), shown);
        let (clusters, servers) = (self.clusters.to_string(), (self.clusters * MEMBERS).to_string());
        [clusters, servers, shown(&self.plan), shown(&self.status), terraform]
    }
}

fn print(outcomes: &[Outcome], runs: u32) {
    println!(
        "Calls to one region, and the median time of {runs} runs (shortest–longest). The scripted cloud answers at \
         once, so this is the time of the programs alone. No agent answers.\n"
    );
    let rows: Vec<_> = outcomes.iter().map(Outcome::row).collect();
    let terraform = format!("`terraform plan`, provider {}", terraform::VERSION);
    print!("{}", table(["clusters", "servers", "`quorate plan`", "`quorate status`", &terraform], &rows));
    println!();
    for Outcome { clusters, plan, status, terraform } in outcomes {
        let terraform = terraform.as_ref().map(|runs| ("terraform plan", runs));
        for (command, runs) in [("quorate plan", plan), ("quorate status", status)].into_iter().chain(terraform) {
            println!("{clusters} clusters, {command}: {}", runs.calls);
        }
    }
    let kept = outcomes.iter().all(Outcome::kept);
    println!(
        "\nat most {MOST_CALLS} lists and {MOST_LOGINS} login, whatever the number of clusters: {}",
        verdict(kept)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(calls: &[(&str, &str)]) -> Runs {
        let mut runs = Runs::default();
        runs.add(Measured { time: Duration::from_millis(20), calls: Calls::of(calls) });
        runs
    }

    const LOGIN: (&str, &str) = ("POST", "/identity/v3/auth/tokens");
    const LIST: (&str, &str) = ("GET", "/compute/v2.1/servers/detail");

    #[test]
    fn one_login_and_two_lists_are_the_most() {
        assert!(runs(&[LOGIN, LIST, LIST]).kept());
        assert!(!runs(&[LOGIN, LIST, LIST, LIST]).kept());
        assert!(!runs(&[LOGIN, LOGIN, LIST]).kept());
    }

    #[test]
    fn the_run_that_asked_most_counts() {
        let mut runs = runs(&[LOGIN, LIST, LIST]);
        runs.add(Measured { time: Duration::from_millis(10), calls: Calls::of(&[LOGIN, LIST]) });
        assert_eq!((runs.lists(), runs.times.median()), (2, Duration::from_millis(15)));
    }

    #[test]
    fn a_row_says_what_was_not_measured() {
        let outcome = Outcome { clusters: 10, plan: runs(&[LOGIN, LIST]), status: runs(&[LOGIN]), terraform: None };
        let shown = "0.020 s (0.020–0.020)";
        let [plan, status] = [2, 1].map(|calls| format!("{calls} calls, {shown}"));
        assert_eq!(outcome.row(), ["10", "30", plan.as_str(), status.as_str(), "not measured"]);
    }

    #[test]
    fn a_spec_has_the_clusters_that_are_asked_for() {
        let spec = spec(2, 11, Version::new(3, 7, 3), Path::new("/etcd"));
        assert_eq!((spec.matches("  - name: c0").count(), spec.matches("name: etcd-3").count()), (10, 10));
        assert!(spec.contains("name: c002\n") && spec.contains("name: c011\n") && !spec.contains("name: c001\n"));
    }

    #[test]
    fn known_member_addresses_are_counted() {
        let status =
            r#"[{"members": [{"address": "127.77.0.2"}, {"address": null}]}, {"members": [{"address": "a"}]}]"#;
        assert_eq!((addresses(status), addresses("")), (2, 0));
    }
}
