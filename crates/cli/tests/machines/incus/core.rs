//! The shortest test of a cluster of containers.

use super::{Containers, Wanted, incus};
use crate::common::{OLDEST, eventually, signal};
use crate::ground::chapter;

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn three_containers_are_created_one_is_deleted_one_is_replaced_and_all_are_destroyed() {
    let containers = Containers::new("lab-one", OLDEST);
    containers.want(&Wanted { members: 3, etcd: format!("version: {OLDEST}"), ..Wanted::default() });
    chapter("three containers, from apply to healthy", || containers.apply().ok());
    containers.assert_healthy(3);
    containers.etcdctl(&["put", "kept", "as it was"]).ok();
    chapter("no secret is in what every user of the project can read", || {
        let shown = incus(&["query", &format!("/1.0/instances/{}", containers.instance("etcd-1"))]).ok().stdout;
        assert!(shown.contains("user.quorate.mark"), "{shown}");
        for word in ["token", "PRIVATE KEY", "password"] {
            assert!(!shown.contains(word), "{word} in {shown}");
        }
    });
    chapter("a container is killed, and comes back by apply", || {
        signal(containers.first_process("etcd-1"), "KILL");
        eventually("Incus has noticed", 30, || {
            incus(&["list", "--format=csv", "--columns=ns"]).ok().stdout.contains("lab-one-etcd-1,STOPPED")
        });
        containers.apply().ok();
        containers.assert_healthy(3);
        assert_eq!(containers.incarnation("etcd-1"), 1, "it was switched on, not replaced");
    });
    chapter("a container is deleted behind our back, then apply", || {
        incus(&["delete", "--force", &containers.instance("etcd-2")]).ok();
        containers.apply().ok();
        containers.assert_healthy(3);
        assert_eq!(containers.incarnation("etcd-2"), 2);
        containers.assert_reads("kept", "as it was");
    });
    chapter("a container is replaced", || {
        containers.sandbox.quorate(&["replace", "--yes", containers.name, "etcd-3"]).ok();
        containers.assert_healthy(3);
        let expected = ["etcd-1", "etcd-2.2", "etcd-3.2"].map(|machine| containers.instance(machine));
        assert_eq!(containers.instances(), expected.into());
        containers.assert_reads("kept", "as it was");
    });
    chapter("everything is destroyed, and nothing is left", || containers.destroy());
}
