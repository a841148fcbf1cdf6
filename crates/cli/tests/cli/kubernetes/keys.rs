//! New keys: what the old certificate can still do, and how it is revoked.

use std::fs;

use serde_json::Value;

use super::{AUTH, PERIODIC, apply, changed, etcdctl, out};
use crate::common::{Run, Sandbox, newest, spec};

const PAIR: &str = "apiserver-etcd-client";
/// Another user with the same rights, who takes the place of the first.
const SECOND: &str = "    - {name: kubernetes-2, roles: [kubernetes]}\n";

fn note(written: &Value) -> String {
    let notes = written["notes"].as_array().expect("notes").iter().filter_map(Value::as_str);
    notes.filter(|note| note.contains("previous certificate")).collect::<Vec<_>>().join("\n")
}

/// Reads with the files that were there before.
fn as_thief(sandbox: &Sandbox) -> Run {
    etcdctl(sandbox, &newest(), "c", "stolen", &["get", "/registry/a"])
}

#[test]
fn new_keys_and_what_the_old_ones_can_still_do() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let short = "tls: {leaf_validity: 2h, renew_before: 1h}\n";
    apply(&sandbox, &spec(1, &version, PERIODIC, &format!("{short}{AUTH}")));
    let pki = |name: &str| sandbox.path().join("out/pki").join(name);
    let read = |name: &str| fs::read_to_string(pki(name)).expect("a file");
    let first = out(&sandbox, &[]);
    assert_eq!(note(&first), "");
    let before = (read(&format!("{PAIR}.key")), read(&format!("{PAIR}.crt")));
    for kind in ["crt", "key"] {
        fs::copy(pki(&format!("{PAIR}.{kind}")), pki(&format!("stolen.{kind}"))).expect("a copy");
    }

    let written = out(&sandbox, &["--new-keys"]);
    assert!(read(&format!("{PAIR}.key")) != before.0 && read(&format!("{PAIR}.crt")) != before.1);
    assert!(changed(&written).contains(&"pki/apiserver-etcd-client.key"), "{written:#}");
    etcdctl(&sandbox, &version, "c", PAIR, &["put", "/registry/a", "b"]).ok();
    // It stays good, so control planes that have no new one yet work on. The note says so, and for how long.
    as_thief(&sandbox).ok();
    let (told, until) = (note(&written), first["certificates"][0]["not_after"].as_str().expect("a time"));
    let until = format!("{} UTC", until[..16].replace('T', " "));
    assert!(told.contains(&format!("of user kubernetes, has another key and is valid until {until}")), "{told}");
    assert_eq!(note(&out(&sandbox, &[])), "", "said once");

    // What the note advises: another user takes its place, and the certificates of the first are refused.
    let both = AUTH.replace("    - {name: kubernetes-health}", &format!("{SECOND}    - {{name: kubernetes-health}}"));
    apply(&sandbox, &spec(1, &version, PERIODIC, &format!("{short}{both}")));
    let told = note(&out(&sandbox, &["--user", "kubernetes-2"]));
    assert!(told.contains("remove kubernetes from the spec: `quorate apply` then revokes it"), "{told}");
    as_thief(&sandbox).ok();
    let alone = both.replace("    - {name: kubernetes, roles: [kubernetes]}\n", "");
    apply(&sandbox, &spec(1, &version, PERIODIC, &format!("{short}{alone}")));
    as_thief(&sandbox).fails();
    etcdctl(&sandbox, &version, "c", PAIR, &["put", "/registry/a", "c"]).ok();
    assert!(changed(&out(&sandbox, &["--user", "kubernetes-2"])).is_empty());
}
