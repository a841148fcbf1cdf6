//! The commands that need no cluster, run as an operator or a script would, each with a separate home directory.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use jiff::{SignedDuration, Timestamp};
use quorate_control::Home;
use quorate_control::ledger::LedgerLock;
use quorate_control::verbs::consent;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::kinds::etcd::{Formation, FormingMember};
use quorate_core::model::{Ledger, MemberRecord};
use quorate_core::planner::remember;
use quorate_core::spec::generated;
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm};
use serde_json::Value;
use tempfile::TempDir;

const FAULTY: &str = "\
quorate: 1
clusters:
  - name: Demo
    membrs: []
    members:
      - name: etcd-1
    etcd:
      quota: 8GoB
";

struct Operator {
    home: TempDir,
}

impl Operator {
    fn new() -> Self {
        Operator { home: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, "")
    }

    fn run_with(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(arguments).env_remove("XDG_DATA_HOME").env("QUORATE_HOME", self.home.path().join("state"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read may have ended already.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.run(arguments).stdout).unwrap()
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn spec_of(members: usize) -> String {
    let members: String = (1..=members).map(|n| format!("      - name: etcd-{n}\n")).collect();
    format!("quorate: 1\nclusters:\n  - name: demo\n    members:\n{members}")
}

#[test]
fn the_spec_that_init_prints_is_valid() {
    let operator = Operator::new();
    let template = out(&operator.run(&["init"]));
    let checked = operator.run_with(&["validate", "-"], &template);
    assert_eq!((code(&checked), out(&checked).as_str()), (0, "<stdin> is valid: 0 errors, 0 warnings\n"));
    let file = operator.write("cluster.yaml", &template);
    assert_eq!(code(&operator.run(&["validate", &file])), 0);
}

/// With every setting uncommented as an editor does it, and the files there that they name.
#[test]
fn every_setting_that_init_shows_is_valid() {
    let operator = Operator::new();
    let subject = AuthoritySubject { common_name: String::from("ca"), organization: None };
    let life = SignedDuration::from_hours(24 * 3650);
    let ca = Authority::generate(&subject, KeyAlgorithm::P256, life, Timestamp::now()).unwrap();
    for certificate in ["ca.pem", "logs-ca.pem", "config-ca.pem"] {
        operator.write(certificate, ca.certificate_pem());
    }
    for (file, secret) in [("ca-key.pem", ca.key_pem().expose()), ("shared.key", "shared"), ("logs.password", "secret")]
    {
        let file = operator.write(file, secret);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    for provider in ["local", "libvirt"] {
        let template = out(&operator.run(&["init", "--provider", provider]));
        let lines = template.lines().skip(2).map(|line| match line.trim_start().starts_with("# ") {
            true => line.replacen("# ", "", 1) + "\n",
            false => format!("{line}\n"),
        });
        let file = operator.write("all.yaml", &lines.collect::<String>());
        let checked = operator.run(&["validate", &file]);
        assert!(code(&checked) == 0 && out(&checked).contains(" is valid: 0 errors, "), "{}", out(&checked));
    }
}

#[test]
fn validate_reports_every_problem_at_its_place() {
    let operator = Operator::new();
    let file = operator.write("faulty.yaml", FAULTY);
    let checked = operator.run(&["validate", &file]);
    let text = out(&checked);
    assert_eq!(code(&checked), 1);
    for place in [":3:11: error:", ":4:5: error:", ":8:14: error:"] {
        assert!(text.contains(&format!("{file}{place}")), "{place} in {text}");
    }
    assert!(text.contains("  8 |       quota: 8GoB\n    |              ^^^^\n"), "{text}");
    assert!(text.ends_with("is not valid: 3 errors, 0 warnings\n"), "{text}");
    let json = operator.json(&["validate", &file, "--output", "json"]);
    assert_eq!(json["valid"], false);
    assert_eq!(json["problems"].as_array().unwrap().len(), 3);
    assert_eq!(json["problems"][2]["line"], 8);
    assert_eq!(json["problems"][2]["path"], "clusters[0].etcd.quota");
}

#[test]
fn a_warning_does_not_fail_a_spec() {
    let operator = Operator::new();
    let file = operator.write("two.yaml", &spec_of(2));
    let checked = operator.run(&["validate", &file]);
    assert_eq!(code(&checked), 0);
    assert!(out(&checked).ends_with("is valid: 0 errors, 1 warning\n"), "{}", out(&checked));
}

#[test]
fn files_that_a_spec_names_are_checked_where_they_are_named() {
    let operator = Operator::new();
    let spec = format!("{}    tls:\n      ca: {{certificate: no.crt, key: no.key}}\n", spec_of(1));
    let file = operator.write("ca.yaml", &spec);
    let checked = operator.run(&["validate", &file]);
    assert_eq!(code(&checked), 1);
    let missing = operator.home.path().join("no.crt");
    assert!(
        out(&checked).contains(&format!("{file}:7:25: error: {} cannot be read", missing.display())),
        "{}",
        out(&checked)
    );
    let applied = operator.run(&["apply", &file, "--yes"]);
    assert_eq!(code(&applied), 1);
    assert!(err(&applied).contains(&format!("error: {file} has 2 errors\n")), "{}", err(&applied));
}

/// Shape, meaning and files: problems of one kind do not hide those of the next.
#[test]
fn all_problems_of_a_spec_are_reported_in_one_pass() {
    let operator = Operator::new();
    let spec = "\
quorate: 1
clusters:
  - name: orders
    members: [{name: etcd-1}, {name: etcd-1}, {name: etcd-3, adress: 127.0.0.9}]
    etcd: {quota: 8GoB, client_auth: password}
    tls: {ca: {certificate: nowhere.pem, key: nowhere-key.pem}}
    auth: {root_password_file: nowhere.password}
  - name: orders
    members: [{name: etcd-1}]
    tls: {ca_validity: 1d, leaf_validity: 1y}
    etcd: {election: 100ms}
";
    let file = operator.write("faulty.yaml", spec);
    let checked = operator.run(&["validate", &file]);
    let text = out(&checked);
    assert_eq!(code(&checked), 1);
    for (line, field) in [
        (4, "`etcd-1` is given twice"),
        (4, "adress"),
        (5, "8GoB"),
        (6, "nowhere.pem"),
        (6, "nowhere-key.pem"),
        (7, "nowhere.password"),
        (8, "`orders` is given twice"),
        (10, "would outlive their CA"),
        (11, "election"),
    ] {
        let place = format!("{file}:{line}:");
        assert!(text.lines().any(|told| told.starts_with(&place) && told.contains(field)), "{line} {field}\n{text}");
    }
    assert!(text.ends_with("is not valid: 9 errors, 0 warnings\n"), "{text}");
}

#[test]
fn the_schema_describes_every_field() {
    let schema = Operator::new().json(&["schema"]);
    let fields = schema["$defs"]["ClusterSpec"]["properties"].as_object().unwrap();
    assert!(fields.contains_key("members"));
    for (name, field) in fields {
        assert!(field["description"].is_string(), "{name} has no description");
    }
}

#[test]
fn completions_know_the_verbs_and_wrong_usage_exits_with_2() {
    let operator = Operator::new();
    assert_eq!(completed(&operator, "quorate pla"), ["plan"]);
    assert_eq!(completed(&operator, "quorate plan --det"), ["--detailed-exitcode"]);
    for shell in ["zsh", "fish"] {
        assert!(out(&operator.run(&["completions", shell])).contains("quorate"), "{shell}");
    }
    assert_eq!(code(&operator.run(&["aply"])), 2);
    assert_eq!(code(&operator.run(&["plan"])), 2);
    assert_eq!(code(&operator.run(&["ledger", "export", "demo"])), 2);
    assert_eq!(code(&operator.run(&["up", "--members", "0"])), 2);
    assert_eq!(code(&operator.run(&["--version"])), 0);
}

/// What bash offers for the last word of a line, by the script that quorate prints for it.
fn completed(operator: &Operator, line: &str) -> Vec<String> {
    let directory = Path::new(env!("CARGO_BIN_EXE_quorate")).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let press_tab = r#"source <(quorate completions bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _clap_complete_quorate quorate "${@: -1}" "${@: -2:1}" && printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", press_tab, "bash"]).args(line.split(' ')).env("PATH", path);
    // A completion must never ask for a key.
    bash.env("QUORATE_HOME", operator.home.path().join("state")).env("QUORATE_KEY_COMMAND", "echo asked >&2; false");
    let output = bash.output().unwrap();
    assert_eq!((code(&output), err(&output).as_str()), (0, ""), "{line}");
    out(&output).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_the_names_of_clusters_and_members() {
    let operator = Operator::new();
    for (name, members) in [("orders", 3), ("others", 1)] {
        let spec = generated(name, members, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
        let store = Home::new(operator.home.path().join("state")).store(name);
        store.write(&mut Ledger::new(format!("id-{name}"), spec)).unwrap();
    }
    assert_eq!(completed(&operator, "quorate status o"), ["orders", "others"]);
    assert_eq!(completed(&operator, "quorate backup watch or"), ["orders"]);
    assert_eq!(completed(&operator, "quorate replace orders e"), ["etcd-1", "etcd-2", "etcd-3"]);
    assert_eq!(completed(&operator, "quorate logs others etcd"), ["etcd-1"]);
    std::fs::write(operator.home.path().join("orders.yaml"), "").unwrap();
    let typed = format!("quorate plan {}/ord", operator.home.path().display());
    assert_eq!(completed(&operator, &typed), [format!("{}/orders.yaml", operator.home.path().display())]);
    assert_eq!(completed(&operator, "quorate apply orde"), ["orders"]);
    let elsewhere = format!("quorate --home {}/none status o", operator.home.path().display());
    assert_eq!(completed(&operator, &elsewhere), [""; 1]);
}

#[test]
fn open_requests_are_listed_and_withdrawn_unless_they_have_begun_or_somebody_is_at_work() {
    let operator = Operator::new();
    let spec = generated("orders", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
    let store = Home::new(operator.home.path().join("state")).store("orders");
    let mut ledger = Ledger::new(String::from("id"), spec);
    let none = operator.run(&["requests", "orders"]);
    assert_eq!(code(&none), 1, "it is not known yet");
    ledger.downtime = Some(consent(String::from("a restart")));
    ledger.destroy = Some(consent(String::new()));
    store.write(&mut ledger).unwrap();
    let listed = out(&operator.run(&["requests", "orders"]));
    assert!(listed.contains("allow downtime, confirmed by ") && listed.contains("--withdraw downtime"), "{listed}");
    assert!(listed.contains("`quorate destroy orders` completes it"), "{listed}");
    let json = operator.json(&["requests", "orders", "--output", "json"]);
    assert_eq!((&json[0]["request"], &json[0]["begun"]), (&Value::from("destroy"), &Value::from(true)));

    // This test is the controller that is at work.
    let held = LedgerLock::take(store, ledger, "a test", Timestamp::now()).unwrap();
    let refused = operator.run(&["requests", "orders", "--withdraw", "downtime"]);
    assert!(code(&refused) == 7 && err(&refused).contains("holds the lock: a test on"), "{}", err(&refused));
    held.release(|_| {}).unwrap();
    let done = operator.run(&["requests", "orders", "--withdraw", "downtime"]);
    assert_eq!((code(&done), err(&done).as_str()), (0, "withdrawn: allow downtime\n"));
    let again = operator.run(&["requests", "orders", "--withdraw", "downtime"]);
    assert!(err(&again).contains("has no such request"), "{}", err(&again));
}

#[test]
fn a_replacement_that_waits_is_withdrawn_and_one_that_has_begun_is_not() {
    let operator = Operator::new();
    let spec = generated("orders", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
    let store = Home::new(operator.home.path().join("state")).store("orders");
    let mut ledger = Ledger::new(String::from("id"), spec);
    let known = || FormingMember { machine_id: String::new(), peer_url: String::new(), learner: false };
    let members = ["etcd-1", "etcd-2", "etcd-3"].map(|name| (name.into(), known())).into();
    ledger.etcd.formation = Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members };
    let record = MemberRecord { incarnation: 1, generation: 1, ..MemberRecord::default() };
    ledger.members = ["etcd-1", "etcd-2", "etcd-3"].map(|name| (name.into(), record.clone())).into();
    remember::renew(&mut ledger, &"etcd-2".into(), 2);
    store.write(&mut ledger).unwrap();
    let listed = out(&operator.run(&["requests", "orders"]));
    assert!(listed.contains("move etcd-2 to a new machine with its data\n  not begun; "), "{listed}");
    let withdraw = ["requests", "orders", "--withdraw", "replace"];
    let done = operator.run(&withdraw);
    assert_eq!((code(&done), err(&done)), (0, String::from("withdrawn: move etcd-2 to a new machine with its data\n")));
    assert_eq!(operator.json(&["requests", "orders", "--output", "json"]), serde_json::json!([]));

    let mut ledger = store.read().unwrap().unwrap();
    remember::raise_incarnation(&mut ledger, &"etcd-2".into());
    store.write(&mut ledger).unwrap();
    let json = operator.json(&["requests", "orders", "--output", "json"]);
    assert_eq!((&json[0]["request"], &json[0]["begun"]), (&Value::from("replace"), &Value::from(true)));
    let refused = operator.run(&withdraw);
    let told = err(&refused);
    let why = "the machine has been given up for a new one, so it cannot be withdrawn: replace machine etcd-2.1 with etcd-2.2";
    assert!(
        code(&refused) == 1 && told.contains(why) && told.contains("`quorate apply orders` completes it"),
        "{told}"
    );
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert_eq!(code(&Operator::new().run(&["manual", path])), 0);
    let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert!(page("quorate.1").contains("Exit codes"));
    assert!(page("quorate-backup-watch.1").contains("prune"));
    assert!(!directory.path().join("quorate-agent.1").exists());
}

#[test]
fn a_cluster_that_is_not_known_is_an_error_that_helps() {
    let operator = Operator::new();
    for verb in ["status", "plan", "apply", "env", "down", "start", "destroy"] {
        let output = operator.run(&[verb, "nowhere"]);
        assert_eq!(code(&output), 1, "{verb}");
        let told = err(&output);
        assert!(told.starts_with("error: there is no cluster `nowhere` in "), "{verb}: {told}");
        assert!(told.contains("hint: none is known yet; `quorate up` creates one"), "{verb}: {told}");
    }
    let output = operator.run(&["destroy", "../state"]);
    assert_eq!(code(&output), 1);
    let status = operator.run(&["status"]);
    assert_eq!((code(&status), out(&status).as_str()), (0, ""));
}

#[test]
fn a_plan_from_nothing_has_every_step_with_its_reason() {
    let operator = Operator::new();
    for members in [1, 3] {
        let file = operator.write("plan.yaml", &spec_of(members));
        let planned = operator.run(&["plan", &file]);
        let text = out(&planned);
        assert_eq!(code(&planned), 0, "{}", err(&planned));
        let json = operator.run(&["plan", &file, "--output", "json"]);
        let json: serde_json::Value = serde_json::from_str(&out(&json)).unwrap();
        let count = json["clusters"][0]["steps"].as_array().unwrap().len();
        assert!(text.starts_with(&format!("new cluster demo: {count} steps\n")), "{text}");
        // What is the same for every member is said once, with its reason.
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let (who, what) = match members {
            1 => ("2. create the machine of etcd-1", "2. create the machine of etcd-1"),
            _ => ("2-13. for etcd-1, etcd-2, etcd-3:", "create the machine of each"),
        };
        assert!(lines.contains(&who), "{text}");
        let at = lines.iter().position(|line| *line == what).unwrap_or_else(|| panic!("{text}"));
        assert!(lines[at + 1].starts_with("because ") && lines[at + 1].ends_with("is in the spec and has no machine"));
        assert_eq!(code(&operator.run(&["plan", &file, "--detailed-exitcode"])), 4);
    }
    assert!(!operator.home.path().join("state").exists(), "planning writes nothing");
}

#[test]
fn a_plan_in_json_keeps_its_shape() {
    let operator = Operator::new();
    let file = operator.write("plan.yaml", &spec_of(3));
    let json = operator.json(&["plan", &file, "--output", "json"]);
    let cluster = &json["clusters"][0];
    let steps = cluster["steps"].as_array().unwrap();
    assert_eq!(cluster["cluster"], "demo");
    assert_eq!(json["summary"]["clusters"], 1);
    assert_eq!(json["summary"]["steps"], steps.len());
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(step["number"], index + 1);
        assert!(step["kind"].is_string() && step["action"].is_string() && step["because"].is_string(), "{step}");
    }
    assert!(steps.iter().any(|s| s["kind"] == "enrol" && s["member"] == "etcd-2"));
    assert_eq!((&cluster["waiting"], &cluster["blocked"]), (&Value::Array(vec![]), &Value::Array(vec![])));
}

#[test]
fn apply_without_a_terminal_needs_yes_and_does_nothing_without_it() {
    let operator = Operator::new();
    let file = operator.write("one.yaml", &spec_of(1));
    let applied = operator.run_with(&["apply", &file], "y\n");
    assert_eq!(code(&applied), 1);
    assert!(err(&applied).ends_with("  hint: pass --yes to apply without asking\n"), "{}", err(&applied));
    let chosen = operator.run(&["apply", &file, "--yes", "--cluster", "other"]);
    assert!(err(&chosen).contains("declares no cluster `other`\n  hint: it declares: demo\n"), "{}", err(&chosen));
    assert!(!operator.home.path().join("state").exists());
}

#[test]
fn up_refuses_a_version_that_loses_data_and_a_name_that_is_none() {
    let operator = Operator::new();
    let refused = operator.run(&["up", "demo", "--etcd-version", "3.5.1"]);
    assert_eq!(code(&refused), 1);
    assert!(err(&refused).contains("error: etcd 3.5.1 can corrupt its data"), "{}", err(&refused));
    let named = operator.run(&["up", "Not_A_Name", "--etcd-version", "3.6.14"]);
    assert_eq!(code(&named), 1);
    assert!(!Path::new(&operator.home.path().join("state")).exists());
}

#[test]
fn output_to_a_closed_pipe_is_no_error() {
    let operator = Operator::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.arg("schema").env("QUORATE_HOME", operator.home.path()).stdout(writer).output().unwrap();
    assert_eq!((code(&output), err(&output).as_str()), (0, ""));
}
