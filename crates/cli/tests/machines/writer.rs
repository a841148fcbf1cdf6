//! A client that writes to a cluster during a change, and records what was acknowledged.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Run;

const PREFIX: &str = "written/";
/// More than any of these tests has time for.
const MOST: usize = 100_000;

#[derive(Default)]
pub struct Written {
    acknowledged: Vec<String>,
    /// The longest time between two writes that were acknowledged.
    pub longest_gap: Duration,
}

/// Also when the work panics: otherwise the test would wait for its writer.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes one key after another until the work is done. Once per cluster, because the keys have the same names each time.
pub fn while_writing<T>(etcdctl: impl Fn(&[&str]) -> Run + Sync, work: impl FnOnce() -> T) -> (T, Written) {
    while_storing(|key| etcdctl(&["put", key, "x"]).code == Some(0), work)
}

/// The same with whatever stores keys and says whether that was acknowledged.
pub fn while_storing<T>(store: impl Fn(&str) -> bool + Sync, work: impl FnOnce() -> T) -> (T, Written) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&over, &store));
        let ends = Ends(&over);
        let done = work();
        drop(ends);
        (done, writer.join().expect("the writer ends"))
    })
}

fn write_until(over: &AtomicBool, store: &impl Fn(&str) -> bool) -> Written {
    let (mut written, mut last) = (Written::default(), Instant::now());
    for number in 0..MOST {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{PREFIX}{number}");
        // What is not acknowledged may be lost.
        let acknowledged = store(&key);
        written.longest_gap = written.longest_gap.max(last.elapsed());
        if acknowledged {
            written.acknowledged.push(key);
            last = Instant::now();
        }
    }
    written
}

impl Written {
    #[track_caller]
    pub fn assert_kept(&self, etcdctl: impl Fn(&[&str]) -> Run) {
        let found = etcdctl(&["get", PREFIX, "--prefix", "--keys-only"]).ok().stdout;
        self.assert_all_in(&found.lines().collect());
    }

    #[track_caller]
    pub fn assert_all_in(&self, found: &BTreeSet<&str>) {
        let lost: Vec<&String> = self.acknowledged.iter().filter(|key| !found.contains(key.as_str())).collect();
        let (count, gap) = (self.acknowledged.len(), self.longest_gap.as_secs_f64());
        eprintln!("    {count} writes were acknowledged meanwhile, {} are lost; longest gap {gap:.2} s", lost.len());
        assert!(count > 10 && lost.is_empty(), "lost: {lost:?}");
    }
}
