//! `quorate up NAME --kind postgres`, as in the README: one command creates PostgreSQL and its etcd on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Shop, VERSION, psql};
use crate::common::{Run, Sandbox, signal};

/// The second example of the first page.
fn example() -> &'static str {
    let page = include_str!("../../../../../README.md");
    page.split("```").find(|block| block.contains(" --kind postgres")).expect("an example")
}

/// What a user types there, and what the page says that is printed.
fn typed_and_printed() -> (Vec<&'static str>, Vec<&'static str>) {
    let lines: Vec<&str> = example().lines().filter(|line| !line.is_empty()).collect();
    let (typed, printed): (Vec<&str>, Vec<&str>) = lines.into_iter().partition(|line| line.starts_with("$ "));
    (typed.into_iter().map(|line| &line[2..]).collect(), printed)
}

/// A shell in the sandbox that finds `quorate`.
fn shell(sandbox: &Sandbox, program: &str, arguments: &[&str]) -> Command {
    let quorate = sandbox.command(&[]);
    let programs = Path::new(quorate.get_program()).parent().expect("a directory").to_owned();
    let set = |wanted: &str| {
        let mut found = quorate.get_envs().filter(|(name, _)| *name == wanted);
        found.next().and_then(|(_, value)| value?.to_str()).expect("it is set").to_owned()
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(quorate.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", format!("{}:{}", programs.display(), set("PATH")));
    command.current_dir(sandbox.path()).stdin(Stdio::null());
    command
}

fn types(sandbox: &Sandbox, line: &str) -> Run {
    shell(sandbox, "sh", &["-ec", line]).output().expect("a shell").into()
}

/// The processes of one cluster's machines.
fn running(shop: &Shop, cluster: &str) -> Vec<(u32, String)> {
    let machines = format!("/machines/{cluster}/");
    shop.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&machines)).collect()
}

const ETCD_FIRST: &str = "etcd cluster shop-etcd comes first; Patroni keeps its state in it";

fn both_down(shop: &Shop) {
    shop.sandbox.quorate(&["down", "shop", "--yes"]).ok();
    assert_eq!(running(shop, "shop"), []);
    assert_eq!(shop.status()["verdict"], "off");
    shop.sandbox.quorate(&["down", "shop-etcd", "--yes"]).ok();
    assert_eq!(shop.sandbox.processes(), []);
}

fn settings_of_what_exists_are_not_changed(shop: &Shop) {
    let refused = [
        (["--members", "5"], "cluster shop exists with --members 3, and 5 was requested"),
        (["--etcd-version", "3.5.21"], "cluster shop-etcd exists with --etcd-version 3.6.16, and 3.5.21 was requested"),
        (
            ["--client-auth", "certificate"],
            "cluster shop-etcd exists with --client-auth password, and certificate was requested",
        ),
        (["--kind", "etcd"], "cluster shop exists, and runs PostgreSQL"),
    ];
    for (option, why) in refused {
        let asked: Vec<&str> = ["up", "shop"].into_iter().chain(option).collect();
        let said = shop.sandbox.quorate(&asked).fails().stderr;
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(shop.sandbox.processes(), []);
}

#[test]
fn one_command_creates_postgresql_and_its_etcd_as_the_readme_says() {
    let (typed, printed) = typed_and_printed();
    let [up, query, switchover] = typed[..] else { panic!("{typed:?}") };
    assert!(!printed.is_empty(), "{}", example());
    let shop = Shop { sandbox: Sandbox::new(VERSION) };
    let made = types(&shop.sandbox, up).ok();
    for line in printed {
        assert!(made.stdout.lines().any(|found| found == line), "{line:?} is not in\n{}", made.stdout);
    }
    let status = shop.sandbox.status("shop-etcd");
    assert_eq!((&status["verdict"], status["members"].as_array().map(Vec::len)), (&"healthy".into(), Some(3)));
    let status = shop.status();
    assert_eq!((&status["verdict"], status["members"].as_array().map(Vec::len)), (&"healthy".into(), Some(3)));
    // Commits wait for a standby, and stop without one.
    assert_eq!((&status["postgres"]["synchronous_nodes"], &status["postgres"]["strict"]), (&1.into(), &true.into()));
    shop.member_with("sync standby");
    let superuser = shop.env(&[]);
    let standbys = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = 'sync'";
    assert_eq!(psql(&superuser, standbys).ok().stdout, "1\n");

    let answer = types(&shop.sandbox, query).ok().stdout;
    assert!(answer.contains(" 15."), "{answer}");
    let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(psql(&superuser, encrypted).ok().stdout, "t\n");
    let mut plain = superuser.clone();
    plain.insert(String::from("PGSSLMODE"), String::from("disable"));
    assert!(psql(&plain, "select 1").fails().stderr.contains("pg_hba.conf rejects connection"));
    psql(&superuser, "create table kept as select 7 as n").ok();

    let before = shop.primary();
    let moved = types(&shop.sandbox, &format!("{switchover} --yes")).ok();
    assert!(moved.text().contains(&format!("switch the primary from {before} to ")), "{moved:?}");
    assert_ne!(shop.primary(), before, "{moved:?}");

    // Off, and on again: both clusters by the same command, with their data.
    both_down(&shop);
    settings_of_what_exists_are_not_changed(&shop);
    let again = types(&shop.sandbox, up).ok();
    assert!(again.stderr.contains("cluster shop already exists; continuing with its settings"), "{again:?}");
    assert_eq!(psql(&superuser, "table kept").ok().stdout, "7\n");
    assert_eq!(shop.status()["verdict"], "healthy");
    both_down(&shop);
    let started = shop.sandbox.quorate(&["start", "shop"]).ok();
    assert!(started.stderr.contains(ETCD_FIRST), "{started:?}");
    assert_eq!(psql(&superuser, "table kept").ok().stdout, "7\n");
    assert_eq!(shop.sandbox.status("shop-etcd")["verdict"], "healthy");
    // After a reboot of this host no machine of etcd runs, and its ledger says that it is on.
    for (process, _) in running(&shop, "shop-etcd") {
        signal(process, "KILL");
    }
    let started = shop.sandbox.quorate(&["start", "shop"]).ok();
    assert!(started.stderr.contains(ETCD_FIRST), "{started:?}");
    assert_eq!(shop.sandbox.status("shop-etcd")["verdict"], "healthy");
    // It is on: etcd is left alone. The kind of a cluster that exists is known.
    let again = shop.sandbox.quorate(&["up", "shop"]).ok();
    assert!(!again.text().contains("shop-etcd"), "{again:?}");
    assert_eq!(shop.status()["verdict"], "healthy");

    shop.sandbox.quorate(&["destroy", "shop", "--yes", "--without-backup"]).ok();
    assert_eq!(running(&shop, "shop"), []);
    shop.sandbox.quorate(&["destroy", "shop-etcd", "--yes", "--without-backup"]).ok();
    assert_eq!(shop.sandbox.processes(), []);
    assert!(!shop.sandbox.has_machines());
}
