//! What quorate refuses, with the real program: each refusal names the place, what was expected and found, and a
//! remedy; and changes nothing.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm};

use crate::common::{OLDEST, Run, Sandbox, address, eventually, lab, newest, signal, spec};

const ONE: &str = "    members: [{name: etcd-1}]\n";

/// A spec that begins with its first three lines, so that `rest` begins in line 4.
fn after_name(rest: &str) -> String {
    format!("quorate: 1\nclusters:\n  - name: c\n{rest}")
}

/// Every verb that reads the spec refuses it with all of these words, and makes nothing.
#[track_caller]
fn refused(sandbox: &Sandbox, text: &str, words: &[&str]) {
    sandbox.file("c.yaml", text);
    for arguments in [&["validate", "c.yaml"][..], &["plan", "c.yaml"], &["apply", "c.yaml", "--yes"]] {
        let told = sandbox.quorate(arguments).expect(1).text();
        for word in words {
            assert!(told.contains(word), "{word:?} is not in what {arguments:?} says:\n{told}");
        }
    }
    assert!(!sandbox.home().exists(), "nothing was made");
}

/// The spec is fine, and the operator is told all of these words all the same.
#[track_caller]
fn warned(sandbox: &Sandbox, text: &str, words: &[&str]) {
    sandbox.file("c.yaml", text);
    for arguments in [&["validate", "c.yaml"], &["plan", "c.yaml"]] {
        let told = sandbox.quorate(arguments).ok().text();
        for word in words {
            assert!(told.contains(word), "{word:?} is not in what {arguments:?} says:\n{told}");
        }
    }
}

#[test]
fn names_and_types() {
    let sandbox = Sandbox::new(OLDEST);
    let refused = |rest: &str, words: &[&str]| refused(&sandbox, &after_name(rest), words);
    refused(
        &format!("{ONE}    etcd: {{verzion: 3.6.14}}\n"),
        &["c.yaml:5:12: error: unknown field `verzion`", "did you mean `version`?"],
    );
    refused(&format!("{ONE}    etcd: {{version: [3]}}\n"), &["c.yaml:5:12: error: expected text, found a list"]);
    refused(&format!("{ONE}    etcd: {{quota: lots}}\n"), &["c.yaml:5:19: error", "lots"]);
    refused(
        "    members: [{name: a}, {name: b}, {name: a}]\n",
        &["c.yaml:4:44: error: the member name `a` is given twice; the first is in line 4", "rename one"],
    );
    refused(
        &format!("{ONE}  - name: c\n{ONE}"),
        &["c.yaml:5:11: error: the cluster name `c` is given twice", "line 3"],
    );
    refused("    members: [{name: Etcd_1}]\n", &["c.yaml:4:22: error: the name `Etcd_1` must be lower case"]);
    refused("    members: []\n", &["c.yaml:4:5: error: the cluster `c` has no members", "list at least one"]);
    refused(
        "    members: [{name: a, address: 127.9.9.9}, {name: b}, {name: d, address: 127.9.9.9}]\n",
        &["c.yaml:4:76: error: address 127.9.9.9 is already used by `a`", "a different address"],
    );
    refused("    members: [{name: a, address: 10.0.0.1}]\n", &["c.yaml:4:34: error", "127.0.0.0/8 only, not 10.0.0.1"]);
    refused("", &["c.yaml:3:5: error", "`members`"]);
}

#[test]
fn every_problem_is_reported_at_once() {
    let sandbox = Sandbox::new(OLDEST);
    let text = after_name("    members: 3\n    etcd: {verzion: 3.6.14}\n");
    refused(&sandbox, &text, &["c.yaml:4:14: error: expected a list", "c.yaml:5:12: error"]);
    let text =
        after_name("    members: []\n    etcd: {version: 3.5.1, heartbeat: 1s}\n    auth: {users: [{name: root}]}\n");
    refused(
        &sandbox,
        &text,
        &["c.yaml:4:5: error", "c.yaml:5:21: error", "c.yaml:5:5: error: an election", "c.yaml:6:27: error"],
    );
    let text = after_name(&format!("{ONE}    tls: {{ca: {{certificate: no.crt, key: no.key}}}}\n"));
    refused(
        &sandbox,
        &text,
        &["c.yaml:5:29: error", "no.crt cannot be read", "c.yaml:5:42: error", "no.key cannot be read"],
    );
}

