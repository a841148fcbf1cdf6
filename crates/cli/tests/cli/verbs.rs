//! Commands for a running cluster: its state for scripts, its logs, the environment for etcdctl, its ledger as a file.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, eventually, newest, signal, spec};

#[test]
fn status_reports_degraded_and_down_by_exit_code() {
    let sandbox = Sandbox::new(&newest());
    sandbox.quorate(&["up", "c"]).ok();
    let code = || sandbox.quorate(&["status", "c"]).code;
    let health = |member: &str| {
        let status = sandbox.status("c");
        let members = status["members"].as_array().unwrap().clone();
        members.into_iter().find(|m| m["member"] == member).unwrap()
    };
    let [second, third] = ["etcd-2", "etcd-3"].map(|member| sandbox.etcd_of(member).expect("it runs"));
    assert_eq!(code(), Some(0));

    signal(third, "STOP");
    eventually("degraded", 10, || code() == Some(5));
    let status = sandbox.status("c");
    assert_eq!((&status["verdict"], &status["healthy"]), (&Value::from("degraded"), &Value::from(2)));
    assert!(status["summary"].as_str().unwrap().contains("one more failure means an outage"), "{status:#}");
    let silent = health("etcd-3");
    assert!(silent["health"] != "healthy" && silent["why"].is_string(), "{silent:#}");
    // It still serves.
    sandbox.etcdctl(&newest(), "c", &["put", "foo", "bar"]).ok();
    let plan = sandbox.quorate(&["plan", "c"]).ok().stdout;
    assert!(plan.starts_with("cluster c: no step can be taken\n"), "{plan}");
    assert!(plan.contains("waiting for etcd on etcd-3 to be healthy: "), "{plan}");

    signal(second, "STOP");
    eventually("down", 10, || code() == Some(6));
    assert_eq!(sandbox.status("c")["verdict"], "down");
    for pid in [second, third] {
        signal(pid, "CONT");
    }
    eventually("healthy again", 20, || code() == Some(0));
}

#[test]
fn json_output_keeps_its_shape() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("c.yaml", &spec(1, &newest(), "", ""));
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    let of = |names: &str| names.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
    let json = |arguments: &[&str]| {
        let run = sandbox.command(arguments).args(["--output", "json"]).output().expect("it runs");
        Run::from(run).json()
    };

    let plan = json(&["plan", "c.yaml"]);
    assert_eq!(keys(&plan), of("clusters summary"));
    assert_eq!(keys(&plan["summary"]), of("clusters steps waiting blocked"));
    assert_eq!(keys(&plan["clusters"][0]), of("cluster new remarks changes steps waiting blocked"));
    assert_eq!(keys(&plan["clusters"][0]["steps"][0]), of("number kind member action because strength"));
    assert_eq!(keys(&json(&["validate", "c.yaml"])), of("file valid problems"));

    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let status = json(&["status", "c"]);
    let fields = "cluster cluster_id provider formation etcd_version verdict summary voters healthy quorum \
                  failures_survived members alarms pending renew_by ca_expires backup requests";
    assert_eq!(keys(&status), of(fields));
    let fields = "member machine leaving address endpoint role health why version db_size db_quota raft_index raft_lag \
                  certificate_days_left agent generation restarts fsync_micros log_source_trouble";
    assert_eq!(keys(&status["members"][0]), of(fields));
    assert_eq!(json(&["status"])[0]["cluster"], "c");
    assert_eq!(keys(&json(&["env", "c"])), of("ETCDCTL_CACERT ETCDCTL_CERT ETCDCTL_ENDPOINTS ETCDCTL_KEY"));

    let history = json(&["history", "c", "--last", "1"]);
    assert_eq!(keys(&history), of("cluster steps"));
    let fields = "at ended run verb by host fence kind member action because result why";
    assert_eq!(keys(&history["steps"][0]), of(fields));

    sandbox.file("c.yaml", &spec(1, &newest(), "quota: 1GiB", ""));
    let blocked = &json(&["plan", "c.yaml"])["clusters"][0]["blocked"][0].clone();
    assert_eq!(keys(blocked), of("kind member because rule remedy"));
    assert_eq!(blocked["kind"], "outage");
}

