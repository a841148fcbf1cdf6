//! The life of one backup: taken, verified, listed, encrypted to other recipients, exported as a plain snapshot, pruned, restored.

use std::fs;
use std::path::{Path, PathBuf};

use crate::backups::backed::{Backed, OPERATOR, V35, make_identity, object, snapshot_tool};
use crate::common::OLDEST;
use crate::common::store::{SECRET_KEY, object_store};
use crate::common::trio::files_below;

const AGE: &[u8] = b"age-encryption.org/v1";
/// What a restore goes beyond the highest revision ever seen.
const MARGIN: i64 = 1_000_000_000;

#[test]
fn of_the_oldest_etcd() {
    whole_way(&Backed::up("oldest", 1, OLDEST));
}

#[test]
fn of_a_common_etcd() {
    whole_way(&Backed::up("common", 3, V35));
}

#[test]
fn of_the_newest_etcd() {
    whole_way(&Backed::up_by_environment("newest", 1, "3.7.3"));
}

fn whole_way(backed: &Backed) {
    let first = backed.create();
    backed.etcdctl(&["del", "/a/03"]).ok();
    backed.put_numbered(5..=15, "second");
    let (contents, users) = (backed.contents(), backed.users_and_roles());
    let second = backed.create();
    is_encrypted(backed, &second);
    is_listed(backed, &[&first, &second]);

    let told = backed.verify(&[&first]).ok().text();
    assert!(told.contains(&first), "{told}");
    gets_another_reader(backed, &second);
    leaves_as_a_plain_snapshot(backed, &second, contents.len());
    is_pruned(backed, &first, &second);

    // What comes now is lost by the restore.
    backed.put_numbered(1..=20, "third");
    backed.etcdctl(&["user", "delete", "visitor"]).ok();
    backed.etcdctl(&["role", "delete", "by-hand"]).ok();
    let highest = backed.revision();
    backed.restore(&[]).ok();
    assert_eq!(backed.contents(), contents);
    assert_eq!(backed.users_and_roles(), users);
    backed.assert_settled();
    never_goes_back(backed, highest);
    is_cut_off_briefly(backed);
    assert!(no_credential_on_machines(backed));
}

/// Nothing of the data or the ledger is in the store as it is.
#[track_caller]
fn is_encrypted(backed: &Backed, id: &str) {
    let directory = object(&backed.prefix, &format!("full/{id}"));
    assert_eq!(object_store().names(&directory), ["key", "ledger", "manifest.json", "snapshot"]);
    for name in ["key", "ledger", "snapshot"] {
        let bytes = object_store().get(&format!("{directory}/{name}"));
        assert!(bytes.starts_with(AGE), "{name} is not encrypted");
    }
}

#[track_caller]
fn is_listed(backed: &Backed, ids: &[&str]) {
    let listed = backed.list();
    let found: Vec<&str> = listed.iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(found, ids);
    assert!(listed.iter().all(|one| one["verified_at"].is_string()), "{listed:#?}");
    let text = backed.backup("list", &[]).ok().stdout;
    assert!(ids.iter().all(|id| text.contains(id)), "{text}");
    assert!(text.contains("full") && text.contains("VERIFIED"), "{text}");
    let status = backed.sandbox.status("c");
    assert_eq!(status["backup"]["newest"]["id"], ids[ids.len() - 1], "{status:#}");
}

/// The operator's key goes, another comes; the data stays as it is.
fn gets_another_reader(backed: &Backed, id: &str) {
    let data = object(&backed.prefix, &format!("full/{id}/snapshot"));
    let before = object_store().get(&data);
    let successor = make_identity(&backed.sandbox, "successor.key");
    backed.edit(&[&successor], "");
    backed.apply().ok();
    backed.backup("rekey", &["--identity", OPERATOR]).ok();
    assert_eq!(object_store().get(&data), before);
    let told = backed.verify(&[id]).expect(1).stderr;
    assert!(told.contains("none of the given identities decrypts it"), "{told}");
    backed.backup("verify", &[id, "--identity", "successor.key"]).ok();
    // From here on the operator has the new one.
    let path = |name: &str| backed.sandbox.path().join(name);
    fs::rename(path("successor.key"), path(OPERATOR)).expect("its file");
}