#[test]
fn settings_of_etcd() {
    let sandbox = Sandbox::new(OLDEST);
    let refused =
        |etcd: &str, words: &[&str]| refused(&sandbox, &after_name(&format!("{ONE}    etcd: {{{etcd}}}\n")), words);
    refused(
        "grpc_gateway: true",
        &["c.yaml:5:26: error: the gateway refuses client certificates with a common name", "`client_auth: password`"],
    );
    refused(
        "flags: {max-tnx-ops: 256}",
        &["c.yaml:5:20: error: no known etcd has a flag `max-tnx-ops`", "`max-txn-ops`"],
    );
    refused(
        "version: 3.7.3, flags: {debug: true}",
        &["c.yaml:5:36: error: etcd 3.7.3 has no flag", "these have it: 3.4"],
    );
    refused("flags: {name: me}", &["c.yaml:5:20: error: the flag `name` cannot be set in the spec"]);
    refused("version: 3.5.1", &["c.yaml:5:21: error: etcd 3.5.1 can corrupt its data", "the default is 3.6.14"]);
    refused("version: 3.3.27", &["c.yaml:5:21: error"]);
    refused("heartbeat: 500ms, election: 1s", &["c.yaml:5:", "error", "election"]);
}

#[test]
fn risky_settings_cause_warnings_only() {
    let sandbox = Sandbox::new(OLDEST);
    let warned = |rest: &str, words: &[&str]| warned(&sandbox, &after_name(rest), words);
    warned(
        "    members: [{name: a}, {name: b}, {name: d}, {name: e}]\n",
        &["c.yaml:4:5: warning: 4 members tolerate 1 failure, like 3 members", "use 3 members"],
    );
    warned(
        &format!("{ONE}    etcd: {{quota: 4000GiB}}\n"),
        &["c.yaml:5:19: warning: the quota 4000GiB is more than the memory of this machine", "lower the quota"],
    );
    warned(
        &format!("{ONE}    etcd: {{version: 3.4.23}}\n    auth: {{users: [{{name: app}}]}}\n"),
        &["c.yaml:6:12: warning: in etcd 3.4.23, permissions can be bypassed", "use etcd 3.5.33 or later"],
    );
}

