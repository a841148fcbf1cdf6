//! Changes and failures of etcd, while an API server uses it and clients write and watch.

use std::time::Duration;

use super::load::Load;
use super::server::ApiServer;
use super::{Ground, NAME, OPERATOR, REGISTRY, Settings, V35, V36};
use crate::common::eventually;

/// What kube-apiserver logs in with.
const CERTIFICATE: &str = "pki/apiserver-etcd-client.crt";
const KEY: &str = "pki/apiserver-etcd-client.key";
const RESTORE: [&str; 5] = ["restore", "c.yaml", "--yes", "--identity", OPERATOR];

#[test]
#[ignore = "needs a kube-apiserver: `cargo xtask lab kubernetes` runs it"]
fn an_api_server_lives_through_everything_that_happens_to_its_etcd() {
    let mut settings = Settings { version: V35, tls: "leaf_validity: 2h, renew_before: 1h", permissions: REGISTRY };
    let ground = Ground::up(settings);
    let mut server = ApiServer::start(&ground);
    let mut load = Load::start(&ground, &server);
    load.during("nothing happens", |_| std::thread::sleep(Duration::from_secs(5)));
    load.during("rolling upgrade of etcd 3.5 to 3.6", |_| {
        settings.version = V36;
        ground.change(settings).ok();
    });
    load.during("replacement of the leader", |_| {
        let (leader, _) = ground.member_with("leader");
        ground.sandbox.quorate(&["replace", NAME, &leader, "--yes"]).ok();
    });
    load.during("renewal of all certificates", |_| {
        settings.tls = "leaf_validity: 4h, renew_before: 3h";
        let before = ground.read(CERTIFICATE);
        ground.change(settings).ok();
        ground.write_files();
        assert_ne!(ground.read(CERTIFICATE), before);
    });
    load.during("new keys, and a restart of all members", |_| {
        let before = ground.read(KEY);
        ground.write_files_with(&["--new-keys"]);
        assert_ne!(ground.read(KEY), before);
        // Every connection is made again, and there is nothing but the new key to make it with.
        settings.tls = "leaf_validity: 4h, renew_before: 3h, layout: kubeadm";
        ground.change(settings).ok();
    });
    load.during("loss of a machine", |_| {
        let (_, machine) = ground.member_with("leader");
        ground.lose(&machine);
        ground.apply(&["--now"]).ok();
    });
    restore(&ground, &mut load, &mut server, true);
    restore(&ground, &mut load, &mut server, false);

    assert!(server.is_running());
    assert_eq!(server.refused(), Vec::<String>::new());
    ground.assert_converged();
    println!("{}", load.report());
}

/// Back to a backup, with writes after it that are lost. The API server is stopped meanwhile, or runs on.
fn restore(ground: &Ground, load: &mut Load, server: &mut ApiServer, stop: bool) {
    load.ask("pause");
    load.ask("remember");
    ground.sandbox.quorate(&["backup", "create", NAME]).ok();
    load.ask("resume");
    // Writes that the backup does not have.
    std::thread::sleep(Duration::from_secs(2));
    let before = load.check();
    let name = if stop { "restore, API server stopped" } else { "restore, API server running" };
    load.during(name, |load| {
        load.ask("pause");
        if stop {
            server.stop();
        }
        ground.sandbox.quorate(&RESTORE).ok();
        if stop {
            server.start_again();
        }
        load.ask("restored");
        eventually("the informer has the restored revision", 60, || {
            let after = load.check();
            after["informer"]["version"].as_u64() > before["informer"]["version"].as_u64().map(|v| v + 900_000_000)
        });
        load.ask("resume");
    });
}
