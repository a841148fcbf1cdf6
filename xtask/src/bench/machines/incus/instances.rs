//! Three instances that a script creates in parallel over the API of Incus, and deletes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::super::certificates::Certificates;
use super::super::members::name;
use super::{MEMBERS, POOL, interface};
use crate::host;
use crate::labs::incus as lab_of_incus;

/// What three instances are made of.
pub struct Made {
    /// Its name, and that of its image.
    pub name: &'static str,
    pub certificates: Certificates,
    /// For each: its configuration, and the files that are pushed before it starts.
    pub each: Vec<(Value, Vec<Pushed>)>,
}

pub struct Pushed {
    pub path: &'static str,
    /// In octal.
    pub mode: &'static str,
    /// None for a directory.
    pub text: Option<String>,
    pub owner: u32,
}

pub struct Instances {
    pub etcdctl: PathBuf,
    pub ground: PathBuf,
}

impl Instances {
    pub fn certificates(&self, of: &str) -> Result<Certificates> {
        MEMBERS.certificates(self.ground.join("certificates").join(of))
    }

    /// Writes the script that makes one instance; everything it sends is written before.
    fn script(&self, made: &Made, number: usize) -> Result<PathBuf> {
        let directory = self.ground.join("scripts").join(format!("{}-{number}", made.name));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            Ok(file)
        };
        let (config, files) = &made.each[number - 1];
        let root = json!({ "type": "disk", "path": "/", "pool": POOL });
        let body = json!({
            "name": instance(number), "type": "container", "profiles": [], "config": config,
            "source": { "type": "image", "alias": made.name },
            "devices": { "root": root, "eth0": interface(number) },
        });
        let body = write("instance.json", &body.to_string())?;
        let instance = instance(number);
        let mut script = format!("{CALLS}ask -X POST --data-binary @{} $api/instances | finished\n", body.display());
        for (n, pushed) in files.iter().enumerate() {
            let Pushed { path, mode, owner, .. } = pushed;
            let (kind, data) = match &pushed.text {
                None => ("directory", String::new()),
                Some(text) => ("file", format!(" --data-binary @{}", write(&format!("file-{n}"), text)?.display())),
            };
            script.push_str(&format!(
                "ask -X POST -H 'Content-Type: application/octet-stream' -H 'X-Incus-type: {kind}' -H 'X-Incus-mode: {mode}' \
                 -H 'X-Incus-uid: {owner}' -H 'X-Incus-gid: {owner}'{data} '{API}/instances/{instance}/files?path={path}' > /dev/null\n"
            ));
        }
        let start = write("start.json", &json!({ "action": "start", "timeout": 60 }).to_string())?;
        script.push_str(&format!(
            "ask -X PUT --data-binary @{} $api/instances/{instance}/state | finished\n",
            start.display()
        ));
        write("make.sh", &script)
    }

    /// From the first call to the moment at which all are well. Nothing is left of them then.
    pub fn sample(&self, made: &Made) -> Result<Duration> {
        let scripts: Vec<PathBuf> = (1..=3).map(|number| self.script(made, number)).collect::<Result<_>>()?;
        let begun = Instant::now();
        let started = run_all(&scripts);
        let well =
            started.and_then(|()| MEMBERS.until_well(&self.etcdctl, &made.certificates, begun, || last_words(made)));
        let time = begun.elapsed();
        let instances: Vec<String> = (1..=3).map(instance).collect();
        let left = host::read(Command::new("incus").args(["delete", "--force"]).args(&instances));
        well?;
        left?;
        Ok(time)
    }
}

const API: &str = "http://incus/1.0";
/// A call, and the end of the operation that a call began.
const CALLS: &str = "\
set -e
api=http://incus/1.0
ask() { curl --silent --show-error --fail-with-body --unix-socket /var/lib/incus/unix.socket \"$@\"; }
finished() { operation=$(sed -n 's/.*\"operation\":\"\\([^\"]*\\)\".*/\\1/p'); ask \"http://incus$operation/wait\" | grep -q '\"status_code\":200,\"class\\|\"status\":\"Success\"'; }
";

fn run_all(scripts: &[PathBuf]) -> Result<()> {
    let started: Vec<_> = scripts.iter().map(|script| Command::new("sh").arg(script).spawn()).collect();
    for (script, child) in scripts.iter().zip(started) {
        let ended = child.and_then(|mut child| child.wait()).context("a shell cannot be run")?;
        anyhow::ensure!(ended.success(), "{} failed", script.display());
    }
    Ok(())
}

fn instance(number: usize) -> String {
    format!("{}{}", lab_of_incus::BENCH, name(number))
}

fn last_words(made: &Made) -> String {
    let last = |number| {
        let words = ["exec", &instance(number), "--", "journalctl", "--no-pager", "--lines=30"];
        let journal = host::read(Command::new("incus").args(words)).unwrap_or_else(|error| error.to_string());
        format!("{} of {}:\n{journal}\n", name(number), made.name)
    };
    (1..=3).map(last).collect()
}
