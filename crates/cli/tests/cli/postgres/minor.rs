//! A minor release, installed in place of the running one. The older one comes from `cargo xtask postgres`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::{Shop, THREE, VERSION, Writer, assert_nothing_lost, spec};
use crate::common::{Run, Sandbox, older_postgres};

const INSTALLED: &str = "/usr/lib/postgresql/15/bin";

/// The release of a server, such as 15.18.
fn release(programs: &Path) -> String {
    let run: Run = Command::new(programs.join("postgres")).arg("--version").output().expect("PostgreSQL 15").into();
    run.ok().stdout.split_whitespace().nth(2).expect("a version").to_owned()
}

/// The programs of PostgreSQL in a directory of this test. All but the server are links.
fn install(programs: &Path, directory: &Path) {
    fs::create_dir(directory).expect("a directory");
    for entry in fs::read_dir(programs).expect("programs").flatten().filter(|entry| entry.file_name() != "postgres") {
        symlink(entry.path(), directory.join(entry.file_name())).expect("a link");
    }
    put(programs, directory);
}

/// As a package does: the new server takes the place of the old one, which running processes keep.
fn put(programs: &Path, directory: &Path) {
    let draft = directory.join("postgres.new");
    fs::copy(programs.join("postgres"), &draft).expect("a program");
    fs::rename(draft, directory.join("postgres")).expect("in place");
}

#[test]
fn a_minor_upgrade_restarts_one_member_at_a_time_and_no_commit_is_lost() {
    let sandbox = Sandbox::new(VERSION);
    let programs = sandbox.path().join("programs");
    let (older, newer) = (release(&older_postgres()), release(Path::new(INSTALLED)));
    assert_ne!(older, newer);
    install(&older_postgres(), &programs);
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
    put(Path::new(INSTALLED), &programs);
    let planned = shop.sandbox.quorate(&["plan", "shop.yaml"]).ok().stdout;
    assert!(planned.contains(&format!("PostgreSQL {older} runs, and {newer} is installed")), "{planned}");
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("switch the primary from {primary} to ")), "{done}");
    assert_ne!(shop.primary(), primary, "it handed over more than once\n{done}");
    assert_eq!(versions(), [newer.as_str(); 3]);
    assert_nothing_lost(&user, &writer.stop());
    shop.sandbox.assert_nothing_to_do("shop.yaml");
}
