//! `cargo xtask drill`: every change of a running cluster under faults, each on a separate cluster, judged by `quorate drill`.
//! Messages go to stderr, one line per cell and the counts to stdout. The files of failed cells are kept in `target/drill`; the
//! next run removes what a killed one left.
//!
//! A few failed cells are repeated once, alone, unless clients saw a violation: a fault that came too late or a pause that was too
//! long may be caused by this machine, a lost write never is.

mod bootstrap;
mod cells;
mod ground;
mod postgres;
mod rehearsal;

use std::fmt::Display;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use ground::{Ground, Place};
use rehearsal::Verdict;

/// Next to each other: more would be judged by how slow the host is.
const WORKERS: usize = 2;
/// If more cells fail, it is not the machine.
const MOST_AGAIN: usize = 3;

pub const NEEDS: [Need; 1] = [Need::Command { name: "ip", package: "iproute2" }];

/// A cell of either kind of cluster.
trait Rehearsal: Display + Copy + Send + Sync {
    /// Whether it is one of the fixed set.
    fn is_quick(&self) -> bool;

    fn rehearse(&self, place: &Place) -> Result<Verdict>;

    /// The name as a path can hold it.
    fn file_name(&self) -> String {
        self.to_string().replace(" × ", "-")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Etcd,
    Postgres,
}

#[derive(clap::Args)]
pub struct Options {
    /// Which kind of cluster
    #[arg(long, value_enum, default_value = "etcd")]
    kind: Kind,
    /// Only the fixed set that must pass before a change is taken in
    #[arg(long)]
    quick: bool,
    /// Only this cell, such as `replace-leader x kill-controller`; can be given several times
    #[arg(long = "cell", value_name = "NAME", conflicts_with = "quick")]
    cells: Vec<String>,
    /// Name the cells and do nothing
    #[arg(long)]
    list: bool,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    match options.kind {
        Kind::Etcd => run_cells(lab, options, cells::all()),
        Kind::Postgres => run_cells(lab, options, postgres::all()),
    }
}

fn run_cells<C: Rehearsal>(lab: &Lab, options: &Options, all: Vec<C>) -> Result<()> {
    let cells = chosen(options, all)?;
    if options.list {
        cells.iter().for_each(|cell| println!("{cell}"));
        return Ok(());
    }
    host::install_missing(&NEEDS)?;
    etcd::ensure(lab, false)?;
    let programs = match options.kind {
        Kind::Etcd => Vec::new(),
        Kind::Postgres => {
            let programs = vec![crate::postgres::ensure(lab)?, crate::postgres::newer::ensure(lab)?];
            crate::postgres::minor::ensure(lab)?;
            programs
        }
    };
    let ground = Ground::prepare(lab, programs)?;
    let began = Instant::now();
    let mut total = rehearse_all(&ground, &cells, WORKERS);
    let again = total.deserve_another();
    if !again.is_empty() {
        println!("\nonce more, alone:");
        total.replace_failures(rehearse_all(&ground, &again, 1));
    }
    println!("\n{}", total.text(began.elapsed()));
    match total.failed.len() {
        0 => Ok(()),
        failed => bail!("{failed} of {} cells failed; what they left is in {}", total.cells(), ground.kept().display()),
    }
}

fn chosen<C: Rehearsal>(options: &Options, all: Vec<C>) -> Result<Vec<C>> {
    if options.cells.is_empty() {
        return Ok(all.into_iter().filter(|cell| cell.is_quick() || !options.quick).collect());
    }
    let find = |name: &String| match named(&all, name) {
        Some(cell) => Ok(cell),
        None => bail!("there is no cell `{name}`\n\nhint: `cargo xtask drill --list` names them"),
    };
    options.cells.iter().map(find).collect()
}

/// The cell of this name, with `×` or, as it is easier to type, `x` between change and fault.
fn named<C: Rehearsal>(all: &[C], name: &str) -> Option<C> {
    let name = name.replace(" x ", " × ");
    all.iter().find(|cell| cell.to_string() == name).copied()
}

struct Total<C> {
    passed: usize,
    failed: Vec<Failure<C>>,
    operations: u64,
    writes: u64,
}

struct Failure<C> {
    cell: C,
    violated: bool,
}

impl<C> Default for Total<C> {
    fn default() -> Self {
        Total { passed: 0, failed: Vec::new(), operations: 0, writes: 0 }
    }
}

impl<C: Rehearsal> Total<C> {
    fn cells(&self) -> usize {
        self.passed + self.failed.len()
    }

    fn add(&mut self, cell: &C, verdict: &Verdict) {
        match verdict.problem {
            None => self.passed += 1,
            Some(_) => self.failed.push(Failure { cell: *cell, violated: verdict.violated }),
        }
        self.operations += verdict.operations;
        self.writes += verdict.writes;
    }

