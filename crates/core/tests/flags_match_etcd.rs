//! Compares the table of flags with real etcd binaries, as `cargo xtask etcd` puts them into the cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use quorate_core::flags;
use quorate_core::versions::{Gate, Version, gate};

/// The releases that must be there; others are compared when they are.
const NEEDED: [&str; 2] = ["3.4.23", "3.5.30"];

/// The help of 3.7 still speaks of these, and the program refuses them.
const GONE: [&str; 2] = ["discovery", "discovery-proxy"];

fn lab() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    cache.expect("HOME is set").join("quorate-lab/etcd")
}

/// Standard output and error together.
fn output(etcd: &Path, argument: &str) -> String {
    let output = Command::new(etcd).args([argument, "--version"]).output().expect("etcd runs");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Flags that the help lists, each at the beginning of a line.
fn listed(etcd: &Path) -> BTreeSet<String> {
    let help = output(etcd, "--help");
    let names = help.lines().filter_map(|line| line.strip_prefix(' ')?.trim_start().strip_prefix("--"));
    names
        .map(|line| line.split(|end: char| !end.is_ascii_alphanumeric() && end != '-').next().unwrap().to_owned())
        .collect()
}

/// Whether the program itself takes the flag, which its help may not say.
fn takes(etcd: &Path, flag: &str) -> bool {
    !output(etcd, &format!("--{flag}=1")).contains("flag provided but not defined")
}

#[test]
fn the_table_agrees_with_real_binaries() {
    let lab = lab();
    for version in NEEDED {
        assert!(lab.join(version).join("etcd").is_file(), "etcd {version} is not in the cache: run `cargo xtask etcd`");
    }
    let names = fs::read_dir(&lab).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let versions = names.filter_map(|name| name.parse::<Version>().ok());
    for version in versions.filter(|version| !matches!(gate(*version), Gate::Refused(_))) {
        let etcd = lab.join(version.to_string()).join("etcd");
        let listed = listed(&etcd);
        assert!(listed.len() > 60, "etcd {version} lists only {} flags", listed.len());
        let table: BTreeSet<String> = flags::known(version).map(str::to_owned).collect();
        for flag in listed.difference(&table) {
            assert!(
                GONE.contains(&flag.as_str()) && !takes(&etcd, flag),
                "etcd {version} knows `{flag}`, the table does not"
            );
        }
        for flag in table.difference(&listed) {
            assert!(takes(&etcd, flag), "the table says that etcd {version} knows `{flag}`, and it does not");
        }
    }
}
