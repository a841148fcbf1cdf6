//! Reboots of containers that run systemd: one after another while a client writes, with their packages upgraded, and one that does not
//! come back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Containers, IMAGE, NETWORK, POOL, exec};
use crate::common::{OLDEST, Run};
use crate::ground::{MEMBERS, chapter};
use crate::reboots::{assert_leader_was_last, assert_no_request, leader, rebooted};
use crate::writer::while_writing;

/// A lost quorum would stop writes for as long as a machine boots.
const LONGEST_GAP: Duration = Duration::from_secs(6);

/// A package of version 1 that is installed, and version 2 in a repository on the machine. Its script tries to restart etcd, and notes
/// which process etcd is before and after.
const PACKAGE: &str = r#"set -e
mkdir -p /srv/repo; cd /srv
for version in 1 2; do
  mkdir -p pkg/DEBIAN
  printf 'Package: lab\nVersion: %s\nArchitecture: all\nMaintainer: lab <lab@example.org>\nDescription: lab\n' $version > pkg/DEBIAN/control
  printf '#!/bin/sh\n[ "$2" = 1 ] || exit 0\nsystemctl show -P MainPID etcd.service > /srv/before\ndeb-systemd-invoke restart etcd.service\nsystemctl show -P MainPID etcd.service > /srv/after\n' > pkg/DEBIAN/postinst
  chmod 755 pkg/DEBIAN/postinst
  dpkg-deb --build --root-owner-group pkg repo/lab_$version.deb
done
dpkg -i repo/lab_1.deb
cd repo
{ dpkg-deb --field lab_2.deb; printf 'Filename: ./lab_2.deb\nSize: %s\nSHA256: %s\n' $(stat -c %s lab_2.deb) $(sha256sum lab_2.deb | cut -d' ' -f1); } > Packages
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/srv/repo ./' > /etc/apt/sources.list
"#;

/// Keeps the agent from starting with its machine.
const HINDRANCE: &str = "/etc/systemd/system/quorate-agent.service.d";
const NEVER: &str = "[Unit]\nConditionPathExists=/never";

fn want(containers: &Containers, boot_patience: &str) {
    let members: String = MEMBERS.iter().map(|name| format!("      - name: {name}\n")).collect();
    let spec = format!(
        "quorate: 1
clusters:
  - name: {}
    replace_after: 10m
    provider:
      incus: {{image: {IMAGE}, network: {NETWORK}, pool: {POOL}, profiles: [], boot_patience: {boot_patience}}}
    members:
{members}    etcd: {{version: {OLDEST}}}
",
        containers.name
    );
    containers.sandbox.file("cluster.yaml", &spec);
}

/// The first process of each container, as its host knows it: another one after a reboot.
pub fn boots(containers: &Containers) -> BTreeMap<&'static str, u32> {
    MEMBERS.map(|member| (member, containers.first_process(member))).into()
}

