//! Certificates on real clusters: signed by a user-provided CA, user-provided themselves, renewed and replaced while etcd runs.

use std::fs;
use std::process::Command;

use jiff::{SignedDuration, Timestamp};

use crate::common::{OLDEST, Run, Sandbox, address, newest, spec};

fn apply(sandbox: &Sandbox, text: &str) -> Run {
    sandbox.file("c.yaml", text);
    sandbox.quorate(&["apply", "c.yaml", "--yes"])
}

/// What etcd shows at this address, as `openssl s_client` prints it, with every certificate of the chain.
fn served(sandbox: &Sandbox, address: &str, arguments: &[&str]) -> String {
    let target = format!("{address}:2379");
    let mut client = Command::new("openssl");
    client.args(["s_client", "-showcerts", "-connect", &target]).args(arguments).current_dir(sandbox.path());
    Run::from(client.stdin(std::process::Stdio::null()).output().expect("openssl")).text()
}

fn addresses(sandbox: &Sandbox) -> Vec<String> {
    let status = sandbox.status("c");
    let members = status["members"].as_array().expect("members").iter();
    members.map(|m| m["address"].as_str().expect("an address").to_owned()).collect()
}

/// The first certificate that each member shows.
fn leaves(sandbox: &Sandbox) -> Vec<String> {
    let leaf = |text: String| {
        let from = text.find("-----BEGIN CERTIFICATE").expect("a certificate");
        let to = text.find("-----END CERTIFICATE").expect("a whole one");
        text[from..to].to_owned()
    };
    addresses(sandbox).iter().map(|address| leaf(served(sandbox, address, &[]))).collect()
}

#[track_caller]
fn nothing_to_do(sandbox: &Sandbox) {
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
}

#[test]
fn a_given_ca_signs() {
    for (version, key) in [(OLDEST, "rsa:2048"), (newest().as_str(), "ec")] {
        let sandbox = Sandbox::new(version);
        sandbox.make_ca("corp", key);
        let text = spec(3, version, "", "tls: {ca: {certificate: corp.crt, key: corp.key}}");
        apply(&sandbox, &text).ok();
        for address in addresses(&sandbox) {
            let shown = served(&sandbox, &address, &["-CAfile", "corp.crt", "-verify_ip", &address]);
            assert!(shown.contains("Verify return code: 0 (ok)"), "{shown}");
            assert!(shown.contains("i:CN = corp"), "{shown}");
        }
        for client in [OLDEST, &newest()] {
            sandbox.etcdctl(client, "c", &["put", "foo", "bar"]).ok();
        }
        // Leaves end with their CA, long before the year they could have; that is no reason to renew them for ever.
        let days = sandbox.status("c")["members"][0]["certificate_days_left"].as_i64().unwrap();
        assert!((28..=30).contains(&days), "{days}");
        nothing_to_do(&sandbox);
        // The CA of a running cluster is not changed unawares.
        sandbox.make_ca("corp", key);
        let told = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(3).text();
        assert!(told.contains("another CA"), "{told}");
        sandbox.etcdctl(&newest(), "c", &["get", "foo"]).ok();
    }
}

/// A leaf for a member through an intermediate, in `NAME.chain`.
fn make_member(sandbox: &Sandbox, member: u8) {
    let name = format!("etcd-{member}");
    let address = address(member);
    let extensions = format!("subjectAltName=IP:{address},IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n");
    sandbox.make_certificate(&name, &name, "between", &extensions);
    chain(sandbox, &name);
}

fn chain(sandbox: &Sandbox, name: &str) {
    let read = |name: &str| fs::read_to_string(sandbox.path().join(format!("{name}.crt"))).unwrap();
    sandbox.file(&format!("{name}.chain"), &format!("{}{}", read(name), read("between")));
}

