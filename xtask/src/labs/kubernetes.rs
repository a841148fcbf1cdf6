//! A real kube-apiserver on clusters of quorate. The programs are built once per version (`programs.rs`); the tests of
//! `crates/cli/tests/cli/apiserver` run with each version.

pub mod programs;

use anyhow::{Result, bail};

use crate::etcd;
use crate::host;
use crate::lab::{Lab, Version};
use crate::test::build;

/// The newest patch of two minors whose module is available with a checksum.
const VERSIONS: [Version; 2] = [Version::new(1, 36, 4), Version::new(1, 37, 1)];
/// Where the tests look for the programs.
const VARIABLE: &str = "QUORATE_LAB_KUBERNETES";

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
    /// Use only this version of Kubernetes, such as 1.37.1
    #[arg(long, value_name = "VERSION")]
    only: Option<Version>,
    /// Build the programs, and run nothing
    #[arg(long)]
    prepare: bool,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let versions: Vec<Version> =
        VERSIONS.into_iter().filter(|version| options.only.is_none_or(|only| only == *version)).collect();
    if versions.is_empty() {
        bail!("the lab has Kubernetes {}", VERSIONS.map(|version| version.to_string()).join(" and "));
    }
    let places = versions.iter().map(|version| programs::ensure(lab, *version)).collect::<Result<Vec<_>>>()?;
    if options.prepare {
        return Ok(());
    }
    etcd::ensure(lab, false)?;
    let tests = build::find("quorate::cli")?;
    let filter = options.filter.as_deref().unwrap_or("apiserver::");
    for (version, place) in versions.iter().zip(places) {
        println!("Kubernetes {version}");
        let mut tests = tests.command();
        tests.args(["--ignored", "--nocapture", "--test-threads=1", filter]);
        host::run(tests.env(VARIABLE, place).env("QUORATE_LAB", lab.root()))?;
    }
    Ok(())
}
