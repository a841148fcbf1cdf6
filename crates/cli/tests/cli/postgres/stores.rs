//! Backups of PostgreSQL in an S3 store, over TLS with a CA of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Shop, psql};
use crate::backups::make_identity;
use crate::common::store::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY, object_store};
use crate::common::{Sandbox, eventually, signal};

/// A credentials file for the owner alone.
fn write_keys(sandbox: &Sandbox, secret: &str) {
    let path = sandbox.file("store.keys", &format!("access_key_id={ACCESS_KEY}\nsecret_access_key={secret}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

fn s3(endpoint: &str, prefix: &str) -> String {
    format!(
        "{{s3: {{endpoint: \"{endpoint}\", region: {REGION}, bucket: {BUCKET}, prefix: {prefix}/, ca: store.crt, \
         credentials: {{file: store.keys}}}}}}"
    )
}

/// One member of PostgreSQL and one of etcd: what is tested here does not depend on how many there are.
fn spec(backup: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: shop
    members: [{{name: pg-1}}]
    postgres:
      version: 15
      dcs: {{cluster: orders}}
      synchronous: {{nodes: 0}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop}}]
      patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}
    backup:
{}
  - name: orders
    members: [{{name: e-1}}]
    etcd: {{version: {}, client_auth: password, grpc_gateway: true}}
",
        backup.lines().map(|line| format!("      {line}\n")).collect::<String>().trim_end(),
        super::VERSION
    )
}

/// All files below a directory that others than their owner may read, if they get there.
fn readable_by_others(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("its type"));
        let mode = entry.metadata().map_or(0, |about| about.permissions().mode());
        if kind.is_dir() {
            readable_by_others(&path, found);
        } else if kind.is_file() && mode & 0o044 != 0 {
            found.push(path);
        }
    }
}

/// Looks at the arguments of every pgBackRest on this machine until it is stopped.
struct Onlooker {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<String>>,
}

impl Onlooker {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let listed = Command::new("ps").args(["-ww", "-eo", "args"]).output().expect("ps runs");
                let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
                seen.extend(lines.lines().filter(|line| line.contains("pgbackrest")).map(str::to_owned));
                thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        Onlooker { stop, thread }
    }

    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it ends")
    }
}

#[test]
fn backups_are_stored_in_s3_and_come_back_when_all_else_is_lost() {
    let sandbox = Sandbox::new(super::VERSION);
    let recipient = make_identity(&sandbox, "operator.key");
    let store = object_store();
    let prefix = format!("pg-{}", std::process::id());
    sandbox.file("store.crt", store.ca());
    let text =
        |rest: &str| spec(&format!("to: {}\nrecipients: [{recipient}]\n{rest}", s3(&store.tls_endpoint(), &prefix)));
    sandbox.file("shop.yaml", &text(""));
    let shop = Shop { sandbox };

    // With a wrong secret nothing is stored, and the reason is clear.
    write_keys(&shop.sandbox, "wrong");
    let refused = shop.apply().fails();
    assert!(refused.text().contains("403 (Forbidden): the store refuses the keys"), "{}", refused.text());
    assert!(!refused.text().contains("wrong"), "{}", refused.text());
    write_keys(&shop.sandbox, SECRET_KEY);
    shop.apply().ok();

    let user = shop.env(&["--user", "shop"]);
    psql(&user, "create table written (n bigint primary key)").ok();
    psql(&user, "insert into written select generate_series(1, 1000)").ok();
    let onlooker = Onlooker::start();
    let full = shop.sandbox.quorate(&["backup", "create", "shop", "--output", "json"]).ok().json();
    let seen = onlooker.stop();
    assert!(!seen.is_empty(), "pgBackRest ran");
    assert!(seen.iter().all(|line| !line.contains(SECRET_KEY)), "{seen:#?}");
    psql(&user, "insert into written values (1001)").ok();
    let incremental = shop.sandbox.quorate(&["backup", "create", "shop", "--incremental"]).ok().stdout;
    assert!(incremental.contains("(incremental)") && incremental.contains("is good"), "{incremental}");
    assert_eq!(store.names(&format!("{prefix}/shop/postgres")).len(), 2);
    let listed = shop.sandbox.quorate(&["backup", "list", "shop"]).ok().stdout;
    assert!(listed.contains(full["taken"]["label"].as_str().expect("a label")), "{listed}");
    shop.sandbox.quorate(&["backup", "verify", "shop"]).ok();

    let now = psql(&user, "select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')");
    let now = now.ok().stdout.trim().to_owned();
    psql(&user, "delete from written").ok();
    shop.sandbox.quorate(&["restore", "shop", "--at", &now, "--yes"]).ok();
    let rows = || psql(&user, "select count(*) from written").ok().stdout;
    assert_eq!(rows(), "1001\n");

    // A damaged object: the backup is not good, and a restore of it touches nothing.
    let label = full["taken"]["label"].as_str().expect("a label");
    let bundles = format!("{prefix}/shop/pgbackrest/backup/shop/{label}/bundle");
    let object = format!("{bundles}/{}", store.names(&bundles).first().expect("a bundle"));
    let whole = store.get(&object);
    store.put(&object, &whole[..whole.len() / 2]);
    let told = shop.sandbox.quorate(&["backup", "verify", "shop", label]);
    assert_eq!((told.code, told.stdout.contains("NOT good")), (Some(9), true), "{told:?}");
    let failed = shop.sandbox.quorate(&["restore", "shop", "--backup", label, "--yes"]).fails();
    assert!(failed.text().contains("pgbackrest failed"), "{}", failed.text());
    assert_eq!(rows(), "1001\n", "nothing was touched");
    shop.sandbox.quorate(&["requests", "shop", "--withdraw", "restore"]).ok();
    store.put(&object, &whole);
    shop.sandbox.quorate(&["backup", "verify", "shop", label]).ok();

    // Nobody else on the machines reads a key.
    let key = shop.sandbox.ledger("shop")["postgres"]["passwords"]["repository"].as_str().expect("a key").to_owned();
    let mut files = Vec::new();
    readable_by_others(&shop.sandbox.home(), &mut files);
    assert!(files.iter().any(|file| file.ends_with("store-1-ca.crt")), "all was looked at: {files:#?}");
    for file in files {
        let bytes = fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(SECRET_KEY) && !text.contains(&key), "{} has a key", file.display());
    }

    // All machines, all that quorate keeps, and etcd are lost.
    psql(&user, "insert into written select generate_series(5000, 5100)").ok();
    let before = rows();
    shop.sandbox.quorate(&["backup", "create", "shop", "--incremental", "--no-verify"]).ok();
    for (process, _) in shop.sandbox.processes() {
        signal(process, "KILL");
    }
    eventually("all have ended", 20, || shop.sandbox.processes().is_empty());
    fs::remove_dir_all(shop.sandbox.home()).expect("all that was kept");
    let signer = full["signature"]["by"].as_str().expect("who signed it");
    shop.sandbox.file("shop.yaml", &text(&format!("signed_by: {signer}\n")));
    shop.sandbox.quorate(&["restore", "shop.yaml", "--cluster", "shop", "--identity", "operator.key", "--yes"]).ok();
    let user = shop.env(&["--user", "shop"]);
    assert_eq!(psql(&user, "select count(*) from written").ok().stdout, before);
    assert_eq!(shop.status()["verdict"], "healthy");
}
