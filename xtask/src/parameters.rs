//! `cargo xtask parameters DIRECTORY…`: writes the table of PostgreSQL's parameters that `core` checks specs with, from `pg_settings` of real
//! servers. Each directory has the programs of one major version; one of every version that quorate operates is needed.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{host, lab};

const TABLE: &str = "crates/core/src/kinds/postgres/parameters.txt";
const HEAD: &str = "\
# Written by `cargo xtask parameters` from pg_settings of PostgreSQL 13 to 18. Do not edit.
# name, versions, context, type, unit, smallest, largest, values
";
/// Which values these have depends on how a server was built.
const DEPEND_ON_BUILD: [&str; 6] = [
    "debug_io_direct",
    "default_toast_compression",
    "dynamic_shared_memory_type",
    "io_method",
    "wal_compression",
    "wal_sync_method",
];

pub fn run(directories: &[PathBuf]) -> Result<()> {
    let mut rows: BTreeMap<String, BTreeMap<u16, String>> = BTreeMap::new();
    let mut versions = Vec::new();
    for programs in directories {
        let version = version(programs)?;
        versions.push(version);
        for line in settings(programs)?.lines() {
            let (name, row) = line.split_once('\t').context("a row of pg_settings has several columns")?;
            let row = if DEPEND_ON_BUILD.contains(&name) { without_values(row) } else { row.to_owned() };
            rows.entry(name.to_owned()).or_default().insert(version, row);
        }
    }
    versions.sort_unstable();
    ensure!(versions == [13, 14, 15, 16, 17, 18], "these versions were given: {versions:?}");
    fs::write(lab::workspace()?.join(TABLE), table(&rows)).context("cannot write the table")
}

fn table(rows: &BTreeMap<String, BTreeMap<u16, String>>) -> String {
    let mut text = HEAD.to_owned();
    for (name, by_version) in rows {
        let mut spans: Vec<(u16, u16, &str)> = Vec::new();
        for (version, row) in by_version {
            match spans.last_mut() {
                Some((_, last, known)) if *last + 1 == *version && *known == row => *last = *version,
                _ => spans.push((*version, *version, row)),
            }
        }
        for (first, last, row) in spans {
            let _ = writeln!(text, "{name}\t{first}-{last}\t{}", row.trim_end_matches('\t'));
        }
    }
    text
}

fn without_values(row: &str) -> String {
    row.rsplit_once('\t').map_or(row, |(rest, _)| rest).to_owned()
}

fn version(programs: &Path) -> Result<u16> {
    let said = host::read(Command::new(programs.join("postgres")).arg("--version"))?;
    let number = said.split_whitespace().nth(2).and_then(|version| version.split('.').next()?.parse().ok());
    number.with_context(|| format!("{} has no version: {said}", programs.display()))
}

/// A new server, in single-user mode, which is deleted again.
fn settings(programs: &Path) -> Result<String> {
    // The lab may be below a home that only its owner may enter.
    let directory = env::temp_dir().join(format!("quorate-parameters-{}", std::process::id()));
    host::read(as_server(Path::new("mkdir")).arg(&directory))?;
    let data = directory.join("data");
    host::read(as_server(&programs.join("initdb")).arg("--pgdata").arg(&data).args(["--locale=C", "--no-sync"]))?;
    let out = directory.join("settings");
    let sql = format!(
        "COPY (SELECT name, context, vartype, coalesce(unit, ''), coalesce(min_val, ''), coalesce(max_val, ''), \
         coalesce(array_to_string(enumvals, '|'), '') FROM pg_settings WHERE name NOT LIKE '%.%' \
         ORDER BY name COLLATE \"C\") TO '{}'\n",
        out.display()
    );
    let mut single = as_server(&programs.join("postgres"));
    let mut child = single.args(["--single", "-D"]).arg(&data).arg("postgres").stdin(Stdio::piped()).spawn()?;
    child.stdin.take().context("it reads standard input")?.write_all(sql.as_bytes())?;
    ensure!(child.wait()?.success(), "{} failed", programs.display());
    let found = fs::read_to_string(&out).context("the server wrote nothing")?;
    fs::remove_dir_all(&directory)?;
    Ok(found)
}

/// PostgreSQL does not run as root.
fn as_server(program: &Path) -> Command {
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_of_consecutive_versions_become_one() {
        let row = |text: &str| text.to_owned();
        let work_mem = BTreeMap::from([(13, row("user\tinteger\tkB")), (14, row("user\tinteger\tkB"))]);
        let other = BTreeMap::from([(13, row("a\t\t")), (15, row("a\t\t"))]);
        let rows = BTreeMap::from([(row("work_mem"), work_mem), (row("x"), other)]);
        let lines: Vec<String> = table(&rows).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(lines, ["work_mem\t13-14\tuser\tinteger\tkB", "x\t13-13\ta", "x\t15-15\ta"]);
    }
}
