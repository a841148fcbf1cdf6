//! What the ledger records about backups, and what `status` reports from that without contacting the store. `destroy` contacts it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_backup::BackupId;
use quorate_core::model::{BackupNote, BackupRecord, Ledger, Power};
use serde::Serialize;

use crate::home::Home;
use crate::ledger::{LedgerError, Store};
use quorate_core::text::plural;

/// How long to wait for a controller that holds the lock.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// Records it in the ledger, unless another controller holds that for long. Returns whether it was done.
pub(crate) async fn write(home: &Home, ledger: &Ledger, record: Option<&BackupRecord>) -> Result<bool, LedgerError> {
    let store = home.store(ledger.spec.name.as_str());
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        if write_at_once(&store, ledger, record)? {
            return Ok(true);
        }
        if tokio::time::Instant::now() > until {
            return Ok(false);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A ledger that says so already is left as it is.
fn write_at_once(store: &Store, ledger: &Ledger, record: Option<&BackupRecord>) -> Result<bool, LedgerError> {
    let now = store.read()?;
    let settled = |now: &Ledger| now.cluster_id != ledger.cluster_id || now.backups.as_ref() == record;
    if now.as_ref().is_none_or(settled) {
        return Ok(true);
    }
    store.amend(Timestamp::now(), |ledger| ledger.backups = record.cloned())
}

/// The ledger as it is now; as it was known, where it cannot be read or has become that of another cluster.
pub(crate) fn ledger_of_now(home: &Home, known: &Ledger) -> Ledger {
    let read = home.store(known.spec.name.as_str()).read();
    let same = |now: &Ledger| now.cluster_id == known.cluster_id;
    read.ok().flatten().filter(same).unwrap_or_else(|| known.clone())
}

/// The state of the verified backup in the ledger.
#[derive(Clone, PartialEq, Debug)]
pub struct Confirmed {
    /// The record, with the revision that the backup still reaches; none if it cannot be relied on.
    pub verified: Option<BackupNote>,
    /// Why not.
    pub why_not: Option<String>,
}

/// The state of a cluster's backups, according to the ledger.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BackupStatus {
    /// The newest full backup.
    pub newest: Option<NoteStatus>,
    /// The newest that was restored and compared.
    pub verified: Option<NoteStatus>,
    /// The public key that signs them.
    pub signed_by: Option<String>,
    /// The problem; empty if everything is as the spec wants it.
    pub problems: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NoteStatus {
    pub id: String,
    /// The time that it reaches, including recorded changes.
    pub at: Timestamp,
    pub revision: u64,
    pub verified_at: Option<Timestamp>,
}

impl From<&BackupNote> for NoteStatus {
    fn from(note: &BackupNote) -> Self {
        let BackupNote { id, at, revision, verified_at, history: _ } = note.clone();
        NoteStatus { id, at, revision, verified_at }
    }
}

/// `None` if the spec wants no backups.
pub fn standing(ledger: &Ledger, now: Timestamp) -> Option<BackupStatus> {
    let settings = ledger.spec.backup.as_ref()?;
    let record = ledger.backups.as_ref();
    let mut problems = Vec::new();
    match record {
        None => problems.push(String::from("there is no backup yet")),
        Some(BackupRecord { newest, verified, forged }) => {
            problems.extend(forged.iter().map(|forged| format!("another writer writes to the backup store: {forged}")));
            let age = now.duration_since(begun(newest));
            // Nobody can take one of a cluster that is off, and nobody writes to it.
            if ledger.power == Power::On && is_late(age, settings.schedule.0) {
                problems.push(format!(
                    "the newest backup, {}, is {} old, and the schedule requires one every {}",
                    newest.id,
                    in_words(age),
                    settings.schedule
                ));
            }
            match verified {
                None => problems.push(format!("no backup was verified yet, the newest is {}", newest.id)),
                Some(verified) if newest.verified_at.is_none() => problems.push(format!(
                    "the newest backup, {}, is not verified; the newest that is, {}, is of {}",
                    newest.id,
                    verified.id,
                    verified.at.strftime("%Y-%m-%d %H:%M UTC"),
                )),
                Some(_) => {}
            }
        }
    }
    Some(BackupStatus {
        newest: record.map(|record| NoteStatus::from(&record.newest)),
        verified: record.and_then(|record| record.verified.as_ref()).map(NoteStatus::from),
        signed_by: ledger.backup_signing.as_ref().map(|signing| signing.public.to_string()),
        problems,
    })
}

/// When the full backup was begun. Changes on top of it do not matter here: the schedule is for full ones.
fn begun(note: &BackupNote) -> Timestamp {
    note.id.parse::<BackupId>().map_or(note.at, |id| id.begun())
}

/// A backup that is being taken when it is due is not late yet.
fn is_late(age: SignedDuration, schedule_ms: u64) -> bool {
    age.as_millis() > i128::from(schedule_ms) + i128::from(schedule_ms / 10)
}

/// In the largest non-zero unit.
pub(crate) fn in_words(age: SignedDuration) -> String {
    let seconds = age.as_secs().max(0);
    let (number, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    plural(number, unit)
}

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::Record;
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::spec::{Document, HostFacts, generated};

    use super::*;

    fn ledger(backups: Option<BackupRecord>) -> Ledger {
        let yaml = generated("demo", 1, DEFAULT, ClientAuth::Certificate).unwrap().to_yaml();
        let yaml = format!("{yaml}    backup:\n      to:\n        directory: /b\n      schedule: 6h\n");
        let checked = Document::parse("test", &yaml).unwrap().spec(&HostFacts::default());
        let spec = checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0);
        Ledger { backups, ..Ledger::new(String::from("c"), spec) }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn noted(id: &str, of: &str, verified: bool) -> BackupNote {
        BackupNote { id: id.to_owned(), at: at(of), revision: 7, verified_at: verified.then(|| at(of)), history: None }
    }

    fn problems(backups: Option<BackupRecord>) -> Vec<String> {
        standing(&ledger(backups), at("2026-11-14T12:00:00Z")).unwrap().problems
    }

    #[test]
    fn a_backup_that_is_young_and_proven_is_no_problem() {
        let newest = noted("one", "2026-11-14T07:00:00Z", true);
        assert!(problems(Some(BackupRecord { verified: Some(newest.clone()), newest, forged: Vec::new() })).is_empty());
        assert_eq!(problems(None), ["there is no backup yet"]);
    }

    #[test]
    fn a_cluster_that_is_off_is_not_late_with_its_backup() {
        let old = noted("one", "2026-11-14T05:00:00Z", true);
        let record = BackupRecord { verified: Some(old.clone()), newest: old, forged: Vec::new() };
        let off = Ledger { power: Power::Off, ..ledger(Some(record)) };
        assert!(standing(&off, at("2026-11-14T12:00:00Z")).unwrap().problems.is_empty());
    }

    #[test]
    fn one_that_is_older_than_its_schedule_or_not_proven_is() {
        let old = noted("one", "2026-11-14T05:00:00Z", true);
        let told =
            problems(Some(BackupRecord { verified: Some(old.clone()), newest: old.clone(), forged: Vec::new() }));
        assert_eq!(told, ["the newest backup, one, is 7 hours old, and the schedule requires one every 6h"]);
        let newest = noted("two", "2026-11-14T11:00:00Z", false);
        let told = problems(Some(BackupRecord { verified: Some(old), newest: newest.clone(), forged: Vec::new() }));
        assert_eq!(
            told,
            ["the newest backup, two, is not verified; the newest that is, one, is of 2026-11-14 05:00 UTC"]
        );
        let told = problems(Some(BackupRecord { verified: None, newest, forged: Vec::new() }));
        assert_eq!(told, ["no backup was verified yet, the newest is two"]);
    }

    #[test]
    fn recorded_changes_do_not_make_a_full_backup_younger() {
        let recorded = noted("20261114T050000Z-0123abcd", "2026-11-14T11:59:58Z", true);
        let told =
            problems(Some(BackupRecord { verified: Some(recorded.clone()), newest: recorded, forged: Vec::new() }));
        let late =
            "the newest backup, 20261114T050000Z-0123abcd, is 7 hours old, and the schedule requires one every 6h";
        assert_eq!(told, [late]);
        let young = noted("20261114T070000Z-0123abcd", "2026-11-14T11:59:58Z", true);
        assert!(
            problems(Some(BackupRecord { verified: Some(young.clone()), newest: young, forged: Vec::new() }))
                .is_empty()
        );
    }

    #[test]
    fn a_long_running_process_sees_the_current_ledger() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        let known = ledger(None);
        assert_eq!(ledger_of_now(&home, &known), known, "where there is none, what was known counts");
        let store = home.store(known.spec.name.as_str());
        let etcd = Record { highest_revision: 7, ..known.etcd.clone() };
        store.write(&mut Ledger { etcd, ..known.clone() }).unwrap();
        assert_eq!(ledger_of_now(&home, &known).etcd.highest_revision, 7);
        let of_another = Ledger { cluster_id: String::from("d"), ..known };
        assert_eq!(ledger_of_now(&home, &of_another), of_another);
    }

    #[test]
    fn a_note_does_not_wait_for_a_dead_controller() {
        let home = tempfile::tempdir().unwrap();
        let store = Home::new(home.path()).store("demo");
        let mut ledger = ledger(None);
        store.write(&mut ledger).unwrap();
        let newest = noted("one", "2026-11-14T07:00:00Z", false);
        let record = BackupRecord { newest, verified: None, forged: Vec::new() };
        assert!(write_at_once(&store, &ledger, Some(&record)).unwrap());
        assert_eq!(store.read().unwrap().unwrap().backups, Some(record));
        // The store was emptied since.
        assert!(write_at_once(&store, &ledger, None).unwrap());
        assert_eq!(store.read().unwrap().unwrap().backups, None);
    }
}
