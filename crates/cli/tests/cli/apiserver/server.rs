//! A kube-apiserver process, and kubectl.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Ground, SERVER, programs};
use crate::common::{Run, address, eventually, signal};

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const TOKEN: &str = "lab-token";
/// In a network for documentation: a loopback address is refused, and nobody connects to this one.
const ADVERTISED: &str = "192.0.2.1";

pub struct ApiServer<'a> {
    ground: &'a Ground,
    /// How often it compacts etcd's history, if not as the written flags say.
    compaction: Option<&'static str>,
    child: Option<Child>,
}

impl<'a> ApiServer<'a> {
    /// Starts it with the flags that `quorate kubernetes` writes, and waits until it is ready.
    pub fn start(ground: &'a Ground) -> Self {
        Self::start_with(ground, None)
    }

    pub fn start_with(ground: &'a Ground, compaction: Option<&'static str>) -> Self {
        ground.write_files();
        let sandbox = &ground.sandbox;
        sandbox.openssl(&["genrsa", "-out", "sa.key", "2048"]);
        sandbox.file("tokens.csv", &format!("{TOKEN},admin,1,system:masters\n"));
        let mut server = ApiServer { ground, compaction, child: None };
        server.run();
        server.write_kubeconfig();
        server.until_ready();
        server
    }

    fn run(&mut self) {
        let path = |name: &str| self.ground.sandbox.path().join(name).display().to_string();
        let log = OpenOptions::new().create(true).append(true).open(self.log()).expect("a log");
        let mut command = Command::new(programs().join("kube-apiserver"));
        command.args(self.ground.read("kube-apiserver.flags").lines());
        if let Some(interval) = self.compaction {
            command.arg(format!("--etcd-compaction-interval={interval}"));
        }
        command.args([
            format!("--bind-address={}", address(SERVER)),
            format!("--advertise-address={ADVERTISED}"),
            String::from("--secure-port=6443"),
            format!("--cert-dir={}", path("apiserver")),
            String::from("--service-account-issuer=https://kubernetes.default.svc"),
            format!("--service-account-key-file={}", path("sa.key")),
            format!("--service-account-signing-key-file={}", path("sa.key")),
            String::from("--service-cluster-ip-range=10.96.0.0/16"),
            format!("--token-auth-file={}", path("tokens.csv")),
            String::from("--authorization-mode=RBAC"),
        ]);
        // So that the sandbox ends it, however the test ends.
        command.env("QUORATE_HOME", self.ground.sandbox.home()).current_dir(self.ground.sandbox.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.child = Some(command.spawn().expect("kube-apiserver starts"));
    }

    fn log(&self) -> PathBuf {
        self.ground.sandbox.path().join("kube-apiserver.log")
    }

    pub fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Lines about requests that etcd refused, but not about its status: etcd 3.5 tells it only root, and kube-apiserver can do
    /// without.
    pub fn refused(&self) -> Vec<String> {
        let log = self.logged();
        let refused = |line: &&str| line.contains("permission denied") && !line.contains(STATUS);
        log.lines().filter(refused).map(str::to_owned).collect()
    }

    pub fn asked_for_status_in_vain(&self) -> bool {
        self.logged().lines().any(|line| line.contains("permission denied") && line.contains(STATUS))
    }

    #[track_caller]
    pub fn until_ready(&mut self) {
        let mut last = String::new();
        eventually("kube-apiserver is ready", 120, || {
            let ended = self.child.as_mut().expect("it was started").try_wait().expect("it can be asked");
            assert!(ended.is_none(), "kube-apiserver ended: {}", tail(&self.logged()));
            let run = self.kubectl(&["get", "--raw", "/readyz", "--request-timeout=5s"]);
            last = run.text();
            run.code == Some(0)
        });
        println!("kube-apiserver: {last}");
    }

    /// Its certificate is made at the first start, and signed by itself.
    fn write_kubeconfig(&self) {
        let certificate = self.ground.sandbox.path().join("apiserver/apiserver.crt");
        eventually("kube-apiserver has a certificate", 60, || certificate.exists());
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: lab
clusters: [{{name: lab, cluster: {{server: \"https://{}:6443\", tls-server-name: kubernetes, certificate-authority: {}}}}}]
users: [{{name: lab, user: {{token: {TOKEN}}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]
",
            address(SERVER),
            certificate.display(),
        );
        self.ground.sandbox.file("kubeconfig", &text);
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(programs().join("kubectl"));
        command.env("KUBECONFIG", self.ground.sandbox.path().join("kubeconfig"));
        // Where it would cache what it learns of the server.
        command.env("HOME", self.ground.sandbox.path());
        command.args(arguments).output().expect("kubectl runs").into()
    }

    /// As a kubelet stops it, with little patience: it would wait a minute for watches to end.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        signal(child.id(), "TERM");
        let deadline = Instant::now() + Duration::from_secs(5);
        while child.try_wait().expect("it can be asked").is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        child.wait().expect("it was started here");
    }

    #[track_caller]
    pub fn start_again(&mut self) {
        self.run();
        self.until_ready();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("it can be asked").is_none())
    }
}

impl Drop for ApiServer<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of kube-apiserver's log\n{}", tail(&self.logged()));
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// An empty file for what a process says.
pub fn log_file(ground: &Ground, name: &str) -> File {
    File::create(ground.sandbox.path().join(name)).expect("a log")
}
