use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};

use super::manifest::Pod;
use super::*;
use crate::kinds::etcd;

/// A machine's directory, and a process that plays the pod's. No kubelet: what a real one does is in the lab.
struct Ground {
    root: tempfile::TempDir,
    pid: Arc<AtomicI32>,
}

impl Ground {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for directory in ["etc/kubernetes/manifests", "var/lib/quorate", "var/log", "var/lib/etcd/member/wal"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        fs::write(root.path().join("var/lib/etcd/member/wal/0.wal"), "").unwrap();
        fs::write(root.path().join("var/lib/etcd.stamp"), "{}").unwrap();
        Ground { root, pid: Arc::default() }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    fn manifest(&self) -> PathBuf {
        self.path("etc/kubernetes/manifests/etcd.yaml")
    }

    fn pod(&self) -> StaticPod {
        let layout = Layout::new(self.root.path()).unwrap();
        let pid = self.pid.clone();
        let find = move || Some(pid.load(Ordering::Relaxed)).filter(|pid| start_ticks(*pid).is_some());
        let profile = Profile { find_stray: Arc::new(find), ..etcd::profile(&layout) };
        StaticPod { notices_within: Duration::from_millis(500), ..StaticPod::new(layout, profile) }
    }

    fn launch(&self, first_args: &[&str]) -> Launch {
        Launch {
            program: PathBuf::from("/opt/etcd/etcd"),
            args: vec![String::from("--name=etcd-1")],
            first_args: first_args.iter().map(|word| (*word).to_owned()).collect(),
            env: std::collections::BTreeMap::new(),
            digest: String::from("d1"),
            version: None,
            pod: Some(Pod {
                image: String::from("etcd:3.6.14"),
                command: String::from("etcd"),
                manifests: self.path("etc/kubernetes/manifests"),
                reads: vec![self.path("etc/etcd")],
                log_argument: String::from("--log-outputs=stderr"),
            }),
        }
    }

    /// What a kubelet does with a manifest that has just appeared.
    fn run(&self) -> Runs {
        let text = fs::read_to_string(self.manifest()).unwrap();
        let pod: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
        let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        let variables = variables.iter().map(|one| (one["name"].as_str().unwrap(), one["value"].as_str().unwrap()));
        let child = Command::new("sleep").arg("600").envs(variables).spawn().unwrap();
        self.pid.store(i32::try_from(child.id()).unwrap(), Ordering::Relaxed);
        Runs(child)
    }
}

struct Runs(Child);

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open() -> Gate {
    Arc::new(|_| Box::pin(async { Ok(()) }))
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..100 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within 10 s: {what}");
}

fn digest(state: &ServiceState) -> &str {
    match state {
        ServiceState::Running { digest, .. } => digest,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_pod_is_known_by_its_process_also_to_the_next_agent() {
    let ground = Ground::new();
    let pod = ground.pod();
    assert_eq!(pod.look(), ServiceState::Stopped);
    pod.start(ground.launch(&[]), open(), None).await.unwrap();
    assert_eq!(digest(&pod.look()), "d1", "it is coming");
    assert_eq!(fs::read_link(ground.path("run/quorate/etcd-pod")).unwrap(), ground.path("var/lib/etcd/member/wal"));
    let left: Vec<_> = fs::read_dir(ground.path("etc/kubernetes/manifests")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let process = ground.run();
    until("it is known as ours", || digest(&pod.look()) == "d1").await;
    // The agent is killed.
    pod.keeper.lock().await.take().unwrap().task.abort();
    let next = ground.pod();
    assert!(next.is_there() && next.adopt(open(), None).await);
    assert_eq!(digest(&next.look()), "d1");
    drop(process);
    next.stop(Duration::ZERO).await.unwrap();
    assert_eq!(next.look(), ServiceState::Stopped);
    assert!(!ground.manifest().exists() && !ground.pod().is_there());
}

#[tokio::test]
async fn without_a_kubelet_a_pod_is_not_reported_as_stopped() {
    let ground = Ground::new();
    let pod = ground.pod();
    pod.start(ground.launch(&[]), open(), None).await.unwrap();
    let _process = ground.run();
    let before = fs::read(ground.manifest()).unwrap();
    let refused = pod.stop(Duration::ZERO).await.unwrap_err();
    // Which of them depends on whether another kubelet runs here.
    assert!(matches!(refused, AgentError::KubeletSilent { .. } | AgentError::NoKubelet { .. }), "{refused}");
    assert_eq!(fs::read(ground.manifest()).unwrap(), before, "a kubelet that comes back must find it");
    assert!(ground.path("run/quorate/etcd-pod").exists());
    until("it is known as ours", || digest(&pod.look()) == "d1").await;
}

#[tokio::test]
async fn a_first_start_is_not_repeated_once_there_is_data() {
    let ground = Ground::new();
    let wal = ground.path("var/lib/etcd/member/wal");
    fs::remove_dir_all(ground.path("var/lib/etcd/member")).unwrap();
    let pod = ground.pod();
    assert!(matches!(pod.start(ground.launch(&[]), open(), None).await, Err(AgentError::DataGone { .. })));
    assert!(!ground.manifest().exists());
    pod.start(ground.launch(&["--initial-cluster-state=new"]), open(), None).await.unwrap();
    assert!(fs::symlink_metadata(ground.path("run/quorate/etcd-pod")).unwrap().is_dir(), "a first start needs no data");
    let process = ground.run();
    fs::create_dir_all(&wal).unwrap();
    fs::write(wal.join("0.wal"), "").unwrap();
    until("the gate leads to the data", || fs::read_link(ground.path("run/quorate/etcd-pod")).is_ok()).await;
    // It ends, and the kubelet must not start this pod again: the agent writes another one.
    until("the process is noted", || pod.shared.record().unwrap().process.is_some()).await;
    drop(process);
    until("another manifest", || {
        fs::read_to_string(ground.manifest()).is_ok_and(|text| text.contains("existing") && text.contains("Always"))
    })
    .await;
    // The disk is lost: the gate leads nowhere, so no kubelet starts anything.
    fs::remove_dir_all(ground.path("var/lib/etcd/member")).unwrap();
    assert!(!ground.path("run/quorate/etcd-pod").exists());
    let told = pod.look();
    assert!(
        matches!(&told, ServiceState::BackingOff { last_exit, .. } if last_exit.how.contains("data is missing")),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_removed_manifest_is_written_again_and_a_changed_one_is_reported() {
    let ground = Ground::new();
    let pod = ground.pod();
    pod.start(ground.launch(&[]), open(), None).await.unwrap();
    let process = ground.run();
    let before = fs::read(ground.manifest()).unwrap();
    fs::remove_file(ground.manifest()).unwrap();
    until("the same manifest", || fs::read(ground.manifest()).is_ok_and(|found| found == before)).await;
    let mut edited = before.clone();
    edited.extend(b"\n# faster\n");
    fs::write(ground.manifest(), &edited).unwrap();
    assert_eq!(digest(&pod.look()), EDITED);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fs::read(ground.manifest()).unwrap(), edited, "when it is restarted is not for the agent to decide");
    // It ended, and somebody removed the manifest meanwhile: only a gate that agrees lets it come back.
    drop(process);
    fs::remove_file(ground.manifest()).unwrap();
    until("a new manifest", || fs::read(ground.manifest()).is_ok_and(|found| found != before)).await;
    assert_eq!(digest(&pod.look()), "d1");
}

#[tokio::test]
async fn a_closed_gate_keeps_a_lost_pod_away() {
    let ground = Ground::new();
    let pod = ground.pod();
    let closed: Gate = Arc::new(|_| Box::pin(async { Err(AgentError::DataGone { path: PathBuf::from("/data") }) }));
    pod.start(ground.launch(&[]), closed, None).await.unwrap();
    fs::remove_file(ground.manifest()).unwrap();
    until("it says why", || {
        matches!(pod.look(), ServiceState::BackingOff { last_exit, .. } if last_exit.how.contains("data is missing"))
    })
    .await;
    assert!(!ground.manifest().exists());
}

#[tokio::test]
async fn after_a_boot_the_agent_decides_and_not_the_kubelet() {
    let ground = Ground::new();
    ground.pod().start(ground.launch(&[]), open(), None).await.unwrap();
    // As a reboot leaves it.
    fs::remove_dir_all(ground.path("run")).unwrap();
    let pod = ground.pod();
    assert!(pod.is_there() && !pod.adopt(open(), None).await);
    let before = fs::read(ground.manifest()).unwrap();
    pod.start(ground.launch(&[]), open(), None).await.unwrap();
    assert_ne!(
        fs::read(ground.manifest()).unwrap(),
        before,
        "the kubelet may have given up on the one before for a while"
    );
    assert!(ground.path("run/quorate/etcd-pod").exists());
}

#[tokio::test]
async fn a_manifest_of_another_tool_is_not_replaced() {
    let ground = Ground::new();
    fs::write(ground.manifest(), "apiVersion: v1\nkind: Pod\n").unwrap();
    let refused = ground.pod().start(ground.launch(&[]), open(), None).await.unwrap_err();
    assert!(matches!(refused, AgentError::ForeignManifest { .. }), "{refused}");
    assert_eq!(fs::read_to_string(ground.manifest()).unwrap(), "apiVersion: v1\nkind: Pod\n");
    let layout = Layout::new(ground.root.path()).unwrap();
    let wanted = |manifests: &str| model::Pod { image: String::from("etcd:3.6.14"), manifests: manifests.to_owned() };
    let found = |manifests: &str| obstacle(&layout, &wanted(manifests), "etcd").unwrap();
    assert!(found("/etc/kubernetes/manifests").why.contains("was not written by quorate"));
    assert!(found("/etc/elsewhere").why.contains("does not exist"));
    assert!(found("/etc/../../etc").why.contains("not a path"));
    assert_eq!(place(&layout, &wanted("/etc/x")), Some(ground.path("etc/x")));
}
