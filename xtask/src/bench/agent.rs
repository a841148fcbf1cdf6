//! `cargo xtask bench agent`: memory and CPU of the agents in a healthy, idle cluster of three.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::figures::{table, verdict};
use super::process::{cpu_ticks, memory};
use super::{Ground, Programs};
use crate::etcd;
use crate::lab::Lab;

const MEMBERS: usize = 3;
const MOST_MEMORY: u64 = 12 << 20;
/// The clock of the kernel's accounts: one is as good as none.
const MOST_TICKS: u64 = 1;
/// For what the bring-up left to be done.
const SETTLE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(20);

pub struct Agent {
    member: String,
    pid: u32,
}

pub fn run(lab: &Lab, programs: Programs) -> Result<()> {
    let version = etcd::ensure_any(lab)?;
    let ground = Ground::prepare_with(lab, programs)?;
    ground.up(lab, version, MEMBERS)?;
    let agents = agents(&ground)?;
    ensure!(agents.len() == MEMBERS, "expected {MEMBERS} agents, found {}", agents.len());
    eprintln!("watching the agents for {IDLE:?}");
    sleep(SETTLE);
    let before = agents.iter().map(Agent::ticks).collect::<Result<Vec<_>>>()?;
    sleep(IDLE);
    let mut rows = Vec::new();
    let mut kept = true;
    for (agent, before) in agents.iter().zip(before) {
        let (ticks, memory) = (agent.ticks()? - before, agent.memory()?);
        let light = memory <= MOST_MEMORY && ticks <= MOST_TICKS;
        kept &= light;
        let mebibytes = format!("{:.1} MiB", memory as f64 / f64::from(1 << 20));
        rows.push([agent.member.clone(), mebibytes, ticks.to_string(), verdict(light).to_owned()]);
    }
    ground.destroy()?;
    println!("Idle agents of a healthy cluster, etcd {version}.\n");
    let cpu = format!("CPU ticks in {} s", IDLE.as_secs());
    print!("{}", table(["agent of", "resident memory", &cpu, ""], &rows));
    println!("\nallowed: {} MiB, {MOST_TICKS} tick", MOST_MEMORY >> 20);
    if !kept {
        bail!("an agent takes more than it may");
    }
    Ok(())
}

/// Each agent writes its process id into the lock that it holds.
pub fn agents(ground: &Ground) -> Result<Vec<Agent>> {
    let machines = ground.machines();
    let entries = fs::read_dir(&machines).with_context(|| format!("cannot read {}", machines.display()))?;
    let mut agents = Vec::new();
    for entry in entries {
        let entry = entry?;
        let lock = entry.path().join("root/run/agent.lock");
        let pid = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
        let pid = pid.trim().parse().with_context(|| format!("no process id in {}", lock.display()))?;
        agents.push(Agent { member: entry.file_name().to_string_lossy().into_owned(), pid });
    }
    agents.sort_by(|a, b| a.member.cmp(&b.member));
    Ok(agents)
}

impl Agent {
    fn ticks(&self) -> Result<u64> {
        cpu_ticks(self.pid).with_context(|| format!("the agent of {} is gone", self.member))
    }

    /// Bytes of memory at most since it began.
    pub fn peak(&self) -> Result<u64> {
        memory(self.pid, "VmHWM").with_context(|| format!("the agent of {} is gone", self.member))
    }

    fn memory(&self) -> Result<u64> {
        memory(self.pid, "VmRSS").with_context(|| format!("the agent of {} is gone", self.member))
    }
}
