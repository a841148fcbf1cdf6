//! `cargo xtask lint`: formatting, clippy, the purity of core, the ban on unsafe code, the rules for dependencies, and
//! Markdown. Every check runs, so one run shows everything that is wrong.

mod markdown;
mod purity;
mod supply;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{host, lab};

type Check = fn() -> Result<()>;

const CLIPPY: &str = "clippy";
const CHECKS: [(&str, Check); 7] = [
    ("formatting", formatting),
    (CLIPPY, clippy),
    ("core depends on no I/O crate", purity::dependencies),
    ("core's code does no I/O and asks for no time or chance", purity::sources),
    ("no crate allows unsafe code", no_unsafe),
    ("dependencies follow deny.toml", supply::check),
    ("Markdown is wrapped and its links work", markdown::check),
];

/// Clippy may have compiled the tests before (`build::LINT`).
pub fn run(without_clippy: bool) -> Result<()> {
    let mut failed = Vec::new();
    for (name, check) in CHECKS.into_iter().filter(|(name, _)| !(without_clippy && *name == CLIPPY)) {
        match check() {
            Ok(()) => eprintln!("ok      {name}"),
            Err(error) => {
                eprintln!("FAILED  {name}: {error:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), CHECKS.len(), failed.join("; "));
    }
    Ok(())
}

fn formatting() -> Result<()> {
    host::run(host::cargo()?.args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
    host::run(host::cargo()?.args(arguments))
}

/// The workspace forbids unsafe code; this checks that the rule stands and that every member obeys it.
fn no_unsafe() -> Result<()> {
    let root = lab::workspace()?.join("Cargo.toml");
    if !has_setting(&read(&root)?, "workspace.lints.rust", "unsafe_code", "\"forbid\"") {
        bail!("{} does not say `unsafe_code = \"forbid\"` under [workspace.lints.rust]", root.display());
    }
    for manifest in members()? {
        if !has_setting(&read(&manifest)?, "lints", "workspace", "true") {
            bail!("{} does not say `workspace = true` under [lints]", manifest.display());
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The manifests of the workspace's members.
fn members() -> Result<Vec<PathBuf>> {
    let tree =
        host::read(host::cargo()?.args(["tree", "--workspace", "--depth", "0", "--prefix", "none", "--locked"]))?;
    Ok(member_directories(&tree).map(|directory| Path::new(directory).join("Cargo.toml")).collect())
}

/// The directories in lines such as `xtask v0.1.0 (/src/xtask)`.
fn member_directories(tree: &str) -> impl Iterator<Item = &str> {
    tree.lines().filter_map(|line| Some(line.split_once(" (")?.1.split_once(')')?.0))
}

/// Whether a TOML file has `key = value` in the table `[table]`.
fn has_setting(toml: &str, table: &str, key: &str, value: &str) -> bool {
    let mut lines = toml.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let inside = lines.by_ref().any(|line| line == format!("[{table}]"));
    inside
        && lines
            .take_while(|line| !line.starts_with('['))
            .filter_map(|line| line.split_once('='))
            .any(|(found, setting)| found.trim() == key && setting.trim() == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_counts_only_in_its_own_table() {
        let manifest = "[package]\nname = \"a\"\n\n[lints]  # ours\nworkspace=true\n\n[dependencies]\nserde = \"1\"\n";
        assert!(has_setting(manifest, "lints", "workspace", "true"));
        assert!(!has_setting(manifest, "lints", "serde", "\"1\""));
        assert!(!has_setting(manifest, "lints", "workspace", "false"));
        assert!(!has_setting("[package]\nworkspace = true\n", "lints", "workspace", "true"));
        assert!(!has_setting("[lints]\n# workspace = true\n", "lints", "workspace", "true"));
    }

    #[test]
    fn members_are_found_by_their_directories() {
        let tree = "quorate v0.1.0 (/src/crates/cli)\n\nxtask v0.1.0 (/src/xtask)\nserde v1.0.0\n";
        assert_eq!(member_directories(tree).collect::<Vec<_>>(), ["/src/crates/cli", "/src/xtask"]);
    }
}
