//! Progress of a run, on stderr. On a terminal each member has a line that is redrawn in place; elsewhere a line is
//! written when a step begins and when it ends. It never delays the run.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use quorate_control::{Agreed, Answer, ControlError, Event, Reporter};
use quorate_core::model::{MemberName, Observation};
use quorate_core::planner::{Action, Decision, Effect, Step, WaitingFor};

use super::page::{Page, Style};
use super::plan::style_of;
use super::{ask, can_ask, draw, talk, talk_page, terminal};
use crate::saved_plan::deed;
use quorate_core::text::plural;

/// Twenty times a second looks smooth, and costs nothing.
const REDRAW: Duration = Duration::from_millis(50);

pub struct Progress {
    terminal: bool,
    state: RefCell<State>,
    /// The confirmed steps that destroy something. None: everything necessary is confirmed.
    agreed: Option<RefCell<BTreeSet<String>>>,
    /// Nothing is drawn over a prompt.
    asking: Cell<bool>,
}

struct State {
    cluster: String,
    started: Instant,
    members: BTreeMap<MemberName, Row>,
    /// Steps for the cluster as a whole, and what is waited for.
    note: String,
    /// What was printed as waiting since the last step.
    told: HashSet<String>,
    /// Steps done, and how many were planned.
    done: usize,
    planned: Option<usize>,
    /// The last failure of each step, which is not repeated.
    failures: HashMap<String, String>,
    /// The provider had no room for a machine next to a former one, which no plan foresees.
    no_room: bool,
    lines_drawn: usize,
    drawn_at: Option<Instant>,
}

struct Row {
    stage: &'static str,
    /// Set when the member has arrived: its time stands still then.
    arrived: Option<Duration>,
}

impl Progress {
    pub fn new<'a>(
        cluster: &str,
        members: impl Iterator<Item = &'a str>,
        planned: Option<usize>,
        agreed: Option<BTreeSet<String>>,
    ) -> Self {
        let row = |name: &str| (MemberName::from(name), Row { stage: "", arrived: None });
        let state = State {
            cluster: cluster.to_owned(),
            started: Instant::now(),
            members: members.map(row).collect(),
            note: String::new(),
            told: HashSet::new(),
            done: 0,
            planned,
            failures: HashMap::new(),
            no_room: false,
            lines_drawn: 0,
            drawn_at: None,
        };
        Progress {
            terminal: std::io::stderr().is_terminal(),
            state: RefCell::new(state),
            agreed: agreed.map(RefCell::new),
            asking: Cell::new(false),
        }
    }

    /// Keeps the seconds running while a step takes its time.
    pub async fn keep_drawing(&self) -> Infallible {
        loop {
            tokio::time::sleep(if self.terminal { REDRAW } else { Duration::from_secs(3600) }).await;
            self.redraw();
        }
    }

    /// Removes the live lines, because the steps stay above and the state of the cluster follows; adds the total time.
    pub fn finish(&self) {
        self.clear();
        let state = self.state.borrow();
        if state.done > 0 {
            let seconds = state.started.elapsed().as_secs_f64();
            talk(&format!("{} in {seconds:.1} s", plural(state.done, "step")));
        }
    }

    /// Removes what was drawn and is not final.
    pub fn clear(&self) {
        let mut state = self.state.borrow_mut();
        let cleared = state.clear();
        state.lines_drawn = 0;
        // The cursor may stand behind the `^C` that the terminal shows.
        if self.terminal {
            draw(&format!("\r{cleared}"), "");
        }
    }

    fn redraw(&self) {
        let mut state = self.state.borrow_mut();
        let fresh = state.drawn_at.is_some_and(|at| at.elapsed() < REDRAW);
        if !self.terminal || self.asking.get() || fresh {
            return;
        }
        let lines = state.lines();
        let (cleared, mut text) = (state.clear(), String::new());
        let width = terminal::of_stderr().width.unwrap_or(80);
        for line in &lines {
            let _ = writeln!(text, "{}", line.chars().take(width).collect::<String>());
        }
        state.lines_drawn = lines.len();
        state.drawn_at = Some(Instant::now());
        draw(&cleared, &text);
    }

    /// A line that stays: on a terminal above the members.
    fn line(&self, text: &str) {
        self.styled("", Style::Plain, text);
    }

    fn styled(&self, before: &str, style: Style, text: &str) {
        let mut state = self.state.borrow_mut();
        let cleared = state.clear();
        state.lines_drawn = 0;
        let before = format!("[{:7.3}s] {before}", state.started.elapsed().as_secs_f64());
        let mut page = Page::new();
        page.line(before.chars().count(), [(Style::Dim, before.as_str()), (style, text)]);
        draw(&cleared, "");
        talk_page(&page);
    }
}