#[test]
fn json_output_of_backups_keeps_its_shape() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("c.yaml", &spec(1, &newest(), "", "backup: {to: {directory: store}}"));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    let of = |names: &str| names.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
    let json = |arguments: &[&str]| sandbox.quorate(&[arguments, &["--output", "json"]].concat()).ok().json();

    let none = json(&["status", "c"])["backup"].clone();
    assert_eq!((&none["newest"], &none["problems"][0]), (&Value::Null, &Value::from("there is no backup yet")));
    let created = json(&["backup", "create", "c"]);
    let verified = "id at etcd_version ok why revision up_to keys hash compared_with_living compared_with";
    assert_eq!(keys(&created["verification"]), of(verified));
    assert_eq!(created["places"].as_array().map(Vec::len), Some(1));
    let standing = json(&["status", "c"])["backup"].clone();
    assert_eq!(keys(&standing), of("newest verified signed_by problems"));
    assert_eq!(keys(&standing["verified"]), of("id at revision verified_at"));
    assert_eq!(standing["newest"]["id"], created["id"]);

    let listed = json(&["backup", "list", "c"]);
    assert_eq!(keys(&listed), of("cluster places backups signed_by damage of_others unfinished"));
    let fields = "id kind at first_revision last_revision keys stored_bytes etcd_version from_member encrypted signed verified_at \
                  verify_failed places damage";
    assert_eq!(keys(&listed["backups"][0]), of(fields));
    let proven = json(&["backup", "verify", "c"]);
    assert_eq!(keys(&proven), of("cluster place verified damage"));
    assert_eq!(keys(&proven["verified"][0]), of(verified));
    let pruning = json(&["backup", "prune", "c", "--dry-run"]);
    assert_eq!(keys(&pruning), of("cluster remove places"));
    assert_eq!(keys(&pruning["places"][0]), of("place keep remove unfinished"));
    assert_eq!(keys(&pruning["places"][0]["keep"][0]), of("id because"));
}

#[test]
fn a_spec_from_init_can_be_validated_from_stdin() {
    let sandbox = Sandbox::new(OLDEST);
    let template = sandbox.quorate(&["init", "--provider", "local"]).ok().stdout;
    let mut validate = sandbox.command(&["validate", "-"]);
    let mut child = validate.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("a pipe").write_all(template.as_bytes()).unwrap();
    let run = Run::from(child.wait_with_output().unwrap()).ok();
    assert!(run.stdout.contains("<stdin> is valid: 0 errors"), "{}", run.stdout);
}

#[test]
fn the_template_of_init_becomes_a_cluster() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let template = sandbox.quorate(&["init"]).ok().stdout;
    assert!(
        template.contains(&format!("      version: {version} "))
            || template.contains(&format!("      version: {version}\n"))
    );
    sandbox.file("cluster.yaml", &template);
    sandbox.quorate(&["apply", "cluster.yaml", "-y"]).ok();
    assert_eq!(sandbox.status("orders")["verdict"], "healthy");
    // What was applied can continue as a file.
    sandbox.file("again.yaml", &sandbox.quorate(&["spec", "orders"]).ok().stdout);
    let again = sandbox.quorate(&["plan", "again.yaml"]).ok().stdout;
    assert!(again.starts_with("cluster orders: nothing to do\n"), "{again}");
    sandbox.quorate(&["destroy", "cluster.yaml", "--yes", "--without-backup"]).ok();
    assert_eq!(sandbox.processes(), []);
}

