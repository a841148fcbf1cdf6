//! Changes to a running cluster of containers: its limits, its size, its data volumes.

use std::collections::BTreeSet;

use super::{Containers, Wanted, incus, volumes};
use crate::common::OLDEST;
use crate::ground::chapter;

fn wanted(members: usize, memory: &str) -> Wanted {
    Wanted {
        members,
        incus: format!(", memory: {memory}, data_size: 1GiB"),
        etcd: format!("version: {OLDEST}"),
        ..Wanted::default()
    }
}

/// The ids of members, as etcd has them.
fn seats(containers: &Containers) -> BTreeSet<String> {
    let listed = containers.etcdctl(&["member", "list"]).ok().stdout;
    listed.lines().map(|line| line.split(", ").next().unwrap_or_default().to_owned()).collect()
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn limits_and_size_change_and_data_volumes_keep_members_what_they_are() {
    let containers = Containers::new("lab-two", OLDEST);
    containers.want(&wanted(3, "512MiB"));
    chapter("three containers with data volumes, from apply to healthy", || containers.apply().ok());
    containers.assert_healthy(3);
    containers.etcdctl(&["put", "kept", "as it was"]).ok();
    chapter("a container is replaced, and the member keeps its data and its place", || {
        let before = (seats(&containers), volumes());
        containers.sandbox.quorate(&["replace", "--yes", containers.name, "etcd-3"]).ok();
        containers.assert_healthy(3);
        assert_eq!((seats(&containers), volumes()), before);
        containers.assert_reads("kept", "as it was");
    });
    chapter("other limits go member by member", || {
        containers.want(&wanted(3, "640MiB"));
        containers.apply().ok();
        containers.assert_healthy(3);
        for instance in containers.instances() {
            let memory = incus(&["config", "get", &instance, "limits.memory"]).ok().stdout;
            assert_eq!(memory.trim(), (640 << 20).to_string(), "of {instance}");
        }
        containers.assert_reads("kept", "as it was");
    });
    chapter("three become five, and five become three", || {
        for members in [5, 3] {
            containers.want(&wanted(members, "640MiB"));
            containers.apply().ok();
            containers.assert_healthy(members);
        }
        assert_eq!(volumes().len(), 3, "the data of members that left is gone");
        containers.assert_reads("kept", "as it was");
    });
    chapter("everything is destroyed, and nothing is left", || containers.destroy());
}
