//! `cargo xtask bench aws`: five members from nothing in AWS, and whether that takes 20 s. No account of AWS is used: moto's server answers
//! calls, and what runs in place of instances is started by the lab, in separate namespaces. So the time of real instances is not part of
//! it. What is measured is what quorate adds to the parts that are not its own: the same instances started without it, until their agents
//! listen, and etcd started by a bare loop. All take turns, so that whatever else the host does meets all of them.

mod proxy;
mod timeline;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::bringup::time_floor;
use super::figures::{Samples, ratio, seconds, table, verdict};
use super::{CLUSTER, Ground, process, words_inside};
use crate::lab::{Lab, Version};
use crate::labs::aws as lab_of_aws;
use crate::static_build;
use crate::test::build;
use crate::{etcd, host};
use lab_of_aws::Cloud;
use proxy::Proxy;
use timeline::{PHASES, Said, Timeline};

/// What five members may take.
const AIM: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(5);
/// One of those that moto knows.
const IMAGE: &str = "ami-03cf127a";
/// One for which the lab starts whole systems with cloud-init.
const SYSTEM: &str = "lab-cloud-init";
/// Where such a system finds quorate.
const PROGRAM: &str = "https://10.80.0.1/quorate";
/// Of the etcd in such a system.
const SYSTEM_VERSION: Version = Version::new(3, 4, 23);
/// How many of them there are in a second of processor time.
const TICKS: u64 = 100;

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the three runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many members the cluster has
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=9))]
    members: u8,
    /// Start whole systems, with systemd and cloud-init, in place of agents alone
    #[arg(long)]
    systems: bool,
    /// Measure this quorate instead of building a static one
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Already in the lab's namespaces, with this quorate
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    options.inside.as_deref().map_or_else(|| enter(lab, options), |program| measure(lab, options, program))
}

/// Builds all that is needed, and goes where moto is.
fn enter(lab: &Lab, options: &Options) -> Result<()> {
    let tools = lab_of_aws::install(lab, options.systems)?;
    etcd::ensure_any(lab)?;
    build::programs()?;
    let program = match &options.program {
        Some(program) => fs::canonicalize(program).with_context(|| format!("cannot find {}", program.display()))?,
        None => static_build::build()?,
    };
    let further = options.systems.then_some("--systems");
    let words = words_inside("aws", (options.rounds, options.members), &program, further)?;
    lab_of_aws::enter(lab, &tools, &words)
}

fn measure(lab: &Lab, options: &Options, program: &Path) -> Result<()> {
    let cloud = Cloud::start()?;
    let version = if options.systems { SYSTEM_VERSION } else { etcd::ensure_any(lab)? };
    let etcd = lab.etcd(version);
    ensure!(etcd.exists(), "etcd {version} is not in the lab\n\nhint: `cargo xtask etcd` puts it there");
    let ground = Ground::prepare_for(lab, program.to_owned(), build::programs()?.join("examples"))?;
    let events = cloud.place().join("events");
    fs::write(&events, "").with_context(|| format!("cannot write {}", events.display()))?;
    let bodies = cloud.live(program, &etcd, Some(&events))?;
    let members = usize::from(options.members);
    let fleet = Fleet::prepare(&cloud, &ground, Spec { members, systems: options.systems, version }, etcd, events)?;
    let outcome = fleet.measure(options.rounds).inspect_err(|_| bodies.show_consoles())?;
    outcome.print();
    match outcome.kept() {
        true => Ok(()),
        false => bail!("{members} members take longer than {}", seconds(AIM)),
    }
}

/// Since 1970: what is measured runs in several programs.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What is measured.
#[derive(Clone, Copy)]
struct Spec {
    members: usize,
    systems: bool,
    version: Version,
}

/// quorate, and where it makes clusters.
struct Fleet<'a> {
    cloud: &'a Cloud,
    ground: &'a Ground,
    spec: Spec,
    etcd: PathBuf,
    events: PathBuf,
    proxy: Proxy,
    /// The file of the spec.
    file: PathBuf,
}

/// A round of all that is compared.
struct Round {
    apply: Timeline,
    processor: Duration,
    /// The same instances without quorate's controller, until their agents listen.
    instances: Duration,
    /// etcd in a bare loop.
    etcd: Duration,
}

