//! moto's server in place of AWS: it knows the calls of EC2 and Systems Manager and keeps records of what they make, in memory. The suite puts
//! a proxy in front of it that refuses what AWS refuses. With it comes Ignition's own validator, built from its Go modules.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::etcd::go::{CERTIFICATES, Module};
use crate::host;
use crate::lab::Lab;
use crate::test::build;

const MOTO: &str = "5.2.5";
const IGNITION: &str = "2.27.0";
/// Where the suites find the server, the Python that it runs in, and the validator.
const SERVER_VARIABLE: &str = "QUORATE_LAB_AWS";
const PYTHON_VARIABLE: &str = "QUORATE_LAB_AWS_PYTHON";
const VALIDATOR_VARIABLE: &str = "QUORATE_LAB_IGNITION_VALIDATE";
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

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let programs = prepare(lab)?;
    let server = Server::start(&programs.moto)?;
    let tell = |mut command: Command| {
        command.env(SERVER_VARIABLE, &server.url).env(PYTHON_VARIABLE, programs.moto.join("bin/python"));
        command.env(VALIDATOR_VARIABLE, &programs.validator);
        command
    };
    if let Some(command) = &options.run {
        return host::run(tell(Command::new("sh")).args(["-c", command]));
    }
    let filter = options.filter.as_deref().unwrap_or("aws::");
    for label in ["quorate-providers", "quorate-providers::conformance"] {
        host::run(tell(build::find(label)?.command()).args([filter, "--test-threads=3"]))?;
    }
    eprintln!("all of it in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
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
    fn start(moto: &Path) -> Result<Self> {
        // Free a moment ago, and hardly taken since.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("no free port")?;
        let log = moto.join("server.log");
        let file = fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = host::tethered(moto.join("bin/moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
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