impl Reporter for Progress {
    fn report(&self, event: Event<'_>) {
        match &event {
            Event::Looked { seen, decision } => {
                self.state.borrow_mut().looked(seen, decision);
                let waiting = self.state.borrow_mut().newly_waiting(decision).filter(|_| !self.terminal);
                if let Some(waiting) = waiting {
                    self.line(&waiting);
                }
            }
            Event::Begins(step) => {
                self.state.borrow_mut().begins(step);
                if !self.terminal {
                    self.line(&format!("{} …", self.subject(step)));
                }
                if self.state.borrow().makes_room(step) {
                    self.line(&format!("  because {}", step.why));
                }
            }
            Event::Done(step) => {
                self.state.borrow_mut().done(step);
                let number = self.state.borrow().number();
                match self.terminal {
                    true => self.styled(&format!("{number}  "), style_of(step), &step.action.to_string()),
                    false => self.line(&format!("{} … done ({})", self.subject(step), number.trim())),
                }
            }
            Event::Failed(step, error) => {
                self.state.borrow_mut().no_room |= error.no_room().is_some();
                let (subject, why) = (self.subject(step), why_failed(error));
                if self.state.borrow_mut().is_new_failure(&subject, &why) {
                    self.line(&format!("{subject} … failed: {why}"));
                }
            }
        }
        self.redraw();
    }

    fn agrees<'a>(&'a self, steps: &'a [Step]) -> Answer<'a> {
        Box::pin(self.ask_about(steps))
    }
}

impl Progress {
    /// Asks about steps that destroy something and were not in the plan shown.
    async fn ask_about(&self, steps: &[Step]) -> Result<Agreed, ControlError> {
        let Some(agreed) = &self.agreed else { return Ok(Agreed::Before) };
        let destroys = steps.iter().filter(|step| step.action.effect() == Effect::Destroys);
        let new: Vec<&Step> = destroys.filter(|step| !agreed.borrow().contains(&deed(&step.action))).collect();
        if new.is_empty() {
            return Ok(Agreed::Before);
        }
        self.clear();
        let mut page = Page::new();
        page.line(0, [(Style::Plain, "This was not in the plan shown, and it destroys something:")]);
        for step in &new {
            page.line(2, [(Style::Plain, "  "), (style_of(step), step.action.to_string().as_str())]);
            page.line(6, [(Style::Dim, format!("      because {}", step.why).as_str())]);
        }
        talk_page(&page);
        let refused = || ControlError::NotAgreed { steps: new.iter().map(|step| step.action.to_string()).collect() };
        if !can_ask() {
            return Err(refused());
        }
        self.asking.set(true);
        // On a thread, because the lock must be renewed however long the answer takes.
        let answer = tokio::task::spawn_blocking(|| ask("continue? [y/N] ")).await;
        self.asking.set(false);
        let answer = answer.ok().and_then(Result::ok).unwrap_or_default().to_ascii_lowercase();
        if !matches!(answer.as_str(), "y" | "yes") {
            return Err(refused());
        }
        agreed.borrow_mut().extend(new.iter().map(|step| deed(&step.action)));
        Ok(Agreed::Now)
    }

    fn subject(&self, step: &Step) -> String {
        match step.action.member() {
            Some(member) => format!("{member}: {}", step.action),
            None => format!("{}: {}", self.state.borrow().cluster, step.action),
        }
    }
}

impl State {
    fn looked(&mut self, seen: &Observation, decision: &Decision) {
        let elapsed = self.started.elapsed();
        for (name, row) in &mut self.members {
            let status = seen.facts(name).and_then(|f| f.etcd.status.as_ref());
            if status.is_some_and(|s| s.healthy) {
                row.stage = "healthy";
                row.arrived.get_or_insert(elapsed);
            }
        }
        let waiting = decision.waiting.first().filter(|_| decision.steps.is_empty());
        self.note = waiting.map(|w| format!("waiting for {w}")).unwrap_or_default();
    }

    /// Waits that were not printed since the last step. Recurring ones are printed once.
    fn newly_waiting(&mut self, decision: &Decision) -> Option<String> {
        if !decision.steps.is_empty() {
            self.told.clear();
            return None;
        }
        let new: Vec<String> =
            decision.waiting.iter().filter(|w| self.told.insert(subject(w))).map(ToString::to_string).collect();
        (!new.is_empty()).then(|| format!("waiting for {}", new.join("; ")))
    }

    /// Whether a member leaves before its successor comes: the reason says how many failures are tolerated meanwhile.
    fn makes_room(&self, step: &Step) -> bool {
        self.no_room && matches!(step.action, Action::RemoveMember { .. } | Action::StopPatroni { .. })
    }

    fn begins(&mut self, step: &Step) {
        self.enter(step, step.action.stage());
    }

    /// " 3 of 22", so that the steps line up; more than were planned are only counted.
    fn number(&self) -> String {
        match self.planned.filter(|planned| self.done <= *planned) {
            Some(planned) => format!("{:>width$} of {planned}", self.done, width = planned.to_string().len()),
            None => format!("{:>2}", self.done),
        }
    }

    fn done(&mut self, step: &Step) {
        self.done += 1;
        if let Some(stage) = step.action.stage_after() {
            self.enter(step, Some(stage));
        }
    }

    /// A step is tried several times; the same reason is printed once.
    fn is_new_failure(&mut self, subject: &str, why: &str) -> bool {
        self.failures.insert(subject.to_owned(), why.to_owned()).as_deref() != Some(why)
    }

