//! Everything that prevents machines from being created has its own error message, and nothing is left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use super::{Containers, IMAGE, NETWORK, POOL, Wanted, incus, volumes};
use crate::common::{OLDEST, Run};
use crate::ground::chapter;

const NOBODY: u32 = 65_534;

/// Changes a setting of the server, and changes it back also when the test fails.
struct Meanwhile(&'static [&'static str]);

impl Meanwhile {
    fn new(change: &[&str], back: &'static [&'static str]) -> Self {
        incus(change).ok();
        Meanwhile(back)
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        incus(self.0);
    }
}

fn spec(incus: &str, member: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: lab-no
    provider: {{incus: {{{incus}}}}}
    members: [{{name: etcd-1{member}}}]
    etcd: {{version: {OLDEST}}}
"
    )
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn missing_or_full_resources_are_reported_and_nothing_is_left() {
    let containers = Containers::new("lab-no", OLDEST);
    let refused = |what: &str, incus: &str, member: &str, told: &[&str]| {
        chapter(what, || {
            containers.sandbox.file("cluster.yaml", &spec(incus, member));
            let said = containers.apply().fails().text().split_whitespace().collect::<Vec<_>>().join(" ");
            for words in told {
                assert!(said.contains(words), "`{words}` is not in:\n{said}");
            }
            assert_eq!((containers.instances(), volumes()), (BTreeSet::new(), BTreeSet::new()), "left behind");
        });
    };
    let usual = format!("image: {IMAGE}, network: {NETWORK}, pool: {POOL}, profiles: []");
    refused(
        "no such project",
        &format!("{usual}, project: nowhere"),
        "",
        &["Incus has no project `nowhere`", "default"],
    );
    let others = format!("image: {IMAGE}, network: {NETWORK}, profiles: []");
    refused("no such pool", &format!("{others}, pool: nvme"), "", &["Incus has no storage pool `nvme`", POOL]);
    let others = format!("image: {IMAGE}, pool: {POOL}, profiles: []");
    refused("no such network", &format!("{others}, network: lan"), "", &["Incus has no network `lan`", NETWORK]);
    let others = format!("network: {NETWORK}, pool: {POOL}, profiles: []");
    refused("no such image", &format!("{others}, image: debian"), "", &["Incus has no image `debian`", IMAGE]);
    refused("no such remote", &format!("{usual}, remote: far"), "", &["there is no Incus remote `far`"]);
    let server = incus(&["query", "/1.0"]).ok().json();
    if !server["environment"]["driver"].as_str().unwrap_or_default().contains("qemu") {
        let machines = format!("{usual}, type: vm");
        refused("no virtual machines", &machines, "", &["cannot run virtual machines (its driver is `lxc`)"]);
    }
    let far = ", address: 192.0.2.7";
    refused("an address outside", &usual, far, &["192.0.2.7 is not in the network", "10.78.0.1/16"]);
    let gateway = ", address: 10.78.0.1";
    refused("the gateway's address", &usual, gateway, &["10.78.0.1", "the network quorate-lab itself"]);
    let target = ", incus: {target: host-a}";
    refused("a host without a cluster", &usual, target, &["`target: host-a` needs an Incus cluster"]);
    let fast = usual.replace("profiles: []", "profiles: [fast]");
    refused("no such profile", &fast, "", &["Incus has no profile `fast`", "default"]);
    let large = format!("{usual}, data_size: 100000GiB");
    refused("a pool that is full", &large, "", &["the storage pool quorate-lab has", "etcd-1 needs 100000GiB"]);
    {
        let _other = Meanwhile::new(
            &[
                "init",
                NETWORK,
                "lab-other",
                "--network",
                NETWORK,
                "--storage",
                POOL,
                "--device",
                "eth0,ipv4.address=10.78.7.7",
            ],
            &["delete", "--force", "lab-other"],
        );
        refused("a taken address", &usual, ", address: 10.78.7.7", &["10.78.7.7", "the instance lab-other"]);
    }
    {
        let _limit = Meanwhile::new(
            &["project", "set", "default", "limits.memory=256MiB"],
            &["project", "unset", "default", "limits.memory"],
        );
        refused(
            "the memory of the project",
            &format!("{usual}, memory: 512MiB"),
            "",
            &["the project `default` allows 256MiB memory, nothing in use", "etcd-1 needs 512MiB"],
        );
    }
    let _limit = Meanwhile::new(
        &["project", "set", "default", "limits.instances=0"],
        &["project", "unset", "default", "limits.instances"],
    );
    refused(
        "the limit of the project",
        &usual,
        "",
        &["the project `default` allows 0 instances, 0 in use", "etcd-1 needs 1"],
    );
}

