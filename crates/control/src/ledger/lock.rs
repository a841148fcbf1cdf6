//! The lock: a lease in the ledger with a fencing number. It is taken and kept by the same conditional write as
//! everything else, so a controller that slept through its lease finds out at its next write.

use std::fs;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_core::model::{Formation, Ledger, Lock};

use super::{LedgerError, Store, next};
use crate::process::{self, Process};

/// How long a lock holds without being renewed. A controller that hangs longer than this may be taken over from.
pub const LEASE: Duration = Duration::from_secs(10);

/// The ledger, in the hands of the controller that holds its lock. Many may read it while one keeps the lease.
#[derive(Debug)]
pub struct Held {
    store: Store,
    fence: u64,
    ledger: Mutex<Arc<Ledger>>,
}

impl Held {
    /// Takes the lock, unless a living controller holds it. Its number is the next one, and is nobody's until it is announced.
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
            since: now,
            expires: now + lease(),
        });
        store.expect_newest(ledger.version)?;
        store.write(&mut ledger)?;
        Ok(Held { store, fence, ledger: Mutex::new(Arc::new(ledger)) })
    }

    /// The ledger as it was last written.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.current().clone()
    }

    /// The number that every order of this controller carries.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Writes down that this number is given out. Only then may anybody be told it: so nobody else ever gets one that was told, and
    /// a ledger whose next number an agent has heard already is not the latest.
    pub fn announce(&self, now: Timestamp) -> Result<(), LedgerError> {
        self.write(now, |ledger| ledger.fence = self.fence)
    }

    /// Gives the lock up, and the number with it: this ledger is not the latest, and the next controller must find that out too. Where
    /// nothing was done yet, the ledger is as it was `before`.
    pub fn stand_back(self, before: Option<Ledger>) -> Result<Ledger, LedgerError> {
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
        Ok(())
    }

    /// Makes sure that nobody took over, and that the lease has time left.
    pub fn confirm(&self, now: Timestamp) -> Result<(), LedgerError> {
        let ledger = self.ledger();
        let fresh = ledger.lock.as_ref().is_some_and(|l| l.expires.duration_since(now) > lease() / 2);
        if !fresh {
            return self.write(now, |_| {});
        }
        self.store.expect_newest(ledger.version)
    }

    /// Keeps the lease for as long as it is polled. Ends only when the lock is lost.
    pub async fn keep(&self) -> LedgerError {
        loop {
            tokio::time::sleep(LEASE / 4).await;
            if let Err(lost) = self.confirm(Timestamp::now()) {
                return lost;
            }
        }
    }

    /// Gives the lock up, with a last change. A word that the operator gave for this run ends with it.
    pub fn release(self, change: impl FnOnce(&mut Ledger)) -> Result<Ledger, LedgerError> {
        let mut released = Ledger::clone(&self.current());
        self.store.expect_newest(released.version)?;
        change(&mut released);
        released.lock = None;
        released.downtime = None;
        released.without_grace = None;
        if !matches!(released.formation, Formation::Recovering { .. }) {
            released.recovery = None;
        }
        self.store.write(&mut released)?;
        Ok(released)
    }

    /// Removes the ledger: the cluster is gone. At once, for of a ledger that is removed file by file an older version
    /// could be left, which knows nothing of its end.
    pub fn forget(self, now: Timestamp) -> Result<(), LedgerError> {
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

/// A lock counts while its lease runs, unless its holder was a process of this host that is gone.
pub fn is_held(lock: &Lock, now: Timestamp) -> bool {
    let here = lock.host == process::host_name() && lock.boot_id == process::boot_id();
    let gone = here && !Process { pid: lock.pid, started: lock.pid_started }.is_alive();
    now < lock.expires && !gone
}