    fn enter(&mut self, step: &Step, stage: Option<&'static str>) {
        let row = step.action.member().and_then(|m| self.members.get_mut(m));
        match (row, stage) {
            (Some(row), Some(stage)) => {
                row.stage = stage;
                let arrived = matches!(stage, "stopped" | "gone");
                row.arrived = arrived.then(|| self.started.elapsed());
            }
            _ => self.note = step.action.to_string(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let elapsed = self.started.elapsed();
        let width = self.members.keys().map(|m| m.as_str().len()).max().unwrap_or(0);
        let line = |(name, row): (&MemberName, &Row)| {
            let seconds = row.arrived.unwrap_or(elapsed).as_secs_f64();
            format!("  {name:width$}  {:19} {seconds:6.1}s", row.stage)
        };
        let mut lines = vec![format!("cluster {}", self.cluster)];
        lines.extend(self.members.iter().map(line));
        if !self.note.is_empty() {
            lines.push(format!("  {}", self.note));
        }
        lines
    }

    /// Back to the first line that was drawn, and nothing below it.
    fn clear(&self) -> String {
        if self.lines_drawn == 0 { String::new() } else { format!("\x1b[{}A\x1b[J", self.lines_drawn) }
    }
}

/// The key of a wait, without the numbers that change meanwhile. A last log line of etcd makes it a different one, once.
fn subject(waiting: &WaitingFor) -> String {
    let has_words = matches!(waiting, WaitingFor::EtcdToStay { last_words, .. } | WaitingFor::ServiceToStay { last_words, .. } if !last_words.trim().is_empty());
    format!("{:?} {has_words}", waiting.subject())
}

/// The error and its causes in one line, without the step, which is printed next to it.
fn why_failed(error: &ControlError) -> String {
    let error: &dyn std::error::Error = match error {
        ControlError::Step { source, .. } => source.as_ref(),
        other => other,
    };
    quorate_core::text::with_causes(error)
}

#[cfg(test)]
mod tests {
    use quorate_core::planner::{Precondition, Reason, WaitingFor};

    use super::*;

    fn step(action: Action) -> Step {
        Step { action, why: Reason::new("of this"), expects: Precondition::Nothing }
    }

    #[test]
    fn each_member_shows_its_stage_and_the_cluster_its_own() {
        let progress = Progress::new("demo", ["etcd-1", "etcd-2"].into_iter(), Some(2), None);
        let mut state = progress.state.borrow_mut();
        state.begins(&step(Action::Enrol { member: "etcd-1".into() }));
        state.done(&step(Action::StartEtcd { member: "etcd-2".into(), bootstrap: None }));
        state.begins(&step(Action::ForgetCluster));
        let stages: Vec<String> =
            state.lines().iter().map(|l| l.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(stages, ["cluster demo", "etcd-1 enrolling", "etcd-2 voting", "forget the"]);
        assert_eq!(state.number(), "1 of 2");
        state.done = 3;
        assert_eq!(state.number(), " 3");
        assert_eq!(state.clear(), "");
        state.lines_drawn = 3;
        assert_eq!(state.clear(), "\x1b[3A\x1b[J");
    }

    #[test]
    fn a_failure_that_comes_again_is_printed_once() {
        let progress = Progress::new("demo", ["etcd-2"].into_iter(), None, None);
        let mut state = progress.state.borrow_mut();
        let failures = ["port taken", "port taken", "disk full", "port taken"];
        assert_eq!(failures.map(|why| state.is_new_failure("etcd-1", why)), [true, false, true, true]);
        assert!(state.is_new_failure("etcd-2", "port taken"));
    }

    #[test]
    fn each_wait_is_printed_once_until_a_step_is_done() {
        let progress = Progress::new("demo", ["etcd-1"].into_iter(), None, None);
        let mut state = progress.state.borrow_mut();
        let decision = |waiting: Vec<WaitingFor>| Decision { waiting, ..Decision::default() };
        let crash = |restarts, last_words: &str| WaitingFor::EtcdToStay {
            member: "etcd-1".into(),
            restarts,
            how: String::from("exit status: 1"),
            last_words: last_words.to_owned(),
        };
        let first = state.newly_waiting(&decision(vec![crash(1, "")])).unwrap();
        assert_eq!(first, "waiting for etcd on etcd-1 to stay up: it exited (exit status: 1) and was restarted once");
        for restarts in 2..20 {
            let told = [
                state.newly_waiting(&decision(vec![crash(restarts, "bad flag"), WaitingFor::AuthSight])),
                state.newly_waiting(&decision(vec![crash(restarts, "bad flag")])),
            ];
            assert_eq!(told.iter().flatten().count(), usize::from(restarts == 2), "{told:?}");
        }
        let step = step(Action::Enrol { member: "etcd-1".into() });
        assert_eq!(state.newly_waiting(&Decision { steps: vec![step], ..Decision::default() }), None);
        assert!(state.newly_waiting(&decision(vec![crash(20, "bad flag")])).is_some());
    }
}
