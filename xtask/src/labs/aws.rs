//! moto's server in place of AWS: it knows the calls of EC2 and Systems Manager and keeps records of what they make, in memory. The suite puts
//! a proxy in front of it that refuses what AWS refuses. For the story of a cluster each instance gets a body, an agent with the instance's
//! address, so all of it runs in separate namespaces. With it comes Ignition's own validator, built from its Go modules.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::etcd::{
    self,
    go::{CERTIFICATES, Module},
};
use crate::host;
use crate::lab::Lab;
use crate::test::build;

const MOTO: &str = "5.2.5";
const IGNITION: &str = "2.27.0";
/// Where the suites find the server, the Python that it runs in, and the validator.
const SERVER_VARIABLE: &str = "QUORATE_LAB_AWS";
const PYTHON_VARIABLE: &str = "QUORATE_LAB_AWS_PYTHON";
const VALIDATOR_VARIABLE: &str = "QUORATE_LAB_IGNITION_VALIDATE";
/// And the story what asks the server.
const BODIES_VARIABLE: &str = "QUORATE_LAB_AWS_BODIES";
/// Says to what runs inside where moto is.
const MOTO_VARIABLE: &str = "QUORATE_LAB_MOTO";
/// How long the server may take to answer.
const STARTING: Duration = Duration::from_secs(120);

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
    /// Run this command of a shell next to the server, and no suite
    #[arg(long, value_name = "COMMAND", conflicts_with = "filter")]
    run: Option<String>,
}

/// What was installed.
pub struct Programs {
    /// moto's environment.
    moto: PathBuf,
    validator: PathBuf,
}

impl Options {
    /// The same in words of the command line.
    fn words(&self) -> impl Iterator<Item = &str> {
        let run = self.run.as_deref().map(|command| ["--run", command]);
        self.filter.as_deref().into_iter().chain(run.into_iter().flatten())
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let programs = prepare(lab)?;
    etcd::ensure(lab, false)?;
    build::programs()?;
    eprintln!("prepared in {:.0} s", begun.elapsed().as_secs_f64());
    let words: Vec<&str> = ["lab", "aws", "--inside"].into_iter().chain(options.words()).collect();
    super::enter(&words, |inside| {
        inside.env("QUORATE_LAB", lab.root()).env(MOTO_VARIABLE, &programs.moto);
        inside.env(VALIDATOR_VARIABLE, &programs.validator);
    })?;
    eprintln!("all of it in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// In the namespaces.
pub fn inside(lab: &Lab, options: &Options) -> Result<()> {
    let moto = PathBuf::from(std::env::var_os(MOTO_VARIABLE).context("moto's place is not named")?);
    host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let place = PathBuf::from(host::read(Command::new("mktemp").arg("-d"))?.trim());
    let outcome = in_place(lab, options, &moto, &place);
    let _ = fs::remove_dir_all(&place);
    outcome
}

fn in_place(lab: &Lab, options: &Options, moto: &Path, place: &Path) -> Result<()> {
    let script = |name: &str, text: &str| {
        let path = place.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok::<PathBuf, anyhow::Error>(path)
    };
    let bodies = script("bodies.py", include_str!("aws/bodies.py"))?;
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
        host::run(tell(build::find(label)?.command()).args([filter, "--include-ignored", "--test-threads=3"]))?;
    }
    let quorate = host::debug_directory()?.join("quorate");
    let etcd = lab.installed().into_values().next().context("there is no etcd in the lab")?;
    let mut living = host::tethered(&python);
    living.arg(&bodies).args(["run", &server.url]).arg(place.join("bodies")).args([&quorate, &etcd]);
    let mut living = living.stdin(Stdio::null()).spawn().context("cannot start the bodies of instances")?;
    let story = host::run(tell(build::find("quorate::machines")?.command()).args(["--ignored", "--nocapture", filter]));
    if story.is_err() {
        show_consoles(&place.join("bodies"));
    }
    let _ = living.kill();
    story
}

/// The ends of what the agents of instances have said.
fn show_consoles(bodies: &Path) {
    for body in fs::read_dir(bodies).into_iter().flatten().flatten() {
        let log = fs::read_to_string(body.path().join("var/log/console.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("--- {}\n{}", body.path().display(), lines[lines.len().saturating_sub(15)..].join("\n"));
    }
}

/// Installs what is missing. Both stay.
pub fn prepare(lab: &Lab) -> Result<Programs> {
    let moto = lab.root().join("moto").join(MOTO);
    let validator = lab.root().join("ignition").join(IGNITION).join("ignition-validate");
    if !moto.join("whole").exists() {
        install_moto(&moto)?;
    }
    if !validator.exists() {
        build_validator(lab, &validator)?;
    }
    Ok(Programs { moto, validator })
}

fn install_moto(place: &Path) -> Result<()> {
    eprintln!("moto {MOTO}: installing it from PyPI");
    let _ = fs::remove_dir_all(place);
    host::read(Command::new("python3").args(["-m", "venv"]).arg(place))?;
    let mut pip = Command::new(place.join("bin/pip"));
    pip.args(["install", "--quiet"]).arg(format!("moto[server,ec2,ssm]=={MOTO}"));
    host::read(&mut pip).context("pip cannot get it: it needs the network, or a mirror that it is configured for")?;
    fs::write(place.join("whole"), "").context("cannot write into the lab directory")
}

fn build_validator(lab: &Lab, place: &Path) -> Result<()> {
    const PACKAGE: &str = "github.com/coreos/ignition/v2/validate";
    if host::find("go").is_none() {
        bail!("Ignition's validator is built from Go's modules: install a Go toolchain");
    }
    eprintln!("ignition-validate {IGNITION}: building it from Go's modules");
    host::install_missing(&[CERTIFICATES])?;
    let filling = lab.lock()?;
    let module = Module::new(filling.scratch("ignition")?)?;
    host::read(module.go().args(["get", &format!("{PACKAGE}@v{IGNITION}")]))?;
    let program = module.directory().join("ignition-validate");
    host::read(module.go().args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&program).arg(PACKAGE))?;
    fs::create_dir_all(place.parent().context("a place in no directory")?).context("cannot create a directory")?;
    fs::rename(&program, place).with_context(|| format!("cannot move into place {}", place.display()))
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