#[test]
fn formats_of_a_newer_quorate() {
    let sandbox = Sandbox::new(OLDEST);
    let text = after_name(ONE).replace("quorate: 1", "quorate: 2");
    refused(
        &sandbox,
        &text,
        &["c.yaml:1:10: error", "reads version 1 of the spec, and this file has version 2", "use a newer quorate"],
    );

    let ledger = sandbox.home().join("clusters/c/ledger");
    fs::create_dir_all(&ledger).unwrap();
    sandbox.file("c.yaml", &spec(1, OLDEST, "", ""));
    for (content, words) in [
        (r#"{"format": 99, "of": "the future"}"#, ["has format 99", "use a newer quorate (this one is "]),
        (r#"{"format": 99, "written_by": "9.9.9"}"#, ["has format 99", "the ledger was written by 9.9.9)"]),
        ("what is this", ["0000000007.json is not a ledger", "because: expected value at line 1 column 1"]),
        (r#"{"format": 1}"#, ["0000000007.json is not a ledger", "missing field"]),
    ] {
        fs::write(ledger.join("0000000007.json"), content).unwrap();
        for arguments in [&["apply", "c.yaml", "--yes"][..], &["up", "c"], &["status", "c"], &["plan", "c.yaml"]] {
            let told = sandbox.quorate(arguments).expect(1).stderr;
            assert!(words.iter().all(|word| told.contains(word)), "{arguments:?} says {told}");
            assert!(!told.contains("--accept-older-ledger"), "{arguments:?} says {told}");
        }
        assert_eq!(fs::read_to_string(ledger.join("0000000007.json")).unwrap(), content, "left as it was");
        assert_eq!(fs::read_dir(&ledger).unwrap().count(), 1);
        assert!(!sandbox.has_machines());
    }
}

#[test]
fn authorities_that_cannot_sign() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.make_ca("ca", "ec");
    sandbox.make_ca("other", "ec");
    sandbox.make_certificate("leaf", "leaf", "ca", "basicConstraints=CA:FALSE\n");
    let long_ago = Timestamp::now() - SignedDuration::from_hours(48);
    let subject = AuthoritySubject { common_name: "expired".into(), organization: None };
    let expired = Authority::generate(&subject, KeyAlgorithm::P256, SignedDuration::from_hours(1), long_ago).unwrap();
    sandbox.file("expired.crt", expired.certificate_pem());
    sandbox.file("expired.key", expired.key_pem().expose());
    let refused = |certificate: &str, key: &str, words: &[&str]| {
        let tls = format!("{ONE}    tls:\n      ca: {{certificate: {certificate}, key: {key}}}\n");
        let mut words = words.to_vec();
        words.push("this CA cannot be used");
        refused(&sandbox, &after_name(&tls), &words);
    };
    refused("expired.crt", "expired.key", &["c.yaml:6:7: error", "the certificate of CN=expired expired at"]);
    refused("leaf.crt", "leaf.key", &["c.yaml:6:7: error", "CN=leaf is not that of a CA", "do not say CA:TRUE"]);
    refused(
        "ca.crt",
        "other.key",
        &["c.yaml:6:7: error", "the private key does not belong to the certificate of CN=ca"],
    );
    refused("ca.key", "ca.key", &["c.yaml:6:7: error", "there is no PEM block of type CERTIFICATE in it"]);
}

#[test]
fn user_provided_leaves_with_missing_names() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.make_ca("ca", "ec");
    sandbox.make_ca("other", "ec");
    const BOTH: &str = "extendedKeyUsage=serverAuth,clientAuth\n";
    let (here, elsewhere) = (address(1), address(2));
    let addresses = format!("subjectAltName=IP:{here},IP:127.0.0.1\n");
    sandbox.make_certificate("root", "root", "ca", "extendedKeyUsage=clientAuth\n");
    sandbox.make_certificate("nobody", "nobody", "ca", "extendedKeyUsage=clientAuth\n");
    sandbox.make_certificate("good", "etcd-1", "ca", &format!("{addresses}{BOTH}"));
    sandbox.make_certificate(
        "elsewhere",
        "etcd-1",
        "ca",
        &format!("subjectAltName=IP:{elsewhere},IP:127.0.0.1\n{BOTH}"),
    );
    sandbox.make_certificate("server", "etcd-1", "ca", &format!("{addresses}extendedKeyUsage=serverAuth\n"));
    sandbox.make_certificate("foreign", "etcd-1", "other", &format!("{addresses}{BOTH}"));
    let given = |leaf: &str, key: &str, root: &str| {
        after_name(&format!(
            "    members: [{{name: etcd-1, address: {here}}}]
    tls:
      given:
        ca: ca.crt
        members:
          etcd-1: {{certificate: {leaf}.crt, key: {key}.key}}
        {root}
"
        ))
    };
    let root = "root: {certificate: root.crt, key: root.key}";
    let refused = |text: String, words: &[&str]| refused(&sandbox, &text, words);
    let place = "c.yaml:9:11: error: this certificate cannot be used: ";
    refused(
        given("elsewhere", "elsewhere", root),
        &[place, &format!("lacks the address {here} among its subjectAltNames")],
    );
    refused(given("server", "server", root), &[place, "the extendedKeyUsage of", "lacks clientAuth"]);
    refused(given("foreign", "foreign", root), &[place, "issued by CN=other, does not lead to the CA"]);
    refused(given("good", "server", root), &[place, "the private key does not belong to the certificate"]);
    refused(
        given("good", "good", ""),
        &["c.yaml:6:7: error: the agents need a client certificate of the user root", "`client_auth: password`"],
    );
    let nobody = "root: {certificate: nobody.crt, key: nobody.key}";
    refused(given("good", "good", nobody), &["c.yaml:10:9: error", "nobody", "expected \"root\""]);
    refused(
        given("good", "good", root).replace(&format!(", address: {here}"), ""),
        &["c.yaml:4:", "error: the address of etcd-1 must be pinned"],
    );
}

#[test]
fn an_address_in_use() {
    let sandbox = Sandbox::new(OLDEST);
    let taken = address(3);
    let text = spec(1, OLDEST, "", "").replace("{name: etcd-1}", &format!("{{name: etcd-1, address: {taken}}}"));
    sandbox.file("c.yaml", &text);
    for port in [2379, 2380] {
        let listener = TcpListener::bind((taken.as_str(), port)).expect("the test's own address");
        let told = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(1).stderr;
        let who = format!("{taken}:{port} is already taken by");
        let me = format!("(process {})", std::process::id());
        assert!(told.contains(&who) && told.contains(&me), "{told}");
        assert_eq!(told.matches("… failed: ").count(), 1, "each attempt failed for the same reason: {told}");
        assert!(told.contains("hint: free it, or give the member another `address` in the spec"), "{told}");
        assert!(!sandbox.has_machines());
        drop(listener);
    }
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    // A second cluster cannot have the address of the first, even while that is switched off.
    sandbox.quorate(&["down", "c"]).ok();
    sandbox.file("d.yaml", &text.replace("name: c\n", "name: d\n"));
    let told = sandbox.quorate(&["apply", "d.yaml", "--yes"]).fails().text();
    assert!(told.contains(&taken) && told.contains("etcd-1") && told.contains("cluster c"), "{told}");
    assert!(!sandbox.home().join("machines/d").exists());
    sandbox.quorate(&["start", "c"]).ok();
}

#[test]
fn machines_and_data_of_another_cluster() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.quorate(&["up", "c", "--members", "1"]).ok();
    sandbox.etcdctl(&version, "c", &["put", "kept", "yes"]).ok();
    let environment = sandbox.environment("c");
    let before = sandbox.processes();

    // The ledger is lost: the machine belongs to a cluster that nobody here knows.
    let ledger = sandbox.home().join("clusters/c/ledger");
    let saved = sandbox.path().join("saved");
    fs::rename(&ledger, &saved).unwrap();
    let told = sandbox.quorate(&["up", "c", "--members", "1"]).expect(3).text();
    for word in ["the machine of etcd-1 exists already and belongs to another cluster", "`quorate ledger import`"] {
        assert!(told.contains(word), "{told}");
    }
    assert_eq!(sandbox.processes(), before);
    let kept = sandbox.etcdctl_with(&version, &environment, &["get", "kept", "--print-value-only"]).ok();
    assert_eq!(kept.stdout.trim(), "yes");
    fs::remove_dir_all(&ledger).unwrap();
    fs::rename(&saved, &ledger).unwrap();
    sandbox.quorate(&["plan", "c", "--detailed-exitcode"]).ok();

    // The data directory is that of another cluster.
    sandbox.quorate(&["up", "d", "--members", "1"]).ok();
    for name in ["c", "d"] {
        sandbox.quorate(&["down", name]).ok();
    }
    let data = |cluster: &str| sandbox.home().join("machines").join(cluster).join("etcd-1/root/var/lib");
    for part in ["etcd", "etcd.stamp"] {
        fs::rename(data("c").join(part), data("c").join(format!("{part}.own"))).unwrap();
        copy(&data("d").join(part), &data("c").join(part));
    }
    let told = sandbox.quorate(&["start", "c"]).expect(3).text();
    assert!(told.contains("is not empty and not of this cluster"), "{told}");
    assert!(sandbox.etcds().is_empty(), "etcd is not started on it");
    assert!(data("c").join("etcd/member").is_dir(), "and it is not removed");
}

