//! Debian 12's Patroni, which reports less about itself than later ones: a cluster is created and changed, fails over, and gets the newer Patroni.

use std::path::Path;

use super::{Shop, THREE, Writer, assert_nothing_lost};
use crate::common::{Sandbox, eventually, older_patroni, patroni, signal};

/// Patroni before 4.1.1 fails with newer releases of etcd when a token expires.
pub(super) const ETCD: &str = "3.5.16";

pub(super) fn on_older_etcd(parameters: &str, patroni: &Path) -> String {
    let program = format!("patroni: {{program: {}, ", patroni.display());
    super::spec(parameters, &THREE).replace(super::VERSION, ETCD).replace("patroni: {", &program)
}

#[test]
fn an_older_patroni_serves_refuses_what_it_does_not_know_and_is_replaced_by_a_newer_one() {
    let shop = Shop { sandbox: Sandbox::new(ETCD) };
    let older = shop.sandbox.path().join("patroni");
    let spec = |parameters: &str| on_older_etcd(parameters, &older);
    let prefers = "{name: pg-1, tags: {failover_priority: 2}}";
    shop.sandbox.file("shop.yaml", &spec("max_connections: 50").replace("{name: pg-1}", prefers));
    let missing = shop.apply().fails().text();
    assert!(missing.contains(&older.display().to_string()), "{missing}");
    // It is installed, and found by the same configuration.
    std::os::unix::fs::symlink(older_patroni().join("patroni"), &older).unwrap();
    let refused = shop.apply().fails().text();
    assert!(refused.contains("Patroni 3.0.2 does not know the tag `failover_priority`"), "{refused}");
    assert!(refused.contains("install Patroni 3.2.0 or newer"), "{refused}");
    assert_eq!(shop.process("pg-1", "/bin/postgres -D"), None);

    shop.sandbox.file("shop.yaml", &spec("max_connections: 50"));
    shop.apply().ok();
    assert_eq!(shop.status()["verdict"], "healthy", "{}", shop.status());
    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    let first = shop.primary();
    shop.sandbox.quorate(&["switchover", "shop", "--yes"]).ok();
    let second = shop.primary();
    assert_ne!(second, first);
    shop.sandbox.file("shop.yaml", &spec("max_connections: 60"));
    let done = shop.apply().ok().text();
    assert!(done.contains("switch the primary from"), "{done}");
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    let primary = shop.primary();
    let root = format!("/machines/shop/{primary}/");
    for (pid, _) in shop.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root)) {
        signal(pid, "KILL");
    }
    eventually("another is primary", 60, || ![String::new(), primary.clone()].contains(&shop.primary()));
    shop.apply().ok();
    assert_eq!(shop.status()["verdict"], "healthy", "{}", shop.status());

    shop.sandbox.file("shop.yaml", &on_older_etcd("max_connections: 60", &patroni().join("patroni")));
    shop.apply().ok();
    for member in THREE {
        assert!(shop.process(member, "patroni/4.1.5").is_some(), "{member} has the older Patroni");
    }
    assert_eq!(shop.status()["verdict"], "healthy", "{}", shop.status());
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    assert_nothing_lost(&user, &writer.stop());
}