impl<'a> Fleet<'a> {
    fn prepare(cloud: &'a Cloud, ground: &'a Ground, spec: Spec, etcd: PathBuf, events: PathBuf) -> Result<Self> {
        let ask =
            |operation: &str, arguments: serde_json::Value| cloud.ask(&["ask", operation, &arguments.to_string()]);
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned).context("moto gave no id");
        let vpc = text(&ask("create_vpc", json!({ "CidrBlock": "10.80.0.0/16" }))?["Vpc"]["VpcId"])?;
        // moto chooses addresses at random, also one that is in use. In a small subnet it would often do so.
        ask("create_subnet", json!({ "VpcId": vpc, "CidrBlock": "10.80.128.0/17", "AvailabilityZone": "eu-west-2a" }))?;
        let image = match spec.systems {
            true => {
                let image = json!({ "Name": SYSTEM, "Architecture": "x86_64", "RootDeviceName": "/dev/sda1" });
                text(&ask("register_image", image)?["ImageId"])?
            }
            false => IMAGE.to_owned(),
        };
        let digest = host::read(Command::new("sha256sum").arg(&ground.program))?;
        let digest = digest.split(' ').next().unwrap_or_default();
        let proxy = Proxy::start(cloud.url().trim_start_matches("http://"))?;
        let file = ground.directory("aws")?.join("cluster.yaml");
        let written = spec.yaml(&proxy.url, &vpc, &image, digest);
        fs::write(&file, written).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Fleet { cloud, ground, spec, etcd, events, proxy, file })
    }

    fn measure(&self, rounds: u32) -> Result<Outcome> {
        eprintln!("a first run, which does not count");
        self.apply()?;
        let seeds = self.file.with_file_name("seeds.json");
        let written = self.cloud.ask(&["seeds"])?.to_string();
        fs::write(&seeds, written).with_context(|| format!("cannot write {}", seeds.display()))?;
        self.destroy()?;
        let mut outcome = Outcome { spec: self.spec, rounds: Vec::new() };
        for number in 1..=rounds {
            let instances = self.instances(&seeds)?;
            let (apply, processor) = self.apply()?;
            self.destroy()?;
            let etcd = time_floor(self.ground, &self.etcd, self.spec.members)?;
            let round = Round { apply, processor, instances, etcd };
            let [all, instances, etcd] = [round.apply.all(), instances, etcd].map(seconds);
            eprintln!("{number}/{rounds}: quorate {all}; instances alone {instances}; bare etcd {etcd}");
            outcome.rounds.push(round);
        }
        Ok(outcome)
    }

    fn quorate(&self, arguments: &[&str]) -> Command {
        let mut command = self.cloud.tell(self.ground.quorate(&self.etcd));
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// From nothing to a healthy cluster, and the processor time of it.
    fn apply(&self) -> Result<(Timeline, Duration)> {
        self.proxy.take_calls();
        let begun = now();
        let mut apply = self.quorate(&["apply", "--yes"]);
        let mut apply = apply.arg(&self.file).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let errors = apply.stderr.take().context("it is piped")?;
        let listening = thread::spawn(move || -> Vec<Said> {
            let lines = BufReader::new(errors).lines().map_while(Result::ok);
            lines.map(|line| Said { at: now(), line }).collect()
        });
        let (patience, mut ticks) = (Instant::now(), 0);
        let status = loop {
            if let Some(status) = apply.try_wait()? {
                break status;
            }
            if patience.elapsed() > PATIENCE {
                apply.kill()?;
            }
            ticks = process::cpu_ticks(apply.id()).unwrap_or(ticks);
            thread::sleep(LOOK);
        };
        let ended = now();
        let said = listening.join().map_err(|_| anyhow::anyhow!("what apply said was not read"))?;
        let words = || said.iter().map(|said| said.line.as_str()).collect::<Vec<_>>().join("\n");
        ensure!(status.success(), "`quorate apply` ended with {status}:\n{}", words());
        let events = fs::read_to_string(&self.events).context("cannot read what happened to instances")?;
        let timeline = Timeline::read((begun, ended), self.proxy.take_calls(), &events, &said, self.spec.members);
        Ok((timeline.with_context(words)?, Duration::from_millis(ticks * 1000 / TICKS)))
    }

    /// Returns when the last body has ended.
    fn destroy(&self) -> Result<()> {
        host::read(&mut self.quorate(&["destroy", CLUSTER, "--yes", "--without-backup"]))?;
        let begun = Instant::now();
        loop {
            let events = fs::read_to_string(&self.events).context("cannot read what happened to instances")?;
            let count = |what: &str| events.lines().filter(|line| line.ends_with(what)).count();
            if count(" begins") == count(" ended") {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "instances that were terminated still have bodies");
            thread::sleep(LOOK);
        }
    }

    fn instances(&self, seeds: &Path) -> Result<Duration> {
        let (events, seeds) = (self.events.display().to_string(), seeds.display().to_string());
        let took = self.cloud.ask(&["again", &events, &seeds])?["seconds"].as_f64().context("no time was printed")?;
        Ok(Duration::from_secs_f64(took))
    }
}

