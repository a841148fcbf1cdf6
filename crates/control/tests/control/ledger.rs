//! The ledger on disk: two writers never both succeed; the lock of a dead holder is taken at once, that of a living one is not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_control::Home;
use quorate_control::ledger::{Exported, LEASE, LedgerError, LedgerLock, OpenWith, SealFor, Store, export, import};
use quorate_core::Secret;
use quorate_core::kinds::etcd::Record;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, Program};
use quorate_core::spec::generated;
use serde_json::Value;

fn ledger() -> Ledger {
    let spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).expect("a fine name");
    Ledger::new(String::from("0123456789abcdef"), spec.clusters[0].clone())
}

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Home::new(directory.path()).store("demo");
    (directory, store)
}

/// The file of the newest version.
fn newest(store: &Store) -> PathBuf {
    std::fs::read_dir(store.directory()).unwrap().map(|entry| entry.unwrap().path()).max().expect("a version")
}

fn stored(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn after_the_lease(now: Timestamp) -> Timestamp {
    now + SignedDuration::try_from(LEASE).unwrap() + SignedDuration::from_secs(1)
}

#[test]
fn a_written_ledger_reads_back() {
    let (_directory, store) = store();
    assert!(store.read().unwrap().is_none());
    let mut written = ledger();
    store.write(&mut written).unwrap();
    assert_eq!(store.read().unwrap(), Some(written));
}

#[test]
fn of_two_writers_with_the_same_past_one_loses() {
    let (_directory, store) = store();
    let mut first = ledger();
    store.write(&mut first).unwrap();
    let mut second = first.clone();
    store.write(&mut first).unwrap();
    assert!(matches!(store.write(&mut second), Err(LedgerError::Lost { .. })));
    assert_eq!(store.read().unwrap().unwrap().version, 2);
}

#[test]
fn a_writer_so_late_that_its_slot_was_pruned_loses_too() {
    let (_directory, store) = store();
    let mut current = ledger();
    store.write(&mut current).unwrap();
    let mut late = current.clone();
    for _ in 0..40 {
        store.write(&mut current).unwrap();
    }
    assert!(matches!(store.write(&mut late), Err(LedgerError::Lost { .. })));
    assert_eq!(store.read().unwrap().unwrap().version, current.version);
}

#[test]
fn old_versions_are_pruned() {
    let (_directory, store) = store();
    let mut current = ledger();
    for _ in 0..60 {
        store.write(&mut current).unwrap();
    }
    let files = std::fs::read_dir(store.directory()).unwrap().count();
    assert!(files <= 20, "{files} versions are kept");
}

#[test]
fn a_living_holder_is_named_and_not_disturbed() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let _held = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    let current = store.read().unwrap().unwrap();
    let refused = LedgerLock::take(store, current, "quorate up", now).unwrap_err().to_string();
    assert!(refused.contains("holds the lock: quorate apply on"), "{refused}");
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    assert!(refused.contains("since"), "{refused}");
}

/// A controller that took its lock a minute ago and has not renewed it since: it hangs, or its clock is behind.
fn sleeper(store: &Store) -> LedgerLock {
    let then = Timestamp::now() - SignedDuration::from_mins(1);
    LedgerLock::take(store.clone(), ledger(), "quorate apply", then).unwrap()
}

/// Nobody renews the lock for as long as a lease lasts.
async fn lapse(store: &Store) -> Ledger {
    store.free_lapsed_after(Duration::from_millis(50), |_| {}).await.unwrap();
    store.read().unwrap().unwrap()
}

#[tokio::test]
async fn a_holder_that_sleeps_past_its_lease_is_taken_over_and_finds_out() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let sleeper = sleeper(&store);
    let current = lapse(&store).await;
    let taker = LedgerLock::take(store, current, "quorate apply", now).unwrap();
    // Its number was never told, so that the next one may have it; and now it cannot tell it any more.
    assert_eq!(taker.fence(), sleeper.fence());
    assert!(matches!(sleeper.announce(now), Err(LedgerError::Lost { .. })));
    assert!(matches!(sleeper.confirm(now), Err(LedgerError::Lost { .. })));
    assert!(matches!(sleeper.write(now, |l| l.etcd.highest_revision = 7), Err(LedgerError::Lost { .. })));
    assert_eq!(taker.ledger().etcd.highest_revision, 0);
}

