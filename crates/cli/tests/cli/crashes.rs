//! Crashes: of the controller at any instant, of agents, etcd, disks and machines. Whatever was killed, the same command
//! converges on the same cluster. A loss that cannot be repaired is refused, and never starts an empty cluster.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::instants::{Round, instant, is_tried, rounds, seed};
use crate::common::trio::{Login, MEMBERS, NAME, Trio, contents, member, members};
use crate::common::{Run, eventually, signal};

/// A killed run was followed by this: the same command again, and a look at everything. Then all is removed.
fn goes_on_and_settles(trio: &Trio) {
    trio.apply().ok();
    trio.assert_settled();
    trio.destroy().ok();
    trio.assert_gone();
}

/// Runs `rounds` in parallel, each in a separate sandbox.
fn two_at_once(login: impl Fn(usize) -> Login + Sync, rounds: impl Fn(usize, &Trio) + Sync) {
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (login, rounds) = (&login, &rounds);
            scope.spawn(move || rounds(half, &Trio::new(login(half))));
        }
    });
}

fn apply_killed_at_every_step_boundary(login: Login) {
    let (next, ended, seed) = (AtomicUsize::new(1), AtomicBool::new(false), seed());
    two_at_once(
        |_| login,
        |_, trio| {
            while !ended.load(Ordering::SeqCst) {
                let boundary = next.fetch_add(1, Ordering::SeqCst);
                if !is_tried(boundary, seed) {
                    continue;
                }
                let mut run = trio.spawn_apply();
                let line = (0..boundary).map_while(|_| run.next_step()).nth(boundary - 1);
                match line {
                    Some(line) => {
                        let _round = Round(format!("apply was killed at line {boundary}: {line}"));
                        assert_eq!(run.kill().code, None, "it ended before it was killed");
                        goes_on_and_settles(trio);
                    }
                    None => {
                        ended.store(true, Ordering::SeqCst);
                        run.end().ok();
                    }
                }
            }
        },
    );
    let boundaries = next.load(Ordering::SeqCst);
    assert!(boundaries > 30, "only {boundaries} lines were told");
}

#[test]
fn apply_may_be_killed_at_every_step_boundary() {
    apply_killed_at_every_step_boundary(Login::Certificate);
}

#[test]
fn apply_with_users_and_passwords_may_be_killed_at_every_step_boundary() {
    apply_killed_at_every_step_boundary(Login::Password);
}

#[test]
fn apply_may_be_killed_at_random_instants() {
    let (kills, seed) = (rounds(50) as u64, seed());
    two_at_once(
        |half| if half == 0 { Login::Certificate } else { Login::Password },
        |half, trio| {
            let begun = Instant::now();
            trio.apply().ok();
            let undisturbed = begun.elapsed();
            trio.destroy().ok();
            for index in (half as u64..kills).step_by(2) {
                let after = undisturbed.mul_f64(instant(seed, index));
                let _round = Round(format!("apply was killed after {after:?} of {undisturbed:?} (seed {seed})"));
                trio.spawn_apply().kill_after(after);
                goes_on_and_settles(trio);
            }
        },
    );
}

fn fill(trio: &Trio) {
    for key in 0..5 {
        trio.etcdctl(&["put", &format!("/a/{key}"), &format!("value {key}")]).ok();
    }
}

#[test]
fn whatever_is_killed_in_a_converged_cluster_returns_with_its_data() {
    let trio = Trio::up(Login::Password);
    fill(&trio);
    let (held, token) = (contents(&trio), trio.token());
    assert_eq!(held.len(), 5);
    let etcds = trio.sandbox.etcds();

    let _round = Round(String::from("every agent was killed"));
    trio.sandbox.agents().into_iter().for_each(|pid| signal(pid, "KILL"));
    assert_eq!(contents(&trio), held, "etcd serves without its agents");
    trio.apply().ok();
    trio.assert_settled();
    assert_eq!(trio.sandbox.etcds(), etcds, "agents find the etcds that run");

    let _round = Round(String::from("every etcd was killed"));
    trio.sandbox.etcds().into_iter().for_each(|pid| signal(pid, "KILL"));
    eventually("agents bring etcd back", 30, || trio.status()["verdict"] == "healthy");
    for found in members(&trio.status()) {
        assert!(found["restarts"].as_u64() >= Some(1), "{found:#}");
    }
    trio.apply().ok();
    trio.assert_settled();

    let _round = Round(String::from("everything was killed"));
    // Agents first, because they would restart what is killed after them.
    trio.sandbox.agents().into_iter().for_each(|pid| signal(pid, "KILL"));
    trio.sandbox.etcds().into_iter().for_each(|pid| signal(pid, "KILL"));
    eventually("all have ended", 5, || trio.sandbox.processes().is_empty());
    trio.apply().ok();
    trio.assert_settled();
    assert_eq!(contents(&trio), held);
    assert_eq!(trio.token(), token);
}

