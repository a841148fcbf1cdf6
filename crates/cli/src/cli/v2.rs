//! Options of `quorate v2`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;
use crate::completion;

#[derive(Subcommand, Debug)]
pub enum V2 {
    /// Write v2 data from another etcd into a cluster
    ///
    /// Each file is an answer to GET /v2/keys/?recursive=true&quorum=true of an etcd 3.4 or 3.5 that runs with
    /// --enable-v2; docs/v2.md has the commands, also for data directories. Nothing is overwritten: if a node exists
    /// and differs, nothing is written at all. Equal nodes are skipped, so an interrupted import can be repeated.
    Import(V2Import),
}

#[derive(Args, Debug)]
pub struct V2Import {
    /// Name of the cluster
    #[arg(value_name = "CLUSTER", add = completion::clusters())]
    pub name: String,
    /// Files with answers of /v2/keys; `-` for stdin
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}
