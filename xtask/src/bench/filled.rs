//! A cluster full of data and a store for its backups, where quorate's backups and restores are compared with manual ones. The manual
//! procedure is here too: etcd's own snapshot, zstd, age and rclone, combined as a careful operator would.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::store::{self, BUCKET, REGION, Store};
use super::{CLUSTER, Ground, Measured, Programs};
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::{Lab, Version};

/// Of zstd, for both.
pub const COMPRESSION: u32 = 3;
/// What quorate keeps is below it in the bucket.
pub const QUORATES: &str = "quorate/";
/// Room for the largest filling, and for what etcd makes of it.
const QUOTA: &str = "8GiB";
const MOST: u64 = 4 << 30;
const IDENTITY: &str = "identity";
pub const NEEDS: [Need; 3] = [
    Need::Command { name: "zstd", package: "zstd" },
    Need::Command { name: "age", package: "age" },
    Need::Command { name: "rclone", package: "rclone" },
];

/// What both benches of a filled cluster are asked for.
#[derive(clap::Args)]
pub struct Options {
    /// How much data, half random, is in the cluster; in MiB or GiB
    #[arg(long, default_value = "1GiB")]
    pub size: Size,
    /// How often each of the two runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: u32,
    #[command(flatten)]
    pub measured: Measured,
}

/// How much data is put into the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size(u64);

impl Size {
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let units = [("GiB", 1 << 30), ("MiB", 1 << 20)];
        let found = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit): (&str, u64) = found.with_context(|| format!("`{text}` is neither in MiB nor in GiB"))?;
        let number: u64 = number.trim().parse().with_context(|| format!("`{text}` has no number before its unit"))?;
        match number.checked_mul(unit) {
            Some(bytes) if (1..=MOST).contains(&bytes) => Ok(Self(bytes)),
            _ => bail!("`{text}` is not between 1MiB and {}", Self(MOST)),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 >> 20;
        if mebibytes.is_multiple_of(1024) { write!(f, "{} GiB", mebibytes >> 10) } else { write!(f, "{mebibytes} MiB") }
    }
}

/// What one manual backup took: first etcd's snapshot into a file, for it goes nowhere else, then from there into the store.
pub struct ByHand {
    pub save: Duration,
    pub send: Duration,
}

impl ByHand {
    pub fn time(&self) -> Duration {
        self.save + self.send
    }
}

pub struct Filled<'a> {
    // Before the ground: it ends while its files are still there.
    pub store: Store,
    pub ground: Ground,
    pub version: Version,
    /// Where the spec, keys and snapshots of people are.
    pub directory: PathBuf,
    lab: &'a Lab,
    recipient: String,
    /// How clients reach the cluster.
    environment: BTreeMap<String, String>,
}

impl<'a> Filled<'a> {
    pub fn prepare(lab: &'a Lab, size: Size, programs: Programs) -> Result<Self> {
        host::install_missing(&NEEDS)?;
        let version = etcd::ensure_any(lab)?;
        let ground = Ground::prepare_with(lab, programs)?;
        let directory = ground.directory("by-hand")?;
        let store = Store::start(lab, &ground.directory("store")?)?;
        let recipient = make_identity(&directory.join(IDENTITY))?;
        let mut filled = Self { store, ground, version, directory, lab, recipient, environment: BTreeMap::new() };
        filled.fill(size)?;
        Ok(filled)
    }

    fn fill(&mut self, size: Size) -> Result<()> {
        eprintln!("filling a cluster with {size}");
        let spec = spec(self.version, &self.etcd("etcd"), self.store.endpoint(), &self.recipient);
        fs::write(self.spec(), spec).with_context(|| format!("cannot write {}", self.spec().display()))?;
        host::read(self.quorate().arg("apply").arg(self.spec()).arg("--yes"))?;
        self.environment = self.read_environment()?;
        host::read(self.load("fill").arg(size.0.to_string()))?;
        Ok(())
    }

    /// quorate with the store's keys.
    pub fn quorate(&self) -> Command {
        let mut command = self.ground.quorate(&self.lab.etcd(self.version));
        command.envs(self.store.credentials());
        command
    }

    pub fn spec(&self) -> PathBuf {
        self.directory.join("bench.yaml")
    }

    /// The key that opens what was encrypted, in a file.
    pub fn identity(&self) -> PathBuf {
        self.directory.join(IDENTITY)
    }

    /// A program of the etcd that the cluster runs.
    pub fn etcd(&self, program: &str) -> PathBuf {
        self.lab.etcd(self.version).join(program)
    }

    /// As `quorate env` prints it, which may differ after a restore.
    fn read_environment(&self) -> Result<BTreeMap<String, String>> {
        let printed = host::read(self.quorate().args(["env", CLUSTER, "--output", "json"]))?;
        serde_json::from_str(&printed).context("`quorate env` printed something that is no JSON")
    }

    /// The cluster's clients.
    fn load(&self, verb: &str) -> Command {
        let mut command = host::tethered(self.ground.examples.join("load"));
        command.arg(verb).envs(&self.environment);
        command
    }

    /// How many keys of the filling there are in the cluster as it is reached now.
    pub fn count(&self) -> Result<u64> {
        let printed = host::read(self.load("count").envs(self.read_environment()?))?;
        printed.trim().parse().with_context(|| format!("no count: `{printed}`"))
    }