    fn deserve_another(&self) -> Vec<C> {
        if self.failed.len() > MOST_AGAIN || self.failed.iter().any(|failure| failure.violated) {
            return Vec::new();
        }
        self.failed.iter().map(|failure| failure.cell).collect()
    }

    /// What failed was rehearsed again, and this is how that went.
    fn replace_failures(&mut self, again: Total<C>) {
        let Total { passed, failed, operations, writes } = again;
        self.passed += passed;
        self.failed = failed;
        self.operations += operations;
        self.writes += writes;
    }

    fn text(&self, time: Duration) -> String {
        format!(
            "{} cells: {} passed, {} failed; {} operations, {} acknowledged writes checked, in {:.0} s",
            self.cells(),
            self.passed,
            self.failed.len(),
            self.operations,
            self.writes,
            time.as_secs_f64()
        )
    }
}

fn rehearse_all<C: Rehearsal>(ground: &Ground, cells: &[C], workers: usize) -> Total<C> {
    let width = cells.iter().map(|cell| cell.to_string().chars().count()).max().unwrap_or_default();
    let (queue, total) = (Mutex::new(cells.iter()), Mutex::new(Total::default()));
    let work = || {
        while let Some(cell) = next(&queue) {
            let began = Instant::now();
            let verdict = ground.rehearse(cell);
            println!("{}", line(cell, width, &verdict, began.elapsed(), &ground.kept()));
            total.lock().expect("no holder panics").add(cell, &verdict);
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    total.into_inner().expect("no holder panics")
}

/// The lock is held for no longer than it takes to look.
fn next<'a, C>(queue: &Mutex<std::slice::Iter<'a, C>>) -> Option<&'a C> {
    queue.lock().expect("no holder panics").next()
}

fn line<C: Rehearsal>(cell: &C, width: usize, verdict: &Verdict, took: Duration, kept: &Path) -> String {
    let Verdict { problem, operations, gap, .. } = verdict;
    let word = if problem.is_none() { "passed" } else { "FAILED" };
    let gap = gap.map_or_else(|| String::from("     -"), |gap| format!("{gap:5.2} s"));
    let name = cell.to_string();
    let figures = format!(
        "{word}  {name:width$}  {operations:6} operations  longest write gap {gap}  took {:5.1} s",
        took.as_secs_f64()
    );
    match problem {
        None => figures,
        Some(problem) => {
            let indented = problem.trim_end().replace('\n', "\n        ");
            format!("{figures}\n        {indented}\n        kept: {}", kept.join(cell.file_name()).display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(problem: Option<&str>, violated: bool) -> Verdict {
        Verdict { problem: problem.map(str::to_owned), violated, operations: 10, writes: 4, gap: Some(0.5) }
    }

    #[test]
    fn totals_count_what_failed_too() {
        let cell = named(&cells::all(), "settings x calm").unwrap();
        let mut total = Total::default();
        total.add(&cell, &verdict(None, false));
        total.add(&cell, &verdict(Some("it was slow"), false));
        assert_eq!(
            total.text(Duration::from_secs(61)),
            "2 cells: 1 passed, 1 failed; 20 operations, 8 acknowledged writes checked, in 61 s"
        );
        assert_eq!(total.deserve_another().len(), 1);
        let mut again = Total::default();
        again.add(&cell, &verdict(None, false));
        total.replace_failures(again);
        assert_eq!((total.passed, total.failed.len(), total.operations), (2, 0, 30));
    }

    #[test]
    fn lost_writes_and_too_many_failures_get_no_second_chance() {
        let cell = named(&cells::all(), "settings x calm").unwrap();
        let mut total = Total::default();
        total.add(&cell, &verdict(Some("it was slow"), false));
        total.add(&cell, &verdict(Some("a write was lost"), true));
        assert!(total.deserve_another().is_empty());
        let mut total = Total::default();
        (0..=MOST_AGAIN).for_each(|_| total.add(&cell, &verdict(Some("it was slow"), false)));
        assert!(total.deserve_another().is_empty(), "too many");
    }

    #[test]
    fn a_line_says_what_is_wrong_and_where_to_look() {
        let cell = named(&cells::all(), "replace-leader x kill-controller").unwrap();
        let verdict = Verdict { gap: None, ..verdict(Some("one\ntwo"), false) };
        let told = line(&cell, 10, &verdict, Duration::from_secs(2), Path::new("/kept"));
        let lines: Vec<&str> = told.lines().map(str::trim).collect();
        assert!(lines[0].starts_with("FAILED  replace-leader × kill-controller"), "{told}");
        assert_eq!(lines[1..], ["one", "two", "kept: /kept/replace-leader-kill-controller"]);
    }
}
