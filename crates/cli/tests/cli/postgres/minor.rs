//! Another minor release, installed in the place of the one that runs. The older release here is a copy of the real program in which its
//! version was changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::{Shop, THREE, VERSION, Writer, assert_nothing_lost, spec};
use crate::common::{Run, Sandbox};

const INSTALLED: &str = "/usr/lib/postgresql/15/bin";

/// The release of Debian's program, such as 15.18.
fn release() -> String {
    let run: Run =
        Command::new(format!("{INSTALLED}/postgres")).arg("--version").output().expect("PostgreSQL 15").into();
    run.ok().stdout.split_whitespace().nth(2).expect("a version").to_owned()
}

fn number(release: &str) -> u32 {
    let (major, minor) = release.split_once('.').expect("a release");
    major.parse::<u32>().unwrap() * 10_000 + minor.parse::<u32>().unwrap()
}

fn replace_all(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut found = 0;
    for at in 0..=bytes.len() - from.len() {
        if &bytes[at..at + from.len()] == from {
            bytes[at..at + to.len()].copy_from_slice(to);
            found += 1;
        }
    }
    assert!(found > 0, "{from:?} is not in the program");
}

/// The programs of PostgreSQL, with a server that says it is of another release.
fn programs_of(directory: &Path, installed: &str, other: &str) {
    fs::create_dir(directory).expect("a directory");
    for entry in fs::read_dir(INSTALLED).expect("programs").flatten() {
        symlink(entry.path(), directory.join(entry.file_name())).expect("a link");
    }
    let mut server = fs::read(format!("{INSTALLED}/postgres")).expect("the server");
    replace_all(&mut server, installed.as_bytes(), other.as_bytes());
    replace_all(&mut server, &number(installed).to_le_bytes(), &number(other).to_le_bytes());
    put(directory, &server);
}

/// As a package does: the new file takes the place of the old one, which running processes keep.
fn put(directory: &Path, server: &[u8]) {
    let draft = directory.join("postgres.new");
    fs::write(&draft, server).expect("a program");
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).expect("it can be run");
    fs::rename(draft, directory.join("postgres")).expect("in place");
}

#[test]
fn another_minor_release_is_taken_up_one_member_after_another_and_no_commit_is_lost() {
    let sandbox = Sandbox::new(VERSION);
    let (newer, programs) = (release(), sandbox.path().join("programs"));
    let (major, minor) = newer.split_once('.').unwrap();
    let older = format!("{major}.{:0width$}", minor.parse::<u32>().unwrap() - 1, width = minor.len());
    programs_of(&programs, &newer, &older);
    let text = spec("max_connections: 50", &THREE);
    let text = text.replace("version: 15\n", &format!("version: 15\n      programs: {}\n", programs.display()));
    sandbox.file("shop.yaml", &text);
    let shop = Shop { sandbox };
    shop.apply().ok();
    let versions = || -> Vec<String> {
        let status = shop.status();
        let members = status["members"].as_array().expect("members").iter();
        members.map(|member| member["version"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(versions(), [older.as_str(); 3]);
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    let primary = shop.primary();
    put(&programs, &fs::read(format!("{INSTALLED}/postgres")).expect("the server"));
    let planned = shop.sandbox.quorate(&["plan", "shop.yaml"]).ok().stdout;
    assert!(planned.contains(&format!("PostgreSQL {older} runs, and {newer} is installed")), "{planned}");
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("switch the primary from {primary} to ")), "{done}");
    assert_ne!(shop.primary(), primary, "it handed over more than once\n{done}");
    assert_eq!(versions(), [newer.as_str(); 3]);
    assert_nothing_lost(&user, &writer.stop());
    shop.sandbox.assert_nothing_to_do("shop.yaml");
}