fn reboot(containers: &Containers, more: &[&str]) -> Run {
    let words: Vec<&str> = ["reboot", "--yes", containers.name].into_iter().chain(more.iter().copied()).collect();
    containers.sandbox.quorate(&words)
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn machines_reboot_one_after_another_and_the_cluster_serves_all_along() {
    let containers = Containers::new("lab-boots", OLDEST);
    want(&containers, "60s");
    chapter("three containers, from apply to healthy", || containers.apply().ok());
    containers.assert_healthy(3);
    containers.etcdctl(&["put", "kept", "as it was"]).ok();
    chapter("one machine reboots, and no other", || {
        let before = boots(&containers);
        let told = reboot(&containers, &["--member", "etcd-2", "--output", "json"]).ok().json();
        assert_eq!(told["machines"][0]["rebooted"], true, "{told:#}");
        assert_eq!(rebooted(&before, &boots(&containers)), ["etcd-2"]);
        containers.assert_healthy(3);
    });
    chapter("all reboot while a client writes, the leader last", || {
        let before = boots(&containers);
        let environment = containers.sandbox.environment(containers.name);
        let etcdctl = |arguments: &[&str]| {
            let words = [&["--command-timeout=2s"], arguments].concat();
            containers.sandbox.etcdctl_with(OLDEST, &environment, &words)
        };
        let (run, written) = while_writing(etcdctl, || reboot(&containers, &[]));
        let (told, gap) = (run.ok().stderr, written.longest_gap);
        assert!(gap < LONGEST_GAP, "no write for {gap:?}\n{told}");
        containers.assert_healthy(3);
        written.assert_kept(etcdctl);
        assert_eq!(rebooted(&before, &boots(&containers)), MEMBERS);
        assert_leader_was_last(&containers.sandbox, containers.name);
        containers.assert_reads("kept", "as it was");
        assert_no_request(&containers.sandbox, containers.name);
    });
    chapter("packages that cannot be fetched: no machine reboots", || {
        exec(&containers, "etcd-1", "echo 'deb http://192.0.2.1/debian stable main' > /etc/apt/sources.list").ok();
        let before = boots(&containers);
        let refused =
            reboot(&containers, &["--member", "etcd-1", "--member", "etcd-2", "--upgrade-packages"]).expect(3);
        let told = "the reboot of etcd-1 failed, so no other machine is rebooted: apt-get update failed: ";
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
        assert_eq!(rebooted(&before, &boots(&containers)), [""; 0]);
        exec(&containers, "etcd-1", "test ! -e /usr/sbin/policy-rc.d").ok();
        containers.assert_healthy(3);
    });
    chapter("packages are upgraded, and etcd is not restarted by them", || {
        for member in ["etcd-1", "etcd-3"] {
            exec(&containers, member, PACKAGE).ok();
        }
        let before = boots(&containers);
        let members = ["--member", "etcd-1", "--member", "etcd-3"];
        let told =
            reboot(&containers, &[&members[..], &["--upgrade-packages", "--output", "json"]].concat()).ok().json();
        for machine in told["machines"].as_array().expect("machines") {
            let packages = machine["packages"].as_str().unwrap_or_default();
            assert!(packages.starts_with("1 upgraded, 0 newly installed"), "{told:#}");
        }
        assert_eq!(rebooted(&before, &boots(&containers)), ["etcd-1", "etcd-3"]);
        for member in ["etcd-1", "etcd-3"] {
            assert_eq!(exec(&containers, member, "dpkg-query -W lab").ok().stdout.trim(), "lab\t2");
            exec(&containers, member, "test -s /srv/before && cmp /srv/before /srv/after").ok();
            exec(&containers, member, "test ! -e /usr/sbin/policy-rc.d").ok();
        }
        containers.assert_healthy(3);
    });
    chapter("one does not come back: the next one is not touched, and apply continues when it is there", || {
        want(&containers, "20s");
        containers.apply().ok();
        let first = MEMBERS
            .into_iter()
            .find(|member| *member != leader(&containers.sandbox, containers.name))
            .expect("a follower");
        exec(&containers, first, &format!("mkdir -p {HINDRANCE}; echo '{NEVER}' > {HINDRANCE}/lab.conf")).ok();
        let before = boots(&containers);
        let failed = reboot(&containers, &[]).expect(1);
        assert!(failed.stderr.contains(&format!("the machine of {first} to reboot")), "{}", failed.stderr);
        assert_eq!(rebooted(&before, &boots(&containers)), [first]);
        containers.etcdctl(&["put", "kept", "all along"]).ok();
        let repair = format!("rm -r {HINDRANCE}; systemctl daemon-reload; systemctl start quorate-agent.service");
        exec(&containers, first, &repair).ok();
        containers.apply().ok();
        containers.assert_healthy(3);
        containers.assert_reads("kept", "all along");
        assert_eq!(rebooted(&before, &boots(&containers)), MEMBERS);
    });
    chapter("everything is destroyed, and nothing is left", || containers.destroy());
}
