//! Backups of PostgreSQL: taken, verified, altered; points in time; and a cluster of which only the store is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Shop, psql};
use crate::backups::make_identity;
use crate::common::backups::Chance;
use crate::common::{Sandbox, eventually, signal};

/// How many points in time are gone back to. More take longer and show the same.
const MOMENTS: &str = "QUORATE_TEST_MOMENTS";
/// Clients that write at the same time, and the transactions of each.
const WRITERS: usize = 3;
const TRANSACTIONS: usize = 100;
/// Their first row.
const WRITTEN: usize = 10_000;

fn spec(members: &str, recipient: &str, store: &str, signed_by: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: shop
    members: [{members}]
    postgres:
      version: 15
      dcs: {{cluster: orders}}
      parameters: {{track_commit_timestamp: true}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop}}]
      patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}
    backup:
      to: {{directory: {store}}}
      recipients: [{recipient}]
      keep: {{last: 1, daily: 0, weekly: 0}}
{signed_by}  - name: orders
    members: [{{name: e-1}}]
    etcd: {{version: {}, client_auth: password, grpc_gateway: true}}
",
        super::VERSION
    )
}

#[test]
fn a_cluster_is_restored_to_points_in_time_and_from_the_store_alone() {
    let sandbox = Sandbox::new(super::VERSION);
    let recipient = make_identity(&sandbox, "operator.key");
    let store = sandbox.path().join("store");
    let text =
        |signed_by: &str| spec("{name: pg-1}, {name: pg-2}", &recipient, &store.display().to_string(), signed_by);
    sandbox.file("shop.yaml", &text(""));
    let shop = Shop { sandbox };
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    psql(&user, "create table written (n bigint primary key)").ok();
    psql(&user, "insert into written select generate_series(1, 1000)").ok();

    let taken = shop.sandbox.quorate(&["backup", "create", "shop", "--output", "json"]).ok().json();
    let label = taken["taken"]["label"].as_str().expect("a label").to_owned();
    assert_eq!(taken["verified"][0]["outcome"]["Ok"]["amcheck"], true, "{taken:#}");
    assert!(taken["verified"][0]["outcome"]["Ok"]["blocks"].as_u64().is_some_and(|blocks| blocks > 1000));
    assert_ne!(taken["from_member"], shop.primary(), "a replica has less to do");
    assert_ne!(taken["verified"][0]["on_member"], shop.primary(), "a replica has less to do");
    let status = shop.status();
    assert_eq!(status["backup"]["verified"]["id"], label.as_str(), "{status:#}");

    // Nobody without the key reads what is stored, and nobody without the other key changes it unseen.
    let list = store.join("shop/pgbackrest/backup/shop").join(&label).join("backup.manifest");
    let genuine = fs::read(&list).unwrap();
    assert!(!String::from_utf8_lossy(&genuine).contains("backup-label"), "it is encrypted");
    fs::write(&list, [&genuine[..], b"x"].concat()).unwrap();
    let told = shop.sandbox.quorate(&["backup", "verify", "shop"]);
    assert_eq!((told.code, told.stdout.contains("it was changed")), (Some(9), true), "{told:?}");
    let refused = shop.sandbox.quorate(&["restore", "shop", "--yes"]).fails();
    assert!(refused.stderr.contains("it was changed"), "{}", refused.stderr);
    fs::write(&list, &genuine).unwrap();
    let manifests = store.join("shop/postgres");
    let forged = manifests.join("20990101-000000F");
    fs::create_dir(&forged).unwrap();
    let manifest = fs::read_to_string(manifests.join(&label).join("manifest.json")).unwrap();
    fs::write(forged.join("manifest.json"), manifest.replace(&label, "20990101-000000F")).unwrap();
    let listed = shop.sandbox.quorate(&["backup", "list", "shop"]).ok().stdout;
    assert!(listed.contains("not of this cluster") && listed.contains(&label), "{listed}");
    fs::remove_dir_all(&forged).unwrap();

    // Every point has exactly the rows of the transactions that were committed by then.
    for Moment { at, rows } in moments_under_writers(&user).into_iter().rev() {
        shop.sandbox.quorate(&["restore", "shop", "--at", &at, "--yes"]).ok();
        let found = rows_of(&user, "");
        let (lost, extra): (Vec<_>, Vec<_>) = (rows.difference(&found).collect(), found.difference(&rows).collect());
        assert!(lost.is_empty() && extra.is_empty(), "at {at} {lost:?} are missing, and {extra:?} are too many");
    }
    assert_eq!(shop.status()["verdict"], "healthy");

    // A point that the log does not reach touches nothing.
    let rows = psql(&user, "select count(*) from written").ok().stdout;
    let future = shop.sandbox.quorate(&["restore", "shop", "--at", "2099-01-01T00:00:00Z", "--yes"]);
    assert!(future.stderr.contains("ends before the requested point"), "{future:?}");
    assert_eq!(psql(&user, "select count(*) from written").ok().stdout, rows);
    shop.sandbox.quorate(&["requests", "shop", "--withdraw", "restore"]).ok();
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    a_log_that_waits_for_the_store_shows(&shop, &store);

    // What rests on the last full backup, and a pruned one. The replica gets nothing from another process that has the
    // port at the primary, and the primary takes the backup itself.
    let (status, primary) = (shop.status(), shop.primary());
    let members = status["members"].as_array().expect("members").iter();
    let address = members.filter(|member| member["member"] == primary.as_str()).find_map(|one| one["address"].as_str());
    let stranger = TcpListener::bind((address.expect("an address"), 8432)).expect("the port of the primary's files");
    let incremental = shop.sandbox.quorate(&["backup", "create", "shop", "--incremental", "--no-verify"]).ok();
    assert!(incremental.stdout.contains(&format!("from {primary} ")), "{incremental:?}");
    assert!(incremental.stderr.contains(&format!("taking the backup from {primary}, the primary")), "{incremental:?}");
    drop(stranger);
    let second = shop.sandbox.quorate(&["backup", "create", "shop", "--output", "json"]).ok().json();
    shop.sandbox.quorate(&["backup", "prune", "shop", "--yes"]).ok();
    let left: Vec<String> =
        fs::read_dir(&manifests).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, [second["taken"]["label"].as_str().unwrap()]);
    let signer = second["signature"]["by"].as_str().expect("who signed it").to_owned();

    // A cluster is not destroyed while a commit is in no backup that was restored and compared.
    psql(&user, "insert into written values (4999)").ok();
    let refused = shop.sandbox.quorate(&["destroy", "shop", "--yes"]);
    assert!(refused.stderr.contains("has all transactions before "), "{refused:?}");
    shop.sandbox.quorate(&["switchover", "shop", "--yes"]).ok();
    let refused = shop.sandbox.quorate(&["destroy", "shop", "--yes"]);
    assert!(refused.stderr.contains("was taken before the last change of the primary"), "{refused:?}");

    // The last commits are stored with the log; then all machines, all that quorate keeps, and etcd are gone.
    psql(&user, "insert into written select generate_series(5000, 5100)").ok();
    let rows = psql(&user, "select count(*) from written").ok().stdout;
    let superuser = shop.env(&[]);
    let stored = psql(&superuser, "select pg_walfile_name(pg_switch_wal())").ok().stdout.trim().to_owned();
    let archived = format!("select last_archived_wal >= '{stored}' from pg_stat_archiver");
    eventually("the log is stored", 60, || psql(&superuser, &archived).stdout == "t\n");
    for (process, _) in shop.sandbox.processes() {
        signal(process, "KILL");
    }
    eventually("all have ended", 20, || shop.sandbox.processes().is_empty());
    fs::remove_dir_all(shop.sandbox.home()).unwrap();
    shop.sandbox.file("shop.yaml", &text(""));
    let restore = ["restore", "shop.yaml", "--cluster", "shop", "--identity", "operator.key", "--yes"];
    let unsigned = shop.sandbox.quorate(&restore).fails();
    assert!(
        unsigned.stderr.contains("the key that signs the backups of shop is not known here"),
        "{}",
        unsigned.stderr
    );
    shop.sandbox.file("shop.yaml", &text(&format!("      signed_by: {signer}\n")));
    shop.sandbox.quorate(&restore).ok();
    let user = shop.env(&["--user", "shop"]);
    assert_eq!(psql(&user, "select count(*) from written").ok().stdout, rows);
    assert_eq!(shop.status()["verdict"], "healthy");
    destroyed_with_a_backup(&shop, &store);
}

