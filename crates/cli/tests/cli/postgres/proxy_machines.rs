//! HAProxy on separate machines: they forward clients to members, and members do not trust them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Shop, THREE, Writer, assert_nothing_lost, psql, spec};
use crate::common::{PSQL, Sandbox, eventually, signal};

const SETTINGS: &str = "check_every: 400ms, drain: 30s";

fn client(env: &BTreeMap<String, String>) -> Command {
    let mut command = Command::new(PSQL);
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(env).args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1"]);
    command.stdout(Stdio::null());
    command
}

fn with_proxies(names: &[&str]) -> String {
    let machines: Vec<String> = names.iter().map(|name| format!("{{name: {name}}}")).collect();
    let haproxy = format!("      haproxy: {{{SETTINGS}, machines: [{}]}}\n      users:", machines.join(", "));
    spec("max_connections: 50", &THREE).replace("      users:", &haproxy)
}

impl Shop {
    /// To one proxy, by the port that leads to the primary or to replicas.
    fn by_proxy(&self, name: &str, port: &str) -> BTreeMap<String, String> {
        let proxies = self.status()["proxies"].as_array().expect("proxies").clone();
        let proxy = proxies.iter().find(|proxy| proxy["proxy"] == name).expect("a proxy");
        let address = proxy["address"].as_str().expect("an address").to_owned();
        let mut env = self.env(&["--user", "shop", &format!("--proxy={port}")]);
        assert!(env["PGHOST"].split(',').any(|host| host == address), "{env:?}");
        env.insert(String::from("PGHOST"), address);
        env
    }

    fn proxy_root(&self, machine: &str) -> PathBuf {
        self.sandbox.home().join(format!("machines/shop/{machine}"))
    }

    /// How many clients this proxy lets through to a member, as HAProxy says.
    fn connections_at_most(&self, proxy: &str, member: &str) -> Option<String> {
        let script = "import os, socket, sys\n\
            os.chdir(sys.argv[1]); s = socket.socket(socket.AF_UNIX); s.connect('haproxy.sock')\n\
            s.sendall(b'show stat\\n'); print(s.makefile().read())\n";
        let directory = self.proxy_root(proxy).join("root/var/lib/quorate-haproxy");
        let shown = Command::new("python3").args(["-c", script]).arg(directory).output().expect("python3 runs");
        let shown = String::from_utf8(shown.stdout).expect("text");
        let mut lines = shown.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let head = lines.next()?;
        let limit = head.iter().position(|title| *title == "slim")?;
        let server = lines.find(|line| line.len() > limit && line[..2] == ["primary", member])?;
        Some(server[limit].to_owned())
    }

    fn cut_power(&self, machine: &str) {
        for word in [" agent --root ", "haproxy.cfg"] {
            while let Some(pid) = self.process(machine, word) {
                signal(pid, "KILL");
                eventually("it is gone", 10, || self.process(machine, word) != Some(pid));
            }
        }
    }
}

fn recovers(env: &BTreeMap<String, String>) -> String {
    psql(env, "select pg_is_in_recovery()").stdout
}