#[test]
fn an_announced_number_is_never_reused_and_an_unannounced_one_is() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let first = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    first.announce(now).unwrap();
    let last = first.release(|_| {}).unwrap();
    let second = LedgerLock::take(store.clone(), last, "quorate apply", now).unwrap();
    assert_eq!(second.fence(), 2);
    let untold = second.release(|_| {}).unwrap();
    assert_eq!(untold.fence, 1);
    assert_eq!(LedgerLock::take(store, untold, "quorate apply", now).unwrap().fence(), 2);
}

#[test]
fn a_controller_that_steps_back_leaves_the_ledger_unchanged_and_its_number_free() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let mut before = ledger();
    store.write(&mut before).unwrap();
    let changed = Ledger { etcd: Record { highest_revision: 7, ..before.etcd.clone() }, ..before.clone() };
    let held = LedgerLock::take(store.clone(), changed, "quorate replace", now).unwrap();
    let left = held.stand_back(Some(before.clone())).unwrap();
    assert_eq!(Ledger { version: before.version, ..left.clone() }, before);
    // Also if some were given the number before an agent came up that knew a higher one.
    let held = LedgerLock::take(store.clone(), left, "quorate apply", now).unwrap();
    held.announce(now).unwrap();
    held.write(now, |ledger| ledger.etcd.highest_revision = 7).unwrap();
    let left = held.stand_back(None).unwrap();
    assert_eq!((left.fence, left.etcd.highest_revision, left.lock), (0, 7, None));
}

#[tokio::test]
async fn a_live_holder_keeps_its_lock_whatever_another_clock_says() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let held = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    for clock in [now + SignedDuration::from_secs(30), now - SignedDuration::from_hours(1)] {
        let current = store.read().unwrap().unwrap();
        assert!(matches!(
            LedgerLock::take(store.clone(), current, "quorate up", clock),
            Err(LedgerError::Locked { .. })
        ));
        assert!(!store.amend(clock, |ledger| ledger.etcd.highest_revision = 7).unwrap());
    }
    held.confirm(now).unwrap();
    assert_eq!(store.read().unwrap().unwrap().etcd.highest_revision, 0);
}

#[tokio::test]
async fn a_removed_ledger_is_not_recreated_and_does_not_overwrite_another_of_its_name() {
    let (_directory, store) = store();
    let later = Timestamp::now();
    let sleeper = sleeper(&store);
    sleeper.write(later - SignedDuration::from_mins(1), |_| {}).unwrap();
    let taker = LedgerLock::take(store.clone(), lapse(&store).await, "quorate destroy", later).unwrap();
    taker.forget(later).unwrap();
    assert!(!store.directory().exists());
    assert!(matches!(sleeper.confirm(later), Err(LedgerError::Lost { .. })));
    assert!(matches!(sleeper.write(later, |_| {}), Err(LedgerError::Lost { .. })));
    assert!(!store.directory().exists());
    let mut other = ledger();
    store.write(&mut other).unwrap();
    assert!(matches!(sleeper.write(later, |_| {}), Err(LedgerError::Lost { .. })));
    assert!(matches!(sleeper.release(|_| {}), Err(LedgerError::Lost { .. })));
    assert_eq!(store.read().unwrap(), Some(other));
}

#[test]
fn the_draft_of_a_killed_writer_is_swept_away() {
    let (_directory, store) = store();
    let mut current = ledger();
    store.write(&mut current).unwrap();
    std::fs::write(store.directory().join(".2.4194305"), "half").unwrap();
    store.write(&mut current).unwrap();
    store.write(&mut current).unwrap();
    let names = std::fs::read_dir(store.directory()).unwrap().map(|e| e.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with('.')));
}

