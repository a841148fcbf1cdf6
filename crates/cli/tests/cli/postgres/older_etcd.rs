//! The etcd below is restored to a state from before the primary changed: Patroni finds a former leader and former synchronous standbys
//! there. That leader lags, like any standby for which no commit waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::older_patroni::{ETCD, on_older_etcd};
use super::{Shop, THREE, VERSION, Writer, assert_nothing_lost, psql, spec};
use crate::common::{Sandbox, eventually, older_patroni, signal};

/// The member that is the primary at first. No commit ever waits for it afterwards.
const FORMER: &str = "pg-1";
const PARAMETERS: &str = "max_connections: 50";
/// For Patroni to act on what it finds: it looks each second.
const LOOKING: Duration = Duration::from_secs(10);

/// A cluster whose primary has moved away from `FORMER` since the snapshot of its etcd was taken.
struct Moved {
    shop: Shop,
    user: BTreeMap<String, String>,
    snapshot: String,
    primary: String,
}

impl Moved {
    fn new(etcd: &str, spec: &str) -> Self {
        let sandbox = Sandbox::new(etcd);
        sandbox.file("shop.yaml", &spec.replace("{name: pg-1}", "{name: pg-1, tags: {nosync: true}}"));
        let shop = Shop { sandbox };
        shop.apply().ok();
        let snapshot = shop.sandbox.path().join("older.db").display().to_string();
        assert_eq!(shop.primary(), FORMER);
        shop.sandbox.etcdctl(etcd, "orders", &["snapshot", "save", &snapshot]).ok();
        shop.sandbox.quorate(&["switchover", "shop", "--yes"]).ok();
        let primary = shop.primary();
        assert_ne!(primary, FORMER);
        shop.member_with("sync standby");
        Moved { user: shop.env(&["--user", "shop"]), shop, snapshot, primary }
    }

    fn restore(&self) -> String {
        let restore = ["restore", "orders", "--snapshot", &self.snapshot, "--yes"];
        self.shop.sandbox.quorate(&restore).ok().stderr
    }

    fn count(&self) -> u64 {
        psql(&self.user, "select count(*) from written").ok().stdout.trim().parse().unwrap()
    }

    fn clients_write(&self, rows: u64) {
        let before = self.count();
        eventually("clients write", 60, || self.count() >= before + rows);
    }

    fn is_well(&self) {
        eventually("all is well", 120, || self.shop.status()["verdict"] == "healthy");
    }

    /// `FORMER` gets no more log, and clients write some.
    fn let_former_lag(&self) -> Receiver {
        let postmaster = self.shop.process(FORMER, "/bin/postgres -D").expect("PostgreSQL runs");
        let mut found = None;
        eventually("it receives log", 30, || {
            found = children(postmaster).into_iter().find(|pid| command_line(*pid).contains("walreceiver"));
            found.is_some()
        });
        let receiver = Receiver(found.unwrap());
        signal(receiver.0, "STOP");
        self.clients_write(20);
        receiver
    }

    /// Nobody notices that etcd is restored.
    fn primary_stays(&self) {
        let receiver = self.let_former_lag();
        let postmasters = self.shop.postmasters();
        let said = self.restore();
        assert!(said.contains("Patroni's state of shop is stored here"), "{said}");
        receiver.release();
        self.shop.apply().ok();
        self.is_well();
        self.clients_write(1);
        assert_eq!((self.shop.primary(), self.shop.postmasters()), (self.primary.clone(), postmasters));
    }

    /// After etcd was restored only `FORMER` runs, which lags.
    fn furthest_takes_over(&self, writer: Writer, restarts_patroni: bool) {
        let receiver = self.let_former_lag();
        // Patroni cannot fail over before the restore, because it does not reach etcd.
        self.shop.sandbox.etcds().into_iter().for_each(|etcd| signal(etcd, "STOP"));
        THREE.into_iter().filter(|member| *member != FORMER).for_each(|member| self.kill(member));
        let confirmed = writer.stop();
        self.restore();
        if restarts_patroni {
            signal(self.shop.process(FORMER, "patroni.yml").expect("Patroni runs"), "KILL");
        }
        receiver.release();
        std::thread::sleep(LOOKING);
        assert_eq!(self.shop.primary(), "", "the only member that runs lacks commits");

        // The others come back, and the furthest of all takes over.
        let done = self.shop.apply().ok().text();
        assert!(done.contains("become the primary … done"), "{done}");
        self.is_well();
        assert_nothing_lost(&self.user, &confirmed);
        assert_ne!(self.shop.primary(), FORMER);
        self.shop.sandbox.assert_nothing_to_do("shop.yaml");
    }

    fn kill(&self, member: &str) {
        let root = format!("/machines/shop/{member}/");
        let all = self.shop.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root));
        all.for_each(|(pid, _)| signal(pid, "KILL"));
    }
}

/// PostgreSQL's processes write their titles over their environment, so they are found by their parent.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid| super::parent(*pid) == Some(parent)).collect()
}

fn command_line(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// The process that receives log from the primary.
struct Receiver(u32);

impl Receiver {
    /// A server that is promoted asks its receiver to end, and waits for that.
    fn is_told_to_end(&self) -> bool {
        const TERM: u64 = 1 << 14;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let pending = status.lines().filter_map(|line| line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:")));
        pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & TERM != 0)
    }

    /// It continues when Patroni has had time to promote its server. If it was told to end, it receives nothing more.
    fn release(self) {
        let began = Instant::now();
        while began.elapsed() < LOOKING && !self.is_told_to_end() {
            std::thread::sleep(Duration::from_millis(100));
        }
        signal(self.0, "CONT");
    }
}

#[test]
fn etcd_is_off_for_a_while_and_restored_to_an_older_state_and_the_primary_stays() {
    let moved = Moved::new(VERSION, &spec(PARAMETERS, &THREE));
    let shop = &moved.shop;
    let writer = Writer::start(moved.user.clone());

    // Off for longer than `ttl`: clients of the primary notice nothing.
    let said = shop.sandbox.quorate(&["down", "orders", "--yes"]).ok().stderr;
    assert!(said.contains("shop keeps Patroni's state in orders"), "{said}");
    for _ in 0..3 {
        let before = moved.count();
        std::thread::sleep(Duration::from_secs(9));
        eventually("clients write", 10, || moved.count() > before);
    }
    shop.sandbox.quorate(&["start", "orders"]).ok();
    moved.is_well();
    assert_eq!(shop.primary(), moved.primary);

    moved.primary_stays();
    assert_nothing_lost(&moved.user, &writer.stop());
    shop.sandbox.assert_nothing_to_do("shop.yaml");
}

#[test]
fn a_lagging_standby_is_not_promoted_when_all_others_are_down_and_etcd_is_restored() {
    let moved = Moved::new(VERSION, &spec(PARAMETERS, &THREE));
    let writer = Writer::start(moved.user.clone());
    moved.furthest_takes_over(writer, false);
}

/// It reads the same keys in its own way. One that has logged in before etcd was restored is refused there, until its token expires.
#[test]
fn an_older_patroni_promotes_no_member_from_an_older_state_either() {
    let moved = Moved::new(ETCD, &on_older_etcd(PARAMETERS, &older_patroni().join("patroni")));
    let writer = Writer::start(moved.user.clone());
    moved.furthest_takes_over(writer, true);
}
