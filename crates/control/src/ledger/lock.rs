//! The lock: a lease in the ledger with a fencing number. It is taken and renewed by the same conditional write as
//! everything else, so a controller that missed its renewal finds out at its next write.

use std::fs;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use quorate_core::model::{Ledger, Lock};

use super::{LedgerError, Store, next};
use quorate_agent::process::{self, Process};

/// How long a lock is valid without being renewed. After that, another controller may take over.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long to watch a lock whose holder may or may not be alive.
const WATCH: Duration = Duration::from_secs(LEASE.as_secs() + 1);

/// How often to check such a lock.
const GLANCE: Duration = Duration::from_millis(200);

/// The ledger of the controller that holds its lock. Many readers may use it while one renews the lease.
#[derive(Debug)]
pub struct LedgerLock {
    store: Store,
    fence: u64,
    ledger: Mutex<Arc<Ledger>>,
    /// When the lease was last renewed, on a monotonic clock.
    renewed: Mutex<Instant>,
}

impl LedgerLock {
    /// Takes the lock, unless a live controller holds it. Its number is the next one, and is not in use until it is announced.
    pub fn take(store: Store, mut ledger: Ledger, holder: &str, now: Timestamp) -> Result<Self, LedgerError> {
        if let Some(lock) = &ledger.lock
            && is_held(lock, now)
        {
            return Err(LedgerError::Locked { holder: Box::new(lock.clone()) });
        }
        let me = Process::current();
        let fence = next(ledger.fence, "fencing number", store.directory())?;
        ledger.lock = Some(Lock {
            fence,
            holder: holder.to_owned(),
            host: process::host_name(),
            boot_id: process::boot_id(),
            pid: me.pid,
            pid_started: me.started,
            pid_namespace: process::pid_namespace(),
            since: now,
            expires: now + lease(),
        });
        store.expect_newest(ledger.version)?;
        store.write(&mut ledger)?;
        store.seal_older(ledger.version)?;
        Ok(LedgerLock { store, fence, ledger: Mutex::new(Arc::new(ledger)), renewed: Mutex::new(Instant::now()) })
    }

    /// The ledger as it was last written.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.current().clone()
    }

    /// The number that every order of this controller carries.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Records that this number is in use, before any agent hears it. So no other controller uses the same number, and if an agent
    /// knows the ledger's next number already, the ledger is not the latest.
    pub fn announce(&self, now: Timestamp) -> Result<(), LedgerError> {
        self.write(now, |ledger| ledger.fence = self.fence)
    }

    /// Releases the lock and the number: this ledger is not the latest, and the next controller must find that out too. If nothing was
    /// done yet, the ledger is restored to `before`.
    pub fn stand_back(&self, before: Option<Ledger>) -> Result<Ledger, LedgerError> {
        let last = self.fence.saturating_sub(1);
        self.release(|ledger| {
            if let Some(before) = before {
                *ledger = Ledger { version: ledger.version, ..before };
            }
            ledger.fence = ledger.fence.min(last);
        })
    }

    /// Changes the ledger and renews the lease with the same write.
    pub fn write(&self, now: Timestamp, change: impl FnOnce(&mut Ledger)) -> Result<(), LedgerError> {
        let mut current = self.current();
        self.store.expect_newest(current.version)?;
        let mut changed = Ledger::clone(&current);
        change(&mut changed);
        if let Some(lock) = &mut changed.lock {
            lock.expires = now + lease();
        }
        self.store.write(&mut changed)?;
        *current = Arc::new(changed);
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    /// Checks that no other controller took over, and that the lease is still valid.
    pub fn confirm(&self, now: Timestamp) -> Result<(), LedgerError> {
        let ledger = self.ledger();
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back makes the lease look longer, and one that was set ahead, shorter.
        let in_time = |left: SignedDuration| left > lease() / 2 && left <= lease();
        let fresh = ledger.lock.as_ref().is_some_and(|l| in_time(l.expires.duration_since(now)));
        let fresh = fresh && renewed.elapsed() < LEASE / 2;
        if !fresh {
            return self.write(now, |_| {});
        }
        self.store.expect_newest(ledger.version)
    }

    /// Renews the lease while it is polled. Ends only when the lock is lost.
    pub async fn keep(&self) -> LedgerError {
        loop {
            tokio::time::sleep(LEASE / 4).await;
            if let Err(lost) = self.confirm(Timestamp::now()) {
                return lost;
            }
        }
    }

    /// Releases the lock, with a last change.
    pub fn release(&self, change: impl FnOnce(&mut Ledger)) -> Result<Ledger, LedgerError> {
        let mut released = Ledger::clone(&self.current());
        self.store.expect_newest(released.version)?;
        change(&mut released);
        released.lock = None;
        self.store.write(&mut released)?;
        Ok(released)
    }

    /// Removes the ledger of a deleted cluster, atomically: if it were removed file by file, an older version could be
    /// left, which does not show the deletion.
    pub fn forget(&self, now: Timestamp) -> Result<(), LedgerError> {
        self.confirm(now)?;
        let path = self.store.directory();
        let doomed = path.with_extension("gone");
        let failed = |source| LedgerError::Io { what: "removed", path: path.to_owned(), source };
        match fs::remove_dir_all(&doomed) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        fs::rename(path, &doomed).and_then(|()| fs::remove_dir_all(&doomed)).map_err(failed)
    }

    fn current(&self) -> MutexGuard<'_, Arc<Ledger>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lease() -> SignedDuration {
    SignedDuration::try_from(LEASE).unwrap_or(SignedDuration::ZERO)
}

