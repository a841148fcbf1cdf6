//! The project's tasks as `cargo xtask COMMAND`: one file per command. It is the first thing built on a new machine, so
//! it has few dependencies, and installs only what a command needs.

mod bench;
mod ci;
mod demo;
mod dist;
mod drill;
mod etcd;
mod forward;
mod fuzz;
mod host;
mod lab;
mod labs;
mod lint;
mod model;
mod parameters;
mod postgres;
mod reference;
mod rooms;
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
    /// Install PostgreSQL, and put Patroni, which tests use, into the lab directory
    Postgres,
    /// Write the table of PostgreSQL's parameters from servers of every version
    Parameters {
        /// Directories with the programs of PostgreSQL 13 to 18
        #[arg(required = true)]
        programs: Vec<std::path::PathBuf>,
    },
    /// Check formatting, clippy, the purity of core, the ban on unsafe code, dependencies and Markdown
    Lint {
        /// Leave clippy out, because the tests were compiled by it
        #[arg(long)]
        without_clippy: bool,
    },
    /// Write docs/reference.md from the schema of the spec
    Reference,
    /// Print the lines outside its rooms that name a provider
    Rooms { provider: String },
    /// Do everything that must pass before a change is merged
    Ci,
    /// Install and fetch what tests, drills, benches and labs need, all at once
    Prepare,
    /// Prepare the machine and run every test of the workspace
    Test {
        /// Compile the tests and run none
        #[arg(long)]
        no_run: bool,
        /// Run only the tests that use clusters, or only those that compute
        #[arg(long)]
        only: Option<test::Only>,
        /// Make fewer rounds in tests that kill or restore at random instants
        #[arg(long)]
        quick: bool,
        /// Run only tests whose name contains this
        filter: Option<String>,
        /// Arguments for the test binaries, after `--`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Have every reader of bytes from elsewhere read damaged input, with bounded memory
    Fuzz(fuzz::Options),
    /// Run the whole model check of the planner, with the runs that are too long for `cargo test`
    Model {
        /// Run only what has this in its name
        filter: Option<String>,
    },
    /// Build quorate as a program that needs no shared library, for machines of any kind
    Static {
        /// As the labs use it: linked from the build of the tests, not optimized, and with glibc instead of musl
        #[arg(long)]
        lab: bool,
    },
    /// Build what people install: a tarball, a Debian package, and their checksums, in target/dist
    Dist(dist::Options),
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
    let done = run(Arguments::parse().verb);
    ci::tell_processor_time();
    match done {
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
        Verb::Postgres => postgres::run(&lab),
        Verb::Parameters { programs } => parameters::run(&programs),
        Verb::Lint { without_clippy } => lint::run(without_clippy),
        Verb::Reference => reference::run(),
        Verb::Rooms { provider } => rooms::run(&provider),
        Verb::Ci => ci::run(),
        Verb::Prepare => prepare(&lab),
        Verb::Test { no_run: true, .. } => test::compile(),
        Verb::Test { only, quick, filter, arguments, .. } => {
            test::run(&lab, only, quick, filter.as_deref(), &arguments)
        }
        Verb::Fuzz(options) => fuzz::run(&options),
        Verb::Model { filter } => model::run(filter.as_deref()),
        Verb::Static { lab } => static_build::run(lab),
        Verb::Dist(options) => dist::run(&lab, &options),
        Verb::Demo => demo::run(&lab),
        Verb::Drill(options) => drill::run(&lab, &options),
        Verb::Lab(which) => labs::run(&lab, &which),
        Verb::Bench(bench) => bench::run(&lab, &bench),
    }
}

/// One call of apt for everybody, where each command would make one.
fn prepare(lab: &Lab) -> anyhow::Result<()> {
    let needs =
        [&test::NEEDS[..], &drill::NEEDS, &bench::NEEDS, &static_build::NEEDS, &labs::libvirt::NEEDS, &labs::NEEDS];
    host::install_missing(&needs.concat())?;
    labs::incus::install()?;
    test::prepare(lab)
}
