//! moto's server in place of AWS: it knows the calls of EC2 and Systems Manager and keeps records of what they make, in memory. The suite puts
//! a proxy in front of it that refuses what AWS refuses. For the stories of clusters each instance gets a body with the instance's address: an
//! agent, or a whole system that cloud-init, Ignition's own binary or quorate itself configures. So all of it runs in separate namespaces.

mod tools;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::etcd;
use crate::host;
use crate::lab::Lab;
use crate::test::build;

/// Of all these instances, in control groups that are in no namespace.
const BODIES: &str = "quorate-ec2-";
/// The story of the core.
const STORY: &str = "aws::ec2_runs";
/// What the core of the suite leaves out: the same again for every call that there is, and what changes so much that moto takes long.
const LONG: [&str; 10] = [
    "every_call_fails_once",
    "a_crash_while",
    "_vpc",
    "zone",
    "groups_",
    "rules_and_interfaces",
    "images_are_found",
    "what_an_instance_is_made_of",
    "what_aws_does_not_have",
    "an_instance_that_aws_stopped",
];
/// Where the suites find the server, the Python that it runs in, and the validator.
const SERVER_VARIABLE: &str = "QUORATE_LAB_AWS";
const PYTHON_VARIABLE: &str = "QUORATE_LAB_AWS_PYTHON";
const VALIDATOR_VARIABLE: &str = "QUORATE_LAB_IGNITION_VALIDATE";
/// And the stories what asks the server.
const BODIES_VARIABLE: &str = "QUORATE_LAB_AWS_BODIES";
/// Say to what runs inside where its files are, where moto is, and what whole systems need.
const PLACE_VARIABLE: &str = "QUORATE_LAB_AWS_PLACE";
const MOTO_VARIABLE: &str = "QUORATE_LAB_MOTO";
const TOOLS_VARIABLE: &str = "QUORATE_LAB_AWS_TOOLS";
/// How long the server may take to answer.
const STARTING: Duration = Duration::from_secs(120);

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
    /// Run the quick part of the conformance suite, and the story on bodies that are agents
    #[arg(long, conflicts_with_all = ["filter", "run"])]
    core: bool,
    /// Run this command of a shell next to the server, and no suite
    #[arg(long, value_name = "COMMAND", conflicts_with = "filter")]
    run: Option<String>,
}

impl Options {
    /// The same in words of the command line.
    fn words(&self) -> impl Iterator<Item = &str> {
        let run = self.run.as_deref().map(|command| ["--run", command]);
        self.filter.as_deref().into_iter().chain(run.into_iter().flatten()).chain(self.core.then_some("--core"))
    }

    /// Whether instances that are whole systems may be wanted.
    fn has_systems(&self) -> bool {
        !self.core && self.run.is_none()
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let programs = prepare(lab, options)?;
    etcd::ensure(lab, false)?;
    build::programs()?;
    eprintln!("prepared in {:.0} s", begun.elapsed().as_secs_f64());
    let words: Vec<&str> = ["lab", "aws", "--inside"].into_iter().chain(options.words()).collect();
    let place = PathBuf::from(host::read(Command::new("mktemp").arg("-d"))?.trim());
    let outcome = super::enter(&words, |inside| {
        inside.env(PLACE_VARIABLE, &place).env("QUORATE_LAB", lab.root()).env(MOTO_VARIABLE, &programs.moto);
        inside.env(VALIDATOR_VARIABLE, &programs.validator);
        inside.envs(programs.tools.iter().map(|tools| (TOOLS_VARIABLE, tools)));
    });
    super::remove_groups(|group| group.starts_with(BODIES));
    // Only here, where what was mounted below it is not: inside, the files of this machine would be deleted through that.
    let _ = fs::remove_dir_all(&place);
    outcome?;
    eprintln!("all of it in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// In the namespaces.
pub fn inside(lab: &Lab, options: &Options) -> Result<()> {
    let moto = PathBuf::from(std::env::var_os(MOTO_VARIABLE).context("moto's place is not named")?);
    host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let place = PathBuf::from(std::env::var_os(PLACE_VARIABLE).context("the place for files is not named")?);
    in_place(lab, options, &moto, &place)
}

fn in_place(lab: &Lab, options: &Options, moto: &Path, place: &Path) -> Result<()> {
    let script = |name: &str, text: &str| {
        let path = place.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok::<PathBuf, anyhow::Error>(path)
    };
    let bodies = script("bodies.py", include_str!("aws/bodies.py"))?;
    script("metadata.py", include_str!("aws/metadata.py"))?;
    script("guests.py", include_str!("aws/guests.py"))?;
    let server = Server::start(moto, &script("server.py", include_str!("aws/server.py"))?)?;
    let python = moto.join("bin/python");
    let tell = |mut command: Command| {
        command.env(SERVER_VARIABLE, &server.url).env(PYTHON_VARIABLE, &python).env(BODIES_VARIABLE, &bodies);
        command.env("AWS_ACCESS_KEY_ID", "lab").env("AWS_SECRET_ACCESS_KEY", "lab");
        command
    };
    if let Some(command) = &options.run {
        return host::run(tell(Command::new("sh")).args(["-c", command]));
    }
    let filter = options.filter.as_deref().unwrap_or("aws::");
    for label in ["quorate-providers", "quorate-providers::conformance"] {
        let mut suite = tell(build::find(label)?.command());
        suite.args([filter, "--include-ignored", "--test-threads=3"]);
        host::run(suite.args(LONG.iter().filter(|_| options.core).flat_map(|name| ["--skip", name])))?;
    }
    let quorate = host::debug_directory()?.join("quorate");
    let etcd = lab.installed().into_values().next().context("there is no etcd in the lab")?;
    let mut living = host::tethered(&python);
    living.arg(&bodies).args(["run", &server.url]).arg(place.join("bodies")).args([&quorate, &etcd]);
    living.args(std::env::var_os(TOOLS_VARIABLE));
    let mut living = living.stdin(Stdio::null()).spawn().context("cannot start the bodies of instances")?;
    let mut stories = tell(build::find("quorate::machines")?.command());
    stories.args(["--ignored", "--nocapture", "--test-threads=1", if options.core { STORY } else { filter }]);
    let outcome = host::run(&mut stories);
    if outcome.is_err() {
        show_consoles(&place.join("bodies"));
    }
    let _ = living.kill();
    let _ = living.wait();
    outcome
}

/// The ends of what instances have said.
fn show_consoles(bodies: &Path) {
    let below = |place: &Path| fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    for body in below(bodies).chain(below(&bodies.join("guests"))) {
        let logs = ["var/log/console.log", "console.log", "upper/var/log/agent.log"].map(|log| body.join(log));
        for log in logs {
            let Ok(text) = fs::read(&log) else { continue };
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {}\n{}", log.display(), lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }
}

/// Installs what is missing. It stays.
pub fn prepare(lab: &Lab, options: &Options) -> Result<tools::Tools> {
    tools::prepare(lab, options.has_systems())
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
            std::thread::sleep(Duration::from_millis(100));
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