/// A point in time, and what was committed by then.
struct Moment {
    at: String,
    rows: BTreeSet<u64>,
}

fn rows_of(user: &BTreeMap<String, String>, which: &str) -> BTreeSet<u64> {
    let rows = psql(user, &format!("select n from written {which}")).ok().stdout;
    rows.lines().map(|row| row.parse().expect("a number")).collect()
}

/// Transactions that overlap with those of other writers. Each writes two rows; some are rolled back.
fn transactions(writer: usize, chance: &mut Chance) -> String {
    let transaction = |number: usize| {
        let (row, pause) = (WRITTEN * writer + 2 * number, chance.below(20));
        let end = if chance.below(5) == 0 { "rollback" } else { "commit" };
        format!(
            "begin; insert into written values ({row}); select pg_sleep(0.0{pause:02}); insert into written values ({}); {end};",
            row + 1
        )
    };
    (0..TRANSACTIONS).map(transaction).collect()
}

/// Random moments at which clients were writing, in their order, and what was committed by then, in PostgreSQL's own words. In the end all rows
/// are deleted.
fn moments_under_writers(user: &BTreeMap<String, String>) -> Vec<Moment> {
    let count: usize = std::env::var(MOMENTS).ok().and_then(|count| count.parse().ok()).unwrap_or(1);
    let mut chance = Chance::new();
    let scripts: Vec<String> = (1..=WRITERS).map(|writer| transactions(writer, &mut chance)).collect();
    std::thread::scope(|scope| {
        for script in &scripts {
            scope.spawn(|| psql(user, script).ok());
        }
    });
    let all = rows_of(user, "");
    let mut parts: Vec<f64> = (0..count).map(|_| chance.part()).collect();
    parts.sort_by(f64::total_cmp);
    let moment = |part: f64| {
        let at = psql(
            user,
            &format!(
                "select to_char((min(at) + {part} * (max(at) - min(at))) at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') \
                 from (select pg_xact_commit_timestamp(xmin) as at from written where n >= {WRITTEN}) as commits"
            ),
        );
        let at = at.ok().stdout.trim().to_owned();
        let rows = rows_of(user, &format!("where pg_xact_commit_timestamp(xmin) <= '{at}'"));
        assert!(rows.iter().any(|row| *row >= WRITTEN as u64) && rows.len() < all.len(), "{at} is in the middle");
        Moment { at, rows }
    };
    let moments = parts.into_iter().map(moment).collect();
    psql(user, "delete from written").ok();
    moments
}

