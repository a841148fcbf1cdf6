//! kubeadm accepts what `quorate kubernetes` writes, and reaches etcd with it.

use std::fs;
use std::process::Command;

use super::{Ground, REGISTRY, Settings, V35, programs};
use crate::common::{Run, address};

/// Where kubeadm writes what it would do.
const DRY_RUN: &str = "dry-run";

/// kubeadm in a sandbox: it changes nothing outside.
fn kubeadm(ground: &Ground, arguments: &[&str]) -> Run {
    let mut command = Command::new(programs().join("kubeadm"));
    command.args(arguments).current_dir(ground.sandbox.path());
    command.env("KUBEADM_INIT_DRYRUN_DIR", ground.sandbox.path().join(DRY_RUN));
    command.output().expect("kubeadm runs").into()
}

fn version() -> String {
    let printed = Command::new(programs().join("kubeadm")).args(["version", "--output=short"]).output();
    String::from_utf8(printed.expect("kubeadm runs").stdout).expect("text")
}

/// With the version of this kubeadm. Otherwise it looks for the newest on the internet.
fn complete(ground: &Ground, file: &str) -> String {
    ground.sandbox.file(file, &format!("{}kubernetesVersion: {}", ground.read(file), version()));
    file.to_owned()
}

#[test]
#[ignore = "needs kubeadm: `cargo xtask lab kubernetes` runs it"]
fn kubeadm_accepts_the_configuration() {
    let ground = Ground::up(Settings { version: V35, tls: "", permissions: REGISTRY });
    ground.write_files();
    let (older, newer) = (complete(&ground, "kubeadm-v1beta3.yaml"), complete(&ground, "kubeadm-v1beta4.yaml"));
    kubeadm(&ground, &["config", "validate", "--config", &newer]).ok();
    let validated = kubeadm(&ground, &["config", "validate", "--config", &older]);
    if version().starts_with("v1.36.") {
        validated.ok();
    } else {
        assert!(validated.fails().stderr.contains("uses an old API spec"), "kubeadm reads v1beta3 only before 1.37");
    }

    fs::create_dir(ground.sandbox.path().join(DRY_RUN)).expect("a directory");
    kubeadm(&ground, &["init", "phase", "control-plane", "apiserver", "--dry-run", "--config", &newer]).ok();
    let manifest = ground.sandbox.path().join(DRY_RUN).join("kube-apiserver.yaml");
    let manifest = fs::read_to_string(manifest).expect("a manifest");
    for flag in ground.read("kube-apiserver.flags").lines() {
        assert!(manifest.contains(flag), "{flag} in {manifest}");
    }
}

#[test]
#[ignore = "needs kubeadm: `cargo xtask lab kubernetes` runs it"]
fn kubeadms_preflight_reaches_etcd() {
    let ground = Ground::up(Settings { version: V35, tls: "", permissions: REGISTRY });
    ground.write_files();
    let file = complete(&ground, "kubeadm-v1beta4.yaml");
    // What else it misses on this host is no concern here; what it finds is printed as a warning.
    let preflight = ["init", "phase", "preflight", "--dry-run", "--ignore-preflight-errors=all", "--config", &file];
    let found = kubeadm(&ground, &preflight).ok().text();
    assert!(!found.contains("ExternalEtcd"), "{found}");

    let text = fs::read_to_string(ground.sandbox.path().join(&file)).expect("the file");
    ground.sandbox.file(&file, &text.replace(&address(1), &address(8)));
    let found = kubeadm(&ground, &preflight).ok().text();
    assert!(found.contains("ExternalEtcd"), "{found}");
}