impl Spec {
    /// As `quorate init --provider aws` has it, without a data volume and without one address for clients. moto does not know how
    /// large an image is.
    fn yaml(&self, endpoint: &str, vpc: &str, image: &str, digest: &str) -> String {
        let members: Vec<String> = (1..=self.members).map(|number| format!("{{name: etcd-{number}}}")).collect();
        let program = format!("\x20       program: {{url: {PROGRAM:?}, sha256: {digest}}}\n");
        format!(
            "quorate: 1\n\
             clusters:\n\
             \x20 - name: {CLUSTER}\n\
             \x20   provider:\n\
             \x20     aws:\n\
             \x20       region: eu-west-2\n\
             \x20       endpoint: {endpoint}\n\
             \x20       vpc: {vpc}\n\
             \x20       instance_types: [m5.large]\n\
             \x20       image: {{id: {image}}}\n\
             \x20       root_size: 8GiB\n\
             {}\
             \x20   members: [{}]\n\
             \x20   etcd: {{version: {}}}\n",
            if self.systems { program.as_str() } else { "" },
            members.join(", "),
            self.version,
        )
    }
}

impl Round {
    /// What any tool has to wait for.
    fn theirs(&self) -> Duration {
        self.instances + self.etcd
    }

    fn ours(&self) -> Duration {
        self.apply.all().saturating_sub(self.theirs())
    }
}

struct Outcome {
    spec: Spec,
    rounds: Vec<Round>,
}

impl Outcome {
    fn samples(&self, of: impl Fn(&Round) -> Duration) -> Samples {
        self.rounds.iter().map(of).collect()
    }

    fn kept(&self) -> bool {
        self.samples(|round| round.apply.all()).median() <= AIM
    }

    /// Of each round its own, sorted.
    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.rounds.iter().map(|round| ratio(round.apply.all(), round.theirs())).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Calls by action: of each, as many as in the round that had most.
    fn calls(&self) -> BTreeMap<&str, usize> {
        let mut most = BTreeMap::new();
        for (action, count) in self.rounds.iter().flat_map(|round| round.apply.counts()) {
            let known = most.entry(action).or_default();
            *known = count.max(*known);
        }
        most
    }