/// While the store is away the log stays on the primary's disk. That shows in `status` before the disk is full.
fn a_log_that_waits_for_the_store_shows(shop: &Shop, store: &Path) {
    let (superuser, primary) = (shop.env(&[]), shop.primary());
    let problem = || {
        let status = shop.status();
        let problems = status["backup"]["problems"].as_array().cloned().expect("a list");
        problems
            .iter()
            .filter_map(|problem| problem.as_str())
            .find(|text| text.contains("of the log on"))
            .map(str::to_owned)
    };
    let finish_a_piece = || {
        psql(&superuser, "select pg_logical_emit_message(false, 'test', 'something'), pg_switch_wal()").ok();
    };
    let data = format!("machines/shop/{primary}/root/var/lib/postgresql/data/pg_wal/archive_status");
    let waiting = || -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(shop.sandbox.home().join(&data)).expect("PostgreSQL's notes").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "ready")).collect()
    };
    eventually("all log is stored", 90, || waiting().is_empty());
    let away = store.with_extension("away");
    fs::rename(store, &away).unwrap();
    finish_a_piece();
    eventually("a piece of the log waits", 30, || !waiting().is_empty());
    assert_eq!(problem(), None, "it has not waited for long");
    // As if it had waited since then.
    let since = SystemTime::now() - Duration::from_secs(300);
    for piece in waiting() {
        fs::File::options().write(true).open(piece).and_then(|file| file.set_modified(since)).unwrap();
    }
    let told = problem().expect("it has waited for long");
    assert!(told.contains(&format!("of the log on {primary} ")) && told.contains("the oldest for 30"), "{told}");
    let page = shop.sandbox.quorate(&["status", "shop"]).ok().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("not stored yet, the oldest for"), "{page}");
    fs::rename(&away, store).unwrap();
    // PostgreSQL tries again at once when there is more.
    finish_a_piece();
    eventually("the log is stored, and nothing more is said", 120, || waiting().is_empty() && problem().is_none());
}

