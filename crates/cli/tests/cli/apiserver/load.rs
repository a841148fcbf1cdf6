//! The client of `xtask/kubernetes`: writers and an informer, which check every answer.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use super::server::{ApiServer, log_file};
use super::{Ground, NAME, programs};

/// Longer than the client waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Load {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    phases: Vec<Value>,
}

impl Load {
    pub fn start(ground: &Ground, server: &ApiServer) -> Self {
        server.kubectl(&["create", "namespace", "lab"]).ok();
        let root = ground.sandbox.environment(NAME);
        let mut command = Command::new(programs().join("client/client"));
        command.arg("-kubeconfig").arg(ground.sandbox.path().join("kubeconfig"));
        command.args(["-endpoints", &ground.endpoints(), "-cacert", &root["ETCDCTL_CACERT"]]);
        command.args(["-cert", &root["ETCDCTL_CERT"], "-key", &root["ETCDCTL_KEY"]]);
        command.env("QUORATE_HOME", ground.sandbox.home());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log_file(ground, "client.log"));
        let mut child = command.spawn().expect("the client starts");
        let (commands, said) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                let answer = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e} in {line}"));
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let mut load = Load { child, commands, answers, phases: Vec::new() };
        load.ask("phase start");
        load
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> Value {
        writeln!(self.commands, "{command}").expect("the client listens");
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("no answer to `{command}`: {e}"))
    }

    /// Does something while clients are at work, then checks what they saw.
    #[track_caller]
    pub fn during(&mut self, name: &str, work: impl FnOnce(&mut Self)) {
        self.ask(&format!("phase {name}"));
        work(self);
        self.ask_phase("between");
        let checked = self.check();
        println!("{name}: {checked}");
    }

    #[track_caller]
    fn ask_phase(&mut self, next: &str) {
        let ended = self.ask(&format!("phase {next}"));
        self.phases.push(ended);
    }

    /// Nothing is lost, nothing exists twice, and all agree.
    #[track_caller]
    pub fn check(&mut self) -> Value {
        let checked = self.ask("check");
        assert_eq!(checked["problems"], Value::Array(Vec::new()), "{checked:#}");
        assert_ne!(checked["objects"], 0, "{checked:#}");
        checked
    }

    /// What clients felt of each phase: of the API server and of etcd.
    pub fn report(&self) -> String {
        let mut text =
            format!("{:<40} {:>10} {:>10} {:>8} {:>8}\n", "LONGEST GAP OF WRITES", "API", "ETCD", "WRITES", "FAILED");
        for phase in &self.phases {
            let number = |field: &str| phase["api"][field].as_u64().unwrap_or_default();
            let name = phase["phase"].as_str().unwrap_or_default();
            let (api, etcd) = (gap(phase, "api"), gap(phase, "etcd"));
            let (writes, failures) = (number("writes"), number("failures"));
            let _ = writeln!(text, "{name:<40} {api:>8.2} s {etcd:>8.2} s {writes:>8} {failures:>8}");
            for writer in ["api", "etcd"] {
                let failure = phase[writer]["last_failure"].as_str().unwrap_or_default();
                if !failure.is_empty() {
                    let _ = writeln!(text, "    {writer}: {failure}");
                }
            }
        }
        text
    }

    /// The longest of each phase and each writer, in seconds.
    pub fn gaps(&self) -> Vec<f64> {
        self.phases.iter().flat_map(|phase| [gap(phase, "api"), gap(phase, "etcd")]).collect()
    }
}

fn gap(phase: &Value, writer: &str) -> f64 {
    phase[writer]["longest_gap_ms"].as_f64().unwrap_or_default() / 1000.0
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
