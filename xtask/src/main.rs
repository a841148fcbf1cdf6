//! The project's chores as `cargo xtask VERB`: one file per verb. It is the first thing built on a fresh
//! machine, so it depends on little, and installs only what a verb turns out to miss.

mod bench;
mod demo;
mod drill;
mod etcd;
mod forward;
mod host;
mod lab;
mod labs;
mod lint;
mod model;
mod static_build;
mod test;
mod unpacked;
mod weed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lab::Lab;

/// Chores of the quorate project
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Put the etcd versions that tests use side by side in the lab directory
    Etcd {
        /// Also look for newer releases of the lines that are built from Go modules
        #[arg(long)]
        refresh: bool,
    },
    /// Put SeaweedFS, the S3 store that tests and benches use, into the lab directory
    Weed,
    /// Check formatting, clippy, the purity of core, and that no crate allows unsafe code
    Lint,
    /// Prepare the machine and run every test of the workspace
    Test {
        /// Run only tests whose name contains this
        filter: Option<String>,
        /// Arguments for the test binaries, after `--`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Run the whole model check of the planner, with the runs that are too long for `cargo test`
    Model {
        /// Run only what has this in its name
        filter: Option<String>,
    },
    /// Build quorate as a program that needs no shared library, for machines of any kind
    Static {
        /// Without optimization: sooner built, and larger
        #[arg(long)]
        dev: bool,
    },
    /// Build quorate and bring up a cluster named `demo` on this machine
    Demo,
    /// Let every change of a living cluster meet faults, under clients, and judge what they saw
    Drill(drill::Options),
    /// Run a provider's conformance suite, and stories of clusters, on a real system that is started for it
    #[command(subcommand)]
    Lab(labs::Which),
    /// Measure what the project promises in figures
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<()> {
    let lab = Lab::from_environment()?;
    match verb {
        Verb::Etcd { refresh } => etcd::run(&lab, refresh),
        Verb::Weed => weed::run(&lab),
        Verb::Lint => lint::run(),
        Verb::Test { filter, arguments } => test::run(&lab, filter.as_deref(), &arguments),
        Verb::Model { filter } => model::run(filter.as_deref()),
        Verb::Static { dev } => static_build::run(!dev),
        Verb::Demo => demo::run(&lab),
        Verb::Drill(options) => drill::run(&lab, &options),
        Verb::Lab(which) => labs::run(&lab, &which),
        Verb::Bench(bench) => bench::run(&lab, &bench),
    }
}