/// A pool on a file system that is too small for the image. Nothing in the spec says how much that needs, so only the server notices.
#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn a_pool_that_fills_up_while_a_machine_is_made_leaves_nothing() {
    const SMALL: &str = "lab-small";
    let containers = Containers::new("lab-no", OLDEST);
    let place = containers.sandbox.path().join(SMALL);
    fs::create_dir(&place).expect("a directory");
    let run = |program: &str, words: &[&str]| {
        assert!(Command::new(program).args(words).status().expect(program).success(), "{program} {words:?}");
    };
    let place = place.to_string_lossy().into_owned();
    run("mount", &["-t", "tmpfs", "-o", "size=16m", "tmpfs", &place]);
    {
        let create = ["storage", "create", SMALL, "dir", &format!("source={place}")];
        let _pool = Meanwhile::new(&create, &["storage", "delete", SMALL]);
        let pool = format!("image: {IMAGE}, network: {NETWORK}, pool: {SMALL}, profiles: []");
        containers.sandbox.file("cluster.yaml", &spec(&pool, ""));
        let said = containers.apply().fails().text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("Incus refused to create") && said.contains("run out of disk space"), "{said}");
        assert_eq!(containers.instances(), BTreeSet::new(), "left behind");
        let volumes = incus(&["storage", "volume", "list", SMALL, "--format=csv", "--columns=tn"]).ok().stdout;
        assert!(!volumes.contains("lab-no"), "left behind: {volumes}");
    }
    run("umount", &["--lazy", &place]);
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn a_server_that_cannot_be_used_says_why() {
    let containers = Containers::new("lab-no", OLDEST);
    containers.want(&Wanted { members: 1, etcd: format!("version: {OLDEST}"), ..Wanted::default() });
    let told = |socket: &str| {
        let mut plan = containers.sandbox.command(&["apply", "--yes", "cluster.yaml"]);
        let said: Run = plan.env("INCUS_SOCKET", socket).output().expect("quorate runs").into();
        said.fails().text().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    chapter("no socket", || {
        let said = told("/nonexistent/unix.socket");
        assert!(said.contains("Incus cannot be reached at /nonexistent/unix.socket"), "{said}");
        assert!(said.contains("is it installed and running?"), "{said}");
    });
    chapter("no permission", || {
        let said = as_nobody(&containers);
        assert!(said.contains("permission denied by Incus at /var/lib/incus/unix.socket"), "{said}");
        assert!(said.contains("a member of the group `incus-admin`"), "{said}");
        assert_eq!(containers.instances(), BTreeSet::new(), "left behind");
    });
    chapter("a server that is too old", || {
        let old = r#"{"type":"sync","status_code":200,"metadata":{"api_extensions":["projects"],"auth":"trusted"}}"#;
        let said = told(&pretend(&containers, old));
        assert!(said.contains("upgrade it to 6.0 or later"), "{said}");
    });
    chapter("somebody else listens there", || {
        let said = told(&pretend(&containers, "hello"));
        assert!(said.contains("unexpected answer from Incus"), "{said}");
    });
}

/// What `apply` says to a user who may not use Incus. The program is copied: its directory may be closed to others.
fn as_nobody(containers: &Containers) -> String {
    let sandbox = &containers.sandbox;
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("open to all");
    let program = sandbox.path().join("quorate");
    fs::copy(env!("CARGO_BIN_EXE_quorate"), &program).expect("a copy");
    [sandbox.path(), &program].into_iter().for_each(open);
    let home = sandbox.path().join("home-of-nobody");
    fs::create_dir(&home).expect("a home");
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("given away");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]).arg(program);
    command.args(["apply", "--yes", "cluster.yaml"]).env("QUORATE_HOME", home).current_dir(sandbox.path());
    let said: Run = command.env_remove("INCUS_SOCKET").output().expect("setpriv").into();
    said.fails().text().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A server that gives every request this answer.
fn pretend(containers: &Containers, answer: &'static str) -> String {
    let path = containers.sandbox.path().join(format!("{}.socket", answer.len()));
    let listener = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    path.to_string_lossy().into_owned()
}
