use std::fs;
use std::time::{Duration, Instant};

use super::{Ground, MEMBERS, NAME, OPERATOR, Settings, V35, V36};
use crate::common::{eventually, signal};

const FIRST: Settings = Settings { version: V35, run_as: "static_pod", quota: "1GiB", layout: "kubeadm" };

#[test]
#[ignore = "needs kubelets: cargo xtask lab static-pod"]
fn pods_live_through_what_members_live_through() {
    let ground = Ground::new();
    bring_up(&ground);
    crashes(&ground);
    let settings = Settings { quota: "2GiB", ..FIRST };
    ground.change("restart for a setting, three members", settings).ok();
    ground.assert_all(true);
    ground.assert_converged();
    the_kubelet_restarts_what_ends(&ground);
    others_touch_the_manifest(&ground);
    restarts_of_everything_else(&ground);
    without_a_kubelet(&ground, settings);
    let settings = Settings { version: V36, quota: "3GiB", ..FIRST };
    ground.change("upgrade by image, 3.5 to 3.6, three members", settings).ok();
    assert_eq!(ground.member("etcd-2")["version"], V36);
    ground.assert_all(true);
    ground.assert_converged();
    assert_eq!(ground.etcdctl(&["get", "foo", "--print-value-only"]).ok().stdout, "bar\n");
}

