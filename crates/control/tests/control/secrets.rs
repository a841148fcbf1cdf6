//! Secrets at rest: only the key opens what is stored, and a missing key is never silently created again.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use quorate_control::Home;
use quorate_control::key::KeyError;
use quorate_control::ledger::{LedgerError, LedgerLock, Store};
use quorate_core::Secret;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::kinds::etcd::{JwtKeys, OwnedUser};
use quorate_core::model::{AuthorityRecord, BackupSigning, Ledger};
use quorate_core::spec::generated;
use quorate_pki::{Authority, AuthoritySubject, JwtAlgorithm, KeyAlgorithm, SigningKey};

const PASSWORD: &str = "correct horse battery staple";
const FINGERPRINT: &str = "0123456789abcdef0123456789abcdef";

fn authority() -> AuthorityRecord {
    let subject = AuthoritySubject { common_name: String::from("a CA"), organization: None };
    let day = SignedDuration::from_hours(24);
    let made = Authority::generate(&subject, KeyAlgorithm::P256, day, Timestamp::now()).unwrap();
    AuthorityRecord {
        epoch: 1,
        certificate: made.certificate_pem().to_owned(),
        key: Some(made.key_pem().clone()),
        key_id: String::new(),
        not_after: made.not_after(),
    }
}

fn ledger(name: &str) -> Ledger {
    let spec = generated(name, 3, versions::DEFAULT, ClientAuth::Password).unwrap();
    let mut ledger = Ledger::new(String::from("0123456789abcdef"), spec.clusters[0].clone());
    ledger.etcd.auth.root_password = Some(Secret::new(PASSWORD));
    ledger
        .etcd
        .auth
        .users
        .insert(String::from("app"), OwnedUser { password: Some(FINGERPRINT.into()), ..OwnedUser::default() });
    ledger.authorities.client = Some(authority());
    ledger.authorities.control = Some(authority());
    ledger
}

fn home() -> (tempfile::TempDir, Home) {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::new(directory.path());
    (directory, home)
}

fn versions_of(store: &Store) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(store.directory()).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[track_caller]
fn assert_opens_nothing(store: &Store, ledger: &Ledger) {
    let key = |a: &Option<AuthorityRecord>| a.as_ref().unwrap().key.as_ref().unwrap().expose().to_owned();
    let keys = [key(&ledger.authorities.client), key(&ledger.authorities.control)];
    let lines = keys.iter().map(|pem| pem.lines().nth(1).unwrap());
    let secrets: Vec<&str> = lines.chain([PASSWORD, FINGERPRINT]).collect();
    for file in versions_of(store) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("PRIVATE KEY"), "{}", file.display());
        for secret in &secrets {
            assert!(!text.contains(secret), "{} holds {secret}", file.display());
        }
    }
}

/// As the first format had it: everything as it is, and what only etcd has among the rest.
fn in_clear(store: &Store, ledger: &Ledger) {
    let mut plain = serde_json::to_value(Ledger { format: 1, ..ledger.clone() }).unwrap();
    let fields = plain.as_object_mut().unwrap();
    let Some(serde_json::Value::Object(mut etcd)) = fields.remove("etcd") else { panic!("{fields:?}") };
    etcd.remove("formed_with");
    fields.extend(etcd);
    let authorities = fields["authorities"].as_object_mut().unwrap();
    let authority = authorities.remove("client").unwrap();
    authorities.insert(String::from("etcd"), authority);
    let file = store.directory().join(format!("{:010}.json", ledger.version));
    fs::create_dir_all(store.directory()).unwrap();
    fs::write(file, serde_json::to_vec_pretty(&plain).unwrap()).unwrap();
}

#[test]
fn stored_secrets_open_only_with_the_key() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, home) = home();
    let store = home.store("demo");
    let mut written = ledger("demo");
    store.write(&mut written).unwrap();
    store.write(&mut written).unwrap();
    assert_opens_nothing(&store, &written);
    assert_eq!(Home::new(directory.path()).store("demo").read().unwrap(), Some(written.clone()));
    let key = directory.path().join("key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    // Unchanged secrets are not encrypted again with each version.
    let part = |file: &Path| {
        let stored: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        stored["sealed"].clone()
    };
    let files = versions_of(&store);
    assert_eq!(part(&files[0]), part(&files[1]));
    written.etcd.auth.root_password = Some(Secret::new("another"));
    store.write(&mut written).unwrap();
    assert_ne!(part(&files[1]), part(versions_of(&store).last().unwrap()));
}

