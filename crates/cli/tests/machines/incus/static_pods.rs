//! etcd as static pods on machines that run systemd, a kubelet and containerd, as control planes do: these machines reboot too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::reboots::boots;
use super::{Containers, HOST, Wanted, exec, incus};
use crate::common::kubelet::{place, settings};
use crate::common::lab;
use crate::common::releases::{self, Server};
use crate::ground::{MEMBERS, chapter};
use crate::reboots::{assert_leader_was_last, assert_no_request, leader, rebooted};
use crate::writer::while_writing;

const VERSION: &str = "3.5.30";
const IMAGES: [&str; 2] = ["etcd-3.5.30.tar", "pause.tar"];
const PROGRAMS: [&str; 4] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc"];
/// Containers in a container need a profile that allows them.
const PROFILE: &str = "lab-nesting";
/// Where a machine has everything of its kubelet.
const PLACE: &str = "/srv/kubelet";
/// Mounts control groups that a kubelet needs and systemd has not mounted: where the host has them apart, systemd looks for both together.
const GROUPS: &str = "#!/bin/sh
[ -d /sys/fs/cgroup/unified ] || exit 0
mount -o remount,rw /sys/fs/cgroup
for group in cpu cpuacct; do
  mountpoint -q /sys/fs/cgroup/$group && continue
  rm -f /sys/fs/cgroup/$group
  mkdir -p /sys/fs/cgroup/$group
  mount -t cgroup -o $group cgroup /sys/fs/cgroup/$group
done
";
const UNITS: [(&str, &str); 2] = [
    (
        "containerd",
        "[Service]\nExecStartPre=/bin/sh /srv/kubelet/groups\nExecStart=/usr/local/bin/containerd --config /srv/kubelet/containerd.toml\nDelegate=yes\nKillMode=process\n\
         Restart=always\n[Install]\nWantedBy=multi-user.target\n",
    ),
    (
        "kubelet",
        "[Unit]\nAfter=containerd.service\n[Service]\nExecStart=/usr/local/bin/kubelet --config=/srv/kubelet/kubelet.yaml \
         --root-dir=/srv/kubelet/pods --cert-dir=/srv/kubelet/pki\nRestart=always\nRestartSec=1\n\
         [Install]\nWantedBy=multi-user.target\n",
    ),
];

/// A profile of the server, which is deleted in the end.
struct Profile;

impl Profile {
    fn new() -> Self {
        incus(&["profile", "create", PROFILE]).ok();
        incus(&["profile", "set", PROFILE, "security.nesting=true", "security.privileged=true"]).ok();
        incus(&["profile", "device", "add", PROFILE, "kmsg", "unix-char", "source=/dev/kmsg", "path=/dev/kmsg"]).ok();
        Profile
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        incus(&["profile", "delete", PROFILE]);
    }
}

fn push(containers: &Containers, member: &str, from: &Path, to: &str) {
    let to = format!("{}{to}", containers.instance(member));
    incus(&["file", "push", "--create-dirs", &from.display().to_string(), &to]).ok();
}

fn on_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{program} is not on the PATH"))
}

/// As the image of such machines has it. The kubelet starts with the machine.
fn install_kubelet(containers: &Containers, member: &str) {
    for program in PROGRAMS {
        push(containers, member, &on_path(program), &format!("/usr/local/bin/{program}"));
    }
    let kubelet = std::fs::canonicalize(place().join("kubelet")).expect("a kubelet");
    push(containers, member, &kubelet, "/usr/local/bin/kubelet");
    let units = UNITS.map(|(name, text)| (format!("/etc/systemd/system/{name}.service"), text.to_owned()));
    let files = settings(Path::new(PLACE), Path::new("/")).map(|(name, text)| (format!("{PLACE}/{name}"), text));
    let groups = (format!("{PLACE}/groups"), GROUPS.to_owned());
    for (path, text) in units.into_iter().chain(files).chain([groups]) {
        push(containers, member, &containers.sandbox.file("pushed", &text), &path);
    }
    for image in IMAGES {
        push(containers, member, &place().join(image), &format!("{PLACE}/{image}"));
    }
    exec(containers, member, "mkdir -p /etc/kubernetes/manifests; systemctl enable --now containerd").ok();
    let ctr = format!("ctr --address {PLACE}/containerd.sock --namespace k8s.io");
    let import = format!(
        "for i in $(seq 100); do {ctr} version > /dev/null 2>&1 && break; sleep 0.1; done; \
         for image in {PLACE}/*.tar; do {ctr} images import --snapshotter native $image && rm $image || exit 1; done; \
         systemctl enable --now kubelet"
    );
    exec(containers, member, &import).ok();
}

