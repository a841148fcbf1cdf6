//! Backups of PostgreSQL in an S3 store, over TLS with a private CA, and in two places.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Shop, psql};
use crate::backups::make_identity;
use crate::common::store::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY, object_store};
use crate::common::wire::Wire;
use crate::common::{Run, Sandbox, command_lines, eventually, signal};

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
                seen.extend(command_lines().into_iter().filter(|line| line.contains("pgbackrest")));
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

/// The first place is reached through a wire that can be cut.
#[test]
fn two_places_have_a_backup_each_and_the_second_stands_in_for_the_first() {
    let sandbox = Sandbox::new(super::VERSION);
    let recipient = make_identity(&sandbox, "operator.key");
    let (store, second) = (object_store(), sandbox.path().join("second"));
    let prefix = format!("pg-two-{}", std::process::id());
    sandbox.file("store.crt", store.ca());
    write_keys(&sandbox, SECRET_KEY);
    let wire = Wire::to(store.tls_port());
    let first = s3(&format!("https://localhost:{}", wire.port), &prefix);
    let backup = format!(
        "to: {first}\nalso_to: {{directory: {}}}\nrecipients: [{recipient}]\nincremental: 1m\nkeep: {{last: 1, daily: 0, weekly: 0}}",
        second.display()
    );
    sandbox.file("shop.yaml", &spec(&backup));
    let shop = Shop { sandbox };
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    psql(&user, "create table written (n bigint primary key)").ok();
    let in_both = || {
        let listed = shop.sandbox.quorate(&["backup", "list", "shop", "--output", "json"]).ok().json();
        let of = |place: &dyn Fn(&str) -> bool| {
            let all = listed.as_array().into_iter().flatten();
            let mine = all.filter(|one| place(one["place"].as_str().expect("a place")));
            mine.map(|one| (one["taken"]["kind"].as_str().expect("a kind").to_owned(), one["verified_at"].is_string()))
                .collect::<Vec<_>>()
        };
        (of(&|place| place.starts_with("s3://")), of(&|place| !place.starts_with("s3://")))
    };
    let (full, incremental) = (|| (String::from("full"), true), || (String::from("incremental"), true));

    // What is due is taken for both, and proven from both. A primary that is away for a moment is waited for.
    let watch = || {
        let log = fs::File::create(shop.sandbox.path().join("watch.log")).expect("a log");
        let mut command = shop.sandbox.command(&["backup", "watch", "shop", "--prune"]);
        command.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("it runs")
    };
    let watched = || fs::read_to_string(shop.sandbox.path().join("watch.log")).unwrap_or_default();
    let mut watcher = watch();
    eventually("a full backup in both", 120, || in_both() == (vec![full()], vec![full()]));
    signal(shop.process("pg-1", "bin/postgres").expect("PostgreSQL"), "STOP");
    eventually("an incremental one is due, and nobody answers", 150, || watched().contains("trying again"));
    signal(shop.process("pg-1", "bin/postgres").expect("PostgreSQL"), "CONT");
    let two = || vec![full(), incremental()];
    eventually("it is taken when somebody does", 150, || in_both() == (two(), two()));
    let in_second = || fs::read_dir(second.join("shop/postgres")).expect("manifests").count();
    signal(watcher.id(), "TERM");
    assert!(watcher.wait().expect("it ends").success(), "{}", watched());

    // The first is away for a moment in the middle of a backup: clients write on, and the backup waits.
    let begin = || {
        let before = wire.sent();
        let creating =
            shop.sandbox.command(&["backup", "create", "shop", "--no-verify"]).stderr(Stdio::piped()).spawn();
        eventually("it is under way", 60, || wire.sent() > before + 500_000);
        creating.expect("it runs")
    };
    let ended = |creating: Child| -> Run { creating.wait_with_output().expect("it ends").into() };
    let creating = begin();
    wire.cut();
    psql(&user, "insert into written select generate_series(1, 10)").ok();
    wire.reconnect();
    ended(creating).ok();
    wire.cut();
    shop.sandbox.quorate(&["backup", "verify", "shop", "--second"]).ok();
    wire.reconnect();

    // pgBackRest is killed in the middle of one: what is not complete does not count, and the next one is.
    let count = || (store.names(&format!("{prefix}/shop/postgres")).len(), in_second());
    let counted = count();
    let creating = begin();
    wire.cut();
    signal(shop.process("pg-1", "--type=full").expect("pgBackRest"), "KILL");
    wire.reconnect();
    let failed = ended(creating);
    assert!(failed.code != Some(0) && failed.stderr.contains("pg-1 cannot take a backup"), "{failed:?}");
    assert_eq!(count(), counted);
    // Its children hold its lock until they find out.
    let create = || shop.sandbox.quorate(&["backup", "create", "shop", "--no-verify"]);
    eventually("the next one is taken", 90, || create().code == Some(0));
    let rows = || psql(&user, "select count(*) from written").ok().stdout;
    assert_eq!(rows(), "10\n");

    // The first is lost with all that it had.
    for directory in ["pgbackrest", "postgres"] {
        store.remove(&format!("{prefix}/shop/{directory}?recursive=true"));
    }
    psql(&user, "delete from written").ok();
    let refused = shop.sandbox.quorate(&["restore", "shop", "--yes"]).fails().stderr;
    assert!(refused.contains("there is no backup of shop"), "{refused}");
    let label = fs::read_dir(second.join("shop/postgres")).expect("manifests");
    let newest = label.flatten().map(|entry| entry.file_name().into_string().expect("a label")).max().expect("one");
    shop.sandbox.quorate(&["restore", "shop", "--second", "--backup", &newest, "--yes"]).ok();
    assert_eq!(rows(), "10\n");
    let again = shop.sandbox.quorate(&["backup", "create", "shop"]).ok().stdout;
    assert_eq!(again.matches("is good").count(), 2, "{again}");
    assert_eq!(shop.status()["verdict"], "healthy");
}