#[test]
fn the_lock_of_a_dead_process_is_taken_at_once() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let held = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    held.announce(now).unwrap();
    let mut orphaned = Ledger::clone(&held.ledger());
    // Process ids are below this; the holder is gone as after a kill.
    orphaned.lock.as_mut().unwrap().pid = 4_194_305;
    store.write(&mut orphaned).unwrap();
    let taker = LedgerLock::take(store, orphaned, "quorate apply", now).unwrap();
    assert_eq!(taker.fence(), 2);
}

#[test]
fn a_lock_that_is_used_does_not_run_out() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let held = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    let later = after_the_lease(now);
    held.confirm(later).unwrap();
    let current = store.read().unwrap().unwrap();
    assert!(matches!(LedgerLock::take(store, current, "quorate up", later), Err(LedgerError::Locked { .. })));
}

#[test]
fn a_newer_format_is_refused_clearly() {
    let (_directory, store) = store();
    store.write(&mut ledger()).unwrap();
    let file = newest(&store);
    let mut newer = stored(&file);
    newer["format"] = 99.into();
    std::fs::write(&file, newer.to_string()).unwrap();
    let refused = store.read().unwrap_err().to_string();
    assert!(refused.contains("format 99") && refused.contains("newer quorate"), "{refused}");
}

/// Two versions, the newer one changed by someone else. Why it is not read, and what is advised.
fn read_after(change: impl FnOnce(&mut Value)) -> (String, String) {
    let (_directory, store) = store();
    let mut ledger = ledger();
    store.write(&mut ledger).unwrap();
    store.write(&mut ledger).unwrap();
    let file = newest(&store);
    let mut content = stored(&file);
    change(&mut content);
    std::fs::write(&file, content.to_string()).unwrap();
    let error = store.read().unwrap_err();
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn a_ledger_that_is_too_new_is_not_to_be_replaced_by_an_older_version() {
    let this = &Program::this().version;
    let by = |writer: &str| format!("use a newer quorate (this one is {this}, the ledger was written by {writer})");
    let too_new = |change: fn(&mut Value), words: [&str; 2]| {
        let (told, hint) = read_after(change);
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
        assert!(told.contains("0000000002.json") && !hint.contains("--accept-older-ledger"), "{told}: {hint}");
        assert!(hint.contains("with the quorate that wrote this ledger, or a newer one"), "{hint}");
    };
    too_new(|stored| stored["spec"]["etcd"]["turbo"] = true.into(), ["has an unknown field `turbo`:", &by(this)]);
    too_new(
        |stored| stored["spec"]["provider"] = serde_json::json!({"mainframe": {}}),
        ["has an unknown variant `mainframe`:", &by(this)],
    );
    // Whatever a newer quorate has written, this one does not know what is wrong with it.
    type Change = fn(&mut Value);
    let of_99: [(Change, &str); 3] = [
        (|stored| drop(stored.as_object_mut().unwrap().remove("members")), "cannot be read (missing field `members`"),
        (|stored| stored["fence"] = u64::MAX.into(), "cannot be read (its fencing number is 18446744073709551615"),
        (|stored| stored["format"] = 99.into(), "has format 99, and this quorate reads formats up to"),
    ];
    for (change, words) in of_99 {
        let (told, hint) = read_after(|stored| {
            stored["written_by"] = "99.0.0".into();
            change(stored);
        });
        assert!(told.contains(words) && told.contains(&by("99.0.0")), "{told}");
        assert!(!hint.contains("--accept-older-ledger") && !hint.contains("damaged"), "{hint}");
    }
    // As a later build with format 4 wrote it.
    too_new(
        |stored| {
            stored["format"] = 4.into();
            stored.as_object_mut().unwrap().remove("written_by");
            stored["spec"]["members"][0]["mainframe"] = serde_json::json!({});
        },
        ["has an unknown field `mainframe`:", "the ledger does not name the version that wrote it"],
    );
}

#[test]
fn an_unreadable_ledger_written_by_this_quorate_is_reported_as_damaged() {
    let (told, hint) = read_after(|stored| drop(stored.as_object_mut().unwrap().remove("members")));
    assert!(told.ends_with("0000000002.json is not a ledger"), "{told}");
    assert!(
        hint.contains("0000000001.json next to it can be read") && hint.contains("--accept-older-ledger"),
        "{hint}"
    );
}

#[test]
fn a_damaged_ledger_is_not_replaced_by_a_version_that_is_too_new() {
    let (_directory, store) = store();
    let mut ledger = ledger();
    store.write(&mut ledger).unwrap();
    store.write(&mut ledger).unwrap();
    let second = newest(&store);
    let mut content = stored(&second);
    content["format"] = 99.into();
    std::fs::write(&second, content.to_string()).unwrap();
    std::fs::write(store.directory().join("0000000003.json"), "what is this").unwrap();
    let error = store.read().unwrap_err();
    assert!(matches!(&error, LedgerError::Newer { path, .. } if *path == second), "{error}");
    assert!(!error.hint().unwrap().contains("--accept-older-ledger"));
}

/// The same format has the same fields, so two operators may use different versions.
#[test]
fn a_ledger_written_by_another_version_in_the_same_format_can_be_read() {
    let (_directory, store) = store();
    let mut ledger = ledger();
    store.write(&mut ledger).unwrap();
    let file = newest(&store);
    let mut content = stored(&file);
    assert_eq!(content["written_by"], Program::this().version);
    content["written_by"] = "99.0.0".into();
    std::fs::write(&file, content.to_string()).unwrap();
    let mut read = store.read().unwrap().unwrap();
    assert_eq!(read.written_by, "99.0.0");
    store.write(&mut read).unwrap();
    assert_eq!(read.written_by, Program::this().version);
    assert_eq!(store.read().unwrap(), Some(read));
}

#[test]
fn the_ledger_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (_directory, store) = store();
    store.write(&mut ledger()).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(store.directory()), 0o700);
    for file in std::fs::read_dir(store.directory()).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}

