//! A server elsewhere: over HTTPS, with the client certificate of the `incus` command and the server certificate that it accepted.

use std::fs;
use std::process::Command;

use super::{Containers, IMAGE, NETWORK, POOL, incus};
use crate::common::{OLDEST, Run};
use crate::ground::chapter;

const ADDRESS: &str = "10.78.0.1:8443";

fn spec(project: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: lab-far
    provider: {{incus: {{remote: far{project}, image: {IMAGE}, network: {NETWORK}, pool: {POOL}, profiles: []}}}}
    members: [{{name: etcd-1}}]
    etcd: {{version: {OLDEST}}}
"
    )
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn a_cluster_on_a_server_that_is_reached_over_https() {
    let containers = Containers::new("lab-far", OLDEST);
    let config = containers.sandbox.path().join("incus");
    let with_config = |command: &mut Command| -> Run {
        command.env("INCUS_CONF", &config).env_remove("INCUS_SOCKET").output().expect("it runs").into()
    };
    let quorate = |words: &[&str]| with_config(&mut containers.sandbox.command(words));
    let plainly = |run: Run| run.fails().text().split_whitespace().collect::<Vec<_>>().join(" ");
    incus(&["config", "set", "core.https_address", ADDRESS]).ok();
    let token = incus(&["config", "trust", "add", "lab", "--quiet"]).ok().stdout;
    let token = token.lines().last().expect("a token").trim().to_owned();
    with_config(Command::new("incus").args(["remote", "add", "far", &token])).ok();
    containers.sandbox.file("cluster.yaml", &spec(""));
    chapter("one member, by way of HTTPS", || {
        quorate(&["apply", "--yes", "cluster.yaml"]).ok();
        let status = quorate(&["status", "lab-far", "--output", "json"]).ok().json();
        assert_eq!(status["verdict"], "healthy", "{status:#}");
    });
    chapter(
        "a client without a token: the server's certificate is accepted, and the server is given the client's",
        || {
            let other = containers.sandbox.path().join("incus-certified");
            let with_other = |command: &mut Command| -> Run {
                command.env("INCUS_CONF", &other).env_remove("INCUS_SOCKET").output().expect("it runs").into()
            };
            with_other(Command::new("incus").args(["remote", "generate-certificate"])).ok();
            incus(&["config", "trust", "add-certificate", &other.join("client.crt").display().to_string()]).ok();
            let url = format!("https://{ADDRESS}");
            with_other(Command::new("incus").args(["remote", "add", "far", &url, "--accept-certificate"])).ok();
            let run = with_other(&mut containers.sandbox.command(&["apply", "--yes", "cluster.yaml"])).ok();
            assert!(run.text().contains("nothing to do"), "{}", run.text());
        },
    );
    let certificate = config.join("servercerts/far.crt");
    let accepted = fs::read(&certificate).expect("the server's certificate");
    chapter("a server that shows another certificate is not spoken to", || {
        fs::copy(config.join("client.crt"), &certificate).expect("another certificate");
        let said = plainly(quorate(&["apply", "--yes", "cluster.yaml"]));
        assert!(said.contains("shows another certificate than the one that was accepted"), "{said}");
        fs::write(&certificate, accepted).expect("the accepted one");
    });
    chapter("a client that is restricted to another project is told which ones it may use", || {
        incus(&["project", "create", "lab-limited"]).ok();
        let limited = ["config", "trust", "add", "limited", "--restricted", "--projects", "lab-limited", "--quiet"];
        let token = incus(&limited).ok().stdout;
        let token = token.lines().last().expect("a token").trim().to_owned();
        let other = containers.sandbox.path().join("incus-limited");
        let with_other = |command: &mut Command| -> Run {
            command.env("INCUS_CONF", &other).env_remove("INCUS_SOCKET").output().expect("it runs").into()
        };
        with_other(Command::new("incus").args(["remote", "add", "far", &token])).ok();
        let before = containers.instances();
        // Otherwise it is the project that the token is for.
        let spec = spec(", project: default").replace("lab-far", "lab-limited");
        containers.sandbox.file("limited.yaml", &spec);
        let said = plainly(with_other(&mut containers.sandbox.command(&["apply", "--yes", "limited.yaml"])));
        assert!(said.contains("this client may not use the project `default` of Incus, but lab-limited: "), "{said}");
        assert_eq!(containers.instances(), before);
        incus(&["project", "delete", "lab-limited"]);
    });
    chapter("everything is destroyed, and nothing is left", || {
        quorate(&["destroy", "--yes", "--without-backup", "lab-far"]).ok();
        assert!(containers.instances().is_empty(), "left behind");
    });
    chapter("a client that is not trusted any more is told so", || {
        let listed = incus(&["config", "trust", "list", "--format=csv", "--columns=f"]).ok().stdout;
        listed.lines().for_each(|fingerprint| drop(incus(&["config", "trust", "remove", fingerprint]).ok()));
        let said = plainly(quorate(&["apply", "--yes", "cluster.yaml"]));
        assert!(said.contains("does not trust this client"), "{said}");
        incus(&["config", "unset", "core.https_address"]).ok();
    });
}
