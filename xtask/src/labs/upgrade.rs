//! Upgrades from a real older quorate. Its program is built once, from the last commit whose agents speak protocol 2, in a checkout below
//! the target directory; the tests of `crates/cli/tests/cli/older_program.rs` create clusters with it and upgrade them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::etcd;
use crate::host;
use crate::lab::{self, Lab};
use crate::test::build;

const COMMIT: &str = "af0dc7948201aa2c84454117f51f810088b143fc";
/// Where the tests look for the older program.
const VARIABLE: &str = "QUORATE_LAB_OLD_PROGRAM";

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Use this older program instead of building one
    #[arg(long, value_name = "PATH")]
    old: Option<PathBuf>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    etcd::ensure(lab, false)?;
    let old = match &options.old {
        Some(program) => fs::canonicalize(program).with_context(|| format!("no program {}", program.display()))?,
        None => older_program()?,
    };
    let mut tests = build::find("quorate::cli")?.command();
    tests.args(["--ignored", "--nocapture", "older_program::"]).env(VARIABLE, old);
    host::run(tests.env("QUORATE_LAB", lab.root()))
}

/// Built at the first run and kept.
fn older_program() -> Result<PathBuf> {
    let place = host::target_directory()?.join("lab-upgrade");
    let program = place.join(format!("quorate-{}", &COMMIT[..7]));
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let (checkout, target) = (place.join("checkout"), place.join("target"));
    // What an interrupted run left.
    let _ = remove(&checkout);
    let added =
        host::run(git()?.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&checkout).arg(COMMIT));
    added.with_context(|| format!("commit {COMMIT} is needed: fetch the whole history, or use --old PATH"))?;
    let mut cargo = host::cargo()?;
    cargo.current_dir(&checkout).args(["build", "--locked", "--package", "quorate", "--target-dir"]).arg(&target);
    // The program is copied to machines: symbols would only make it larger.
    host::run(cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_STRIP", "symbols"))?;
    fs::rename(target.join("debug/quorate"), &program).context("cannot keep the older program")?;
    fs::remove_dir_all(&target).context("cannot remove what the build left")?;
    remove(&checkout)?;
    Ok(program)
}

fn remove(checkout: &Path) -> Result<()> {
    host::read(git()?.args(["worktree", "remove", "--force"]).arg(checkout)).map(drop)
}

fn git() -> Result<Command> {
    let mut git = Command::new("git");
    git.current_dir(lab::workspace()?);
    Ok(git)
}