fn bring_up(ground: &Ground) {
    // Machines without a kubelet say so, and nothing is begun.
    ground.write_spec(FIRST);
    let told = ground.sandbox.quorate(&["apply", "--yes", "c.yaml"]).expect(3).text();
    assert!(
        told.contains("etc/kubernetes/manifests, from which a kubelet should start etcd, does not exist"),
        "{told}"
    );
    ground.install_kubelets();
    ground.timed("bring-up of three pods", &["apply", "--yes", "c.yaml"]).ok();
    ground.assert_all(true);
    ground.assert_converged();
    ground.etcdctl(&["put", "foo", "bar"]).ok();
    let logs = ground.sandbox.quorate(&["logs", NAME, "etcd-1"]).ok().stdout;
    assert!(logs.contains("\"caller\":\"etcdserver/"), "{logs}");
    let left: Vec<_> = fs::read_dir(ground.manifest("etcd-1").parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// The first pod of a member is never started again by the kubelet: the agent writes another one, which bootstraps nothing.
fn crashes(ground: &Ground) {
    let pid = ground.etcd("etcd-1").unwrap();
    assert!(fs::read_to_string(ground.manifest("etcd-1")).unwrap().contains("\"Never\""));
    kill(ground, "etcd-1", pid, "the agent replaces the first pod after kill -9");
    let manifest = fs::read_to_string(ground.manifest("etcd-1")).unwrap();
    assert!(manifest.contains("\"Always\"") && manifest.contains("--initial-cluster-state=existing"), "{manifest}");
    healthy(ground);
}

fn the_kubelet_restarts_what_ends(ground: &Ground) {
    let (pid, before) = (ground.etcd("etcd-2").unwrap(), fs::read(ground.manifest("etcd-2")).unwrap());
    kill(ground, "etcd-2", pid, "the kubelet restarts etcd after kill -9");
    assert_eq!(fs::read(ground.manifest("etcd-2")).unwrap(), before, "nobody wrote a manifest for that");
    healthy(ground);
    eventually("the restart is counted", 10, || ground.member("etcd-2")["restarts"].as_u64().is_some_and(|n| n > 0));
}

fn kill(ground: &Ground, machine: &str, pid: u32, what: &str) {
    let began = Instant::now();
    signal(pid, "KILL");
    eventually("etcd runs again", 60, || ground.etcd(machine).is_some_and(|now| now != pid));
    println!("{what}: runs after {:.1} s", began.elapsed().as_secs_f64());
    assert!(Ground::is_pod(ground.etcd(machine).unwrap()));
}

fn healthy(ground: &Ground) {
    eventually("all are healthy", 60, || ground.sandbox.status(NAME)["verdict"] == "healthy");
}

fn others_touch_the_manifest(ground: &Ground) {
    // Removed: it comes back by itself.
    fs::remove_file(ground.manifest("etcd-3")).unwrap();
    eventually("the manifest is back", 30, || ground.manifest("etcd-3").exists());
    eventually("etcd runs", 60, || ground.etcd("etcd-3").is_some());
    healthy(ground);
    // Changed: the kubelet runs what it reads, and the next run puts it right under the rules of a restart.
    let before = ground.etcd("etcd-3").unwrap();
    let text = fs::read_to_string(ground.manifest("etcd-3")).unwrap();
    let edited = text.replace("--heartbeat-interval=100", "--heartbeat-interval=150");
    assert_ne!(text, edited);
    let draft = ground.manifest("etcd-3").with_file_name(".edited");
    fs::write(&draft, edited).unwrap();
    fs::rename(&draft, ground.manifest("etcd-3")).unwrap();
    eventually("the kubelet restarts it", 90, || ground.etcd("etcd-3").is_some_and(|now| now != before));
    healthy(ground);
    let plan = ground.sandbox.quorate(&["plan", "c.yaml"]).ok().stdout;
    assert!(plan.contains("another tool changed or removed its manifest"), "{plan}");
    ground.timed("put right after an edit", &["apply", "--yes", "c.yaml"]).ok();
    assert!(fs::read_to_string(ground.manifest("etcd-3")).unwrap().contains("--heartbeat-interval=100"));
    ground.assert_converged();
}

/// Agents, kubelets and containerd come and go, and etcd does not notice.
fn restarts_of_everything_else(ground: &Ground) {
    let pid = ground.etcd("etcd-1").unwrap();
    for agent in ground.sandbox.agents() {
        signal(agent, "KILL");
    }
    {
        let mut kubelets = ground.kubelets.borrow_mut();
        let kubelet = kubelets.get_mut("etcd-1").unwrap();
        kubelet.stop();
        kubelet.restart_containerd();
        kubelet.start("etcd-1");
    }
    ground.timed("agents come back", &["apply", "--yes", "c.yaml"]).ok();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(ground.etcd("etcd-1"), Some(pid), "the same process");
    ground.assert_converged();
}

/// Without a kubelet nobody can stop a pod, and nobody says that it was stopped.
fn without_a_kubelet(ground: &Ground, settings: Settings) {
    let follower = MEMBERS.into_iter().find(|member| ground.member(member)["role"] != "leader").unwrap();
    let pid = ground.etcd(follower).unwrap();
    ground.kubelets.borrow_mut().get_mut(follower).unwrap().stop();
    let run = ground.change("a restart without a kubelet is given up", Settings { quota: "3GiB", ..settings });
    assert_ne!(run.code, Some(0), "{}", run.text());
    assert!(run.text().contains("nothing but the kubelet can stop this pod"), "{}", run.text());
    assert_eq!(ground.etcd(follower), Some(pid), "it still runs");
    assert!(ground.manifest(follower).exists());
    ground.kubelets.borrow_mut().get_mut(follower).unwrap().start(follower);
    ground.timed("and done with one", &["apply", "--yes", "c.yaml"]).ok();
    ground.assert_converged();
}

#[test]
#[ignore = "needs kubelets: cargo xtask lab static-pod"]
fn a_service_becomes_a_pod_and_back() {
    let ground = Ground::new();
    let service = Settings { version: V36, run_as: "service", quota: "1GiB", layout: "standard" };
    let pod = Settings { run_as: "static_pod", ..service };
    ground.change("bring-up of three services", service).ok();
    ground.etcdctl(&["put", "foo", "bar"]).ok();
    ground.install_kubelets();
    ground.write_spec(pod);
    let plan = ground.sandbox.quorate(&["plan", "c.yaml"]).ok().stdout;
    assert!(plan.contains("run_as service → static_pod"), "{plan}");
    println!("{plan}");
    ground.change("services become pods", pod).ok();
    ground.assert_all(true);
    ground.assert_converged();
    ground.change("pods become services", service).ok();
    ground.assert_all(false);
    assert!(MEMBERS.iter().all(|member| !ground.manifest(member).exists()));
    ground.assert_converged();
    assert_eq!(ground.etcdctl(&["get", "foo", "--print-value-only"]).ok().stdout, "bar\n");
}

#[test]
#[ignore = "needs kubelets: cargo xtask lab static-pod"]
fn lost_data_is_not_begun_again_and_a_restore_works() {
    let ground = Ground::new();
    bring_up_with_data(&ground);
    ground.sandbox.quorate(&["backup", "create", NAME]).ok();
    ground.etcdctl(&["put", "foo", "lost"]).ok();
    lose_data(&ground, "etcd-2");
    ground.timed("the member with lost data is replaced", &["apply", "--yes", "--now", "c.yaml"]).ok();
    assert_eq!(ground.machines(), ["etcd-1", "etcd-2.2", "etcd-3"]);
    no_pod_is_left(&ground, &["etcd-2"]);
    ground.assert_all(true);
    ground.assert_converged();
    ground.timed("restore", &["restore", "c.yaml", "--yes", "--identity", OPERATOR]).ok();
    ground.assert_all(true);
    ground.assert_converged();
    assert_eq!(ground.etcdctl(&["get", "foo", "--print-value-only"]).ok().stdout, "bar\n");
}

fn bring_up_with_data(ground: &Ground) {
    ground.write_spec(Settings { version: V36, ..FIRST });
    ground.timed("bring-up of three pods, with their kubelets", &["apply", "--yes", "c.yaml"]).ok();
    ground.etcdctl(&["put", "foo", "bar"]).ok();
}

/// Neither a container that is started again nor a pod that is made again begins on an empty disk.
fn lose_data(ground: &Ground, machine: &str) {
    // A regular pod first: this is not about its first start.
    let pid = ground.etcd(machine).unwrap();
    kill(ground, machine, pid, "a regular pod");
    healthy(ground);
    let data = ground.machine(machine).join("var/lib/etcd/member");
    fs::remove_dir_all(&data).unwrap();
    signal(ground.etcd(machine).unwrap(), "KILL");
    std::thread::sleep(Duration::from_secs(15));
    assert!(!data.join("wal").exists(), "etcd began on an empty disk");
    let mut kubelets = ground.kubelets.borrow_mut();
    let kubelet = kubelets.get_mut(machine).unwrap();
    kubelet.stop();
    kubelet.start(machine);
    std::thread::sleep(Duration::from_secs(10));
    assert!(!data.join("wal").exists(), "etcd began on an empty disk");
    assert!(kubelet.log().contains("etcd"), "the kubelet tried");
}

/// The kubelets of these machines have no container left, also none that has ended.
fn no_pod_is_left(ground: &Ground, machines: &[&str]) {
    let kubelets = ground.kubelets.borrow();
    for machine in machines {
        eventually("no pod is left", 120, || {
            ground.etcd(machine).is_none() && kubelets[*machine].containers().is_empty()
        });
    }
}

#[test]
#[ignore = "needs kubelets: cargo xtask lab static-pod"]
fn machines_without_power_run_no_pods_and_a_destroyed_cluster_leaves_none() {
    let ground = Ground::new();
    bring_up_with_data(&ground);
    ground.sandbox.quorate(&["down", "--yes", NAME]).ok();
    no_pod_is_left(&ground, &MEMBERS);
    assert!(MEMBERS.iter().all(|member| !ground.manifest(member).exists()));
    ground.timed("start after down", &["start", NAME]).ok();
    ground.assert_all(true);
    ground.assert_converged();
    a_machine_boots(&ground, "etcd-2");
    all_machines_boot(&ground);
    assert_eq!(ground.etcdctl(&["get", "foo", "--print-value-only"]).ok().stdout, "bar\n");
    ground.timed("destroy", &["destroy", "--yes", "--without-backup", NAME]).ok();
    assert_eq!(ground.machines(), [""; 0], "nothing of a machine is left: no manifest, no data");
    no_pod_is_left(&ground, &MEMBERS);
}

/// It loses its power, and its kubelet comes up before its agent: etcd waits for the agent, which looks at the data first.
fn a_machine_boots(ground: &Ground, machine: &str) {
    ground.cut_power(machine);
    ground.boot(machine);
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(ground.etcd(machine), None, "no agent has looked at the data in this boot");
    ground.timed("the agent comes up after its kubelet", &["apply", "--yes", "c.yaml"]).ok();
    ground.assert_all(true);
    ground.assert_converged();
}

fn all_machines_boot(ground: &Ground) {
    MEMBERS.iter().for_each(|machine| ground.cut_power(machine));
    MEMBERS.iter().for_each(|machine| ground.boot(machine));
    ground.timed("three machines come up after a power cut", &["apply", "--yes", "c.yaml"]).ok();
    ground.assert_all(true);
    ground.assert_converged();
}
