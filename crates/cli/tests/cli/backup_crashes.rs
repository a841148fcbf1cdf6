//! quorate is killed at random instants while it takes, removes and rekeys backups and restores from them. The same command, re-run,
//! always succeeds: every listed backup is complete and can be verified, earlier backups still exist, and the cluster has converged on
//! either the old or the new data, never on both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use quorate_etcd::KeyValue;
use serde_json::Value;

use crate::common::Run;
use crate::common::backups::{BackedUp, Chance, NAME, contents, runtime};
use crate::common::instants;
use crate::common::instants::Round;
use crate::common::trio::{Watched, files_below, read_json};

const CREATES: usize = 14;
const PRUNES: usize = 12;
const REKEYS: usize = 10;
const RESTORES: usize = 14;

/// Kills that are to be done, each at a random instant of the time that the command takes.
struct Kills<'a> {
    cluster: &'a BackedUp,
    chance: &'a mut Chance,
    left: usize,
    takes: Duration,
}

impl<'a> Kills<'a> {
    /// The time is taken of a run that nobody kills.
    fn new(cluster: &'a BackedUp, chance: &'a mut Chance, kills: usize, undisturbed: impl FnOnce() -> Run) -> Self {
        let begun = Instant::now();
        undisturbed().ok();
        Kills { cluster, chance, left: instants::rounds(kills), takes: begun.elapsed() }
    }

    /// Only one that hit counts.
    fn kill(&mut self, arguments: &[&str]) -> Round {
        let after = self.takes.mul_f64(self.chance.part());
        let run = Watched::new(self.cluster.sandbox.spawn(arguments)).kill_after(after);
        match run.code {
            None => self.left -= 1,
            // It is faster by now.
            Some(_) => self.takes = self.takes.mul_f64(0.9),
        }
        Round(format!(
            "{arguments:?} was killed after {after:?}; it ended with {:?} and had said {}",
            run.code, run.stderr
        ))
    }
}

fn ids(cluster: &BackedUp) -> BTreeSet<String> {
    let id = |full: &Value| full["id"].as_str().expect("an id").to_owned();
    cluster.fulls().iter().map(id).collect()
}

/// Nothing but the cluster runs: no etcd in which something was tried out is left. Agents ask programs for their versions now and then,
/// and those are no longer there a moment later.
#[track_caller]
fn assert_nothing_beside(cluster: &BackedUp, members: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while cluster.sandbox.processes().len() != 2 * members && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let found = cluster.sandbox.processes();
    assert_eq!(found.len(), 2 * members, "{found:#?}");
    let scratch = files_below(&cluster.sandbox.home().join("clusters").join(NAME).join("scratch"));
    assert_eq!(scratch, Vec::<std::path::PathBuf>::new());
}

fn killed_creates(cluster: &BackedUp, chance: &mut Chance) {
    let mut kills = Kills::new(cluster, chance, CREATES, || cluster.backup("create", &[]));
    while kills.left > 0 {
        let before = ids(cluster);
        let _round = kills.kill(&["backup", "create", NAME]);
        let after = ids(cluster);
        assert!(after.is_superset(&before), "lost: {before:?} {after:?}");
        after.difference(&before).for_each(|id| cluster.verify(id));
        cluster.backup("create", &[]).ok();
        assert_eq!(ids(cluster).difference(&after).count(), 1);
        assert_nothing_beside(cluster, 1);
    }
}

/// The spec keeps the last three.
fn killed_prunes(cluster: &BackedUp, chance: &mut Chance) {
    let prune = ["backup", "prune", NAME, "--yes"];
    let make_three = || (0..3).for_each(|_| drop(cluster.backup("create", &["--no-verify"]).ok()));
    cluster.sandbox.quorate(&prune).ok();
    make_three();
    let mut kills = Kills::new(cluster, chance, PRUNES, || cluster.sandbox.quorate(&prune));
    while kills.left > 0 {
        make_three();
        let before = ids(cluster);
        let planned = cluster.backup("prune", &["--dry-run", "--output", "json"]).ok().json();
        let goes: BTreeSet<String> = strings(&planned["places"][0]["remove"]);
        let stays: BTreeSet<String> = before.difference(&goes).cloned().collect();
        assert!(!goes.is_empty() && stays.len() >= 3, "{planned:#}");
        let _round = kills.kill(&prune);
        let after = ids(cluster);
        assert!(after.is_superset(&stays) && after.is_subset(&before), "{stays:?} {after:?}");
        after.iter().for_each(|id| assert_opens(cluster, id, "operator.key"));
        cluster.sandbox.quorate(&prune).ok();
        assert_eq!(ids(cluster), stays);
    }
    ids(cluster).iter().for_each(|id| cluster.verify(id));
}