#[test]
fn an_etcd_that_keeps_dying_is_restarted_more_and_more_slowly_and_status_says_so() {
    let trio = Trio::up(Login::Certificate);
    let mut seen_failing = false;
    let kills = 4;
    for _ in 0..kills {
        eventually("etcd-1 runs", 30, || trio.etcd_of("etcd-1").is_some());
        signal(trio.etcd_of("etcd-1").expect("it runs"), "KILL");
        eventually("it is told to fail", 5, || {
            let status = trio.status();
            let found = member(&status, "etcd-1");
            seen_failing |= found["health"] == "failing" && found["why"].as_str().is_some_and(|w| w.contains("signal"));
            seen_failing || found["restarts"].as_u64() > Some(0)
        });
    }
    assert!(seen_failing, "status never said that etcd-1 fails");
    let begun = Instant::now();
    eventually("it is back", 40, || member(&trio.status(), "etcd-1")["health"] == "healthy");
    // 0.5, 1, 2, 4 seconds.
    assert!(begun.elapsed() > Duration::from_secs(2), "no growing pause: back after {:?}", begun.elapsed());
    assert!(member(&trio.status(), "etcd-1")["restarts"].as_u64() >= Some(kills));
}

#[test]
fn down_start_and_destroy_may_be_killed_at_any_time() {
    let seed = seed();
    let trio = Trio::up(Login::Certificate);
    fill(&trio);
    let held = contents(&trio);
    let verb = |arguments: &[&str], index: u64| -> Run {
        let after = Duration::from_secs_f64(1.2 * instant(seed, index));
        let _round = Round(format!("{arguments:?} was killed after {after:?} (seed {seed})"));
        crate::common::trio::Watched::new(trio.sandbox.spawn(arguments)).kill_after(after);
        trio.sandbox.quorate(arguments).ok()
    };
    for round in 0..rounds(4) as u64 {
        verb(&["down", NAME], 3 * round);
        assert_eq!(trio.sandbox.processes(), [], "down");
        verb(&["start", NAME], 3 * round + 1);
        trio.assert_settled();
        assert_eq!(contents(&trio), held);
    }
    let destroy = ["destroy", "--yes", "--without-backup", NAME];
    for round in 0..rounds(8) as u64 {
        let after = Duration::from_secs_f64(0.4 * instant(seed, 100 + round));
        let _round = Round(format!("destroy was killed after {after:?} (seed {seed})"));
        let killed = crate::common::trio::Watched::new(trio.sandbox.spawn(&destroy)).kill_after(after);
        let again = trio.sandbox.quorate(&destroy);
        // A run that had removed everything may have died in its last words.
        assert!(again.code == Some(0) || again.text().contains("no cluster"), "{killed:?}\n{again:?}");
        trio.assert_gone();
        trio.apply().ok();
    }
    trio.assert_settled();
}

#[test]
fn destroy_may_be_killed_at_every_step_boundary_and_apply_does_not_revive_what_was_begun() {
    let trio = Trio::new(Login::Certificate);
    let (destroy, seed) = (["destroy", "--yes", "--without-backup", NAME], seed());
    for boundary in (1..).filter(|boundary| is_tried(*boundary, seed)) {
        trio.apply().ok();
        let mut run = crate::common::trio::Watched::new(trio.sandbox.spawn(&destroy));
        let Some(line) = (0..boundary).map_while(|_| run.next_step()).nth(boundary - 1) else {
            run.end().ok();
            trio.assert_gone();
            assert!(boundary > 6, "only {boundary} lines were told");
            return;
        };
        let _round = Round(format!("destroy was killed at line {boundary}: {line}"));
        run.kill();
        let refused = trio.apply().expect(1);
        assert!(refused.text().contains("is being destroyed"), "{}", refused.text());
        trio.sandbox.quorate(&destroy).ok();
        trio.assert_gone();
    }
}