#[test]
fn certificates_made_elsewhere() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.make_ca("corp", "ec");
    sandbox.make_certificate("between", "between", "corp", "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n");
    fs::remove_file(sandbox.path().join("corp.key")).unwrap();
    for member in 1..=3 {
        make_member(&sandbox, member);
    }
    sandbox.make_certificate("root", "root", "between", "extendedKeyUsage=clientAuth\n");
    chain(&sandbox, "root");
    let mut text = spec(
        3,
        &version,
        "",
        "\
tls:
  given:
    ca: corp.crt
    members:
      etcd-1: {certificate: etcd-1.chain, key: etcd-1.key}
      etcd-2: {certificate: etcd-2.chain, key: etcd-2.key}
      etcd-3: {certificate: etcd-3.chain, key: etcd-3.key}
    root: {certificate: root.chain, key: root.key}
",
    );
    for number in 1..=3 {
        let member = format!("{{name: etcd-{number}");
        text = text.replace(&member, &format!("{member}, address: {}", address(number)));
    }
    let told = apply(&sandbox, &text).ok().stdout;
    assert!(told.contains("the first certificate expires in 19 days: provide new ones"), "{told}");
    for address in addresses(&sandbox) {
        let shown = served(&sandbox, &address, &["-CAfile", "corp.crt", "-verify_ip", &address]);
        assert!(shown.contains("Verify return code: 0 (ok)") && shown.contains("i:CN = between"), "{shown}");
    }
    for client in [OLDEST, &version] {
        sandbox.etcdctl(client, "c", &["put", "foo", "bar"]).ok();
        let health = sandbox.etcdctl(client, "c", &["endpoint", "health"]).ok().text();
        assert_eq!(health.matches("is healthy").count(), 3, "{health}");
    }
    nothing_to_do(&sandbox);
    let told = sandbox.quorate(&["cert", "issue", "c", "--user", "root"]).expect(1).stderr;
    assert!(told.contains("its CA's key is not here"), "{told}");

    // A new leaf is put in place while etcd runs on.
    let (pids, before) = (sandbox.etcds(), leaves(&sandbox));
    make_member(&sandbox, 2);
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).expect(4);
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let after = leaves(&sandbox);
    assert_eq!([after[0] == before[0], after[1] == before[1], after[2] == before[2]], [true, false, true]);
    assert_eq!(sandbox.etcds(), pids);
    sandbox.etcdctl(&version, "c", &["put", "foo", "again"]).ok();
    nothing_to_do(&sandbox);
}

#[test]
fn leaves_are_renewed_while_etcd_runs_on() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let told = apply(&sandbox, &spec(3, &version, "", "tls: {leaf_validity: 2h, renew_before: 1h}")).ok().stdout;
    let renew_by: Timestamp = sandbox.status("c")["renew_by"].as_str().unwrap().parse().unwrap();
    let in_an_hour = Timestamp::now() + SignedDuration::from_hours(1);
    assert!(renew_by.duration_since(in_an_hour).abs() < SignedDuration::from_mins(10), "{renew_by}");
    assert!(told.contains("`quorate apply c` by"), "{told}");
    assert!(told.contains(&renew_by.strftime("%Y-%m-%d").to_string()), "{told}");
    nothing_to_do(&sandbox);

    let (pids, before) = (sandbox.processes(), leaves(&sandbox));
    // Two hours are left, and the window begins three hours before the end now.
    sandbox.file("c.yaml", &spec(3, &version, "", "tls: {leaf_validity: 4h, renew_before: 3h}"));
    let plan = sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).expect(4).stdout;
    assert!(plan.contains("left, and is renewed") && !plan.contains("restart"), "{plan}");
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let after = leaves(&sandbox);
    for (old, new) in before.iter().zip(&after) {
        assert_ne!(old, new, "every member shows a new certificate");
    }
    assert_eq!(sandbox.processes(), pids);
    let later: Timestamp = sandbox.status("c")["renew_by"].as_str().unwrap().parse().unwrap();
    assert!(later.duration_since(renew_by).abs() < SignedDuration::from_mins(10), "{later}");
    for client in [OLDEST, &version] {
        let health = sandbox.etcdctl(client, "c", &["endpoint", "health"]).ok().text();
        assert_eq!(health.matches("is healthy").count(), 3, "{health}");
    }
    nothing_to_do(&sandbox);
}

#[test]
fn names_in_certificates_change_while_etcd_runs_on() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    apply(&sandbox, &spec(1, &version, "", "")).ok();
    let pids = sandbox.processes();
    let named = "tls: {organization: ACME, extra_sans: [etcd.example.org, 192.0.2.7]}";
    apply(&sandbox, &spec(1, &version, "", named)).ok();
    let address = &addresses(&sandbox)[0];
    let shown = served(&sandbox, address, &["-verify_hostname", "etcd.example.org"]);
    assert!(shown.contains("O = ACME, CN = etcd-1"), "{shown}");
    sandbox.file("leaf.pem", &format!("{}-----END CERTIFICATE-----\n", leaves(&sandbox)[0]));
    let text = sandbox.openssl(&["x509", "-in", "leaf.pem", "-noout", "-text"]);
    assert!(text.contains("DNS:etcd.example.org") && text.contains("IP Address:192.0.2.7"), "{text}");
    assert_eq!(sandbox.processes(), pids);
    nothing_to_do(&sandbox);
}

#[test]
fn leaves_that_outlive_the_agents_own() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let told = apply(&sandbox, &spec(1, &version, "", "tls: {leaf_validity: 5y}")).ok().stdout;
    sandbox.quorate(&["plan", "c", "--detailed-exitcode"]).ok();
    let due: Timestamp = sandbox.status("c")["renew_by"].as_str().expect("a date").parse().expect("a time");
    assert!(due > Timestamp::now() + SignedDuration::from_hours(24 * 200), "{due}: {told}");
}