    fn print(&self) {
        let Spec { members, systems, version } = self.spec;
        let bodies = if systems { "whole systems with cloud-init" } else { "agents alone" };
        println!(
            "From nothing to {members} healthy members (etcd {version}) on instances of moto's server, which are {bodies}: \
             medians of {} rounds, in turns (shortest–longest).\n",
            self.rounds.len()
        );
        let phase = |(phase, name): (usize, &&str)| {
            let calls: Vec<usize> = self.rounds.iter().map(|round| round.apply.calls(phase)).collect();
            [
                format!("until {name}"),
                self.samples(|round| round.apply.phase(phase)).to_string(),
                range(&calls),
                seconds(self.samples(|round| round.apply.answering(phase)).median()),
            ]
        };
        let rows: Vec<_> = PHASES.iter().enumerate().map(phase).collect();
        print!("{}", table(["`quorate apply`", "time", "calls", "of it AWS answering"], &rows));
        println!();
        let shown = |name: &str, of: fn(&Round) -> Duration| [name.to_owned(), self.samples(of).to_string()];
        let rows = [
            shown("all of `quorate apply`", |round| round.apply.all()),
            shown("the same instances without it, until agents listen", |round| round.instances),
            shown("etcd in a bare loop", |round| round.etcd),
            shown("what is quorate's: the first without the other two", Round::ours),
            shown("processor time of `quorate apply`", |round| round.processor),
        ];
        print!("{}", table(["", "time"], &rows));
        let ratios = self.ratios();
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        println!("\nratio to what is not quorate's: {:.2} ({least:.2}–{most:.2})", ratios[ratios.len() / 2]);
        let calls: Vec<String> = self.calls().iter().map(|(action, count)| format!("{count} {action}")).collect();
        println!("calls, the most of each in a round: {}", calls.join(", "));
        let reached = self.rounds.iter().filter(|round| round.apply.all() <= AIM).count();
        println!(
            "within {}: {reached} of {} rounds; the median: {}",
            seconds(AIM),
            self.rounds.len(),
            verdict(self.kept())
        );
    }
}

/// The least and the most.
fn range(counts: &[usize]) -> String {
    let (least, most) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
    if least == most { least.to_string() } else { format!("{least}–{most}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timeline::Call;

    /// Two members that were there after so many seconds.
    fn round(all: f64, instances: u64, etcd: u64) -> Round {
        let call = || Call { action: String::from("RunInstances"), refused: false, begun: 100.1, ended: 100.2 };
        let line = String::from("etcd-1: enrol the agent of etcd-1 … done (1)");
        let said = || Said { at: 100.4, line: line.clone() };
        let events = "100.3 i-1 listens\n100.3 i-2 listens\n";
        let span = (100.0, 100.0 + all);
        let apply = Timeline::read(span, vec![call(), call()], events, &[said(), said()], 2).unwrap();
        let [instances, etcd] = [instances, etcd].map(Duration::from_secs);
        Round { apply, processor: Duration::ZERO, instances, etcd }
    }

    fn outcome(rounds: Vec<Round>) -> Outcome {
        Outcome { spec: Spec { members: 2, systems: false, version: Version::new(3, 7, 3) }, rounds }
    }

    #[test]
    fn the_promise_is_about_the_median() {
        assert!(outcome(vec![round(30.0, 1, 1), round(19.5, 1, 1), round(2.0, 1, 1)]).kept());
        assert!(!outcome(vec![round(30.0, 1, 1), round(20.5, 1, 1), round(2.0, 1, 1)]).kept());
    }

    #[test]
    fn our_time_is_the_total_less_instances_and_etcd() {
        let rounds = outcome(vec![round(8.0, 3, 1), round(20.0, 9, 1), round(1.0, 1, 1)]);
        let ours: Vec<u64> = rounds.rounds.iter().map(|round| round.ours().as_secs()).collect();
        assert_eq!(ours, [4, 10, 0]);
        assert_eq!(rounds.ratios(), [0.5, 2.0, 2.0]);
        assert_eq!(rounds.calls(), BTreeMap::from([("RunInstances", 2)]));
    }

    #[test]
    fn only_whole_systems_fetch_the_program() {
        let yaml = |systems| {
            let spec = Spec { members: 5, systems, version: Version::new(3, 4, 23) };
            spec.yaml("http://127.0.0.1:1", "vpc-1", "ami-1", "00ff")
        };
        assert!(
            yaml(true).contains("        program: {url: \"https://10.80.0.1/quorate\", sha256: 00ff}\n    members")
        );
        assert!(!yaml(false).contains("program") && yaml(false).contains("root_size: 8GiB\n    members"));
        assert!(yaml(false).contains("{name: etcd-5}]") && !yaml(false).contains("etcd-6"));
    }

    #[test]
    fn counts_that_differ_are_a_range() {
        assert_eq!((range(&[3, 3]), range(&[4, 2, 3]), range(&[])), ("3".into(), "2–4".into(), "0".into()));
    }
}