#[test]
fn an_export_is_sealed_and_comes_back_whole() {
    let mut kept = ledger();
    kept.etcd.auth.root_password = Some(Secret::new("correct horse"));
    let words = Secret::new("battery staple");
    let (whom, key) = (SealFor::Passphrase(words.clone()), OpenWith::Passphrase(words));
    let history = "{\"at\":1}\n";
    let sealed = export(&kept, history, &whom).unwrap();
    assert!(!String::from_utf8_lossy(&sealed).contains("correct horse"));
    assert_eq!(import(&sealed, &key).unwrap(), Exported { ledger: kept, history: history.to_owned() });
    let wrong = OpenWith::Passphrase(Secret::new("wrong"));
    assert!(import(&sealed, &wrong).is_err());
    let mut damaged = sealed.clone();
    let middle = damaged.len() - 10;
    damaged[middle] ^= 1;
    assert!(import(&damaged, &key).is_err());
}

#[test]
fn an_export_of_an_older_quorate_without_a_history_is_accepted() {
    let words = age::secrecy::SecretString::from(String::from("battery staple"));
    let mut sealed = Vec::new();
    let mut writer = age::Encryptor::with_user_passphrase(words).wrap_output(&mut sealed).unwrap();
    serde_json::to_writer(&mut writer, &ledger()).unwrap();
    writer.finish().unwrap();
    let opened = import(&sealed, &OpenWith::Passphrase(Secret::new("battery staple"))).unwrap();
    assert_eq!(opened, Exported { ledger: ledger(), history: String::new() });
}

#[test]
fn a_failed_prune_after_a_good_write_is_not_a_lost_lock() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let held = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    // A directory in the place of an old draft cannot be removed as a file.
    std::fs::create_dir(store.directory().join(".1.stuck")).unwrap();
    held.write(now, |l| l.etcd.highest_revision = 7).unwrap();
    held.write(now, |l| l.etcd.highest_revision = 8).unwrap();
    assert_eq!(store.read().unwrap().unwrap().etcd.highest_revision, 8);
}