#[test]
fn logs_of_etcd_and_of_the_agent() {
    let sandbox = Sandbox::new(&newest());
    sandbox.quorate(&["up", "c", "--members", "1"]).ok();
    let etcd = sandbox.quorate(&["logs", "c", "etcd-1", "--lines", "1000"]).ok().stdout;
    assert!(etcd.contains("ready to serve client requests"), "{etcd}");
    let short = sandbox.quorate(&["logs", "c", "etcd-1", "--lines", "2"]).ok().stdout;
    assert!(short.lines().count() == 2 && etcd.contains(short.lines().next().unwrap()), "{short}");
    let agent = sandbox.quorate(&["logs", "c", "etcd-1", "--agent"]).ok().stdout;
    assert!(!agent.is_empty() && !agent.contains("ready to serve client requests"), "{agent}");
    let told = sandbox.quorate(&["logs", "c", "etcd-9"]).expect(1).stderr;
    assert!(told.contains("no member `etcd-9`") && told.contains("etcd-1"), "{told}");

    // A followed log continues, and shows what is added.
    let mut follower = sandbox.spawn(&["logs", "c", "etcd-1", "-f", "--lines", "0"]);
    let stdout = BufReader::new(follower.stdout.take().expect("a pipe"));
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    std::thread::sleep(Duration::from_millis(500));
    signal(sandbox.etcds()[0], "TERM");
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = String::new();
    while !seen.contains("ready to serve client requests") {
        assert!(Instant::now() < deadline, "nothing new in the followed log but:\n{seen}");
        if let Ok(line) = lines.recv_timeout(Duration::from_millis(200)) {
            seen.push_str(&line);
        }
    }
    signal(follower.id(), "KILL");
    follower.wait().unwrap();

    sandbox.quorate(&["down", "c"]).ok();
    let told = sandbox.quorate(&["logs", "c", "etcd-1"]).expect(1).stderr;
    let file = told.rsplit_once("its log is the file ").expect("where the log is").1.trim();
    assert!(fs::read_to_string(file).unwrap().contains("ready to serve client requests"));
}

#[test]
fn members_that_are_processes_of_this_machine_are_not_rebooted() {
    let sandbox = Sandbox::new(&newest());
    sandbox.quorate(&["up", "c", "--members", "1"]).ok();
    let before = sandbox.processes();
    let told = sandbox.quorate(&["reboot", "c", "--yes", "--allow-downtime"]).expect(1).stderr;
    assert!(told.contains("the members of cluster c are processes on this machine (provider local)"), "{told}");
    let told = sandbox.quorate(&["reboot", "c", "--member", "etcd-9"]).expect(1).stderr;
    assert!(told.contains("no member `etcd-9`"), "{told}");
    let told = sandbox.quorate(&["requests", "c", "--withdraw", "reboot"]).expect(1).stderr;
    assert!(told.contains("cluster c has no such request"), "{told}");
    assert_eq!(sandbox.processes(), before);
}

#[test]
fn homes_with_any_name_and_an_environment_that_a_shell_reads_back() {
    let sandbox = Sandbox::new(&newest());
    let home = sandbox.path().join("it's my $HOME & more");
    let home = home.to_str().unwrap();
    let quorate = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--home", home]);
        sandbox.quorate(&all)
    };
    let told = quorate(&["up", "c", "--members", "1"]).ok().stdout;
    assert!(!sandbox.home().exists(), "--home wins over the environment");
    // The commands that are shown at the end work as they are.
    let eval = told.lines().find_map(|line| line.split_once("eval ")).expect("what to type next").1;
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_quorate")).parent().unwrap();
    let script = format!("eval {eval} && env -0");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env_clear().env("PATH", format!("{}:/usr/bin:/bin", program.display()));
    let shown = Run::from(shell.output().expect("a shell")).ok().stdout;
    let pairs = shown.split('\0').filter_map(|line| line.split_once('='));
    let environment =
        pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).filter(|(n, _)| n.starts_with("ETCDCTL_")).collect();
    for client in [OLDEST, &newest()] {
        sandbox.etcdctl_with(client, &environment, &["put", "foo", "bar"]).ok();
    }
    quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
}