/// The state of a lock's holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Its process, which was on this host, is gone.
    Free,
    /// Its process is alive on this host, and its lease is valid.
    Held,
    /// It may be alive on another host, or was started before this one booted; or its lease has ended although its process is
    /// alive. Then it hangs, or a clock is wrong: only watching the lock on a monotonic clock can tell.
    Unknown,
}

fn standing(lock: &Lock, now: Timestamp) -> Standing {
    if !is_of_here(lock) {
        return Standing::Unknown;
    }
    match (is_alive_here(lock), lease_runs(lock, now)) {
        (false, _) => Standing::Free,
        (true, true) => Standing::Held,
        (true, false) => Standing::Unknown,
    }
}

/// By the clock of this host. A lease that ends later than any could was written by a clock that was ahead.
fn lease_runs(lock: &Lock, now: Timestamp) -> bool {
    let left = lock.expires.duration_since(now);
    left > SignedDuration::ZERO && left <= lease()
}

/// Since when this process has seen the same version of a ledger whose lock it cannot judge.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched(Arc<Mutex<Option<(u64, Instant)>>>);

impl Watched {
    /// Whether the lock was not renewed for the length of a lease, on a monotonic clock.
    fn has_lapsed(&self, version: u64, lease: Duration) -> bool {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *watched {
            Some((known, since)) if known == version => since.elapsed() > lease,
            _ => {
                *watched = Some((version, Instant::now()));
                false
            }
        }
    }
}

/// Whether this process could see the holder. Containers may share the name of a host and its boot, but not their processes.
fn is_of_here(lock: &Lock) -> bool {
    let namespace = lock.pid_namespace.is_empty() || lock.pid_namespace == process::pid_namespace();
    lock.host == process::host_name() && lock.boot_id == process::boot_id() && namespace
}

/// Whether a lock's holder is a process of this host that lives.
pub fn is_alive_here(lock: &Lock) -> bool {
    is_of_here(lock) && Process { pid: lock.pid, started: lock.pid_started }.is_alive()
}

/// A lock is valid until its holder is known to be gone, or has not renewed it for the length of a lease.
fn is_held(lock: &Lock, now: Timestamp) -> bool {
    standing(lock, now) != Standing::Free
}

/// Whether a controller seems to be running, for readers: by this host's clock, which may be wrong.
pub fn seems_held(lock: &Lock, now: Timestamp) -> bool {
    is_alive_here(lock) || (!is_of_here(lock) && lease_runs(lock, now))
}

