//! Sources of etcd, with the real program: a path, an archive with its checksum, a mirror, Debian's package. A program
//! that does not match is reported and never started.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::releases::{self, Server};
use crate::common::{OLDEST, Run, Sandbox, lab, spec};

const VERSION: &str = "3.5.30";

fn apply(sandbox: &Sandbox, etcd: &str) -> Run {
    sandbox.file("c.yaml", &spec(3, VERSION, etcd, ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"])
}

/// The program that a process runs.
fn program(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).expect("a process of ours")
}

/// A small program that says it is etcd of this version.
fn pretender(sandbox: &Sandbox, version: &str) -> PathBuf {
    let path = sandbox.file("pretender", &format!("#!/bin/sh\necho 'etcd Version: {version}'\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn an_archive_is_fetched_once_and_only_with_its_checksum() {
    let sandbox = Sandbox::new(OLDEST);
    let (archive, sum) = releases::archive(&sandbox, VERSION, &lab(VERSION).join("etcd"));
    let server = Server::new(BTreeMap::from([(String::from("/etcd.tar.gz"), archive)]));
    let binary = |path: &str, sum: &str| format!("binary: {{archive: \"{}{path}\", sha256: {sum}}}", server.base);

    let other = "0".repeat(64);
    let told = apply(&sandbox, &binary("/etcd.tar.gz", &other)).expect(3).text();
    for word in [&format!("has the SHA-256 {sum}"), &format!("expected is {other}"), "/etcd.tar.gz", "remedy:"] {
        assert!(told.contains(word), "{word} is not in {told}");
    }
    assert!(sandbox.etcds().is_empty());
    let cached = || fs::read_dir(sandbox.home().join("cache/etcd")).unwrap().flatten().map(|e| e.path());
    assert!(!cached().any(|path| path.join("etcd").exists()), "nothing of it is kept");

    let told = apply(&sandbox, &binary("/gone.tar.gz", &sum)).expect(3).text();
    assert!(told.contains("404") && told.contains("/gone.tar.gz"), "{told}");
    assert!(sandbox.etcds().is_empty());

    let before = server.visits().len();
    apply(&sandbox, &binary("/etcd.tar.gz", &sum)).ok();
    assert_eq!(server.visits()[before..], ["/etcd.tar.gz"], "once for all members");
    let etcds = sandbox.etcds();
    assert_eq!(etcds.len(), 3);
    for etcd in etcds {
        assert!(program(etcd).starts_with(sandbox.home().join("cache")), "{}", program(etcd).display());
    }
    assert_eq!(sandbox.status("c")["members"][0]["version"], VERSION);
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
    assert_eq!(server.visits().len(), before + 1);
}

#[test]
fn an_archive_of_another_version_is_not_started() {
    let sandbox = Sandbox::new(OLDEST);
    let (archive, sum) = releases::archive(&sandbox, VERSION, &pretender(&sandbox, "3.5.29"));
    let server = Server::new(BTreeMap::from([(String::from("/etcd.tar.gz"), archive)]));
    let told = apply(&sandbox, &format!("binary: {{archive: \"{}/etcd.tar.gz\", sha256: {sum}}}", server.base));
    let told = told.expect(3).text();
    let once = format!("blocked: for etcd-1, etcd-2, etcd-3: each needs etcd {VERSION}, but finds 3.5.29");
    assert!(told.contains(&once) && told.matches("blocked: ").count() == 1, "{told}");
    assert!(sandbox.etcds().is_empty());
}

#[test]
fn a_mirror_is_held_to_the_checksums_of_etcds_releases() {
    let sandbox = Sandbox::new(OLDEST);
    let (archive, sum) = releases::archive(&sandbox, VERSION, &pretender(&sandbox, VERSION));
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let path = format!("/etcd/v{VERSION}/etcd-v{VERSION}-linux-{arch}.tar.gz");
    let server = Server::new(BTreeMap::from([(path.clone(), archive)]));
    let told = apply(&sandbox, &format!("binary: {{mirror: \"{}/etcd\"}}", server.base)).expect(3).text();
    assert!(server.visits().contains(&path), "{:?}", server.visits());
    assert!(told.contains(&format!("has the SHA-256 {sum}")) && told.contains("expected is"), "{told}");
    assert!(sandbox.etcds().is_empty());

    let text = spec(1, "3.5.999", &format!("binary: {{mirror: \"{}/etcd\"}}", server.base), "");
    sandbox.file("c.yaml", &text);
    let told = sandbox.quorate(&["validate", "c.yaml"]).expect(1).stdout;
    assert!(told.contains("quorate knows no checksum of etcd 3.5.999"), "{told}");
}

#[test]
fn a_path_is_a_program_or_its_directory() {
    for path in [lab(VERSION), lab(VERSION).join("etcd")] {
        let sandbox = Sandbox::new(OLDEST);
        sandbox.file("c.yaml", &spec(1, VERSION, &format!("binary: {{path: {}}}", path.display()), ""));
        sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
        assert_eq!(program(sandbox.etcds()[0]), fs::canonicalize(lab(VERSION).join("etcd")).unwrap());
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
    }
}

#[test]
fn a_relative_path_begins_at_the_spec() {
    let sandbox = Sandbox::new(OLDEST);
    std::os::unix::fs::symlink(lab(VERSION), sandbox.path().join("programs")).unwrap();
    fs::create_dir(sandbox.path().join("specs")).unwrap();
    sandbox.file("specs/c.yaml", &spec(1, VERSION, "binary: {path: ../programs}", ""));
    sandbox.quorate(&["apply", "specs/c.yaml", "--yes"]).ok();
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
}

#[test]
fn up_takes_the_etcd_on_the_path() {
    for version in [OLDEST, VERSION] {
        let sandbox = Sandbox::new(version);
        sandbox.quorate(&["up", "c", "--members", "1"]).ok();
        assert_eq!(sandbox.status("c")["etcd_version"], version);
    }
}

/// The version of Debian's package, where apt offers one.
fn offered_by_debian() -> Option<String> {
    let listing = Run::from(Command::new("apt-cache").args(["madison", "etcd-server"]).output().ok()?).stdout;
    let full = listing.lines().next()?.split('|').nth(1)?.trim().to_owned();
    let upstream: String = full.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let mut download = Command::new("apt-get");
    let there = download.args(["download", "--print-uris", "etcd-server"]).output().ok()?.status.success();
    there.then_some(upstream)
}

#[test]
fn debians_package_in_the_version_that_debian_has() {
    let Some(offered) = offered_by_debian() else {
        eprintln!("apt offers no etcd-server here: Debian's package is not covered");
        return;
    };
    let sandbox = Sandbox::new(VERSION);
    let told = apply(&sandbox, "binary: {package: debian}").expect(3).text();
    assert!(told.contains(&format!("is not available as {VERSION}; available: {offered}")), "{told}");
    assert!(sandbox.etcds().is_empty());

    sandbox.file("c.yaml", &spec(1, &offered, "binary: {package: debian}", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert!(program(sandbox.etcds()[0]).starts_with(sandbox.home().join("cache")));
    assert_eq!(sandbox.status("c")["members"][0]["version"], offered.as_str());
}