/// A backup that the store has lost does not count.
fn destroyed_with_a_backup(shop: &Shop, store: &Path) {
    let destroy = || shop.sandbox.quorate(&["destroy", "shop", "--yes"]);
    assert!(destroy().stderr.contains("there is no verified backup"), "{:?}", destroy());
    let taken = shop.sandbox.quorate(&["backup", "create", "shop", "--output", "json"]).ok().json();
    let label = taken["taken"]["label"].as_str().expect("a label");
    let list = store.join("shop/pgbackrest/backup/shop").join(label).join("backup.manifest");
    let genuine = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    assert!(destroy().stderr.contains("list of its files is missing from the store"), "{:?}", destroy());
    assert_eq!(shop.status()["verdict"], "healthy", "nothing was touched");
    fs::write(&list, &genuine).unwrap();
    // One of the files of that list.
    let bundle = first_file(&list.with_file_name("bundle"));
    let content = fs::read(&bundle).unwrap();
    fs::remove_file(&bundle).unwrap();
    let refused = destroy();
    assert!(refused.stderr.contains("are missing, or have another size than when it was verified"), "{refused:?}");
    fs::write(&bundle, content).unwrap();
    destroy().ok();
    assert!(!shop.sandbox.home().join("machines/shop").exists(), "its machines are gone");
}

fn first_file(directory: &Path) -> std::path::PathBuf {
    fs::read_dir(directory).unwrap().next().expect("a file").unwrap().path()
}

/// A restore begins another timeline. What an earlier one had after that point is still in the store.
#[test]
fn a_cluster_is_restored_to_a_log_position_and_to_a_transaction_of_an_earlier_timeline() {
    let sandbox = Sandbox::new(super::VERSION);
    let recipient = make_identity(&sandbox, "operator.key");
    let store = sandbox.path().join("store").display().to_string();
    let alone = spec("{name: pg-1}", &recipient, &store, "").replace("dcs:", "synchronous: {nodes: 0}\n      dcs:");
    sandbox.file("shop.yaml", &alone);
    let shop = Shop { sandbox };
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    let ask = |sql: &str| psql(&user, sql).ok().stdout.trim().to_owned();
    ask("create table written (n bigint primary key)");
    // What is in a tablespace comes back in another directory, and outlives the next restore, even one that fails.
    let (superuser, fast) = (shop.env(&[]), shop.sandbox.path().join("fast"));
    fs::create_dir(&fast).unwrap();
    psql(&superuser, &format!("create tablespace fast location '{}'", fast.display())).ok();
    psql(&superuser, "grant create on tablespace fast to shop").ok();
    ask("create table outside tablespace fast as select 7 as n");
    shop.sandbox.quorate(&["backup", "create", "shop"]).ok();
    let location = || ask("select pg_tablespace_location(oid) from pg_tablespace where spcname = 'fast'");
    let was_moved = || location() != fast.display().to_string() && ask("table outside") == "7";

    let timeline: u32 = ask("select timeline_id from pg_control_checkpoint()").parse().expect("a number");
    ask("insert into written values (1)");
    let place = ask("select pg_current_wal_lsn()");
    let transaction = ask("insert into written values (2) returning pg_current_xact_id()");
    let transaction = transaction.lines().next().expect("its number");
    ask("insert into written values (3)");
    ask("delete from written");
    let rows = || ask("select string_agg(n::text, ',' order by n) from written");

    shop.sandbox.quorate(&["restore", "shop", "--lsn", &place, "--yes"]).ok();
    assert_eq!(rows(), "1", "at {place}");
    assert!(was_moved(), "{}", location());
    let in_place = Path::new(&location()).join("in-place");
    fs::write(&in_place, "").unwrap();
    let newest = shop.sandbox.quorate(&["restore", "shop", "--xid", transaction, "--yes"]).fails().stderr;
    assert!(newest.contains("ends before the requested point"), "{newest}");
    assert_eq!(rows(), "1", "nothing was touched");
    assert!(in_place.exists(), "the tablespace was touched");
    shop.sandbox.quorate(&["requests", "shop", "--withdraw", "restore"]).ok();
    let back_to = |timeline: u32| {
        let timeline = timeline.to_string();
        shop.sandbox.quorate(&["restore", "shop", "--xid", transaction, "--timeline", &timeline, "--yes"])
    };
    let earlier = back_to(timeline - 1).fails().stderr;
    assert!(earlier.contains(&format!("was taken on timeline {timeline}, after timeline")), "{earlier}");
    back_to(timeline).ok();
    assert_eq!(rows(), "1,2", "transaction {transaction}");
    assert!(was_moved() && in_place.exists(), "{}", location());

    let refused = shop.sandbox.quorate(&["restore", "shop", "--lsn", "0/", "--yes"]).fails().stderr;
    assert!(refused.contains("`0/` is not a place in the log"), "{refused}");
}
