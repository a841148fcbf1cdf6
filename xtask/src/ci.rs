//! `cargo xtask ci`: everything that must pass before a change is merged. Steps run in parallel unless they wait for each other.
//! Steps that only compute run at a lower priority than timing-sensitive cluster tests. If a step fails, the run fails; the other
//! steps still run, unless they need its result, so one run shows everything that is wrong.
//!
//! To add a step, for example the lab of another provider, add a line to [`STEPS`].

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::test::build;

/// A step is a command of this program.
struct Step {
    name: &'static str,
    words: &'static [&'static str],
    /// Steps that must have succeeded.
    needs: &'static [&'static str],
    /// Steps that must have ended, however they did: two that judge by the clock disturb each other.
    after: &'static [&'static str],
    /// What `nice` takes. A step that only computes uses what the others leave of the processors; of two such steps, that with the
    /// lower number gets most of it.
    gives_way: u8,
}

impl Step {
    const fn new(name: &'static str, words: &'static [&'static str], needs: &'static [&'static str]) -> Self {
        Step { name, words, needs, after: &[], gives_way: 0 }
    }

    const fn after(self, after: &'static [&'static str]) -> Self {
        Step { after, ..self }
    }

    const fn giving_way(self, gives_way: u8) -> Self {
        Step { gives_way, ..self }
    }
}

/// Set where this program runs as a step.
const IS_STEP: &str = "QUORATE_CI_STEP";
/// Before the seconds of processor time that a step used.
const USED: &str = "processor time used: ";

/// At the end of a step: how much of the processors it used, without what it left running.
pub fn tell_processor_time() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(seconds) = processor_time(&stat).filter(|_| std::env::var_os(IS_STEP).is_some()) {
        println!("{USED}{seconds}");
    }
}

/// Its own and that of the processes that it waited for, from `/proc/PID/stat`, whose unit is a hundredth of a second.
fn processor_time(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: Vec<u64> = fields.get(11..15)?.iter().filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum::<u64>() / 100)
}

const STEPS: &[Step] = &[
    Step::new("prepare", &["prepare"], &[]),
    Step::new("build", &["test", "--no-run"], &[]),
    Step::new("static", &["static", "--lab"], &["build"]),
    // Clippy compiled the tests.
    Step::new("lint", &["lint", "--without-clippy"], &[]).after(&["build"]).giving_way(19),
    Step::new("test", &["test", "--only", "clusters", "--quick"], &["prepare", "build"]),
    // Nothing waits for it. The model check takes longer than all tests on clusters, which leave it only what they do not use.
    Step::new("rules", &["test", "--only", "rules"], &["prepare", "build"]).giving_way(15),
    Step::new("fuzz", &["fuzz", "--minutes", "1"], &["build"]).giving_way(15),
    Step::new("drill", &["drill", "--quick"], &["prepare", "build"]).after(&["test"]),
    Step::new("drill postgres", &["drill", "--kind", "postgres", "--quick"], &["prepare", "build"]).after(&["drill"]),
    // This and the next two labs judge nothing by the clock, so they need not wait for the drill of PostgreSQL.
    Step::new(
        "bench backup",
        &["bench", "backup", "--size", "128MiB", "--noisy", "--unoptimized"],
        &["prepare", "build"],
    )
    .after(&["drill"]),
    Step::new("moto", &["lab", "aws", "--core", "--prepare"], &["prepare"]).giving_way(10),
    Step::new("lab aws", &["lab", "aws", "--core"], &["build", "moto"]).after(&["bench backup"]),
    Step::new("openstack", &["lab", "openstack", "--core", "--prepare"], &["prepare"]).after(&["moto"]).giving_way(10),
    Step::new("lab openstack", &["lab", "openstack", "--core"], &["build", "openstack"]).after(&["lab aws"]),
    Step::new("image", &["lab", "libvirt", "--core", "--prepare"], &["prepare", "build", "static"]).giving_way(10),
    Step::new("lab libvirt", &["lab", "libvirt", "--core"], &["build", "image"])
        .after(&["drill postgres", "lab openstack"]),
    Step::new("container image", &["lab", "incus", "--prepare"], &["prepare", "build", "static"]).giving_way(10),
    Step::new("lab incus", &["lab", "incus", "--core"], &["build", "container image"]).after(&["lab libvirt"]),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Running,
    Passed,
    Failed,
    /// What it needs failed.
    Skipped,
}

impl State {
    fn has_ended(self) -> bool {
        !matches!(self, State::Waiting | State::Running)
    }
}

