//! The etcd below asks clients for a certificate besides the password. quorate issues one to Patroni, and renews it without a restart.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Shop, THREE, VERSION, Writer, assert_nothing_lost, psql, spec};
use crate::common::{Run, Sandbox, patroni};

/// What Patroni shows, on the machine of a member.
const CERTIFICATE: &str = "etc/patroni/dcs.crt";
const KEY: &str = "etc/patroni/dcs.key";

fn strict(tls: &str) -> String {
    let text = spec("max_connections: 50", &THREE);
    text.replace("client_auth: password", "client_auth: certificate_and_password")
        .replace("members: [{name: e-1}]", &format!("members: [{{name: e-1}}]\n    tls: {{{tls}}}"))
}

fn certificates(shop: &Shop) -> BTreeSet<String> {
    let of = |member| fs::read_to_string(machine(shop, member).join(CERTIFICATE)).expect("a certificate of Patroni");
    THREE.into_iter().map(of).collect()
}

fn machine(shop: &Shop, member: &str) -> PathBuf {
    shop.sandbox.home().join("machines/shop").join(member).join("root")
}

fn patronictl(shop: &Shop) -> Run {
    let mut command = Command::new(patroni().join("patronictl"));
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(shop.env(&[])).args(["list", "-f", "json"]);
    command.output().expect("patronictl runs").into()
}

#[test]
fn patroni_shows_a_certificate_besides_its_password_and_gets_a_new_one_in_time() {
    let sandbox = Sandbox::new(VERSION);
    sandbox.file("shop.yaml", &strict("leaf_validity: 100d, renew_before: 30d"));
    let shop = Shop { sandbox };
    let told = shop.apply().ok().stderr;
    assert!(told.contains("the certificates of Patroni"), "{told}");
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    let first = certificates(&shop);
    assert_eq!(first.len(), 1);
    let listed = patronictl(&shop).ok().stdout;
    assert!(THREE.iter().all(|member| listed.contains(member)), "{listed}");
    // It is no key to etcd by itself: it names no user.
    let [certificate, key] = [CERTIFICATE, KEY].map(|file| machine(&shop, "pg-1").join(file).display().to_string());
    let known = shop.sandbox.environment("orders");
    let anyone = Command::new(crate::common::lab(VERSION).join("etcdctl"))
        .env_clear()
        .args(["--cert", &certificate, "--key", &key, "--cacert", &known["ETCDCTL_CACERT"]])
        .args(["--endpoints", &known["ETCDCTL_ENDPOINTS"], "get", "/patroni/shop/initialize"])
        .output();
    let anyone: Run = anyone.expect("etcdctl runs").into();
    let refused = anyone.fails();
    assert!(refused.stderr.contains("permission denied") && refused.stdout.is_empty(), "{}", refused.stderr);

    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    let postmasters = shop.postmasters();
    // 100 days are left, and renewed is 150 days before the end.
    shop.sandbox.file("shop.yaml", &strict("leaf_validity: 200d, renew_before: 150d"));
    let planned = shop.sandbox.quorate(&["plan", "shop.yaml"]).stdout;
    assert!(planned.contains("store the certificates of Patroni"), "{planned}");
    let told = shop.sandbox.quorate(&["apply", "--yes", "shop.yaml", "--cluster", "orders"]).ok().stderr;
    assert!(told.contains("Patroni of shop still has the previous"), "{told}");
    assert_eq!(certificates(&shop), first);
    shop.apply().ok();
    let second = certificates(&shop);
    assert_eq!(second.len(), 1);
    assert_ne!(first, second, "the certificate was not renewed");
    assert_eq!(shop.postmasters(), postmasters, "PostgreSQL was restarted for a certificate of Patroni");
    patronictl(&shop).ok();
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    assert_eq!(psql(&user, "select 1").ok().stdout, "1\n");
    assert_nothing_lost(&user, &writer.stop());
}
