//! What replaces AWS for suites, tests and benches: moto's server, and processes for its instances, in separate namespaces.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::tools::Tools;
use crate::host;
use crate::lab::Lab;

/// How the names of the control groups of instances begin. These are in no namespace.
const GROUPS: &str = "quorate-ec2-";
/// Where the suites find the server, and the Python that it runs in.
const SERVER_VARIABLE: &str = "QUORATE_LAB_AWS";
/// Where the stories find the proxy in front of the server that is as strict as AWS, and the word by which the suite serves it.
const STRICT_VARIABLE: &str = "QUORATE_LAB_AWS_STRICT";
const STRICT_WORD: &str = "aws-proxy";
const PYTHON_VARIABLE: &str = "QUORATE_LAB_AWS_PYTHON";
/// And the stories what asks the server.
const BODIES_VARIABLE: &str = "QUORATE_LAB_AWS_BODIES";
/// Says to bodies where to write what happens to instances.
const EVENTS_VARIABLE: &str = "QUORATE_LAB_AWS_EVENTS";
/// And to the suites where the validator is.
const VALIDATOR_VARIABLE: &str = "QUORATE_LAB_IGNITION_VALIDATE";
/// Say to what runs inside where its files are, where moto is, and what whole systems need.
const PLACE_VARIABLE: &str = "QUORATE_LAB_AWS_PLACE";
const MOTO_VARIABLE: &str = "QUORATE_LAB_MOTO";
const TOOLS_VARIABLE: &str = "QUORATE_LAB_AWS_TOOLS";
/// What everybody may be who asks the server.
const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "lab"), ("AWS_SECRET_ACCESS_KEY", "lab")];
/// How long the server may take to answer.
const STARTING: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// Runs this program again with these words, in new namespaces, where [`Cloud::start`] may be called.
pub fn enter(lab: &Lab, tools: &Tools, words: &[impl AsRef<OsStr>]) -> Result<()> {
    let place = PathBuf::from(host::read(Command::new("mktemp").arg("-d"))?.trim());
    let outcome = super::super::enter(words, |inside| {
        inside.env(PLACE_VARIABLE, &place).env("QUORATE_LAB", lab.root()).env(MOTO_VARIABLE, &tools.moto);
        if let Some(systems) = &tools.systems {
            inside.env(VALIDATOR_VARIABLE, &systems.validator).env(TOOLS_VARIABLE, &systems.directory);
        }
    });
    super::super::remove_groups(|group| group.starts_with(GROUPS));
    // Only here, where what was mounted below it is not: inside, the files of this machine would be deleted through that.
    let _ = fs::remove_dir_all(&place);
    outcome
}

/// The server, which ends with this value.
pub struct Cloud {
    server: Server,
    python: PathBuf,
    bodies: PathBuf,
    place: PathBuf,
}

impl Cloud {
    /// In namespaces that [`enter`] made.
    pub fn start() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).with_context(|| format!("no {name}"));
        let (moto, place) = (variable(MOTO_VARIABLE)?, variable(PLACE_VARIABLE)?);
        host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
        let script = |name: &str, text: &str| {
            let path = place.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            Ok::<PathBuf, anyhow::Error>(path)
        };
        let bodies = script("bodies.py", include_str!("bodies.py"))?;
        script("metadata.py", include_str!("metadata.py"))?;
        script("guests.py", include_str!("guests.py"))?;
        let server = Server::start(&moto, &script("server.py", include_str!("server.py"))?)?;
        Ok(Cloud { server, python: moto.join("bin/python"), bodies, place })
    }

    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Where files may be written.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Says to a command where the server is and what it takes to ask it.
    pub fn tell(&self, mut command: Command) -> Command {
        command.env(SERVER_VARIABLE, self.url()).env(PYTHON_VARIABLE, &self.python);
        command.env(BODIES_VARIABLE, &self.bodies).envs(KEYS);
        command
    }

    /// The proxy of the conformance suite, which is this program.
    pub fn strict(&self, suite: &Path) -> Result<Strict> {
        let mut proxy = self.tell(host::tethered(suite));
        proxy.arg(STRICT_WORD).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = proxy.spawn().context("cannot start the strict proxy")?;
        let output = process.stdout.take().context("no output")?;
        let mut strict = Strict { process, url: String::new() };
        BufReader::new(output).read_line(&mut strict.url).context("the strict proxy prints no address")?;
        Ok(strict)
    }

    /// What a command of `bodies.py` prints: an answer of the server, or what it did for a bench.
    pub fn ask(&self, words: &[&str]) -> Result<Value> {
        let (command, words) = words.split_first().context("no command")?;
        let mut python = Command::new(&self.python);
        let answer = host::read(python.arg(&self.bodies).args([command, self.url()]).args(words))?;
        serde_json::from_str(&answer).with_context(|| format!("{command} printed no JSON: {answer}"))
    }

    /// Gives instances bodies from now on, with agents of this quorate, that find this etcd on the PATH. What happens to instances
    /// is written to `events`.
    pub fn live(&self, quorate: &Path, etcd: &Path, events: Option<&Path>) -> Result<Bodies> {
        let mut living = host::tethered(&self.python);
        let directory = self.place.join("bodies");
        living.arg(&self.bodies).args(["run", self.url()]).arg(&directory).args([quorate, etcd]);
        living.args(std::env::var_os(TOOLS_VARIABLE)).envs(events.map(|file| (EVENTS_VARIABLE, file)));
        let process = living.stdin(Stdio::null()).spawn().context("cannot start the bodies of instances")?;
        Ok(Bodies { process, directory })
    }
}

/// What refuses what AWS refuses. It ends with this value.
pub struct Strict {
    process: Child,
    url: String,
}

impl Strict {
    /// Says to a command where it is.
    pub fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(STRICT_VARIABLE, self.url.trim())
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What gives instances their bodies. It ends with this value.
pub struct Bodies {
    process: Child,
    directory: PathBuf,
}

impl Bodies {
    /// Shows the ends of what instances have said.
    pub fn show_consoles(&self) {
        let below = |place: &Path| fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
        for body in below(&self.directory).chain(below(&self.directory.join("guests"))) {
            let logs = ["var/log/console.log", "console.log", "upper/var/log/agent.log"].map(|log| body.join(log));
            for log in logs {
                let Ok(text) = fs::read(&log) else { continue };
                let text = String::from_utf8_lossy(&text);
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("--- {}\n{}", log.display(), lines[lines.len().saturating_sub(15)..].join("\n"));
            }
        }
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// moto's server. It ends with this value.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(moto: &Path, script: &Path) -> Result<Self> {
        // Free a moment ago, and hardly taken since.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("no free port")?;
        let log = moto.join("server.log");
        let file = fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = host::tethered(moto.join("bin/python"));
        command.arg(script).args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let process = command.spawn().context("cannot start moto's server")?;
        let server = Server { process, url: format!("http://{address}") };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if begun.elapsed() > STARTING {
                bail!("moto's server does not answer; its log is {}", log.display());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
