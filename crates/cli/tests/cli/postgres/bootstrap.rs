//! The controller is killed at several instants of a cluster's first `apply`, and re-run. The bootstrap completes: the data is created
//! once, and all members have it.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use super::{Shop, THREE, VERSION, psql, spec};
use crate::common::backups::Chance;
use crate::common::trio::Watched;
use crate::common::{Run, Sandbox, lab};

/// Parts of a bootstrap, in their order. The controller is killed some time after each of them has begun.
const PARTS: [&str; 5] = [
    "begin to bootstrap the cluster on ",
    "create the data of the cluster on ",
    "start PostgreSQL on ",
    "record that the cluster is bootstrapped",
    "clone the data to ",
];
/// The longest of that time.
const SOME_TIME: Duration = Duration::from_millis(1500);
/// Each makes a new cluster and kills the controller up to once in each part.
const ROUNDS: usize = 2;

/// What was found after each kill, and in the end.
#[derive(Default)]
struct Found {
    /// What `initdb` called the data on any member. A second one would mean that data was created twice.
    systems: BTreeSet<u64>,
    /// Of the bootstraps that the ledger knew.
    tokens: BTreeSet<String>,
    /// How far the cluster had come.
    stages: Vec<String>,
}

impl Found {
    fn look(&mut self, shop: &Shop) {
        for member in THREE {
            let control = format!("machines/shop/{member}/root/var/lib/postgresql/data/global/pg_control");
            let control = fs::read(shop.sandbox.home().join(control)).unwrap_or_default();
            self.systems.extend(control.first_chunk().map(|system| u64::from_ne_bytes(*system)));
        }
        let ledger = shop.sandbox.ledger("shop");
        let formation = &ledger["postgres"]["formation"];
        let (stage, token) = match formation.as_object().and_then(|stage| stage.iter().next()) {
            Some((stage, rest)) => (stage.as_str(), rest["token"].as_str()),
            None => (formation.as_str().expect("a stage"), None),
        };
        self.stages.push(stage.to_owned());
        self.tokens.extend(token.map(str::to_owned));
    }
}

/// Runs `apply` until one of these parts begins, and for some time more. Says which it was; none if all was done before.
fn apply_is_killed(shop: &Shop, parts: &[&str], after: Duration) -> Option<usize> {
    let mut apply = Watched::new(shop.sandbox.spawn(&["apply", "--yes", "shop.yaml"]));
    while let Some(step) = apply.next_step() {
        if let Some(part) = parts.iter().position(|part| step.contains(part)) {
            let ended = apply.kill_after(after);
            return ended.code.is_none().then_some(part);
        }
    }
    apply.end().ok();
    None
}

/// All members have the data that was created, and stream.
fn assert_complete(shop: &Shop, found: &Found) {
    let status = shop.status();
    assert_eq!(status["verdict"], "healthy", "{status:#}");
    shop.member_with("sync standby");
    assert_eq!(status["members"].as_array().map(Vec::len), Some(THREE.len()), "{status:#}");
    let superuser = shop.env(&[]);
    let streaming = "select count(*) from pg_stat_replication where state = 'streaming'";
    assert_eq!(psql(&superuser, streaming).ok().stdout, "2\n");
    let system = psql(&superuser, "select system_identifier from pg_control_system()").ok().stdout;
    let system: u64 = system.trim().parse().expect("a number");
    assert_eq!(found.systems, BTreeSet::from([system]), "the data was created more than once");
    assert_eq!(found.tokens.len(), 1, "it was bootstrapped more than once: {:?}", found.tokens);
    let initialize = ["get", "/patroni/shop/initialize", "--print-value-only"];
    let known = shop.sandbox.etcdctl(VERSION, "orders", &initialize).ok().stdout;
    assert_eq!(known.trim(), system.to_string(), "Patroni knows other data");
    assert_eq!(psql(&shop.env(&["--user", "shop"]), "select current_user").ok().stdout, "shop\n");
    shop.sandbox.assert_nothing_to_do("shop.yaml");
}

#[test]
fn a_bootstrap_that_is_killed_again_and_again_is_completed_and_creates_its_data_once() {
    let mut chance = Chance::new();
    let sandbox = Sandbox::new(VERSION);
    sandbox.file("shop.yaml", &spec("max_connections: 50", &THREE));
    sandbox.quorate(&["apply", "--yes", "shop.yaml", "--cluster", "orders"]).ok();
    let shop = Shop { sandbox };
    let mut stages = Vec::new();
    for round in 0..ROUNDS {
        let mut found = Found::default();
        let mut rest = &PARTS[..];
        while !rest.is_empty() {
            let after = SOME_TIME.mul_f64(chance.part());
            let Some(part) = apply_is_killed(&shop, rest, after) else { break };
            eprintln!("round {round}: killed {after:?} after {:?}", rest[part]);
            found.look(&shop);
            rest = &rest[part + 1..];
        }
        stages.extend(found.stages.iter().cloned());
        shop.apply().ok();
        found.look(&shop);
        assert_complete(&shop, &found);
        shop.sandbox.quorate(&["destroy", "shop", "--yes", "--without-backup"]).ok();
    }
    let halves = stages.iter().filter(|stage| *stage == "forming").count();
    assert!(halves >= ROUNDS, "hardly anything was half-made when the controller was killed: {stages:?}");
}

/// Agents of local machines live on, with the PATH that they were started with.
#[test]
fn a_patroni_that_is_on_the_path_of_a_later_run_is_found() {
    let sandbox = Sandbox::new(VERSION);
    let alone = spec("", &["pg-1"]).replace("dcs:", "synchronous: {nodes: 0}\n      dcs:");
    sandbox.file("shop.yaml", &alone);
    let apply = ["apply", "--yes", "shop.yaml"];
    let without = std::env::var("PATH").unwrap_or_default();
    let refused = sandbox.command(&apply).env("PATH", format!("{}:{without}", lab(VERSION).display())).output();
    let refused = Run::from(refused.expect("it runs")).expect(3).text();
    assert!(refused.contains("there is no program `patroni` on the PATH"), "{refused}");
    let agents = sandbox.agents();
    let plan = sandbox.quorate(&["plan", "shop.yaml"]).ok().stdout;
    assert!(plan.contains("it searches again, on the PATH of this run"), "{plan}");
    sandbox.quorate(&apply).ok();
    assert_eq!((&sandbox.status("shop")["verdict"], sandbox.agents()), (&"healthy".into(), agents));
}