fn strings(list: &Value) -> BTreeSet<String> {
    let entries = list.as_array().unwrap_or_else(|| panic!("a list, not {list:#}"));
    entries.iter().map(|entry| entry.as_str().expect("text").to_owned()).collect()
}

/// What was left by kills is cleared when it is old enough; here it is made so.
fn leftovers_are_cleared_after_a_day(cluster: &BackedUp) {
    cluster.backup("prune", &["--yes"]).ok();
    let listed = ids(cluster);
    // In case that no kill hit while a snapshot was on its way.
    let on_its_way = cluster.store().join("full/20261114T100000Z-00000000");
    fs::create_dir(&on_its_way).expect("a directory");
    fs::write(on_its_way.join(".snapshot-0123456789abcdef"), "half of").expect("a file");
    let left: BTreeSet<String> = stored_ids(cluster).difference(&listed).cloned().collect();
    let long_ago = (jiff::Timestamp::now() - jiff::SignedDuration::from_hours(25)).strftime("%Y%m%dT%H%M%SZ");
    for id in &left {
        let random = id.rsplit_once('-').expect("an id").1;
        let [from, to] = [id.clone(), format!("{long_ago}-{random}")].map(|id| cluster.store().join("full").join(id));
        fs::rename(from, to).expect("renamed");
    }
    cluster.backup("prune", &["--yes"]).ok();
    assert_eq!((stored_ids(cluster), ids(cluster)), (listed.clone(), listed));
}

/// The ids of which there is anything at all.
fn stored_ids(cluster: &BackedUp) -> BTreeSet<String> {
    let directory = cluster.store().join("full");
    let files = files_below(&directory).into_iter().filter(|path| path.is_file());
    let id = |path: std::path::PathBuf| {
        let below = path.strip_prefix(&directory).expect("below").to_owned();
        below.iter().next().expect("an id").to_string_lossy().into_owned()
    };
    files.map(id).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn opens(cluster: &BackedUp, id: &str, key: &str) -> bool {
    let file = cluster.sandbox.path().join("exported.db");
    let run = cluster.backup("export", &[id, "exported.db", "--identity", key]);
    // One that could not be opened must not be there in part either.
    assert_eq!(run.code == Some(0), file.exists(), "{run:?}");
    fs::remove_file(&file).is_ok()
}

#[track_caller]
fn assert_opens(cluster: &BackedUp, id: &str, key: &str) {
    assert!(opens(cluster, id, key), "{id} with {key}");
}

fn killed_rekeys(cluster: &BackedUp, chance: &mut Chance) {
    let rekey = ["backup", "rekey", NAME, "--identity", "operator.key"];
    let colleague = cluster.make_key("colleague.key");
    let others = [colleague.as_str()];
    let all = ids(cluster);
    let mut shared = false;
    let mut change = || {
        shared = !shared;
        cluster.write_spec(if shared { &others } else { &[] });
        cluster.apply().ok();
        shared
    };
    change();
    let mut kills = Kills::new(cluster, chance, REKEYS, || cluster.sandbox.quorate(&rekey));
    while kills.left > 0 {
        let shared = change();
        let _round = kills.kill(&rekey);
        assert_eq!(ids(cluster), all);
        all.iter().for_each(|id| assert_opens(cluster, id, "operator.key"));
        cluster.sandbox.quorate(&rekey).ok();
        for id in &all {
            assert_opens(cluster, id, "operator.key");
            assert_eq!(opens(cluster, id, "colleague.key"), shared, "{id}");
        }
    }
    all.iter().for_each(|id| cluster.verify(id));
}

#[test]
fn making_removing_and_rekeying_may_be_killed_at_random_instants() {
    let mut chance = Chance::new();
    let cluster = BackedUp::up(1, "keep: {last: 3}");
    for n in 0..20 {
        cluster.sandbox.etcdctl(crate::common::backups::VERSION, NAME, &["put", &format!("key/{n}"), "value"]).ok();
    }
    killed_creates(&cluster, &mut chance);
    killed_prunes(&cluster, &mut chance);
    killed_rekeys(&cluster, &mut chance);
    leftovers_are_cleared_after_a_day(&cluster);
    assert_nothing_beside(&cluster, 1);
    assert_eq!(cluster.sandbox.status(NAME)["verdict"], "healthy");
}

const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];