#[test]
fn proxies_on_separate_machines_serve_are_drained_repaired_removed_and_trusted_with_nothing() {
    let sandbox = Sandbox::new(super::VERSION);
    sandbox.file("shop.yaml", &with_proxies(&["proxy-1", "proxy-2"]));
    let shop = Shop { sandbox };
    shop.apply().ok();
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    let status = shop.status();
    assert_eq!(status["verdict"], "healthy");
    assert_eq!(status["members"].as_array().unwrap().len(), 3, "proxies are no members: {status}");
    for name in ["proxy-1", "proxy-2"] {
        let (primary, replica) = (shop.by_proxy(name, "primary"), shop.by_proxy(name, "replica"));
        assert_eq!(primary["PGSSLMODE"], "verify-full");
        eventually("the primary is found", 30, || recovers(&primary) == "f\n");
        eventually("a replica is found", 30, || recovers(&replica) == "t\n");
        for word in ["patroni.yml", "postgres -D"] {
            assert_eq!(shop.process(name, word), None, "{name} runs a member's program");
        }
    }
    is_trusted_with_nothing(&shop);

    // Both keep clients waiting while the primary moves.
    let through = shop.by_proxy("proxy-1", "primary");
    let other = shop.by_proxy("proxy-2", "primary");
    let (writer, other_writer) = (Writer::start(through.clone()), Writer::start_in(other.clone(), "others"));
    let before = shop.primary();
    psql(&through, "create table slow (n int)").ok();
    // It lasts until both were seen to wait, however long that takes.
    let mut holder = client(&shop.env(&[])).env("PGDATABASE", &through["PGDATABASE"]).stdin(Stdio::piped()).spawn();
    let holder = holder.as_mut().expect("psql runs");
    holder.stdin.as_mut().expect("its input").write_all(b"select pg_advisory_lock(7);\n").expect("it reads");
    let count = |what: &str| format!("select count(*) from pg_locks where locktype = 'advisory' and {what}");
    eventually("the lock is taken", 10, || psql(&through, &count("granted")).stdout == "1\n");
    let script = "begin; insert into slow values (1); select pg_advisory_xact_lock(7); commit;";
    let mut transaction = client(&through).args(["-c", script]).spawn().expect("psql runs");
    eventually("the transaction is under way", 10, || psql(&through, &count("not granted")).stdout == "1\n");
    std::thread::scope(|scope| {
        let switched = scope.spawn(|| shop.sandbox.quorate(&["switchover", "shop", "--yes"]));
        for name in ["proxy-1", "proxy-2"] {
            eventually("new clients wait", 20, || shop.connections_at_most(name, &before).as_deref() == Some("1"));
        }
        drop(holder.stdin.take());
        switched.join().expect("it ends").ok();
    });
    assert!(transaction.wait().expect("it ends").success(), "the transaction was cut off");
    assert!(holder.wait().expect("it ends").success());
    assert_ne!(shop.primary(), before);
    for name in ["proxy-1", "proxy-2"] {
        assert_ne!(shop.connections_at_most(name, &before).as_deref(), Some("1"), "{name} still keeps clients waiting");
    }
    for env in [&through, &other] {
        eventually("the primary is found", 30, || recovers(env) == "f\n");
    }

    // One is killed. Clients of the other notice nothing, and it is started again.
    shop.cut_power("proxy-1");
    assert_eq!(shop.status()["verdict"], "degraded");
    assert_eq!(recovers(&other), "f\n");
    shop.apply().ok();
    eventually("the primary is found", 30, || recovers(&through) == "f\n");

    // It is lost with its disk: another machine takes its place.
    shop.cut_power("proxy-1");
    fs::remove_dir_all(shop.proxy_root("proxy-1")).expect("its directory");
    let plan = shop.sandbox.quorate(&["plan", "shop.yaml", "--now"]).text();
    assert!(plan.contains("it is a proxy and has no data"), "{plan}");
    shop.sandbox.quorate(&["apply", "--yes", "--now", "shop.yaml"]).ok();
    let renewed = shop.by_proxy("proxy-1", "primary");
    eventually("the primary is found", 30, || recovers(&renewed) == "f\n");
    assert_eq!(shop.status()["proxies"][0]["machine"], "proxy-1.2");

    // One is removed; the other one serves.
    shop.sandbox.file("shop.yaml", &with_proxies(&["proxy-2"]));
    shop.apply().ok();
    let left: Vec<Value> = shop.status()["proxies"].as_array().unwrap().clone();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(recovers(&other), "f\n");
    assert!(!shop.proxy_root("proxy-1.2").exists() && shop.process("proxy-1.2", "haproxy.cfg").is_none());

    let direct = shop.env(&["--user", "shop"]);
    assert_nothing_lost(&direct, &writer.stop());
    super::assert_nothing_lost_in(&direct, "others", &other_writer.stop());
    shop.sandbox.quorate(&["destroy", "shop", "--yes", "--without-backup"]).ok();
    assert!(shop.sandbox.processes().iter().all(|(_, line)| !line.contains("/machines/shop/")), "something still runs");
    assert!(!shop.proxy_root("proxy-2").exists(), "a machine is left");
}

/// All that a proxy's machine holds opens nothing: not Patroni's commands, not PostgreSQL as those whom members log in as.
fn is_trusted_with_nothing(shop: &Shop) {
    let root = shop.proxy_root("proxy-1").join("root");
    let state: Value =
        serde_json::from_slice(&fs::read(root.join("var/lib/quorate/state.json")).expect("its state")).unwrap();
    let chains = state["chains"].as_object().expect("certificates");
    assert_eq!(chains.keys().collect::<Vec<_>>(), ["agent"], "a proxy has no certificate but its agent's");
    let superuser = shop.env(&[]);
    let passwords = [superuser["PGPASSWORD"].clone(), shop.env(&["--user", "shop"])["PGPASSWORD"].clone()];
    let everything = Command::new("grep").args(["-rlF", "-e", &passwords[0], "-e", &passwords[1]]).arg(&root).output();
    assert!(everything.expect("grep runs").stdout.is_empty(), "a password is on the proxy's machine");

    let directory = shop.sandbox.path().join("stolen");
    fs::create_dir(&directory).unwrap();
    let stolen = |name: &str, text: &Value| {
        let path = directory.join(name);
        fs::write(&path, text.as_str().expect("text")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let (certificate, key) = (stolen("crt", &chains["agent"]), stolen("key", &state["keys"]["agent"]["pem"]));
    let address = superuser["PGHOST"].split(',').next().unwrap().to_owned();
    let ask = |files: [&str; 2], method: &str, path: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, "-d", "{}", "--cert", files[0]]);
        curl.args(["--key", files[1], &format!("https://{address}:8008/{path}")]);
        String::from_utf8(curl.output().expect("curl runs").stdout).unwrap()
    };
    let member = [superuser["PGSSLCERT"].as_str(), superuser["PGSSLKEY"].as_str()];
    assert_eq!(ask(member, "POST", "reload"), "202", "a certificate of the members' CA commands Patroni");
    for path in ["restart", "reload", "switchover", "failover"] {
        // Python ends the handshake with an unknown CA, so there is no code at all.
        let code = ask([&certificate, &key], "POST", path);
        assert!(["000", "403"].contains(&code.as_str()), "Patroni answers {code} to POST /{path}");
    }
    // It even knows the password here: without a certificate of a member that is not enough.
    let mut env = superuser.clone();
    psql(&env, "select 1").ok();
    env.insert(String::from("PGSSLCERT"), certificate);
    env.insert(String::from("PGSSLKEY"), key);
    psql(&env, "select 1").fails();
    for name in ["PGSSLCERT", "PGSSLKEY"] {
        env.insert(name.to_owned(), String::from("/nonexistent"));
    }
    let said = psql(&env, "select 1").fails().stderr;
    assert!(said.contains("certificate"), "{said}");
}
