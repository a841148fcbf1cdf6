//! `cargo xtask bench plan`: how long `quorate plan` takes, and how much memory, for fleets planned from nothing, and that
//! it grows with the fleet and no faster. Where terraform is on the PATH, the same number of clusters is planned by it too.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::figures::{Samples, ratio, seconds, table, verdict};
use super::process::{Cost, measure};
use super::{Ground, Programs, terraform};
use crate::host;
use crate::lab::Lab;

const SIZES: [usize; 4] = [1_000, 2_000, 5_000, 10_000];
const RUNS: usize = 3;
const MEMBERS: usize = 3;
/// For the first of the sizes.
const MOST_TIME: Duration = Duration::from_secs(1);
const MOST_MEMORY: u64 = 200_000_000;
/// Of the last of the sizes to the first, which is a tenth of it: what is above ten is left to noise and caches.
const MOST_GROWTH: f64 = 13.0;
const PATIENCE: Duration = Duration::from_secs(120);

struct Outcome {
    clusters: usize,
    time: Samples,
    peak: u64,
}

pub fn run(lab: &Lab, programs: Programs) -> Result<()> {
    let planner = Planner { ground: Ground::prepare_with(lab, programs)? };
    let steps = planner.check_output()?;
    let outcomes = planner.measure_all(&SIZES)?;
    let kept = print(&outcomes, steps);
    compare(&planner)?;
    ensure!(kept, "`quorate plan` takes more than it may");
    Ok(())
}

struct Planner {
    ground: Ground,
}

impl Planner {
    /// Each cluster of a fleet gets the same steps as one that is alone. Returns how many.
    fn check_output(&self) -> Result<usize> {
        let alone = steps_in(&self.output(1)?);
        let together = steps_in(&self.output(SIZES[0])?);
        ensure!(alone > MEMBERS, "expected several steps for each member of a cluster, found {alone} in all");
        ensure!(together == alone * SIZES[0], "expected {} steps, found {together}", alone * SIZES[0]);
        Ok(alone)
    }

    fn output(&self, clusters: usize) -> Result<String> {
        let spec = self.write_spec(clusters)?;
        host::read(self.ground.quorate(Path::new("")).arg("plan").arg(spec))
    }

    /// The sizes take turns.
    fn measure_all(&self, sizes: &[usize]) -> Result<Vec<Outcome>> {
        let new = |clusters: &usize| Outcome { clusters: *clusters, time: Samples::default(), peak: 0 };
        let mut outcomes: Vec<Outcome> = sizes.iter().map(new).collect();
        for _ in 0..RUNS {
            for Outcome { clusters, time, peak } in &mut outcomes {
                let cost = self.measure(*clusters)?;
                eprintln!("{clusters} clusters: {}, {}", seconds(cost.time), megabytes(cost.peak));
                time.add(cost.time);
                *peak = cost.peak.max(*peak);
            }
        }
        Ok(outcomes)
    }

    fn measure(&self, clusters: usize) -> Result<Cost> {
        let spec = self.write_spec(clusters)?;
        let complaints = spec.with_file_name("complaints");
        measure(self.ground.quorate(Path::new("")).arg("plan").arg(&spec), &complaints, PATIENCE)
    }

    fn write_spec(&self, clusters: usize) -> Result<PathBuf> {
        let path = self.ground.directory("plan")?.join("fleet.yaml");
        fs::write(&path, spec(clusters)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

fn spec(clusters: usize) -> String {
    let mut spec = String::from("quorate: 1\nclusters:\n");
    for cluster in 1..=clusters {
        writeln!(spec, "  - name: c{cluster:05}\n    members:").expect("writing to a string does not fail");
        for member in 1..=MEMBERS {
            writeln!(spec, "      - name: etcd-{member}").expect("writing to a string does not fail");
        }
    }
    spec
}

/// Each cluster's plan begins with the number of its steps: `new cluster c1: 22 steps`.
fn steps_in(plan: &str) -> usize {
    let of_cluster = |line: &str| {
        let head = line.trim_start_matches("new ").strip_prefix("cluster ")?;
        head.split_once(": ")?.1.split(' ').next()?.parse::<usize>().ok()
    };
    plan.lines().filter_map(of_cluster).sum::<usize>()
}

fn print(outcomes: &[Outcome], steps: usize) -> bool {
    let first = &outcomes[0];
    let growth = ratio(outcomes[outcomes.len() - 1].time.median(), first.time.median());
    let small = first.time.median() < MOST_TIME && first.peak < MOST_MEMORY;
    let linear = growth <= MOST_GROWTH;
    let row = |Outcome { clusters, time, peak }: &Outcome| {
        let times = format!("{:.1}", ratio(time.median(), first.time.median()));
        [clusters.to_string(), (clusters * steps).to_string(), time.to_string(), times, megabytes(*peak)]
    };
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    println!(
        "`quorate plan` of clusters of {MEMBERS} members from nothing: median of {RUNS} runs (shortest–longest).\n"
    );
    print!("{}", table(["clusters", "steps", "time", "times the first", "memory at most"], &rows));
    let (time, memory) = (seconds(MOST_TIME), megabytes(MOST_MEMORY));
    println!("\n{} clusters in under {time} and {memory}: {}", first.clusters, verdict(small));
    println!("ten times as many in at most {MOST_GROWTH} times the time: {}", verdict(linear));
    small && linear
}

fn compare(planner: &Planner) -> Result<()> {
    let Some(program) = host::find("terraform") else {
        eprintln!("terraform is not on the PATH, so nothing is compared with it");
        return Ok(());
    };
    let mut rows = Vec::new();
    for clusters in terraform::SIZES {
        let ours = planner.measure(clusters)?;
        let theirs = terraform::measure_plan(&planner.ground, &program, clusters)?;
        rows.push([
            clusters.to_string(),
            format!("{}, {}", seconds(ours.time), megabytes(ours.peak)),
            format!("{}, {}", seconds(theirs.time), megabytes(theirs.peak)),
            format!("{:.0}", ratio(theirs.time, ours.time)),
        ]);
    }
    println!("\n{}\n", terraform::COMPARED);
    print!("{}", table(["clusters", "`quorate plan`", "`terraform plan`", "ratio"], &rows));
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_the_head_of_each_plan() {
        let plan = "new cluster c1: 2 steps\n  1-2. for etcd-1, etcd-2:\n         enrol\ncluster c2: nothing to do\n2 clusters: 2 steps\n";
        assert_eq!(steps_in(plan), 2);
    }

    #[test]
    fn a_spec_names_every_cluster_and_member_once() {
        let spec = spec(20);
        assert_eq!(spec.matches("- name: c000").count(), 20);
        assert_eq!(spec.matches("- name: etcd-3\n").count(), 20);
        assert!(spec.contains("  - name: c00020\n    members:\n      - name: etcd-1\n"));
    }
}