#[test]
fn a_ledger_in_clear_is_encrypted_in_place_with_all_its_versions() {
    let (_directory, home) = home();
    let store = home.store("demo");
    let old = Ledger { version: 7, ..ledger("demo") };
    for version in 4..=7 {
        in_clear(&store, &Ledger { version, ..old.clone() });
    }
    assert_eq!(store.read().unwrap().unwrap().etcd.auth, old.etcd.auth);
    let held =
        LedgerLock::take(store.clone(), store.read().unwrap().unwrap(), "quorate apply", Timestamp::now()).unwrap();
    assert_eq!(versions_of(&store).len(), 5, "none is lost");
    assert_opens_nothing(&store, &old);
    assert_eq!(held.ledger().etcd.auth, old.etcd.auth);
    for file in versions_of(&store) {
        assert!(fs::read_to_string(&file).unwrap().contains("AGE ENCRYPTED FILE"), "{}", file.display());
    }
}

#[test]
fn a_missing_key_is_reported_and_not_created_again() {
    let (directory, home) = home();
    home.store("demo").write(&mut ledger("demo")).unwrap();
    let key = directory.path().join("key");
    let (aside, public) = (directory.path().join("aside"), home.keys().ring().unwrap().unwrap().recipient().to_owned());
    fs::rename(&key, &aside).unwrap();

    let home = Home::new(directory.path());
    let error = home.store("demo").read().unwrap_err();
    let LedgerError::Sealed { source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains(&public) && source.to_string().contains("/key does not exist"), "{source}");
    assert!(error.hint().unwrap().contains("QUORATE_KEY"), "{:?}", error.hint());
    // Another cluster would get another key, and nobody would miss the first.
    let refused = home.store("other").write(&mut ledger("other")).unwrap_err();
    let LedgerError::Sealed { source, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(**source, KeyError::Missing { .. }), "{refused:?}");
    assert!(!key.exists());

    let (_elsewhere, stranger) = self::home();
    stranger.store("any").write(&mut ledger("any")).unwrap();
    fs::copy(stranger.root().join("key"), &key).unwrap();
    let error = Home::new(directory.path()).store("demo").read().unwrap_err();
    let LedgerError::Sealed { source, .. } = error else { panic!("{error}") };
    let KeyError::Wrong { to, has, .. } = *source else { panic!("another error") };
    assert_eq!((to, has.len()), (public, 1));
    fs::rename(&aside, &key).unwrap();
    assert!(Home::new(directory.path()).store("demo").read().unwrap().is_some());
}

#[test]
fn a_key_is_exchanged_without_a_moment_at_which_nothing_opens() {
    let (directory, home) = home();
    let now = Timestamp::now();
    for name in ["one", "two"] {
        let mut ledger = ledger(name);
        home.store(name).write(&mut ledger).unwrap();
        home.store(name).write(&mut ledger).unwrap();
    }
    let old = fs::read_to_string(directory.path().join("key")).unwrap();
    let before = home.keys().ring().unwrap().unwrap().recipient().to_owned();
    // Somebody who stays, such as a recorder of changes, has read the old key.
    let staying = Home::new(directory.path());
    assert!(staying.store("one").read().unwrap().is_some());

    let interrupted = home.keys().begin_rotation().unwrap();
    let begun = interrupted.ring().recipients().to_vec();
    assert_eq!((begun.len(), begun[0] == before, interrupted.continues), (2, false, false));
    let other = Home::new(directory.path());
    let refused = other.keys().begin_rotation().unwrap_err();
    assert!(matches!(refused, KeyError::Rotating { .. }), "each would drop the other's new key: {refused}");
    drop(interrupted);
    let rotation = home.keys().begin_rotation().unwrap();
    assert_eq!((rotation.ring().recipients(), rotation.continues), (&begun[..], true), "it is continued");
    assert!(rotation.shared_file(directory.path()).is_none());
    let held =
        LedgerLock::take(home.store("two"), home.store("two").read().unwrap().unwrap(), "quorate apply", now).unwrap();
    assert!(home.store("one").seal_again(now).unwrap());
    held.release(|_| {}).unwrap();
    assert!(home.store("two").seal_again(now).unwrap());
    rotation.end().unwrap();

    for name in ["one", "two"] {
        for home in [&home, &Home::new(directory.path()), &staying] {
            assert!(home.store(name).read().unwrap().is_some(), "{name}");
        }
        for file in versions_of(&home.store(name)) {
            assert!(!fs::read_to_string(&file).unwrap().contains(&before), "{}", file.display());
        }
    }
    let now = fs::read_to_string(directory.path().join("key")).unwrap();
    let secret = old.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).unwrap();
    assert!(!now.contains(secret), "the old key is dropped");
}