#[test]
fn the_memory_of_a_cluster_moves_to_another_home() {
    let sandbox = Sandbox::new(&newest());
    sandbox.quorate(&["up", "c", "--members", "1"]).ok();
    let identity = age::x25519::Identity::generate();
    let recipient = identity.to_public().to_string();
    sandbox.file("key", age::secrecy::ExposeSecret::expose_secret(&identity.to_string()));
    sandbox.quorate(&["ledger", "export", "c", "--recipient", &recipient, "--out", "c.age"]).ok();
    let sealed = fs::read(sandbox.path().join("c.age")).unwrap();
    assert!(sealed.starts_with(b"age-encryption.org/v1"));
    assert!(!String::from_utf8_lossy(&sealed).contains("PRIVATE KEY"));

    // To a fresh home, where it can be read with the key alone.
    let elsewhere = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--home", "elsewhere"]);
        sandbox.quorate(&all)
    };
    sandbox.file("wrong", age::secrecy::ExposeSecret::expose_secret(&age::x25519::Identity::generate().to_string()));
    let told = elsewhere(&["ledger", "import", "c.age", "--identity", "wrong"]).expect(1).stderr;
    assert!(told.contains("the key or passphrase does not fit"), "{told}");
    assert!(!sandbox.path().join("elsewhere/clusters/c/ledger").exists());
    elsewhere(&["ledger", "import", "c.age", "--identity", "key"]).ok();
    let status = elsewhere(&["status", "c", "--output", "json"]).expect(6).json();
    assert_eq!(status["cluster_id"], sandbox.status("c")["cluster_id"]);
    assert_eq!(status["members"][0]["health"], "absent", "the machines are not there");
    let plan = elsewhere(&["plan", "c"]).ok().text();
    assert!(plan.contains("the machine of etcd-1 is missing"), "a cluster is bootstrapped only once: {plan}");

    // With its machines it is the same cluster again.
    sandbox.quorate(&["down", "c"]).ok();
    fs::rename(sandbox.home().join("machines"), sandbox.path().join("elsewhere/machines")).unwrap();
    // The export was made before the cluster was brought down: its agent, once it runs, remembers one controller more.
    let told = elsewhere(&["apply", "c", "--yes"]).expect(3).text();
    assert!(told.contains("this ledger is older than the cluster"), "{told}");
    elsewhere(&["apply", "c", "--yes"]).expect(3);
    elsewhere(&["apply", "c", "--yes", "--accept-older-ledger"]).ok();
    assert_eq!(elsewhere(&["status", "c", "--output", "json"]).ok().json()["verdict"], "healthy");

    // An older one does not replace a newer one silently.
    let told = elsewhere(&["ledger", "import", "c.age", "--identity", "key"]).expect(1).stderr;
    assert!(told.contains("is newer") && told.contains("--replace"), "{told}");
    elsewhere(&["ledger", "import", "c.age", "--identity", "key", "--replace"]).ok();
    elsewhere(&["plan", "c", "--detailed-exitcode"]).ok();
    elsewhere(&["destroy", "c", "--yes", "--without-backup"]).ok();
}

#[test]
fn a_passphrase_seals_the_memory_too() {
    let sandbox = Sandbox::new(&newest());
    sandbox.quorate(&["up", "c", "--members", "1"]).ok();
    sandbox.file("words", "correct horse battery staple\n");
    sandbox.file("other", "wrong\n");
    let export = sandbox.command(&["ledger", "export", "c", "--passphrase-file", "words"]).output().unwrap();
    assert!(export.status.success());
    fs::write(sandbox.path().join("c.age"), &export.stdout).unwrap();
    let import = |words: &str| sandbox.quorate(&["ledger", "import", "c.age", "--passphrase-file", words]);
    assert!(import("other").expect(1).stderr.contains("does not fit"));
    import("words").ok();
    sandbox.quorate(&["plan", "c", "--detailed-exitcode"]).ok();
    sandbox.quorate(&["ledger", "export", "c"]).expect(2);
}