/// What the threads that wait for steps report.
enum News {
    Line(usize, String),
    Ended(usize, bool),
}

/// How much of what a failed step said last is said again at the end.
const LAST_WORDS: usize = 60;

struct Run {
    states: Vec<State>,
    began: Vec<Option<Instant>>,
    took: Vec<Duration>,
    /// Of the processors, as the steps report.
    used: Vec<Option<u64>>,
    last_words: Vec<VecDeque<String>>,
}

impl Run {
    fn new(count: usize) -> Self {
        Run {
            states: vec![State::Waiting; count],
            began: vec![None; count],
            took: vec![Duration::ZERO; count],
            used: vec![None; count],
            last_words: vec![VecDeque::new(); count],
        }
    }

    fn remember(&mut self, step: usize, line: &str) {
        let words = &mut self.last_words[step];
        if words.len() == LAST_WORDS {
            words.pop_front();
        }
        words.push_back(line.to_owned());
    }
}

pub fn run() -> Result<()> {
    let start = Instant::now();
    let mut run = Run::new(STEPS.len());
    let (sender, receiver) = mpsc::channel();
    while run.states.iter().any(|state| !state.has_ended()) {
        for step in next(STEPS, &mut run.states) {
            println!("== {} begins at {} s", STEPS[step].name, start.elapsed().as_secs());
            run.began[step] = Some(Instant::now());
            begin(step, &sender)?;
        }
        if run.states.contains(&State::Running) {
            hear(&receiver, &mut run)?;
        }
    }
    print!("{}", last_words_of_failed(STEPS, &run));
    println!("\n{}", summary(STEPS, &run, start.elapsed()));
    let failed: Vec<&str> = named(&run.states, |state| state == State::Failed);
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn named(states: &[State], which: impl Fn(State) -> bool) -> Vec<&'static str> {
    STEPS.iter().zip(states).filter(|(_, state)| which(**state)).map(|(step, _)| step.name).collect()
}

/// The steps whose turn it is, which count as running from now on. Those that cannot run any more are marked so.
fn next(steps: &[Step], states: &mut [State]) -> Vec<usize> {
    let mut begin = Vec::new();
    for at in 0..steps.len() {
        if states[at] != State::Waiting {
            continue;
        }
        let state_of = |name: &&str| states[steps.iter().position(|step| step.name == *name).expect("a step's name")];
        let needs: Vec<State> = steps[at].needs.iter().map(state_of).collect();
        if needs.iter().any(|state| matches!(state, State::Failed | State::Skipped)) {
            states[at] = State::Skipped;
        } else if needs.iter().all(|state| *state == State::Passed)
            && steps[at].after.iter().map(state_of).all(State::has_ended)
        {
            states[at] = State::Running;
            begin.push(at);
        }
    }
    begin
}

fn begin(step: usize, news: &Sender<News>) -> Result<()> {
    let Step { name, words, needs, gives_way, .. } = &STEPS[step];
    let this = std::env::current_exe().context("cannot tell where this program is stored")?;
    let mut command = Command::new("nice");
    command.arg(format!("-n{gives_way}")).arg(&this);
    command.args(*words).env(IS_STEP, "1");
    command.env(build::LINT, "1");
    if needs.contains(&"build") {
        command.env(build::BUILT, "1");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().with_context(|| format!("cannot start the step {name}"))?;
    let pass = |from: Option<Box<dyn Read + Send>>| {
        let (news, from) = (news.clone(), from.expect("it is piped"));
        thread::spawn(move || pass_on(step, from, &news))
    };
    let readers = [
        pass(process.stdout.take().map(|from| Box::new(from) as _)),
        pass(process.stderr.take().map(|from| Box::new(from) as _)),
    ];
    let news = news.clone();
    thread::spawn(move || {
        let passed = wait(process);
        // Agents that a step leaves behind may hold its output open, so this is not waited for without end.
        let deadline = Instant::now() + Duration::from_secs(5);
        while readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = news.send(News::Ended(step, passed));
    });
    Ok(())
}

fn wait(mut process: Child) -> bool {
    process.wait().is_ok_and(|status| status.success())
}

fn pass_on(step: usize, from: impl Read, news: &Sender<News>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = news.send(News::Line(step, String::from_utf8_lossy(&line).trim_end().to_owned()));
        line.clear();
    }
}