/// etcd of each machine is in a pod, as the user etcd, and its unit does not run.
#[track_caller]
fn assert_pods(containers: &Containers) {
    for member in MEMBERS {
        let look = "pid=$(pgrep -x etcd) && tr '\\0' '\\n' < /proc/$pid/environ | grep -c ^QUORATE_POD= && stat -c %U /proc/$pid \
                    && ! systemctl is-active --quiet etcd.service";
        let seen = exec(containers, member, look).ok().stdout;
        assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["1", "etcd"], "{member}");
    }
}

fn want(containers: &Containers, server: &Server, sum: &str, boot_patience: &str) {
    let binary = format!("binary: {{archive: \"{}/etcd.tar.gz\", sha256: {sum}}}", server.base);
    let pod = format!("run_as: static_pod, static_pod: {{image: \"lab.invalid/etcd:{VERSION}-0\"}}");
    containers.want(&Wanted {
        members: MEMBERS.len(),
        profiles: vec![PROFILE],
        incus: format!(", boot_patience: {boot_patience}"),
        etcd: format!("version: {VERSION}, {binary}, {pod}"),
        more: vec![String::from("tls: {layout: kubeadm}")],
        ..Wanted::default()
    });
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn machines_whose_etcd_is_a_static_pod_reboot_one_after_another() {
    let _profile = Profile::new();
    let containers = Containers::new("lab-pods", VERSION);
    let (archive, sum) = releases::archive(&containers.sandbox, VERSION, &lab(VERSION).join("etcd"));
    let server = Server::at(HOST, BTreeMap::from([(String::from("/etcd.tar.gz"), archive)]));
    want(&containers, &server, &sum, "120s");
    chapter("machines without a kubelet run no etcd, and apply says why", || {
        let refused = containers.apply().expect(3).stderr;
        assert!(refused.contains("/etc/kubernetes/manifests, from which a kubelet should start etcd"), "{refused}");
    });
    chapter("with a kubelet on each machine, etcd runs in pods as its user", || {
        MEMBERS.iter().for_each(|member| install_kubelet(&containers, member));
        containers.apply().ok();
        containers.assert_healthy(3);
        assert_pods(&containers);
    });
    chapter("all machines reboot while a client writes, the leader last", || {
        let before = boots(&containers);
        let environment = containers.sandbox.environment(containers.name);
        let etcdctl = |arguments: &[&str]| containers.sandbox.etcdctl_with(VERSION, &environment, arguments);
        let (run, written) =
            while_writing(etcdctl, || containers.sandbox.quorate(&["reboot", "--yes", containers.name]));
        run.ok();
        containers.assert_healthy(3);
        assert_pods(&containers);
        written.assert_kept(etcdctl);
        assert_eq!(rebooted(&before, &boots(&containers)), MEMBERS);
        assert_leader_was_last(&containers.sandbox, containers.name);
        assert_no_request(&containers.sandbox, containers.name);
        let incarnations: BTreeSet<u64> = MEMBERS.iter().map(|member| containers.incarnation(member)).collect();
        assert_eq!(incarnations, BTreeSet::from([1]), "none was replaced");
    });
    chapter("a kubelet does not come up: no other machine reboots, and apply continues when it runs", || {
        want(&containers, &server, &sum, "30s");
        containers.apply().ok();
        let leads = leader(&containers.sandbox, containers.name);
        let first = MEMBERS.into_iter().find(|member| *member != leads).expect("a follower");
        exec(&containers, first, "systemctl disable kubelet").ok();
        let before = boots(&containers);
        let failed = containers.sandbox.quorate(&["reboot", "--yes", containers.name]).fails();
        assert!(failed.stderr.contains("kubelet"), "{}", failed.stderr);
        assert_eq!(rebooted(&before, &boots(&containers)), [first], "{}", failed.stderr);
        containers.etcdctl(&["put", "kept", "all along"]).ok();
        exec(&containers, first, "systemctl enable --now kubelet").ok();
        containers.apply().ok();
        containers.assert_healthy(3);
        assert_pods(&containers);
        assert_eq!(rebooted(&before, &boots(&containers)), MEMBERS);
        containers.assert_reads("kept", "all along");
    });
    chapter("everything is destroyed, and nothing is left", || containers.destroy());
}
