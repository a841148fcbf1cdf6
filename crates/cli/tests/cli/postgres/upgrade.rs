//! A major version upgrade and its reversal: under a writer, with the controller and an agent killed meanwhile.

use std::path::PathBuf;
use std::process::Child;

use super::{Shop, THREE, VERSION, Writer, assert_nothing_lost, psql, spec};
use crate::backups::make_identity;
use crate::common::{Run, Sandbox, eventually, newer_postgres, signal};

fn at_version(version: u16) -> String {
    spec("max_connections: 50", &THREE).replace("version: 15", &format!("version: {version}"))
}

impl Shop {
    fn upgrade(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "--allow-downtime", "shop.yaml"])
    }

    fn begin_upgrade(&self) -> Child {
        self.sandbox.spawn(&["apply", "--yes", "--allow-downtime", "shop.yaml"])
    }

    fn home_of(&self, member: &str) -> PathBuf {
        self.sandbox.home().join(format!("machines/shop/{member}/root/var/lib/postgresql"))
    }

    fn versions(&self) -> Vec<String> {
        let status = self.status();
        let version = |member: &serde_json::Value| member["version"].as_str().unwrap_or_default().to_owned();
        let majors = status["members"].as_array().unwrap().iter().map(version);
        majors.map(|version| version.split('.').next().unwrap_or_default().to_owned()).collect()
    }
}

fn kill(mut controller: Child) {
    controller.kill().unwrap();
    controller.wait().unwrap();
}

#[test]
fn a_cluster_is_upgraded_to_another_major_version_and_returns_and_no_commit_is_lost_on_the_way() {
    let sandbox = Sandbox::new(VERSION).with_programs(newer_postgres());
    sandbox.file("shop.yaml", &at_version(15));
    let shop = Shop { sandbox };
    shop.apply().ok();
    let (user, superuser) = (shop.env(&["--user", "shop"]), shop.env(&[]));
    psql(&superuser, "create table public.odd (handler regproc)").ok();
    psql(&user, "create table before as select generate_series(1, 1000) as n").ok();
    let writer = Writer::start(user.clone());
    let (primary, postmasters) = (shop.primary(), shop.postmasters());

    // Tablespaces would be in the way of the clones. This one is below the data, because members here share a disk.
    let mut in_place = superuser.clone();
    in_place.insert(String::from("PGOPTIONS"), String::from("-c allow_in_place_tablespaces=on"));
    psql(&in_place, "create tablespace fast location ''").ok();

    // It stops clients, which takes consent. What pg_upgrade cannot take over is found on a copy, and nobody has stopped.
    shop.sandbox.file("shop.yaml", &at_version(17));
    let refused = shop.apply().fails().text();
    assert!(refused.contains("stops all clients") && refused.contains("--allow-downtime"), "{refused}");
    let refused = shop.upgrade().fails().text();
    assert!(refused.contains("the data has tablespaces (") && refused.contains("pg_tblspc/"), "{refused}");
    psql(&superuser, "drop tablespace fast").ok();
    let refused = shop.upgrade().fails().text();
    assert!(refused.contains("failed on a copy") && refused.contains("public.odd.handler"), "{refused}");
    assert_eq!((shop.primary(), shop.postmasters()), (primary.clone(), postmasters));
    for member in THREE {
        assert!(!shop.home_of(member).join("data.rehearsed").exists(), "the copy on {member} is still there");
    }
    psql(&superuser, "drop table public.odd").ok();

    // The controller is killed during the rehearsal, and together with an agent during pg_upgrade.
    let controller = shop.begin_upgrade();
    let rehearsed = || THREE.iter().any(|member| shop.home_of(member).join("data.rehearsed").exists());
    eventually("a copy is made", 60, rehearsed);
    kill(controller);
    let controller = shop.begin_upgrade();
    let upgraded = || THREE.into_iter().find(|member| shop.home_of(member).join("data.restored/base").exists());
    eventually("data is upgraded", 120, || upgraded().is_some());
    let source = upgraded().unwrap();
    kill(controller);
    signal(shop.process(source, "agent").expect("its agent runs"), "KILL");
    let done = shop.upgrade().ok().text();
    assert!(done.contains("collect statistics of all tables"), "{done}");

    assert_eq!(shop.versions(), ["17"; 3]);
    assert_eq!(shop.status()["verdict"], "healthy");
    let confirmed = writer.stop();
    assert_nothing_lost(&user, &confirmed);
    assert_eq!(
        psql(&superuser, "select count(*) from pg_stat_replication where state = 'streaming'").ok().stdout,
        "2\n"
    );
    let known = psql(&user, "select count(*) from pg_stats where tablename = 'before'").ok().stdout;
    assert_eq!(known, "1\n", "the planner has statistics");
    assert!(psql(&user, "select count(*) from before").ok().stdout == "1000\n");
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    // The way back: what was written since is lost, and only with consent.
    psql(&user, "create table since (n bigint)").ok();
    shop.sandbox.file("shop.yaml", &at_version(15));
    let refused = shop.upgrade().fails().text();
    assert!(refused.contains("quorate restore shop --before-upgrade"), "{refused}");
    let unasked = shop.sandbox.quorate(&["restore", "shop", "--before-upgrade"]).fails().text();
    assert!(unasked.contains("everything written since the upgrade"), "{unasked}");
    assert_eq!(shop.versions(), ["17"; 3]);
    shop.sandbox.quorate(&["restore", "shop", "--before-upgrade", "--yes"]).ok();
    assert_eq!(shop.versions(), ["15"; 3]);
    assert_eq!(psql(&user, "select count(*) from before").ok().stdout, "1000\n");
    assert!(psql(&user, "select count(*) from since").fails().stderr.contains("does not exist"));
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    // What was replaced stays until it is discarded.
    let kept = || THREE.into_iter().filter(|member| shop.home_of(member).join("data.replaced").exists()).count();
    assert_eq!(kept(), 3);
    shop.sandbox.quorate(&["discard", "shop", "--yes"]).ok();
    assert_eq!(kept(), 0);
    let refused = shop.sandbox.quorate(&["restore", "shop", "--before-upgrade", "--yes"]).fails().text();
    assert!(refused.contains("keeps no data from before an upgrade"), "{refused}");
}