    /// Clients that write little things from now on.
    pub fn begin_writing(&self) -> Result<Writing> {
        let mut command = self.load("write");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Writing(command.spawn().context("cannot start the writers")?))
    }

    /// A backup as it is made manually, of the given name. The snapshot's file is deleted, its size is returned.
    pub fn save_by_hand(&self, name: &str) -> Result<(ByHand, u64)> {
        let file = self.directory.join("snapshot.db");
        let begun = Instant::now();
        let mut etcdctl = Command::new(self.etcd("etcdctl"));
        // A snapshot is taken of one member.
        let first = self.environment.get("ETCDCTL_ENDPOINTS").and_then(|all| all.split(',').next());
        etcdctl.args(["snapshot", "save"]).arg(&file).envs(&self.environment);
        host::read(etcdctl.env("ETCDCTL_ENDPOINTS", first.context("the cluster has no endpoints")?))?;
        let save = begun.elapsed();
        let bytes = fs::metadata(&file).with_context(|| format!("no {}", file.display()))?.len();
        let script = format!("zstd -q -{COMPRESSION} -c \"$1\" | age -r \"$2\" | rclone rcat \"$3\"");
        let mut send = pipeline(&script);
        send.arg(&file).arg(&self.recipient).arg(store::path(name)).envs(self.store.remote());
        host::read(&mut send)?;
        let by_hand = ByHand { save, send: begun.elapsed() - save };
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        Ok((by_hand, bytes))
    }

    /// What was saved manually, as a snapshot again.
    pub fn fetch_by_hand(&self, name: &str, file: &Path) -> Result<()> {
        let mut fetch = pipeline("rclone cat \"$1\" | age -d -i \"$2\" | zstd -q -d -f -o \"$3\"");
        fetch.arg(store::path(name)).arg(self.identity()).arg(file).envs(self.store.remote());
        host::read(&mut fetch).map(drop)
    }
}

/// Fails when any part of it does. Arguments follow.
fn pipeline(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", script, "by-hand"]).env_remove("AWS_CA_BUNDLE");
    command
}

/// Makes a key in a file, and returns what things are encrypted to.
fn make_identity(file: &Path) -> Result<String> {
    host::read(Command::new("age-keygen").arg("-o").arg(file))?;
    Ok(host::read(Command::new("age-keygen").arg("-y").arg(file))?.trim().to_owned())
}

fn spec(version: Version, program: &Path, endpoint: &str, recipient: &str) -> String {
    let cluster = super::spec_of_three(version, program, QUOTA);
    format!(
        "{cluster}\
         \x20   backup:\n\
         \x20     to:\n\
         \x20       s3: {{endpoint: {endpoint:?}, region: {REGION}, bucket: {BUCKET}, prefix: {QUORATES}}}\n\
         \x20     recipients: [{recipient}]\n\
         \x20     compression: {COMPRESSION}\n"
    )
}

/// Clients at work. They end with the value.
pub struct Writing(Child);

impl Writing {
    /// Ends them, and returns how their writes went.
    pub fn end(self) -> Result<Latency> {
        // Waiting closes their input, which is their sign to end.
        let output = self.0.wait_with_output().context("the writers are gone")?;
        if !output.status.success() {
            bail!("the writers failed: {}", output.status);
        }
        String::from_utf8_lossy(&output.stdout).parse()
    }
}

/// How long writes took: half of them at most this, and 99 of 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    pub writes: u64,
    pub half: Duration,
    pub most: Duration,
    pub longest: Duration,
}

impl FromStr for Latency {
    type Err = anyhow::Error;

    fn from_str(printed: &str) -> Result<Self> {
        let words: Vec<&str> = printed.split_whitespace().collect();
        let [writes, half, most, longest] = words[..] else { bail!("not a number and three times: `{printed}`") };
        let time = |word: &str| {
            let milliseconds: f64 = word.parse().with_context(|| format!("no time: `{word}`"))?;
            Duration::try_from_secs_f64(milliseconds / 1000.0).with_context(|| format!("no time: `{word}`"))
        };
        let writes = writes.parse().with_context(|| format!("no number of writes: `{writes}`"))?;
        Ok(Self { writes, half: time(half)?, most: time(most)?, longest: time(longest)? })
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writes, half, most, longest } = self;
        write!(f, "{writes} writes, half within {half:.1?}, 99 % within {most:.1?}, all within {longest:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_and_bounds() {
        let size = |text: &str| text.parse::<Size>();
        assert_eq!(size("1GiB").unwrap(), Size(1 << 30));
        assert_eq!(size("128 MiB").unwrap(), Size(128 << 20));
        assert_eq!(size("128MiB").unwrap().to_string(), "128 MiB");
        assert_eq!(size("2048MiB").unwrap().to_string(), "2 GiB");
        for wrong in ["", "GiB", "0MiB", "5GiB", "1GB", "1", "-1MiB", "99999999999999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn latencies_are_read_as_the_writers_print_them() {
        let latency: Latency = "1200 3.100 41.000 52.250\n".parse().unwrap();
        assert_eq!(latency.writes, 1200);
        assert_eq!(latency.half, Duration::from_micros(3100));
        assert_eq!(latency.longest, Duration::from_micros(52_250));
        for wrong in ["", "1 2 3", "1 2 3 x", "1 2 3 -4", "x 2 3 4"] {
            assert!(wrong.parse::<Latency>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pipeline_fails_when_its_first_part_does() {
        assert!(host::read(&mut pipeline("true | cat")).is_ok());
        assert!(host::read(&mut pipeline("false | cat")).is_err());
        assert_eq!(host::read(pipeline("echo \"$1\" | cat").arg("a b")).unwrap(), "a b\n");
    }

    #[test]
    fn the_spec_names_store_and_recipient() {
        let spec = spec(Version::new(3, 6, 16), Path::new("/lab/etcd"), "http://127.0.0.1:1234", "age1abc");
        assert!(
            spec.contains("      s3: {endpoint: \"http://127.0.0.1:1234\", region: us-east-1, bucket: bench"),
            "{spec}"
        );
        assert!(spec.contains("      recipients: [age1abc]\n"), "{spec}");
    }
}