impl Store {
    /// Whether a controller may be running. A caller that keeps asking learns when the lock has expired.
    pub(super) fn is_locked(&self, ledger: &Ledger, now: Timestamp) -> bool {
        ledger.lock.as_ref().is_some_and(|lock| match standing(lock, now) {
            Standing::Free => false,
            Standing::Held => true,
            Standing::Unknown => !self.watched.has_lapsed(ledger.version, WATCH),
        })
    }

    /// Frees a lock that is not renewed. If its holder may be alive, the lock is watched for the length of a lease on a monotonic
    /// clock, because the recorded end may come from a wrong clock.
    pub async fn free_lapsed(&self, tell: impl FnOnce(&Lock)) -> Result<(), LedgerError> {
        self.free_lapsed_after(WATCH, tell).await
    }

    pub async fn free_lapsed_after(&self, lease: Duration, tell: impl FnOnce(&Lock)) -> Result<(), LedgerError> {
        let Some(ledger) = self.read()? else { return Ok(()) };
        let Some(lock) = ledger.lock.as_ref() else { return Ok(()) };
        if standing(lock, Timestamp::now()) != Standing::Unknown {
            return Ok(());
        }
        tell(lock);
        let begun = Instant::now();
        while begun.elapsed() < lease {
            tokio::time::sleep(GLANCE.min(lease)).await;
            if self.newest()? != Some(ledger.version) {
                return Ok(());
            }
        }
        let mut free = Ledger { lock: None, ..ledger };
        match self.write(&mut free) {
            // Another process was faster, or the holder is alive after all.
            Err(LedgerError::Lost { .. }) => Ok(()),
            written => written,
        }
    }

    /// Breaks a lock after confirmation. A live holder may renew it meanwhile.
    pub fn unlock(&self, lock: &Lock) -> Result<(), LedgerError> {
        let is_it = |other: &Lock| (other.since, other.pid) == (lock.since, lock.pid);
        loop {
            let Some(ledger) = self.read()? else { return Ok(()) };
            if !ledger.lock.as_ref().is_some_and(is_it) {
                return Ok(());
            }
            match self.write(&mut Ledger { lock: None, ..ledger }) {
                Err(LedgerError::Lost { .. }) => {}
                written => return written,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(now: Timestamp) -> Lock {
        let me = Process::current();
        Lock {
            fence: 1,
            holder: String::from("quorate apply"),
            host: process::host_name(),
            boot_id: process::boot_id(),
            pid: me.pid,
            pid_started: me.started,
            pid_namespace: process::pid_namespace(),
            since: now,
            expires: now + lease(),
        }
    }

    #[test]
    fn a_lock_is_free_only_where_its_process_is_known_to_be_dead() {
        let now = Timestamp::now();
        let lock = own(now);
        let (ahead, behind) = (now + SignedDuration::from_secs(30), now - SignedDuration::from_hours(1));
        assert_eq!(standing(&lock, now), Standing::Held);
        for clock in [ahead, behind] {
            assert_eq!(standing(&lock, clock), Standing::Unknown, "its process lives: one of the clocks is wrong");
        }
        let elsewhere = Lock { host: String::from("elsewhere"), ..lock.clone() };
        let dead = Lock { pid: 4_194_305, ..lock };
        for clock in [now, ahead, behind] {
            assert_eq!(standing(&elsewhere, clock), Standing::Unknown);
            assert_eq!(standing(&dead, clock), Standing::Free);
        }
    }

    #[test]
    fn a_version_that_stays_for_a_lease_has_lapsed() {
        let watched = Watched::default();
        let never = Duration::from_secs(3600);
        assert!(!watched.has_lapsed(1, Duration::ZERO), "the first look begins the watch");
        assert!(!watched.has_lapsed(1, never));
        assert!(watched.has_lapsed(1, Duration::ZERO));
        assert!(!watched.has_lapsed(2, Duration::ZERO), "it was renewed");
    }
}