fn copy(from: &Path, to: &Path) {
    let run: Run = Command::new("cp").arg("-r").arg(from).arg(to).output().expect("cp").into();
    run.ok();
}

#[test]
fn a_directory_that_nobody_marked() {
    let sandbox = Sandbox::new(OLDEST);
    let precious = sandbox.home().join("machines/c/etcd-1/precious");
    fs::create_dir_all(precious.parent().unwrap()).unwrap();
    fs::write(&precious, "mine").unwrap();
    let told = sandbox.quorate(&["up", "c", "--members", "1"]).fails().text();
    assert!(told.contains("machines/c/etcd-1 belongs to"), "{told}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    assert_eq!(sandbox.processes(), []);
}

#[test]
fn a_ledger_that_a_living_controller_holds() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.file("c.yaml", &spec(3, OLDEST, "", ""));
    let first = sandbox.spawn(&["apply", "c.yaml", "--yes"]);
    eventually("a machine", 10, || sandbox.has_machines());
    signal(first.id(), "STOP");
    let holder = sandbox.ledger("c")["lock"].clone();
    assert_eq!(holder["pid"], first.id(), "it was stopped in the middle: {holder}");
    let since = holder["since"].as_str().unwrap()[..19].replace('T', " ");
    for arguments in [&["apply", "c.yaml", "--yes"][..], &["down", "c"], &["destroy", "c", "--yes", "--without-backup"]]
    {
        let told = sandbox.quorate(arguments).expect(7).stderr;
        for word in [
            "another controller holds the lock: quorate apply, by ",
            &format!("process {}", first.id()),
            &format!("since {since} UTC"),
            "hint:",
        ] {
            assert!(told.contains(word), "{word} is not in {told}");
        }
    }
    // Looking needs no lock.
    sandbox.quorate(&["plan", "c.yaml"]).ok();
    sandbox.quorate(&["status", "c"]).expect(6);
    signal(first.id(), "CONT");
    Run::from(first.wait_with_output().unwrap()).ok();
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
}

