//! SeaweedFS on this machine as the store that backups go to, with separate keys, on ports that were free. All it keeps is in one
//! directory, and it ends with the value, or with this program if that is killed. People's part is typed with rclone, which takes a
//! stream of unknown length and sends it in parts, as quorate does.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::host;
use crate::lab::Lab;
use crate::weed;

pub const BUCKET: &str = "bench";
pub const REGION: &str = "us-east-1";
/// What listens, each at two ports: one for HTTP and one for gRPC.
const PARTS: [&str; 4] = ["master", "volume", "filer", "s3"];
/// It elects itself and finds its own parts before it takes anything.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(300);

pub struct Store {
    endpoint: String,
    access_key: String,
    secret_key: String,
    process: Child,
}

impl Store {
    /// Starts it on an empty directory, and returns when it has taken something into the bucket.
    pub fn start(lab: &Lab, directory: &Path) -> Result<Self> {
        let weed = weed::ensure(lab)?;
        let (access_key, secret_key) = (random_word()?, random_word()?);
        let identities = directory.join("identities.json");
        write_private(&identities, &identities_of(&access_key, &secret_key))?;
        let ports = free_ports(PARTS.len() * 2)?;
        let log = directory.join("weed.log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = host::tethered(weed);
        command.arg("server").args(port_arguments(&ports));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-volume.max=0"]);
        // Several volumes fit on the disk, and nobody is told of them.
        command.args(["-master.volumeSizeLimitMB=1024", "-master.telemetry=false"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        let argument = |name: &str, path: &Path| format!("{name}={}", path.display());
        command.arg(argument("-dir", directory)).arg(argument("-s3.config", &identities));
        command.arg(argument("-filer.localSocket", &directory.join("filer.sock")));
        command.arg(argument("-s3.localSocket", &directory.join("s3.sock")));
        // It reads settings of its user, if there are any; here it finds none.
        command.env("HOME", directory).current_dir(directory);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let process = command.spawn().context("cannot start weed")?;
        let s3 = ports[2 * (PARTS.len() - 1)];
        let mut store = Self { endpoint: format!("http://127.0.0.1:{s3}"), access_key, secret_key, process };
        store.until_it_takes_something(&log)?;
        Ok(store)
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Its keys, as programs that speak S3 look for them in their environment.
    pub fn credentials(&self) -> [(&'static str, &str); 2] {
        [("AWS_ACCESS_KEY_ID", &self.access_key), ("AWS_SECRET_ACCESS_KEY", &self.secret_key)]
    }

    /// The variables by which rclone knows it as `store:`.
    pub fn remote(&self) -> [(&'static str, &str); 9] {
        [
            // Kept in memory.
            ("RCLONE_CONFIG", "/dev/null"),
            ("RCLONE_CONFIG_STORE_TYPE", "s3"),
            ("RCLONE_CONFIG_STORE_PROVIDER", "Other"),
            ("RCLONE_CONFIG_STORE_ACCESS_KEY_ID", &self.access_key),
            ("RCLONE_CONFIG_STORE_SECRET_ACCESS_KEY", &self.secret_key),
            ("RCLONE_CONFIG_STORE_ENDPOINT", &self.endpoint),
            ("RCLONE_CONFIG_STORE_REGION", REGION),
            ("RCLONE_CONFIG_STORE_FORCE_PATH_STYLE", "true"),
            ("RCLONE_CONFIG_STORE_NO_CHECK_BUCKET", "true"),
        ]
    }

    pub fn rclone(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("rclone");
        command.args(arguments).envs(self.remote()).env_remove("AWS_CA_BUNDLE");
        command
    }

    /// How many bytes are below a name.
    pub fn size(&self, name: &str) -> Result<u64> {
        let printed = host::read(&mut self.rclone(&["size", "--json", &path(name)]))?;
        let told: Value = serde_json::from_str(&printed).context("rclone prints a size that is not JSON")?;
        told["bytes"].as_u64().with_context(|| format!("rclone prints no size: {printed}"))
    }

    /// The directories right below a name, the first in order first.
    pub fn directories(&self, name: &str) -> Result<Vec<String>> {
        let printed = host::read(&mut self.rclone(&["lsf", "--dirs-only", &path(name)]))?;
        let mut found: Vec<String> = printed.lines().map(|line| line.trim_end_matches('/').to_owned()).collect();
        found.sort();
        Ok(found)
    }

    /// An open port is not enough: it answers there before it can keep anything.
    fn until_it_takes_something(&mut self, log: &Path) -> Result<()> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                bail!("weed ended: {status}\n{}", last_lines(log));
            }
            match self.take_something() {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(error.context(format!("weed took nothing within {PATIENCE:?}\n{}", last_lines(log))));
                }
                Err(_) => sleep(LOOK),
            }
        }
    }

    fn take_something(&self) -> Result<()> {
        let bucket = path("");
        for arguments in [["mkdir", &bucket], ["touch", &path("probe")], ["deletefile", &path("probe")]] {
            host::read(self.rclone(&arguments).args(["--retries=1", "--low-level-retries=1"]))?;
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Nothing that it still had to write is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What rclone calls a name in the bucket.
pub fn path(name: &str) -> String {
    format!("store:{BUCKET}/{name}")
}

fn identities_of(access_key: &str, secret_key: &str) -> String {
    json!({ "identities": [{
        "name": "bench",
        "credentials": [{ "accessKey": access_key, "secretKey": secret_key }],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }] })
    .to_string()
}

fn port_arguments(ports: &[u16]) -> Vec<String> {
    let names = PARTS.iter().flat_map(|part| [format!("-{part}.port"), format!("-{part}.port.grpc")]);
    names.zip(ports).map(|(name, port)| format!("{name}={port}")).collect()
}

/// Free just now: all are held until all are found, so that they differ.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let held = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<Vec<_>, _>>();
    let held = held.context("no free port on the loopback")?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn random_word() -> Result<String> {
    let mut bytes = [0; 20];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes)).context("no random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write_private(path: &Path, content: &str) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_part_gets_two_ports_and_no_two_are_the_same() {
        let ports = free_ports(PARTS.len() * 2).unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
        let arguments = port_arguments(&ports);
        assert_eq!(arguments.len(), ports.len());
        assert_eq!(arguments[6], format!("-s3.port={}", ports[6]));
        assert_eq!(arguments[7], format!("-s3.port.grpc={}", ports[7]));
    }

    #[test]
    fn keys_are_long_differ_and_go_into_the_identities() {
        let (access_key, secret_key) = (random_word().unwrap(), random_word().unwrap());
        assert_eq!(access_key.len(), 40);
        assert_ne!(access_key, secret_key);
        let identities: Value = serde_json::from_str(&identities_of(&access_key, &secret_key)).unwrap();
        assert_eq!(identities["identities"][0]["credentials"][0]["secretKey"], secret_key);
    }
}
