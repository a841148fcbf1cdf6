//! `quorate output`, read by a shell and as JSON.

use std::process::Command;

use crate::common::{Run, Sandbox, newest, spec};

#[test]
fn scripts_learn_how_a_cluster_is_reached_and_no_secret() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "", ""));
    let unknown = sandbox.quorate(&["output", "c"]).fails().stderr;
    assert!(unknown.contains("there is no cluster `c`"), "{unknown}");
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let known = sandbox.quorate(&["output", "c"]).ok().json();
    assert_eq!((&known["name"], &known["kind"], &known["provider"]), (&"c".into(), &"etcd".into(), &"local".into()));
    assert_eq!(known["version"], version.as_str());
    let endpoints = sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone();
    assert_eq!(known["endpoints"][0], endpoints.as_str());
    assert!(!known.to_string().contains("PRIVATE KEY"));

    let program = env!("CARGO_BIN_EXE_quorate");
    // Exit code 60 of curl: the CA does not fit. Without a login the connection ends later, in one of several ways.
    let script = "eval \"$(\"$0\" output c --format shell)\" && curl -s --cacert \"$QUORATE_CA_FILE\" \"$QUORATE_ENDPOINTS\"/x; \
                  printf '%s\\n%s' $? \"$QUORATE_CA\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, program]).env("QUORATE_HOME", sandbox.home());
    let run: Run = command.output().expect("sh runs").into();
    let (code, ca) = run.stdout.split_once('\n').expect("two values");
    assert!(!["0", "60"].contains(&code), "curl ended with {code}: {}", run.stderr);
    assert_eq!(ca.trim(), known["ca"].as_str().unwrap_or_default().trim());
    let variables = sandbox.quorate(&["output", "c", "--format", "tfvars"]).ok().stdout;
    assert!(variables.contains(&format!("quorate_endpoints = [\"{endpoints}\"]\n")), "{variables}");
}