/// The public halves of the keys in a home, the one that is encrypted to first.
fn public_keys(home: &Path) -> Vec<String> {
    Home::new(home).keys().ring().unwrap().unwrap().recipients().to_vec()
}

#[test]
fn a_rotation_makes_a_key_whatever_else_the_file_holds_and_drops_none_but_the_one_it_replaces() {
    let (directory, home) = home();
    home.store("demo").write(&mut ledger("demo")).unwrap();
    let path = directory.path().join("key");
    let mut text = fs::read_to_string(&path).unwrap();
    let second = age::x25519::Identity::generate();
    text.push_str("# of an older home\n");
    text.push_str(age::secrecy::ExposeSecret::expose_secret(&second.to_string()));
    text.push_str("\nAGE-PLUGIN-YUBIKEY-1QQQQQQ\n");
    fs::write(&path, &text).unwrap();
    let [stolen, kept] = public_keys(directory.path()).try_into().unwrap();

    for _ in 0..2 {
        let home = Home::new(directory.path());
        let before = public_keys(directory.path());
        let rotation = home.keys().begin_rotation().unwrap();
        assert!(!rotation.continues);
        assert!(home.store("demo").seal_again(Timestamp::now()).unwrap());
        rotation.end().unwrap();
        let after = public_keys(directory.path());
        assert_eq!((after.len(), &after[1]), (2, &kept), "the second key was not replaced");
        assert!(!before.contains(&after[0]) && after[0] != stolen, "another key is in force");
        assert_eq!(home.store("demo").sealed_to().as_ref(), Some(&after[0]));
    }
    let text = fs::read_to_string(&path).unwrap();
    for kept in ["# The key to the secrets", "# of an older home", "AGE-PLUGIN-YUBIKEY-1QQQQQQ"] {
        assert!(text.contains(kept), "{kept} is not there any more");
    }
    assert!(!text.contains(&stolen) && !text.contains("# rotation"), "nothing is left of what was replaced");
}

#[test]
fn a_key_that_does_not_fit_its_certificate_is_found_while_an_intact_version_is_there() {
    let (_directory, home) = home();
    let store = home.store("demo");
    let mut good = ledger("demo");
    store.write(&mut good).unwrap();
    let mut bad = good.clone();
    bad.authorities.client.as_mut().unwrap().key = authority().key;
    store.write(&mut bad).unwrap();
    let error = store.read().unwrap_err();
    let told = error.to_string();
    assert!(told.contains("0000000002.json is damaged") && told.contains("private key of the etcd CA"), "{told}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("0000000001.json next to it can be read"), "{hint}");
    fs::remove_file(store.directory().join("0000000002.json")).unwrap();
    assert!(store.read().unwrap().is_some());
}

#[test]
fn trusted_token_and_backup_keys_cannot_be_changed_without_the_ledgers_key() {
    let (_directory, home) = home();
    let store = home.store("demo");
    let jwt = || {
        let (private, public) = quorate_pki::jwt_keypair(JwtAlgorithm::Es256).unwrap();
        JwtKeys { private, public }
    };
    let signing = || {
        let key = SigningKey::generate();
        BackupSigning { key: key.secret().clone(), public: key.signer(), since: Timestamp::now() }
    };
    let mut good = ledger("demo");
    (good.etcd.auth.jwt, good.backup_signing) = (Some(jwt()), Some(signing()));
    store.write(&mut good).unwrap();
    assert!(store.read().unwrap().is_some());

    let mut bad = good.clone();
    bad.backup_signing.as_mut().unwrap().public = signing().public;
    store.write(&mut bad).unwrap();
    let told = store.read().unwrap_err().to_string();
    assert!(told.contains("the two keys that sign its backups do not belong together"), "{told}");
    fs::remove_file(store.directory().join("0000000002.json")).unwrap();

    let mut bad = good.clone();
    bad.etcd.auth.jwt.as_mut().unwrap().public = jwt().public;
    store.write(&mut bad).unwrap();
    let told = store.read().unwrap_err().to_string();
    assert!(told.contains("the two keys of etcd's tokens do not belong together"), "{told}");
}
