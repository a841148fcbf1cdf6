//! Patroni keeps its state in an etcd that others operate: here, one of another home directory.

use std::process::Command;

use super::{Shop, VERSION, psql};
use crate::common::{Run, Sandbox, patroni};

const PASSWORD: &str = "of patroni";

/// An etcd of which the shop knows endpoints, CA, user and password.
fn other_etcd(sandbox: &Sandbox, gateway: bool) -> Run {
    sandbox.file("password", PASSWORD);
    let spec = format!(
        "quorate: 1
clusters:
  - name: base
    members: [{{name: e-1}}]
    etcd: {{version: {VERSION}, client_auth: password, grpc_gateway: {gateway}}}
    auth:
      roles: [{{name: patroni, permissions: [{{access: readwrite, prefix: /patroni/}}]}}]
      users: [{{name: patroni, roles: [patroni], password_file: password}}]
"
    );
    sandbox.file("base.yaml", &spec);
    sandbox.quorate(&["apply", "--yes", "--allow-downtime", "base.yaml"])
}

fn spec(endpoints: &str, ca: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: shop
    members: [{{name: pg-1}}, {{name: pg-2}}]
    postgres:
      version: 15
      dcs: {{endpoints: [{endpoints}], ca: {ca}, username: patroni, password_file: patroni.password}}
      synchronous: {{nodes: 1, strict: false}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop}}]
      patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}
"
    )
}

#[test]
fn a_cluster_lives_on_an_etcd_of_others() {
    let others = Sandbox::new(VERSION);
    other_etcd(&others, false).ok();
    let known = others.environment("base");
    let (endpoint, ca) = (known["ETCDCTL_ENDPOINTS"].trim_start_matches("https://"), &known["ETCDCTL_CACERT"]);
    let shop = Shop { sandbox: Sandbox::new(VERSION) };
    shop.sandbox.file("shop.yaml", &spec(endpoint, ca));

    let told = shop.apply().fails().stderr;
    assert!(told.contains("postgres.dcs.password_file") || told.contains("patroni.password cannot be read"), "{told}");
    shop.sandbox.file("patroni.password", "wrong");
    let told = shop.apply().fails().stderr;
    assert!(told.contains(&format!("the DCS at https://{endpoint} does not answer")), "{told}");
    shop.sandbox.file("patroni.password", PASSWORD);
    let told = shop.apply().fails().stderr;
    assert!(told.contains("has no JSON gateway") && told.contains("--enable-grpc-gateway"), "{told}");

    other_etcd(&others, true).ok();
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    psql(&user, "create table t as select 1 as n").ok();
    let running = |shop: &Shop| ["pg-1", "pg-2"].map(|member| shop.process(member, "postgres").expect("it runs"));
    let before = running(&shop);

    // One more endpoint, a name that nobody knows: Patroni reads it, and PostgreSQL does not restart.
    shop.sandbox.file("shop.yaml", &spec(&format!("{endpoint}, \"etcd.invalid:2379\""), ca));
    shop.apply().ok();
    assert_eq!(running(&shop), before);
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    // Another etcd would make a second primary.
    shop.sandbox.file("shop.yaml", &spec("\"127.0.0.9:2379\"", ca));
    let told = shop.apply().expect(3).stderr;
    assert!(told.contains("postgres.dcs") && told.contains(endpoint), "{told}");
    assert_eq!(psql(&user, "select n from t").ok().stdout, "1\n");
    let told = shop.sandbox.quorate(&["passwords", "rotate", "shop", "--dcs", "--yes"]).fails().stderr;
    assert!(told.contains("not managed by quorate"), "{told}");

    shop.sandbox.file("shop.yaml", &spec(endpoint, ca));
    shop.apply().ok();
    assert_eq!(running(&shop), before);
    shop.sandbox.quorate(&["destroy", "shop", "--yes", "--without-backup"]).ok();
    let left = others.etcdctl(VERSION, "base", &["get", "--prefix", "--keys-only", "/patroni/"]).ok().stdout;
    assert!(left.trim().is_empty(), "{left}");
}

/// An etcd without users accepts every client with a certificate of its CA.
#[test]
fn a_certificate_is_a_login_too() {
    let others = Sandbox::new(VERSION);
    let settings = format!("{{version: {VERSION}, client_auth: certificate, grpc_gateway: true}}");
    let base = format!(
        "quorate: 1\nclusters:\n  - name: base\n    members: [{{name: e-1}}]\n    etcd: {settings}\n    auth: {{bootstrap: false}}\n"
    );
    others.file("base.yaml", &base);
    others.quorate(&["apply", "--yes", "base.yaml"]).ok();
    let known = others.environment("base");
    let (endpoint, ca) = (known["ETCDCTL_ENDPOINTS"].trim_start_matches("https://"), &known["ETCDCTL_CACERT"]);
    let shop = Shop { sandbox: Sandbox::new(VERSION) };
    let (certificate, key) = (&known["ETCDCTL_CERT"], &known["ETCDCTL_KEY"]);
    let dcs = format!("{{endpoints: [\"{endpoint}\"], ca: {ca}, certificate: {certificate}, key: {key}}}");
    let spec = format!(
        "quorate: 1
clusters:
  - name: shop
    members: [{{name: pg-1}}]
    postgres: {{version: 15, dcs: {dcs}, synchronous: {{nodes: 0}}, patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}}}
"
    );
    shop.sandbox.file("shop.yaml", &spec);
    shop.apply().ok();
    let superuser = shop.env(&[]);
    assert_eq!(psql(&superuser, "select pg_is_in_recovery()").ok().stdout, "f\n");
    let mut patronictl = Command::new(patroni().join("patronictl"));
    patronictl.env_clear().env("PATH", "/usr/bin:/bin").envs(&superuser).args(["list", "-f", "json"]);
    let listed: Run = patronictl.output().expect("patronictl runs").into();
    assert!(listed.ok().stdout.contains("\"Leader\""));
}