#[test]
fn an_etcd_that_is_absent_or_of_another_version() {
    let sandbox = Sandbox::new(OLDEST);
    let apply = || sandbox.quorate(&["apply", "c.yaml", "--yes"]);
    let missing = sandbox.path().join("nothing");
    let binary = |path: &Path| format!("binary: {{path: {}}}", path.display());
    sandbox.file("c.yaml", &spec(1, OLDEST, &binary(&missing), ""));
    let told = apply().expect(3).text();
    assert!(told.contains(&format!("etcd-1 needs etcd {OLDEST}, but finds none")), "{told}");
    assert!(told.contains(&missing.display().to_string()) && told.contains("`etcd.binary`"), "{told}");
    assert!(sandbox.etcds().is_empty());

    sandbox.file("c.yaml", &spec(1, OLDEST, &binary(&lab("3.5.30")), ""));
    let told = apply().expect(3).text();
    assert!(told.contains("3.5.30") && told.contains("set `etcd.version` to a release that is there"), "{told}");
    assert!(sandbox.etcds().is_empty());

    // Once that is corrected, it continues from there.
    sandbox.file("c.yaml", &spec(1, OLDEST, &binary(&lab(OLDEST)), ""));
    apply().ok();
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
}

#[test]
fn no_etcd_on_the_path_and_none_to_fetch() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.file("c.yaml", &spec(1, "3.6.14", "", ""));
    let mut apply = sandbox.command(&["apply", "c.yaml", "--yes"]);
    // A proxy where nobody listens: whatever is fetched fails at once, and nothing leaves this machine.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for variable in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        apply.env(variable, format!("http://{nobody}"));
    }
    let run: Run = apply.env("PATH", "/usr/bin:/bin").env("NO_PROXY", "").env("no_proxy", "").output().unwrap().into();
    let told = run.expect(3).text();
    assert!(told.contains("etcd-1 needs etcd 3.6.14, but finds none"), "{told}");
    assert!(told.contains("etcd-v3.6.14-linux-"), "it says what it tried to fetch: {told}");
    assert!(sandbox.etcds().is_empty());
}