#[test]
fn destroy_removes_what_was_half_made_and_half_removed() {
    let trio = Trio::new(Login::Certificate);
    let mut run = trio.spawn_apply();
    run.until("in the ledger … done");
    run.kill();
    // A machine whose making was interrupted, and one whose removal was.
    trio.destroy_machines_by_hand();
    for name in [".etcd-1.new", ".etcd-2.gone"] {
        fs::create_dir_all(trio.machine(name).join("root")).expect("a directory");
        fs::write(trio.machine(name).join("seed.json"), "{}").expect("a file");
    }
    trio.destroy().ok();
    trio.assert_gone();
}

#[test]
fn down_ends_etcds_whose_agents_died_before() {
    let trio = Trio::up(Login::Certificate);
    trio.sandbox.agents().into_iter().for_each(|pid| signal(pid, "KILL"));
    assert_eq!(trio.sandbox.etcds().len(), 3);
    trio.sandbox.quorate(&["down", NAME]).ok();
    assert_eq!(trio.sandbox.processes(), []);
}

/// Applies until the lock of another controller, which is alive but does not move, has run out.
fn take_over(trio: &Trio) -> Run {
    let begun = Instant::now();
    let refused = trio.apply().expect(7);
    assert!(refused.text().contains("another controller holds the lock"), "{}", refused.text());
    loop {
        let run = trio.apply();
        if run.code != Some(7) {
            assert!(begun.elapsed() > Duration::from_secs(5), "the lease was not waited for");
            return run;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", run.text());
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// All that a second look must find unchanged.
fn everything(trio: &Trio) -> (serde_json::Value, std::collections::BTreeSet<u32>, Vec<String>) {
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).map(|at| format!("{at:?}"));
    let mut files: Vec<String> = ["etc", "var/lib/quorate", "var/lib/etcd.stamp"]
        .iter()
        .flat_map(|part| MEMBERS.map(|m| trio.root(m).join(part)))
        .flat_map(|path| [crate::common::trio::files_below(&path), vec![path]].concat())
        .map(|path| format!("{} {:?}", path.display(), modified(&path).ok()))
        .collect();
    files.sort();
    (trio.ledger(), trio.pids(), files)
}

/// Stops `apply` when it says these words, lets another take over, and wakes it.
fn stopped_at(login: Login, words: &str) {
    let _round = Round(format!("apply was stopped at {words:?}"));
    let trio = Trio::new(login);
    let mut sleeper = trio.spawn_apply();
    sleeper.until(words);
    signal(sleeper.child.id(), "STOP");
    take_over(&trio).ok();
    let sleeping = sleeper.child.id();
    let others = |trio: &Trio| {
        let (ledger, mut pids, files) = everything(trio);
        pids.remove(&sleeping);
        (ledger, pids, files)
    };
    let before = others(&trio);
    signal(sleeping, "CONT");
    let woken = sleeper.end().expect(7);
    let told = ["took the lock", "taken over", "took over", "obeys fencing number"];
    assert!(told.iter().any(|words| woken.stderr.contains(words)), "{}", woken.stderr);
    assert_eq!(others(&trio), before);
    trio.assert_settled();
}

#[test]
fn a_stopped_controller_that_wakes_after_another_took_over_changes_nothing() {
    std::thread::scope(|scope| {
        scope.spawn(|| stopped_at(Login::Certificate, "create the machine of etcd-1 …"));
        scope.spawn(|| stopped_at(Login::Certificate, "install certificates on etcd-2"));
        scope.spawn(|| stopped_at(Login::Certificate, "begin to bootstrap"));
        scope.spawn(|| stopped_at(Login::Certificate, "start etcd on etcd-2 for the first time …"));
        scope.spawn(|| stopped_at(Login::Password, "turn authentication on"));
    });
}

#[test]
fn a_stopped_controller_that_wakes_after_the_cluster_was_destroyed_creates_nothing_again() {
    let trio = Trio::new(Login::Certificate);
    let mut sleeper = trio.spawn_apply();
    sleeper.until("create the machine of etcd-1 …");
    signal(sleeper.child.id(), "STOP");
    eventually("the cluster can be destroyed", 20, || match trio.destroy().code {
        Some(7) => false,
        code => code == Some(0),
    });
    signal(sleeper.child.id(), "CONT");
    sleeper.end().expect(7);
    trio.assert_gone();
}

/// Kills an agent's etcd and removes its data before the agent can bring it back.
fn lose_disk(trio: &Trio, name: &str) {
    let pid = trio.etcd_of(name).expect("its etcd runs");
    signal(pid, "STOP");
    fs::remove_dir_all(trio.data(name)).expect("its data");
    signal(pid, "KILL");
    let address = trio.address(name);
    eventually("it ends", 5, || TcpStream::connect((address, 2379)).is_err());
}

#[test]
fn a_disk_lost_while_forming_begins_the_formation_again_everywhere() {
    let trio = Trio::new(Login::Certificate);
    let mut run = trio.spawn_apply();
    run.until("start etcd on etcd-2 for the first time … done");
    run.kill();
    let first = trio.stamp("etcd-1")["token"].as_str().expect("a token").to_owned();
    let wal = trio.data("etcd-1").join("member/wal");
    eventually("etcd-1 has data", 10, || fs::read_dir(&wal).is_ok_and(|entries| entries.count() > 0));
    lose_disk(&trio, "etcd-1");
    let again = trio.apply().ok();
    assert!(again.stderr.contains("abandon"), "{}", again.stderr);
    trio.assert_settled();
    assert_ne!(trio.token(), first);
}

#[test]
fn a_disk_lost_after_bootstrap_is_replaced_and_never_becomes_a_second_cluster() {
    let trio = Trio::up(Login::Certificate);
    fill(&trio);
    let held = contents(&trio);
    let lost = trio.address("etcd-2");
    lose_disk(&trio, "etcd-2");
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        assert!(TcpStream::connect((lost, 2379)).is_err(), "an etcd without its data serves clients");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(trio.etcd_of("etcd-2"), None, "an etcd runs on a lost disk");
    assert!(!trio.data("etcd-2").join("member").exists(), "something started over on the lost disk");

    let status = trio.status();
    let why = member(&status, "etcd-2")["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("data"), "status tells nothing of the lost data: {status:#}");
    assert_eq!(status["verdict"], "degraded");
    assert_eq!(contents(&trio), held, "the others serve");
    // Neither a new agent nor a restart of the machine makes anything of it.
    signal(trio.agent_of("etcd-2").expect("its agent"), "KILL");
    let told = trio.apply().ok().text();
    assert!(told.contains("replace the machine of etcd-2 with etcd-2.2"), "{told}");
    assert_eq!(contents(&trio), held);
    assert!(!trio.machine("etcd-2").exists(), "the old machine is gone");
    assert_eq!(trio.status()["verdict"], "healthy");
}

/// As if somebody had removed a machine manually.
fn lose_machine(trio: &Trio, name: &str) {
    trio.agent_of(name).into_iter().chain(trio.etcd_of(name)).for_each(|pid| signal(pid, "KILL"));
    eventually("its processes end", 5, || trio.agent_of(name).is_none() && trio.etcd_of(name).is_none());
    fs::remove_dir_all(trio.machine(name)).expect("its directory");
}

#[test]
fn a_machine_lost_while_forming_is_made_again_and_the_formation_too() {
    let trio = Trio::new(Login::Certificate);
    let mut run = trio.spawn_apply();
    run.until("start etcd on etcd-2 for the first time … done");
    run.kill();
    let first = trio.stamp("etcd-1")["token"].as_str().expect("a token").to_owned();
    lose_machine(&trio, "etcd-2");
    let again = trio.apply().ok();
    assert!(again.stderr.contains("create the machine of etcd-2"), "{}", again.stderr);
    trio.assert_settled();
    assert_ne!(trio.token(), first);
}
