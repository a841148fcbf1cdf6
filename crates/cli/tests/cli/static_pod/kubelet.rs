//! A kubelet with a separate containerd, for the machine of one member.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{is_dead, pids};
use crate::common::kubelet::{MANIFESTS, place, settings};
use crate::common::{Sandbox, arguments, eventually, signal};

pub struct Kubelet {
    directory: PathBuf,
    home: PathBuf,
    containerd: Option<Child>,
    kubelet: Option<Child>,
}

impl Kubelet {
    /// Installs one on the machine with this root, as its image would have it.
    pub fn install(sandbox: &Sandbox, machine: &str, root: &Path) -> Self {
        let directory = sandbox.path().join(format!("kubelet-{machine}"));
        for path in [&directory, &root.join(MANIFESTS)] {
            fs::create_dir_all(path).expect("a directory");
        }
        for (file, text) in settings(&directory, root) {
            fs::write(directory.join(file), text).expect("a file of settings");
        }
        let home = sandbox.home();
        let containerd = Some(start_containerd(&directory, &home));
        for entry in fs::read_dir(place()).expect("images").flatten().map(|entry| entry.path()) {
            if entry.extension().is_some_and(|extension| extension == "tar") {
                import(&directory, &entry);
            }
        }
        let mut kubelet = Kubelet { directory, home, containerd, kubelet: None };
        kubelet.start(machine);
        kubelet
    }

    pub fn start(&mut self, machine: &str) {
        let mut command = Command::new(place().join("kubelet"));
        command.arg(format!("--config={}", self.directory.join("kubelet.yaml").display()));
        command.arg(format!("--root-dir={}", self.directory.join("pods").display()));
        command.arg(format!("--cert-dir={}", self.directory.join("pki").display()));
        command.arg(format!("--hostname-override={machine}"));
        self.kubelet = Some(in_background(command, &self.directory.join("kubelet.log"), &self.home));
    }

    pub fn stop(&mut self) {
        end(self.kubelet.take());
    }

    pub fn restart_containerd(&mut self) {
        end(self.containerd.take());
        self.containerd = Some(start_containerd(&self.directory, &self.home));
    }

    /// Ends everything at once, as a machine that loses its power does: the kubelet, containerd, and every container.
    pub fn cut_power(&mut self) {
        let killed = self.kill_all();
        eventually("all containers have ended", 10, || killed.iter().all(|pid| is_dead(*pid)));
    }

    fn kill_all(&mut self) -> Vec<u32> {
        self.stop();
        end(self.containerd.take());
        let socket = self.directory.join("containerd.sock").display().to_string();
        let shims: Vec<u32> = pids().filter(|pid| is_shim(*pid, &socket)).collect();
        let contained = pids().filter(|pid| parent(*pid).is_some_and(|parent| shims.contains(&parent)));
        let all: Vec<u32> = shims.iter().copied().chain(contained).collect();
        all.iter().for_each(|pid| signal(*pid, "KILL"));
        all
    }

    /// Boots again: containerd and the kubelet start with the machine.
    pub fn boot(&mut self, machine: &str) {
        self.containerd = Some(start_containerd(&self.directory, &self.home));
        self.start(machine);
    }

    /// Every container that containerd knows, no matter whether it runs.
    pub fn containers(&self) -> Vec<String> {
        let output = ctr(&self.directory).args(["containers", "list", "--quiet"]).output().expect("ctr runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("kubelet.log")).unwrap_or_default()
    }
}

/// Containers would outlive the directories that they use.
impl Drop for Kubelet {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn is_shim(pid: u32, socket: &str) -> bool {
    let words = arguments(pid);
    words.first().is_some_and(|program| program.contains("containerd-shim")) && words.iter().any(|word| word == socket)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn start_containerd(directory: &Path, home: &Path) -> Child {
    let mut command = Command::new("containerd");
    command.arg("--config").arg(directory.join("containerd.toml"));
    let child = in_background(command, &directory.join("containerd.log"), home);
    eventually("containerd answers", 30, || {
        let mut ask = ctr(directory);
        ask.arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    });
    child
}

fn ctr(directory: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(directory.join("containerd.sock")).args(["--namespace", "k8s.io"]);
    command
}

fn import(directory: &Path, image: &Path) {
    let mut import = ctr(directory);
    let output = import.args(["images", "import", "--snapshotter", "native"]).arg(image).output().expect("ctr runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The sandbox ends everything that has its home in its environment.
fn in_background(mut command: Command, log: &Path, home: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("a log");
    let also = log.try_clone().expect("a log");
    command.env("QUORATE_HOME", home).stdin(Stdio::null()).stdout(log).stderr(also).spawn().expect("it starts")
}