#[test]
fn backups_continue_after_an_upgrade_and_those_of_the_old_version_are_not_mistaken_for_new_ones() {
    let sandbox = Sandbox::new(VERSION).with_programs(newer_postgres());
    let (recipient, store) = (make_identity(&sandbox, "operator.key"), sandbox.path().join("store"));
    let at = |version: u16| {
        let backup = format!("    backup: {{to: {{directory: {}}}, recipients: [{recipient}]}}\n", store.display());
        let text =
            spec("max_connections: 50", &["pg-1", "pg-2"]).replace("version: 15", &format!("version: {version}"));
        text.replace("  - name: orders", &format!("{backup}  - name: orders"))
    };
    sandbox.file("shop.yaml", &at(15));
    let shop = Shop { sandbox };
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    psql(&user, "create table before as select generate_series(1, 1000) as n").ok();
    let create = || shop.sandbox.quorate(&["backup", "create", "shop", "--output", "json"]).ok().json();
    let old = create();
    assert_eq!(old["taken"]["postgres_version"], "15", "{old:#}");

    shop.sandbox.file("shop.yaml", &at(17));
    let done = shop.upgrade().ok().text();
    assert!(done.contains("for backups, through"), "{done}");
    let new = create();
    assert_eq!((&new["taken"]["postgres_version"], &new["taken"]["kind"]), (&"17".into(), &"full".into()), "{new:#}");
    assert_eq!(new["verified"][0]["outcome"]["Ok"]["amcheck"], true, "{new:#}");
    let label = old["taken"]["label"].as_str().expect("a label");
    let refused = shop.sandbox.quorate(&["restore", "shop", "--backup", label, "--yes"]).fails().text();
    assert!(refused.contains("is of PostgreSQL 15, and the cluster runs 17"), "{refused}");

    // A point after the upgrade.
    psql(&user, "create table since as select 1 as n").ok();
    shop.sandbox.quorate(&["restore", "shop", "--yes"]).ok();
    assert_eq!(
        psql(&user, "select (select count(*) from before), (select count(*) from since)").ok().stdout,
        "1000|1\n"
    );
    assert_eq!(shop.versions(), ["17"; 2]);
}
