//! PgBouncer in front of PostgreSQL: which users are accepted, and what clients notice when the primary moves and passwords, users and
//! certificates change.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use super::proxy::{QUICK, with_haproxy};
use super::{Shop, THREE, Writer, assert_nothing_lost_in, psql};
use crate::common::{PSQL, Sandbox, eventually};

const TWO: &str = "users: [{name: shop}, {name: report}]";

fn with_pgbouncer(settings: &str) -> String {
    let text = with_haproxy(QUICK, &THREE).replace("users: [{name: shop}]", TWO);
    text.replace("      users:", &format!("      pgbouncer: {{{settings}}}\n      users:"))
}

fn with(env: &BTreeMap<String, String>, other: &[(&str, &str)]) -> BTreeMap<String, String> {
    let other = other.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    env.clone().into_iter().chain(other).collect()
}

/// A client that stays connected, and begins a transaction every tenth of a second.
fn keeps_on(env: &BTreeMap<String, String>, seconds: u32) -> std::process::Child {
    let script: String =
        (0..seconds * 10).map(|n| format!("insert into kept values ({n});\n\\! sleep 0.1\n")).collect();
    let mut client = Command::new(PSQL);
    client.env_clear().env("PATH", "/usr/bin:/bin").envs(env).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut client = client.args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-f", "-"]).spawn().expect("psql runs");
    let mut input = client.stdin.take().unwrap();
    std::thread::spawn(move || std::io::Write::write_all(&mut input, script.as_bytes()));
    client
}

#[test]
fn clients_share_connections_through_pgbouncer_while_the_primary_passwords_users_and_certificates_change() {
    let sandbox = Sandbox::new(super::VERSION);
    let size = "default_pool_size: 2, max_client_conn: 40";
    sandbox.file("shop.yaml", &with_pgbouncer(size));
    let shop = Shop { sandbox };
    shop.apply().ok();
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    let user = shop.env(&["--user", "shop"]);
    let report = shop.env(&["--user", "report"]);
    for number in 0..3 {
        let through = shop.through(&user, number, "6432");
        eventually("the primary is found", 30, || psql(&through, "select 1").code == Some(0));
        assert_eq!(psql(&through, "select current_user, pg_is_in_recovery()").ok().stdout, "shop|f\n");
    }
    let through = shop.through(&user, 0, "6432");
    let other = shop.through(&report, 0, "6432");
    assert_eq!(psql(&with(&other, &[("PGDATABASE", "shop")]), "select current_user").ok().stdout, "report\n");
    // The list of hosts that `quorate env` prints works with its port too.
    psql(&with(&user, &[("PGPORT", "6432")]), "select 1").ok();

    // Not without TLS, not with a wrong password, not as somebody that members log in as, whatever they show.
    let refused = psql(&with(&through, &[("PGSSLMODE", "disable")]), "select 1").fails().stderr;
    assert!(refused.contains("SSL required"), "{refused}");
    let refused = psql(&with(&through, &[("PGPASSWORD", "wrong")]), "select 1").fails().stderr;
    assert!(refused.contains("SASL authentication failed"), "{refused}");
    let superuser = shop.through(&shop.env(&[]), 0, "6432");
    psql(&superuser, "select 1").fails();
    psql(&with(&superuser, &[("PGDATABASE", "pgbouncer")]), "show pools").fails();
    let root = shop.sandbox.home().join("machines/shop/pg-1/root/etc/pgbouncer");
    for name in ["pgbouncer.ini", "userlist.txt"] {
        assert_eq!(std::fs::metadata(root.join(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
    let list = std::fs::read_to_string(root.join("userlist.txt")).unwrap();
    assert!(!list.contains(&user["PGPASSWORD"]) && list.contains("SCRAM-SHA-256$"), "{list}");
    assert!(shop.sandbox.processes().iter().all(|(_, line)| !line.contains(&user["PGPASSWORD"])));

    // Ten clients at once share two connections.
    psql(&through, "create table kept (n int); create table pids (pid int)").ok();
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let through = through.clone();
            std::thread::spawn(move || {
                psql(&through, "insert into pids select pg_backend_pid() from pg_sleep(0.3)").ok()
            })
        })
        .collect();
    clients.into_iter().for_each(|client| _ = client.join().unwrap());
    let shared = psql(&through, "select count(*), count(distinct pid) from pids").ok().stdout;
    assert_eq!(shared, "10|2\n");

    // The primary moves on request: a client that stays connected notices nothing but a pause.
    let writer = Writer::start(through.clone());
    let mut connected = keeps_on(&through, 15);
    eventually("it is connected", 20, || psql(&through, "select count(*) > 0 from kept").ok().stdout == "t\n");
    let before = shop.primary();
    let bouncer = shop.process("pg-1", "pgbouncer.ini");
    shop.sandbox.quorate(&["switchover", "shop", "--yes"]).ok();
    assert_ne!(shop.primary(), before);
    assert!(connected.wait().unwrap().success(), "the connection ended, or a transaction failed");
    assert_eq!(psql(&through, "select count(*), count(distinct n) from kept").ok().stdout, "150|150\n");

    // A new password is asked for, and connections stay.
    let mut connected = keeps_on(&through, 5);
    shop.sandbox.quorate(&["passwords", "rotate", "shop", "--yes", "--user", "shop"]).ok();
    assert!(connected.wait().unwrap().success(), "a connection was cut off");
    let next = shop.through(&shop.env(&["--user", "shop"]), 0, "6432");
    eventually("the new password is good", 20, || psql(&next, "select 1").code == Some(0));
    let refused = psql(&through, "select 1").fails().stderr;
    assert!(refused.contains("SASL authentication failed"), "{refused}");

    // A user who is not declared any more is not let in, though PostgreSQL still has it; a certificate is taken up.
    psql(&with(&other, &[("PGDATABASE", "shop")]), "select 1").ok();
    let one = with_pgbouncer(size).replace(TWO, "users: [{name: shop}]");
    shop.sandbox
        .file("shop.yaml", &one.replacen("    postgres:\n", "    tls: {extra_sans: [192.0.2.7]}\n    postgres:\n", 1));
    shop.apply().ok();
    eventually("it is refused", 20, || psql(&with(&other, &[("PGDATABASE", "shop")]), "select 1").code != Some(0));
    psql(&with(&report, &[("PGDATABASE", "shop")]), "select 1").ok();
    psql(&next, "select 1").ok();
    let address = format!("{}:6432", next["PGHOST"]);
    eventually("PgBouncer shows it", 30, || {
        shop.names_shown(&address, &["-starttls", "postgres"]).contains("192.0.2.7")
    });
    assert_eq!(shop.process("pg-1", "pgbouncer.ini"), bouncer, "it was restarted");
    assert_nothing_lost_in(&next, "written", &writer.stop());

    // Without it in the spec, it is stopped.
    shop.sandbox.file("shop.yaml", &with_haproxy(QUICK, &THREE));
    shop.apply().ok();
    assert_eq!(shop.process("pg-1", "pgbouncer.ini"), None);
}
