//! moto's server in place of AWS: it implements the calls of EC2 and Systems Manager and keeps records in memory. The suite and one story
//! put a proxy in front of it that refuses what AWS refuses. For tests of clusters each instance gets a process with the instance's address: an agent, or
//! a whole system configured by cloud-init, Ignition's own binary or quorate itself. So all of it runs in separate namespaces.

mod cloud;
mod tools;

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::etcd;
use crate::host;
use crate::lab::Lab;
use crate::test::build;
pub use cloud::{Cloud, enter};
pub use tools::prepare as install;

/// In the name of the story whose bodies are agents.
const STORY: &str = "ec2_runs";
/// What the core of the suite leaves out: the same again for every call that there is, and what changes so much that moto takes long.
const LONG: [&str; 10] = [
    "fails_once",
    "a_crash_while",
    "_vpc",
    "zone",
    "groups_",
    "rules_and_interfaces",
    "images_are_found",
    "instances_match_the_spec",
    "missing_aws_resources",
    "an_instance_that_aws_stopped",
];

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
    /// Run the quick part of the conformance suite, and no story
    #[arg(long, conflicts_with_all = ["filter", "run"])]
    core: bool,
    /// Run this command of a shell next to the server, and no suite
    #[arg(long, value_name = "COMMAND", conflicts_with = "filter")]
    run: Option<String>,
}

impl Options {
    /// The same in words of the command line.
    fn words(&self) -> impl Iterator<Item = &str> {
        let run = self.run.as_deref().map(|command| ["--run", command]);
        self.filter.as_deref().into_iter().chain(run.into_iter().flatten()).chain(self.core.then_some("--core"))
    }

    /// Whether instances that are whole systems may be wanted.
    fn has_systems(&self) -> bool {
        let is_of_agents = self.filter.as_ref().is_some_and(|filter| filter.contains(STORY));
        !self.core && self.run.is_none() && !is_of_agents
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let tools = prepare(lab, options)?;
    if !options.core {
        etcd::ensure(lab, false)?;
    }
    build::programs()?;
    eprintln!("prepared in {:.0} s", begun.elapsed().as_secs_f64());
    let words: Vec<&str> = ["lab", "aws", "--inside"].into_iter().chain(options.words()).collect();
    enter(lab, &tools, &words)?;
    eprintln!("all of it in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// In the namespaces.
pub fn inside(lab: &Lab, options: &Options) -> Result<()> {
    let cloud = Cloud::start()?;
    if let Some(command) = &options.run {
        return host::run(cloud.tell(Command::new("sh")).args(["-c", command]));
    }
    let filter = options.filter.as_deref().unwrap_or("aws::");
    let suite = |label: &str| -> Result<Command> {
        let mut suite = cloud.tell(build::find(label)?.command());
        suite.args([filter, "--include-ignored", "--test-threads=3"]);
        Ok(suite)
    };
    let mut conformance = suite("quorate-providers::conformance")?;
    if options.core {
        return host::run(conformance.args(LONG.iter().flat_map(|name| ["--skip", name])));
    }
    host::run(&mut suite("quorate-providers")?)?;
    host::run(&mut conformance)?;
    let quorate = host::debug_directory()?.join("quorate");
    let etcd = lab.installed().into_values().next().context("there is no etcd in the lab")?;
    let bodies = cloud.live(&quorate, &etcd, None)?;
    let strict = cloud.strict(&build::find("quorate-providers::conformance")?.program)?;
    let mut stories = cloud.tell(build::find("quorate::machines")?.command());
    strict.tell(&mut stories).args(["--ignored", "--nocapture", "--test-threads=1", filter]);
    host::run(&mut stories).inspect_err(|_| bodies.show_consoles())
}

/// Installs what is missing. It stays.
pub fn prepare(lab: &Lab, options: &Options) -> Result<tools::Tools> {
    install(lab, options.has_systems())
}