#[test]
fn numbers_that_no_cluster_reaches_are_damage() {
    let (_directory, store) = store();
    let mut far = Ledger { fence: u64::MAX, ..ledger() };
    store.write(&mut far).unwrap();
    let told = store.read().unwrap_err().to_string();
    assert!(told.contains("its fencing number is 18446744073709551615"), "{told}");
    let taken = LedgerLock::take(store, far, "quorate apply", Timestamp::now()).unwrap_err();
    assert!(matches!(taken, LedgerError::Damaged { .. }), "{taken}");
}

/// As a clock that was ahead wrote it, or a host that was booted since: nobody knows whether its holder lives.
fn locked_until(store: &Store, expires: Timestamp, boot_id: &str) -> u64 {
    let known = store.read().unwrap().unwrap_or_else(ledger);
    let held = LedgerLock::take(store.clone(), known, "quorate apply", Timestamp::now()).unwrap();
    let mut left = Ledger::clone(&held.ledger());
    let lock = left.lock.as_mut().unwrap();
    (lock.expires, lock.boot_id) = (expires, boot_id.to_owned());
    store.write(&mut left).unwrap();
    left.version
}

#[tokio::test]
async fn a_lock_that_nobody_renews_is_free_after_a_lease_whatever_its_clock_said() {
    let (_directory, store) = store();
    let far = Timestamp::now() + SignedDuration::from_hours(24 * 365 * 10);
    let version = locked_until(&store, far, "of another boot");
    let current = store.read().unwrap().unwrap();
    assert!(matches!(
        LedgerLock::take(store.clone(), current, "quorate up", Timestamp::now()),
        Err(LedgerError::Locked { .. })
    ));
    let mut told = false;
    store.free_lapsed_after(Duration::from_millis(50), |_| told = true).await.unwrap();
    let free = store.read().unwrap().unwrap();
    assert!(told && free.lock.is_none() && free.version == version + 1);
    // One that is renewed meanwhile stays.
    locked_until(&store, far, "of another boot");
    let (watching, renewing) = (store.clone(), store.clone());
    let renew = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut renewed = renewing.read().unwrap().unwrap();
        renewing.write(&mut renewed).unwrap();
    };
    let (watched, ()) = tokio::join!(watching.free_lapsed_after(Duration::from_secs(5), |_| {}), renew);
    watched.unwrap();
    assert!(store.read().unwrap().unwrap().lock.is_some());
}

#[tokio::test]
async fn a_lock_of_a_live_local_process_is_broken_only_after_confirmation() {
    let (_directory, store) = store();
    let held = LedgerLock::take(store.clone(), ledger(), "quorate apply", Timestamp::now()).unwrap();
    store.free_lapsed_after(Duration::from_secs(60), |_| panic!("it is known to live")).await.unwrap();
    let lock = held.ledger().lock.clone().unwrap();
    assert_eq!(store.read().unwrap().unwrap().lock.as_ref(), Some(&lock));
    store.unlock(&lock).unwrap();
    assert!(store.read().unwrap().unwrap().lock.is_none());
    assert!(matches!(held.confirm(Timestamp::now()), Err(LedgerError::Lost { .. })));
    store.unlock(&lock).unwrap();
}

#[test]
fn a_process_of_another_container_does_not_count_as_dead() {
    let (_directory, store) = store();
    let now = Timestamp::now();
    let held = LedgerLock::take(store.clone(), ledger(), "quorate apply", now).unwrap();
    let mut elsewhere = Ledger::clone(&held.ledger());
    let lock = elsewhere.lock.as_mut().unwrap();
    (lock.pid, lock.pid_namespace) = (4_194_305, String::from("pid:[1]"));
    store.write(&mut elsewhere).unwrap();
    assert!(matches!(LedgerLock::take(store, elsewhere, "quorate apply", now), Err(LedgerError::Locked { .. })));
}
