//! quorate itself as a child process. Its output is followed line by line, so it can be killed or stopped at any line
//! like any controller.

use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::mark::{Clock, Mark, MarkKind, Moment};
use quorate_agent::process::Process;
use quorate_control::home::Home;

/// How to run quorate.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    home: Home,
}

/// A line of progress about a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    Begins(String),
    Done(String),
    Failed(String),
}

impl Progress {
    /// `[  0.123s] etcd-1: restart etcd … done` and the like; none for other lines.
    fn parse(line: &str) -> Option<Self> {
        let (_, text) = line.strip_prefix('[')?.split_once("] ")?;
        let (step, rest) = text.split_once(" …")?;
        let step = step.to_owned();
        match rest.trim() {
            "" => Some(Progress::Begins(step)),
            done if done.starts_with("done") => Some(Progress::Done(step)),
            _ => Some(Progress::Failed(step)),
        }
    }
}

impl Progress {
    /// The member whose etcd was just started as a learner.
    pub fn started_learner(&self) -> Option<&str> {
        let Progress::Done(step) = self else { return None };
        let (_, started) = step.split_once("start etcd on ")?;
        started.strip_suffix(" as a learner")
    }

    /// The member of PostgreSQL whose data was just begun to be cloned.
    pub fn started_clone(&self) -> Option<&str> {
        let Progress::Done(step) = self else { return None };
        let (_, cloned) = step.split_once("clone the data to ")?;
        Some(cloned.split(" and ").next().unwrap_or(cloned))
    }
}

impl Program {
    /// The program that runs now, on the same home.
    pub fn current(home: &Home) -> std::io::Result<Self> {
        Ok(Program { path: std::env::current_exe()?, home: home.clone() })
    }

    /// The output of a reading command.
    pub async fn output(&self, arguments: &[&str]) -> std::io::Result<std::process::Output> {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).output().await
    }

    pub fn start(&self, arguments: &[&str], clock: Clock) -> std::io::Result<Running> {
        let mut child = self.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().expect("it is piped");
        Ok(Running {
            words: format!("quorate {}", arguments.join(" ")),
            child,
            lines: BufReader::new(stderr).lines(),
            said: Vec::new(),
            open: Vec::new(),
            marks: Vec::new(),
            clock,
            began: clock.now(),
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("--home").arg(self.home.root()).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// A run of quorate. Dropping it kills it.
pub struct Running {
    words: String,
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    said: Vec<String>,
    /// Steps that have begun, and when.
    open: Vec<(String, Moment)>,
    marks: Vec<Mark>,
    clock: Clock,
    began: Moment,
}

/// How a run of quorate ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// None: by a signal.
    pub code: Option<i32>,
    pub marks: Vec<Mark>,
    /// The last lines that it said.
    pub last_words: String,
}

impl Running {
    /// The next line about a step; none when the run has said its last.
    pub async fn next_step(&mut self) -> Option<Progress> {
        loop {
            let line = self.lines.next_line().await.ok().flatten()?;
            let progress = Progress::parse(&line);
            self.said.push(line);
            if let Some(progress) = progress {
                self.note(&progress);
                return Some(progress);
            }
        }
    }

    fn note(&mut self, progress: &Progress) {
        let now = self.clock.now();
        let (step, failed) = match progress {
            Progress::Begins(step) => return self.open.push((step.clone(), now)),
            Progress::Done(step) => (step, ""),
            Progress::Failed(step) => (step, " (failed)"),
        };
        if let Some(at) = self.open.iter().position(|(open, _)| open == step) {
            let (step, from) = self.open.remove(at);
            self.marks.push(Mark { kind: MarkKind::Step, text: format!("{step}{failed}"), from, to: now });
        }
    }

    fn process(&self) -> Option<Process> {
        self.child.id().and_then(Process::of)
    }

    pub fn stop(&self) {
        if let Some(process) = self.process() {
            process.signal(Signal::STOP);
        }
    }

    pub fn go_on(&self) {
        if let Some(process) = self.process() {
            process.signal(Signal::CONT);
        }
    }

    pub async fn kill(mut self) -> Ended {
        // It may have ended by itself.
        let _ = self.child.start_kill();
        self.end().await
    }

    /// Follows it to its end.
    pub async fn end(mut self) -> Ended {
        while self.next_step().await.is_some() {}
        let code = self.child.wait().await.ok().and_then(|status| status.code());
        let now = self.clock.now();
        let cut = self.open.drain(..).map(|(step, from)| {
            let text = format!("{step} (cut off)");
            Mark { kind: MarkKind::Step, text, from, to: now }
        });
        let how = match code {
            Some(0) => String::new(),
            Some(code) => format!(" (exit code {code})"),
            None => String::from(" (killed)"),
        };
        let whole = Mark { kind: MarkKind::Command, text: format!("{}{how}", self.words), from: self.began, to: now };
        let marks = self.marks.drain(..).chain(cut).chain([whole]).collect();
        let last = self.said.len().saturating_sub(6);
        Ended { code, marks, last_words: self.said[last..].join("\n") }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::model::Stamp;
    use quorate_core::planner::Action;

    use super::*;

    #[test]
    fn lines_about_steps_are_told_from_others() {
        let parse = Progress::parse;
        let step = || String::from("etcd-1: restart etcd on etcd-1");
        assert_eq!(parse("[  0.068s] etcd-1: restart etcd on etcd-1 …"), Some(Progress::Begins(step())));
        assert_eq!(parse("[  0.068s] etcd-1: restart etcd on etcd-1 … done (2 of 7)"), Some(Progress::Done(step())));
        assert_eq!(parse("[ 12.068s] etcd-1: restart etcd on etcd-1 … failed: no"), Some(Progress::Failed(step())));
        assert_eq!(parse("[  0.079s] waiting for etcd on etcd-1 to answer its peers"), None);
        assert_eq!(parse("error: x"), None);
    }

    #[test]
    fn a_learner_is_known_by_the_step_that_started_it() {
        let member = "etcd-4";
        let action = Action::JoinEtcd {
            member: member.into(),
            stamp: Stamp { cluster_id: String::new(), token: String::new(), member: member.into(), incarnation: 1 },
            initial_cluster: Default::default(),
        };
        let progress = |end: &str| Progress::parse(&format!("[  1.068s] {member}: {action} …{end}")).unwrap();
        assert_eq!(progress(" done").started_learner(), Some(member));
        assert_eq!(progress("").started_learner(), None);
        assert_eq!(Progress::Done(String::from("etcd-4: start etcd on etcd-4")).started_learner(), None);
    }
}