fn hear(news: &Receiver<News>, run: &mut Run) -> Result<()> {
    match news.recv().context("nobody reports any more")? {
        News::Line(step, line) if line.starts_with(USED) => run.used[step] = line[USED.len()..].trim().parse().ok(),
        News::Line(step, line) => {
            println!("[{}] {line}", STEPS[step].name);
            run.remember(step, &line);
        }
        News::Ended(step, passed) => {
            run.states[step] = if passed { State::Passed } else { State::Failed };
            run.took[step] = run.began[step].map_or(Duration::ZERO, |began| began.elapsed());
            println!("== {} {} after {} s", STEPS[step].name, word(run.states[step]), run.took[step].as_secs());
        }
    }
    Ok(())
}

fn word(state: State) -> &'static str {
    match state {
        State::Waiting => "waits",
        State::Running => "runs",
        State::Passed => "passed",
        State::Failed => "FAILED",
        State::Skipped => "not run: what it needs failed",
    }
}

/// Steps run side by side, so a failure may stand thousands of lines above the end.
fn last_words_of_failed(steps: &[Step], run: &Run) -> String {
    let failed = steps.iter().enumerate().filter(|(at, _)| run.states[*at] == State::Failed);
    let told = |(at, step): (usize, &Step)| {
        let lines: String = run.last_words[at].iter().map(|line| format!("{line}\n")).collect();
        format!("\n== the last lines of {}, which failed\n{lines}", step.name)
    };
    failed.map(told).collect()
}

fn summary(steps: &[Step], run: &Run, all: Duration) -> String {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or_default();
    let line = |(at, step): (usize, &Step)| {
        let used = run.used[at].map_or_else(|| String::from("-"), |used| format!("{used} s"));
        format!("{:width$}  {:5} s  {used:>11}  {}\n", step.name, run.took[at].as_secs(), word(run.states[at]))
    };
    let lines: String = steps.iter().enumerate().map(line).collect();
    let used: u64 = run.used.iter().flatten().sum();
    let used = format!("{used} s");
    format!("{:width$}    time    processor\n{lines}{:width$}  {:5} s  {used:>11}", "", "all", all.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_name_only_earlier_steps() {
        for (at, step) in STEPS.iter().enumerate() {
            let known = |name: &&str| STEPS[..at].iter().any(|earlier| earlier.name == *name);
            assert!(step.needs.iter().chain(step.after).all(known), "{}", step.name);
        }
    }

    #[test]
    fn a_step_begins_when_what_it_needs_passed_and_what_disturbs_it_ended() {
        const FEW: &[Step] = &[
            Step::new("build", &[], &[]),
            Step::new("test", &[], &["build"]),
            Step::new("drill", &[], &["build"]).after(&["test"]),
        ];
        let mut states = vec![State::Waiting; 3];
        assert_eq!(next(FEW, &mut states), [0]);
        assert_eq!(next(FEW, &mut states), [] as [usize; 0]);
        states[0] = State::Passed;
        assert_eq!(next(FEW, &mut states), [1]);
        states[1] = State::Failed;
        assert_eq!(next(FEW, &mut states), [2], "a failed test is no reason to skip the drill");
        let mut states = vec![State::Failed, State::Waiting, State::Waiting];
        assert_eq!(next(FEW, &mut states), [] as [usize; 0]);
        assert_eq!(states, [State::Failed, State::Skipped, State::Skipped]);
    }

    #[test]
    fn processor_time_is_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 200 0 0 150 50 1000 800 20 0 1 0 5 6 7";
        assert_eq!(processor_time(stat), Some(20));
        assert_eq!(processor_time("7 (a) S 1"), None);
    }

    #[test]
    fn the_summary_names_what_failed() {
        let mut run = Run::new(3);
        run.states = vec![State::Passed, State::Failed, State::Skipped];
        run.took = vec![Duration::from_secs(61); 3];
        let told = summary(&STEPS[..3], &run, Duration::from_secs(100));
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[2].ends_with("61 s            -  FAILED") && lines[4].starts_with("all"), "{told}");
    }
    #[test]
    fn the_last_lines_of_a_failed_step_are_repeated() {
        let mut run = Run::new(2);
        run.states = vec![State::Passed, State::Failed];
        for number in 0..LAST_WORDS + 1 {
            run.remember(0, "fine");
            run.remember(1, &format!("line {number}"));
        }
        let told = last_words_of_failed(&STEPS[..2], &run);
        assert!(told.contains(STEPS[1].name) && told.contains("line 1\n") && told.contains("line 60\n"), "{told}");
        assert!(!told.contains("line 0\n") && !told.contains("fine"), "{told}");
    }
}