/// etcd's own tools take what comes out.
fn leaves_as_a_plain_snapshot(backed: &Backed, id: &str, keys: usize) {
    backed.backup("export", &[id, "plain.db", "--identity", OPERATOR]).ok();
    let file = backed.sandbox.path().join("plain.db").display().to_string();
    let status = snapshot_tool(&backed.version, &["snapshot", "status", &file, "--write-out=json"]).ok().json();
    assert!(status["totalKey"].as_u64().is_some_and(|total| total >= keys as u64), "{status}");
    let data = backed.sandbox.path().join("plain.data").display().to_string();
    snapshot_tool(&backed.version, &["snapshot", "restore", &file, "--data-dir", &data]).ok();
    let told = backed.backup("export", &[id, "plain.db", "--identity", OPERATOR]).fails().stderr;
    assert!(told.contains("plain.db"), "a file that is there is not overwritten: {told}");
}

fn is_pruned(backed: &Backed, goes: &str, stays: &str) {
    let recipient = recipient_of_now(backed);
    backed.edit(&[&recipient], "  keep: {last: 1}\n");
    backed.apply().ok();
    let told = backed.backup("prune", &["--yes"]).ok().text();
    assert!(told.contains(goes), "{told}");
    is_listed(backed, &[stays]);
    assert_eq!(object_store().names(&object(&backed.prefix, &format!("full/{goes}"))), [""; 0]);
}

fn recipient_of_now(backed: &Backed) -> String {
    let spec = fs::read_to_string(backed.sandbox.path().join("c.yaml")).expect("the spec");
    let begins = spec.find("age1").expect("a recipient");
    spec[begins..].chars().take_while(char::is_ascii_alphanumeric).collect()
}

/// The revision is far beyond all that anybody saw, and a watch from where it was must start over.
#[track_caller]
fn never_goes_back(backed: &Backed, highest: i64) {
    assert!(backed.revision() >= highest + MARGIN, "{} after {highest}", backed.revision());
    let revision = format!("--rev={highest}");
    let told = backed.etcdctl(&["get", "/a/", "--prefix", &revision]).fails().stderr;
    assert!(told.contains("compacted"), "{told}");
}

/// Nobody waits for a leader that looks for a successor: its data is given up.
#[track_caller]
fn is_cut_off_briefly(backed: &Backed) {
    let history = backed.quorate(&["history", "c", "--output", "json"]).ok().json();
    let steps = history["steps"].as_array().expect("steps").clone();
    let stops: Vec<_> = steps.iter().filter(|one| one["verb"] == "restore" && one["kind"] == "stop-etcd").collect();
    assert!(!stops.is_empty(), "{history:#}");
    let time = |step: &serde_json::Value, field: &str| -> jiff::Timestamp {
        step[field].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{step:#}"))
    };
    for stop in stops {
        let took = time(stop, "ended").duration_since(time(stop, "at"));
        assert!(took.as_secs_f64() < 4.0, "{took:#} for {stop:#}");
    }
}

/// Neither in a file nor in the environment of a process. etcd's own log is long, and was never told.
fn no_credential_on_machines(backed: &Backed) -> bool {
    let holds = |path: &Path| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(SECRET_KEY.len()).any(|part| part == SECRET_KEY.as_bytes())
    };
    let short = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.is_file() && about.len() < 1 << 20);
    let files = files_below(&backed.sandbox.home().join("machines")).into_iter().filter(short);
    let processes = backed.pids().into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}/environ")));
    !files.chain(processes).any(|path| holds(&path))
}