/// The formations on whose data an etcd runs now.
fn running_formations(cluster: &BackedUp) -> BTreeMap<String, String> {
    let running = MEMBERS.iter().filter(|member| cluster.sandbox.etcd_of(member).is_some());
    let stamp = |member: &&str| {
        let machines = cluster.sandbox.home().join("machines").join(NAME);
        let machine =
            names_in(&machines).into_iter().find(|name| name == *member || name.starts_with(&format!("{member}.")));
        let stamp = read_json(&machines.join(machine.expect("a machine")).join("root/var/lib/etcd.stamp"));
        stamp["token"].as_str().expect("a token").to_owned()
    };
    running.map(|member| ((*member).to_owned(), stamp(member))).collect()
}

#[track_caller]
fn assert_one_formation(cluster: &BackedUp) {
    let formations = running_formations(cluster);
    assert!(formations.values().collect::<BTreeSet<_>>().len() <= 1, "{formations:?}");
}

#[track_caller]
fn assert_settled(cluster: &BackedUp) {
    let status = cluster.sandbox.quorate(&["status", NAME, "--output", "json"]).ok().json();
    assert_eq!(status["verdict"], "healthy", "{status:#}");
    assert_eq!(running_formations(cluster).len(), MEMBERS.len());
    assert_one_formation(cluster);
    cluster.sandbox.assert_nothing_to_do("c.yaml");
    let ledger = cluster.sandbox.ledger(NAME);
    assert_eq!((&ledger["etcd"]["restore"], &ledger["lock"]), (&Value::Null, &Value::Null));
    let left = files_below(&cluster.sandbox.home().join("clusters").join(NAME).join("restore"));
    assert_eq!(left, Vec::<std::path::PathBuf>::new(), "snapshots that nobody waits for");
    let mut on_machines = files_below(&cluster.sandbox.home().join("machines").join(NAME));
    on_machines.retain(|path| path.is_file() && path.components().any(|part| part.as_os_str() == "etcd.staged"));
    assert_eq!(on_machines, Vec::<std::path::PathBuf>::new(), "all data, unencrypted");
}

/// A state of the cluster that is backed up.
struct State {
    id: String,
    pairs: Vec<KeyValue>,
}

#[test]
fn a_restore_may_be_killed_at_random_instants() {
    let mut chance = Chance::new();
    let cluster = BackedUp::up(3, "");
    let runtime = runtime();
    let clients = runtime.block_on(async { cluster.clients() });
    let read = || {
        let mut found = None;
        crate::common::eventually("etcd answers", 30, || {
            found = runtime.block_on(contents(&clients[0], 0)).ok();
            found.is_some()
        });
        found.expect("it answered")
    };
    let states = ["one", "two"].map(|value| {
        (0..10).for_each(|n| {
            runtime.block_on(clients[0].put(format!("key/{n}"), value)).expect("etcd takes it");
        });
        // Asked for here: in a list, two of one second stand in any order.
        let created = cluster.backup("create", &["--output", "json"]).ok().json();
        let id = created["id"].as_str().expect("an id").to_owned();
        State { id, pairs: read().1 }
    });
    let mut kills = Kills::new(&cluster, &mut chance, RESTORES, || cluster.restore(&["--backup", &states[0].id]));
    assert_settled(&cluster);

    let (mut newest, mut now) = (read().0, 0);
    for round in 0.. {
        if kills.left == 0 {
            break;
        }
        let wanted = 1 - now;
        let arguments = cluster.restore_arguments(&["--backup", &states[wanted].id]);
        let _round = kills.kill(&arguments);
        assert_one_formation(&cluster);
        if round % 2 == 0 {
            cluster.sandbox.quorate(&arguments).ok();
            assert_nothing_beside(&cluster, MEMBERS.len());
        } else {
            // Killed before the restore was recorded, nothing has happened; after that, everything will.
            cluster.apply().ok();
        }
        assert_settled(&cluster);
        let (revision, pairs) = read();
        assert!(revision >= newest, "revision {revision} after {newest}");
        newest = revision;
        now = states.iter().position(|state| state.pairs == pairs).unwrap_or_else(|| panic!("neither: {pairs:?}"));
        assert!(round % 2 == 1 || now == wanted, "restored something else");
    }
}