#[test]
fn changes_that_etcd_has_no_way_for() {
    let sandbox = Sandbox::new("3.5.30");
    sandbox.file("c.yaml", &spec(3, "3.5.30", "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let before = sandbox.processes();
    sandbox.file("c.yaml", &spec(3, OLDEST, "", ""));
    let told = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(3).text();
    assert!(told.contains("the cluster runs etcd 3.5.30, and the spec asks for 3.4.23"), "{told}");
    assert_eq!(sandbox.processes(), before);
    let told = sandbox.quorate(&["up", "c", "--members", "5"]).expect(1).stderr;
    assert!(told.contains("exists with --members 3, and 5 was requested"), "{told}");
    sandbox.file("c.yaml", &spec(3, "3.5.30", "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert_eq!(sandbox.processes(), before);
}

#[test]
fn applying_and_destroying_without_anyone_to_ask() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.file("c.yaml", &spec(1, OLDEST, "", ""));
    let told = sandbox.quorate(&["apply", "c.yaml"]).expect(1).stderr;
    assert!(told.contains("no terminal to ask") && told.contains("--yes"), "{told}");
    assert!(!sandbox.home().exists());
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let told = sandbox.quorate(&["destroy", "c", "--without-backup"]).expect(1).stderr;
    assert!(told.contains("--yes"), "{told}");
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
}

/// Puts the newest version of the ledger back that knew of no formation, as a restored backup of the home would.
fn put_an_older_ledger_back(sandbox: &Sandbox) {
    let mut files: Vec<_> =
        fs::read_dir(sandbox.home().join("clusters/c/ledger")).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let unformed = |path: &Path| fs::read_to_string(path).unwrap().contains(r#""formation": "unformed""#);
    let older = files.iter().rposition(|f| unformed(f)).expect("a version from before the formation");
    files[older + 1..].iter().for_each(|f| fs::remove_file(f).unwrap());
}

#[test]
fn an_older_ledger_wipes_and_destroys_nothing() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    sandbox.etcdctl(&version, "c", &["put", "precious", "data"]).ok();
    sandbox.quorate(&["down", "c"]).ok();
    put_an_older_ledger_back(&sandbox);

    let destroyed = sandbox.quorate(&["destroy", "c", "--yes"]).expect(3);
    assert!(destroyed.text().contains("no verified backup"), "{}", destroyed.text());
    put_an_older_ledger_back(&sandbox);
    let applied = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(3);
    assert!(applied.text().contains("ledger is older than the cluster"), "{}", applied.text());
    let kept = sandbox.etcdctl(&version, "c", &["get", "precious"]).ok();
    assert!(kept.stdout.contains("data"), "{}", kept.stdout);
}

/// As restoring the operator's machine does: the ledger is as it was one run ago, and the cluster is not.
#[test]
fn a_ledger_that_is_one_run_older_is_refused_however_often_it_is_tried() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let (ledger, aside) = (sandbox.home().join("clusters/c/ledger"), sandbox.path().join("aside"));
    copy_files(&ledger, &aside);
    let fence = sandbox.ledger("c")["fence"].as_u64().unwrap();
    sandbox.file("c.yaml", &spec(1, &version, "quota: 1GiB", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes", "--allow-downtime"]).ok();
    let before = sandbox.processes();
    fs::remove_dir_all(&ledger).unwrap();
    copy_files(&aside, &ledger);

    let words = format!(
        "the agent of etcd-1 remembers fencing number {}, and the ledger only {fence}: this ledger is older than the cluster",
        fence + 1
    );
    let pending = sandbox.status("c")["pending"]["blocked"].to_string();
    assert!(pending.contains(&words), "{pending}");
    let changes: [&[&str]; 5] = [
        &["plan", "c.yaml"],
        &["apply", "c.yaml", "--yes", "--allow-downtime"],
        &["apply", "c.yaml", "--yes", "--allow-downtime"],
        &["replace", "c", "etcd-1", "--yes"],
        &["apply", "c", "--yes", "--now"],
    ];
    for arguments in changes {
        let told = sandbox.quorate(arguments).expect(3).text();
        assert!(told.contains(&words) && told.contains("--accept-older-ledger"), "{arguments:?}: {told}");
        let now = sandbox.ledger("c");
        assert_eq!((&now["fence"], &now["lock"]), (&fence.into(), &serde_json::Value::Null), "{arguments:?}");
        assert_eq!(now["members"]["etcd-1"]["incarnation"], 1, "{arguments:?}");
    }
    assert_eq!(sandbox.processes(), before, "nothing was done");

    let accepted = ["apply", "c.yaml", "--yes", "--allow-downtime", "--accept-older-ledger"];
    sandbox.quorate(&accepted).ok();
    assert_eq!(sandbox.ledger("c")["fence"], fence + 2);
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
