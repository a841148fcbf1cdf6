//! How many tests run in parallel. Tests on clusters mostly wait, so a fixed number either leaves the machine idle or starves
//! timing-sensitive clusters. Instead another test starts whenever the processors had time left.

use std::fs;
use std::time::{Duration, Instant};

/// Between two observations of the processors.
const WINDOW: Duration = Duration::from_millis(700);
/// With this share of their time to spare, another test starts.
const SPARE: f64 = 0.35;

pub struct Pace {
    /// So many always run; without an observation of the processors, exactly so many.
    least: usize,
    most: usize,
    before: Option<Used>,
    looked: Instant,
}

/// Ticks of all processors since the machine booted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Used {
    all: u64,
    /// Idle, waiting for disks, or spent on low-priority work.
    spare: u64,
}

impl Pace {
    /// For tests that share the machine.
    pub fn shared() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self::between(cores + 1, 4 * cores)
    }

    /// One test at a time.
    pub fn alone() -> Self {
        Self::between(1, 1)
    }

    fn between(least: usize, most: usize) -> Self {
        Pace { least, most, before: now(), looked: Instant::now() }
    }

    /// Whether another may start next to so many.
    pub fn admits(&mut self, running: usize) -> bool {
        if running < self.least {
            return true;
        }
        if running >= self.most || self.looked.elapsed() < WINDOW {
            return false;
        }
        self.looked = Instant::now();
        let after = now();
        let share = self.before.zip(after).and_then(|(before, after)| spare_between(before, after));
        self.before = after;
        share.is_some_and(|share| share > SPARE)
    }
}

fn now() -> Option<Used> {
    read_used(&fs::read_to_string("/proc/stat").ok()?)
}

/// In the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
fn read_used(stat: &str) -> Option<Used> {
    let ticks: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|n| n.parse().ok()).collect();
    // Guests are part of user and nice already.
    let [_, nice, _, idle, iowait, ..] = ticks[..] else { return None };
    Some(Used { all: ticks.iter().take(8).sum(), spare: nice + idle + iowait })
}

fn spare_between(before: Used, after: Used) -> Option<f64> {
    let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
    Some(after.spare.saturating_sub(before.spare) as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nice_idle_and_iowait_time_counts_as_spare() {
        let before = read_used("cpu  100 50 20 300 10 0 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, Used { all: 480, spare: 360 });
        let after = read_used("cpu  140 90 20 310 20 0 0 0 0 0\n").unwrap();
        assert_eq!(spare_between(before, after), Some(0.6));
        assert_eq!(spare_between(before, before), None);
        assert_eq!(read_used("intr 1"), None);
    }

    #[test]
    fn some_always_run_and_never_too_many() {
        let mut pace = Pace::between(2, 3);
        assert!(pace.admits(1));
        assert!(!pace.admits(3));
        assert!(!Pace::alone().admits(1));
    }
}
