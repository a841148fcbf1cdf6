//! The history of a cluster: every step that was ever begun, when, by whom, why, and how it ended. Each event is one line of
//! JSON, appended with one write to a file next to the ledger. It is part of an export and is deleted with the cluster. No
//! decision depends on it, and it contains no secret. A front follows it and sends no client to a member that is about to be
//! stopped.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_core::model::{Consent, Ledger, MachineId, MemberName, Power};
use quorate_core::planner::Step;
use quorate_core::text::{cut, rename};
use serde::{Deserialize, Serialize};

use crate::ledger::LedgerError;
use crate::run::error::ControlError;
use crate::run::event::{Answer, Event, Reporter};
use quorate_agent::process;
use quorate_core::text::with_causes;

/// Enough to say why. The text may come from an agent that sends anything.
const LONGEST_TEXT: usize = 4 << 10;

/// One line of the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Line {
    at: Timestamp,
    /// Of the run of quorate that wrote it, made at random.
    run: String,
    /// Counts the steps of a run from 1.
    step: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum What {
    Begins(Beginning),
    Done,
    Failed { why: String },
}

/// A step's data when it begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Beginning {
    pub verb: String,
    pub by: String,
    pub host: String,
    /// The number that the run's orders carried.
    pub fence: u64,
    /// As in a plan. Confirmations, which are not steps, have separate kinds.
    pub kind: String,
    pub member: Option<String>,
    pub action: String,
    pub because: String,
}

/// One step as printed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    pub at: Timestamp,
    pub ended: Option<Timestamp>,
    pub run: String,
    #[serde(flatten)]
    pub step: Beginning,
    pub result: Ending,
    /// Why it failed.
    pub why: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Done,
    Failed,
    /// It was begun, and its controller is gone.
    Interrupted,
    /// It was begun, and its controller holds the lock.
    Running,
}

/// The file of one cluster.
#[derive(Clone, Debug)]
pub struct History {
    path: PathBuf,
}

impl History {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        History { path: path.into() }
    }

    /// The file as it is; empty where there is none.
    pub fn text(&self) -> Result<String, LedgerError> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(e) => Err(self.failed("read", e)),
        }
    }

    /// The newest lines that fit into so many bytes, each whole.
    pub fn newest(&self, bytes: u64) -> Result<String, LedgerError> {
        let read = || {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            // One more byte shows whether the first line that is read is whole.
            file.seek(SeekFrom::Start(length.saturating_sub(bytes.saturating_add(1))))?;
            let mut read = Vec::new();
            file.take(bytes.saturating_add(1)).read_to_end(&mut read)?;
            Ok::<_, io::Error>((read, length > bytes))
        };
        match read() {
            Ok((read, is_cut)) => {
                let text = String::from_utf8_lossy(&read);
                let begins = if is_cut { text.find('\n').map_or(text.len(), |end| end + 1) } else { 0 };
                Ok(text[begins..].to_owned())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(e) => Err(self.failed("read", e)),
        }
    }

    /// Every step, oldest first. `running` is the fencing number of a controller that is alive.
    pub fn entries(&self, running: Option<u64>) -> Result<Vec<Entry>, LedgerError> {
        Ok(entries(&self.text()?, running))
    }

    /// How many lines of the file cannot be read, and the number of the first; none in a file that is whole. One that is being written
    /// at this moment does not count.
    pub fn damage(&self) -> Result<Option<(usize, usize)>, LedgerError> {
        let text = self.text()?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let unreadable = |line: &str| !line.is_empty() && serde_json::from_str::<Line>(line).is_err();
        let mut bad =
            whole.lines().enumerate().filter(|(_, line)| unreadable(line)).map(|(at, _)| at.saturating_add(1));
        let first = bad.next();
        Ok(first.map(|first| (bad.count().saturating_add(1), first)))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Merges the history of an export: each line once, in the order of time.
    pub fn merge(&self, exported: &str) -> Result<(), LedgerError> {
        let here = self.text()?;
        let known: BTreeSet<&str> = here.lines().collect();
        let new = exported.lines().filter(|line| !known.contains(line));
        let parse = |line| serde_json::from_str::<Line>(line).ok().map(|parsed| (parsed.at, line));
        let mut lines: Vec<(Timestamp, &str)> = here.lines().chain(new).filter_map(parse).collect();
        lines.sort_by_key(|(at, _)| *at);
        let text: String = lines.into_iter().map(|(_, line)| format!("{line}\n")).collect();
        let draft = self.path.with_extension("jsonl.new");
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&draft, &self.path)
        };
        if text.is_empty() { Ok(()) } else { write().map_err(|e| self.failed("written", e)) }
    }

    pub fn remove(&self) -> Result<(), LedgerError> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.failed("removed", e)),
            _ => Ok(()),
        }
    }

    /// Opens the file for appending. A partial line of an interrupted write is ended, so no line is joined to it.
    fn open(&self) -> io::Result<File> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(file)
    }

    fn failed(&self, what: &'static str, source: io::Error) -> LedgerError {
        LedgerError::Io { what, path: Path::to_owned(&self.path), source }
    }
}

/// A line that cannot be read was cut short, or is of a later quorate: it is left out.
fn entries(text: &str, running: Option<u64>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut places: BTreeMap<(String, u64), usize> = BTreeMap::new();
    for Line { at, run, step, what } in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        let place = places.get(&(run.clone(), step)).and_then(|place| entries.get_mut(*place));
        match (what, place) {
            (What::Begins(step_of), _) => {
                places.insert((run.clone(), step), entries.len());
                let alive = running == Some(step_of.fence);
                let result = if alive { Ending::Running } else { Ending::Interrupted };
                entries.push(Entry { at, ended: None, run, step: step_of, result, why: None });
            }
            (What::Done, Some(entry)) => (entry.ended, entry.result) = (Some(at), Ending::Done),
            (What::Failed { why }, Some(entry)) => {
                (entry.ended, entry.result, entry.why) = (Some(at), Ending::Failed, Some(why));
            }
            (What::Done | What::Failed { .. }, None) => {}
        }
    }
    entries
}

/// What a line means for a follower of the file.
pub(crate) enum Note {
    Begins { run: String, step: u64, kind: String, member: Option<String>, at: Timestamp },
    Ends { run: String, step: u64 },
}

/// The readable events of these lines.
pub(crate) fn notes(text: &str) -> impl Iterator<Item = Note> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.map(|Line { at, run, step, what }| match what {
        What::Begins(Beginning { kind, member, .. }) => Note::Begins { run, step, kind, member, at },
        What::Done | What::Failed { .. } => Note::Ends { run, step },
    })
}

/// Writes the history of one run.
#[derive(Debug)]
pub struct Recorder {
    history: History,
    file: RefCell<File>,
    run: String,
    verb: String,
    fence: u64,
    count: Cell<u64>,
    /// Steps that were begun, with their numbers.
    open: RefCell<Vec<(Step, u64)>>,
    /// Members that had several machines when they were observed last: the one that steps mean.
    meant: RefCell<BTreeMap<MemberName, MachineId>>,
}

impl Recorder {
    /// Begins with the operator's input: how the ledger changed before the first step. A new cluster has no history, even if
    /// a file exists.
    pub fn begin(
        history: History,
        verb: &str,
        fence: u64,
        before: Option<&Ledger>,
        after: &Ledger,
    ) -> Result<Self, LedgerError> {
        if before.is_none() {
            history.remove()?;
        }
        let file = history.open().map_err(|e| history.failed("written", e))?;
        let recorder = Recorder {
            history,
            file: RefCell::new(file),
            run: quorate_pki::random_hex(8),
            verb: verb.to_owned(),
            fence,
            count: Cell::new(0),
            open: RefCell::default(),
            meant: RefCell::default(),
        };
        for Requested { kind, member, action, because } in before.map(|before| words(before, after)).unwrap_or_default()
        {
            let number = recorder.begins(kind, member, action, because);
            recorder.write(number, What::Done);
        }
        Ok(recorder)
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Records what is reported, and passes it on.
    pub fn through<'a>(&'a self, inner: &'a dyn Reporter) -> impl Reporter + 'a {
        Recording { recorder: self, inner }
    }

    fn begins(&self, kind: &str, member: Option<String>, action: String, because: String) -> u64 {
        let number = self.count.get() + 1;
        self.count.set(number);
        let beginning = Beginning {
            verb: self.verb.clone(),
            by: process::user_name(),
            host: process::host_name(),
            fence: self.fence,
            kind: kind.to_owned(),
            member,
            action: cut(&action, LONGEST_TEXT).into_owned(),
            because: cut(&because, LONGEST_TEXT).into_owned(),
        };
        self.write(number, What::Begins(beginning));
        number
    }

    /// The step in words. A member that has two machines is named by the one that is meant, as in the plan.
    fn named(&self, step: &Step) -> String {
        let (text, meant) = (step.action.to_string(), self.meant.borrow());
        match step.action.about().and_then(|member| Some((member, meant.get(member)?))) {
            Some((member, machine)) => rename(&text, member.as_str(), &machine.to_string()),
            None => text,
        }
    }

    fn end(&self, step: &Step, what: What) {
        let place = self.open.borrow().iter().position(|(open, _)| open == step);
        if let Some(place) = place {
            let (_, number) = self.open.borrow_mut().remove(place);
            self.write(number, what);
        }
    }

    /// A disk that accepts no line also fails the ledger's next write, which is reported; a step does not fail because of this.
    fn write(&self, step: u64, what: What) {
        let line = Line { at: Timestamp::now(), run: self.run.clone(), step, what };
        let mut text = serde_json::to_string(&line).expect("plain data serializes");
        text.push('\n');
        let _ = self.file.borrow_mut().write_all(text.as_bytes());
    }
}

struct Recording<'a> {
    recorder: &'a Recorder,
    inner: &'a dyn Reporter,
}

impl Reporter for Recording<'_> {
    fn report(&self, event: Event<'_>) {
        match &event {
            Event::Looked { seen, .. } => *self.recorder.meant.borrow_mut() = seen.successors(),
            Event::Begins(step) => {
                let (action, member) = (&step.action, step.action.about().map(ToString::to_string));
                let text = self.recorder.named(step);
                let number = self.recorder.begins(action.kind(), member, text, step.why.to_string());
                self.recorder.open.borrow_mut().push((Step::clone(step), number));
            }
            Event::Done(step) => self.recorder.end(step, What::Done),
            Event::Failed(step, error) => {
                // The step itself is reported already.
                let why = match error {
                    ControlError::Step { source, .. } => with_causes(source.as_ref()),
                    other => with_causes(*other),
                };
                self.recorder.end(step, What::Failed { why: cut(&why, LONGEST_TEXT).into_owned() });
            }
        }
        self.inner.report(event);
    }

    fn agrees<'a>(&'a self, steps: &'a [Step]) -> Answer<'a> {
        self.inner.agrees(steps)
    }
}

/// Input of the operator that is in the ledger from then on.
struct Requested {
    kind: &'static str,
    member: Option<String>,
    action: String,
    because: String,
}

/// What changed in the ledger when a run took it.
fn words(before: &Ledger, after: &Ledger) -> Vec<Requested> {
    let mut words = Vec::new();
    let mut word = |kind, member, action: String, because: &str| {
        words.push(Requested { kind, member, action, because: because.to_owned() });
    };
    if before.spec != after.spec {
        word("spec", None, String::from("take over a changed spec"), "the operator changed the spec");
    }
    if before.power != after.power {
        let wish = if after.power == Power::Off { "stop" } else { "start" };
        word("power", None, format!("request to {wish} the machines"), "the operator requested it");
    }
    for (member, record) in &after.members {
        let had = before.members.get(member).map_or(1, |r| r.incarnation.max(1));
        if record.incarnation > had {
            let action = format!("move {member} to {member}.{}", record.incarnation);
            word("replace", Some(member.to_string()), action, "the operator requested it");
        }
        let renews = before.members.get(member).and_then(|r| r.renewing) != record.renewing;
        if let Some(incarnation) = record.renewing.filter(|_| renews) {
            let action = format!("move {member} to {member}.{incarnation} and keep its data");
            word("replace", Some(member.to_string()), action, "the operator requested it");
        }
    }
    for (member, record) in &after.members {
        let asked = |ledger: &Ledger| Some(ledger.members.get(member)?.reboot.as_ref()?.consent.clone());
        if let Some(reboot) = record.reboot.as_ref().filter(|reboot| asked(before).as_ref() != Some(&reboot.consent)) {
            let action = format!("record the request to reboot the machine of {member}");
            let because = format!("confirmed after this was shown: {}", reboot.consent.shown);
            word("reboot", Some(member.to_string()), action, &because);
        }
    }
    let asked = |ledger: &Ledger| {
        let etcd = ledger.etcd.restore.as_ref().map(|wish| wish.consent.clone());
        etcd.or_else(|| ledger.postgres.restore.as_ref().map(|wish| wish.consent.clone()))
    };
    let (restore_before, restore_after) = (asked(before), asked(after));
    let recovers = |ledger: &Ledger| ledger.etcd.recovery.as_ref().map(|request| request.consent.clone());
    let (recovery_before, recovery_after) = (recovers(before), recovers(after));
    let switches = |ledger: &Ledger| ledger.postgres.switchover.as_ref().map(|request| request.consent.clone());
    let (switchover_before, switchover_after) = (switches(before), switches(after));
    let rotates = |ledger: &Ledger| ledger.postgres.rotation.as_ref().map(|rotation| rotation.consent.clone());
    let (rotation_before, rotation_after) = (rotates(before), rotates(after));
    let (discard_before, discard_after) = (before.postgres.discard.clone(), after.postgres.discard.clone());
    let consents: [(_, &Option<Consent>, &Option<Consent>, _); 10] = [
        ("discard", &discard_before, &discard_after, "that replaced data is deleted"),
        ("passwords", &rotation_before, &rotation_after, "that passwords change"),
        ("switchover", &switchover_before, &switchover_after, "that another member becomes the primary"),
        ("destroy", &before.destroy, &after.destroy, "that the cluster is destroyed"),
        ("without-backup", &before.without_backup, &after.without_backup, "that no backup is needed"),
        ("allow-downtime", &before.downtime, &after.downtime, "that a restart may cause downtime"),
        ("now", &before.without_grace, &after.without_grace, "that unreachable machines are dead"),
        ("recover", &recovery_before, &recovery_after, "that the quorum is permanently lost"),
        ("restore", &restore_before, &restore_after, "that the data of all members is replaced"),
        (
            "accept-older-ledger",
            &before.older_accepted,
            &after.older_accepted,
            "that this older ledger is authoritative",
        ),
    ];
    for (kind, before, after, what) in consents {
        if let Some(consent) = after.as_ref().filter(|_| before != after) {
            let shown = if consent.shown.is_empty() { "nothing was refused" } else { consent.shown.trim_end() };
            word(
                kind,
                None,
                format!("record the confirmation {what}"),
                &format!("confirmed after this was shown: {shown}"),
            );
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use quorate_core::kinds::etcd::RecoveryRequest;
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions;
    use quorate_core::model::{Data, MachineSeen, Observation, Seen};
    use quorate_core::planner::{Action, Decision, Precondition, Reason};
    use quorate_core::spec::generated;

    use super::*;

    struct Nobody;

    impl Reporter for Nobody {
        fn report(&self, _: Event<'_>) {}
    }

    fn ledger() -> Ledger {
        let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap();
        Ledger::new(String::from("c"), spec.clusters.remove(0))
    }

    fn step(member: &str) -> Step {
        let action = Action::RestartEtcd { member: member.into() };
        Step { action, why: Reason::new("its settings changed"), expects: Precondition::Nothing }
    }

    fn history() -> (tempfile::TempDir, History) {
        let directory = tempfile::tempdir().unwrap();
        let history = History::new(directory.path().join("history.jsonl"));
        (directory, history)
    }

    fn recorder(history: &History, fence: u64) -> Recorder {
        Recorder::begin(history.clone(), "apply", fence, Some(&ledger()), &ledger()).unwrap()
    }

    #[test]
    fn a_step_ends_well_or_badly_or_is_left_open() {
        let (_directory, history) = history();
        let recorder = recorder(&history, 7);
        let reporter = recorder.through(&Nobody);
        let (well, badly, open) = (step("etcd-1"), step("etcd-2"), step("etcd-3"));
        for step in [&well, &badly, &open] {
            reporter.report(Event::Begins(step));
        }
        reporter.report(Event::Done(&well));
        let source = Box::new(ControlError::Enrolment(String::from("it said no")));
        reporter.report(Event::Failed(&badly, &ControlError::Step { action: badly.action.to_string(), source }));
        let told = history.entries(None).unwrap();
        let ends: Vec<Ending> = told.iter().map(|e| e.result).collect();
        assert_eq!(ends, [Ending::Done, Ending::Failed, Ending::Interrupted]);
        assert_eq!(told[1].why.as_deref(), Some("it said no"));
        assert_eq!((told[0].step.kind.as_str(), told[0].step.member.as_deref()), ("restart-etcd", Some("etcd-1")));
        assert_eq!(told[0].step.because, "its settings changed");
        assert!(told[0].ended.is_some() && told[2].ended.is_none());
        assert_eq!(history.entries(Some(7)).unwrap()[2].result, Ending::Running);
        assert_eq!(fs::metadata(&history.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_member_with_two_machines_is_named_by_the_new_one() {
        let (_directory, history) = history();
        let recorder = recorder(&history, 7);
        let reporter = recorder.through(&Nobody);
        let machine = |incarnation: u64| -> MachineSeen {
            serde_json::from_value(serde_json::json!({
                "cluster_id": "c", "incarnation": incarnation, "power": "on", "headless": false, "address": null
            }))
            .unwrap()
        };
        let machines = [("etcd-1", 1), ("etcd-2", 2), ("etcd-2.1", 1)];
        let machines = machines.map(|(name, incarnation)| (MemberName::from(name), machine(incarnation)));
        let now = Timestamp::now();
        let fixtures = Seen::At(now, Vec::new());
        let (machines, agents) = (Seen::At(now, BTreeMap::from(machines)), BTreeMap::new());
        let seen = Observation { now, machines, agents, fixtures };
        reporter.report(Event::Looked { seen: &seen, decision: &Decision::default() });
        let remove = Action::DestroyMachine { member: "etcd-2.1".into(), data: Data::Goes };
        let remove = Step { action: remove, ..step("etcd-1") };
        for step in [&step("etcd-1"), &step("etcd-2"), &remove] {
            reporter.report(Event::Begins(step));
        }
        let told = history.entries(None).unwrap();
        let told: Vec<&str> = told.iter().filter_map(|entry| entry.step.action.rsplit(' ').next()).collect();
        assert_eq!(told, ["etcd-1", "etcd-2.2", "etcd-2.1"]);
    }

    #[test]
    fn an_agent_that_refuses_at_length_leaves_a_short_line() {
        let (_directory, history) = history();
        let (step, recorder) = (step("etcd-1"), recorder(&history, 1));
        let reporter = recorder.through(&Nobody);
        reporter.report(Event::Begins(&step));
        let source = Box::new(ControlError::Enrolment("y".repeat(8 << 20)));
        reporter.report(Event::Failed(&step, &ControlError::Step { action: step.action.to_string(), source }));
        let text = history.text().unwrap();
        assert!(text.len() < 16 << 10, "{} bytes", text.len());
        assert!(
            history.entries(None).unwrap()[0].why.as_ref().is_some_and(|why| why.ends_with("(cut: 8388608 bytes)"))
        );
    }

    #[test]
    fn the_newest_lines_are_whole_and_fit() {
        let (_directory, history) = history();
        assert_eq!(history.newest(10).unwrap(), "");
        fs::write(&history.path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(history.newest(100).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(history.newest(14).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(history.newest(13).unwrap(), "two\nthree\n");
        assert_eq!(history.newest(10).unwrap(), "two\nthree\n");
        assert_eq!(history.newest(9).unwrap(), "three\n");
        assert_eq!(history.newest(5).unwrap(), "");
    }

    #[test]
    fn a_line_that_was_cut_short_spoils_no_other() {
        let (_directory, history) = history();
        let (first, second) = (step("etcd-1"), step("etcd-2"));
        recorder(&history, 1).through(&Nobody).report(Event::Begins(&first));
        let whole = history.text().unwrap();
        assert_eq!(history.damage().unwrap(), None);
        fs::write(&history.path, format!("{whole}{}", &whole[..whole.len() / 2])).unwrap();
        recorder(&history, 2).through(&Nobody).report(Event::Begins(&second));
        assert_eq!(history.damage().unwrap(), Some((1, 2)));
        let told = history.entries(None).unwrap();
        assert_eq!(told.iter().filter_map(|e| e.step.member.as_deref()).collect::<Vec<_>>(), ["etcd-1", "etcd-2"]);
    }

    #[test]
    fn confirmations_are_recorded_with_the_text_that_was_shown() {
        let (_directory, history) = history();
        let mut after = ledger();
        quorate_core::planner::remember::raise_incarnation(&mut after, &"etcd-2".into());
        let shown = String::from("1 of 3 voters");
        let consent = Consent { at: Timestamp::UNIX_EPOCH, by: String::from("me"), shown };
        after.etcd.recovery = Some(RecoveryRequest { consent, of: None });
        Recorder::begin(history.clone(), "recover", 1, Some(&ledger()), &after).unwrap();
        let told = history.entries(None).unwrap();
        let actions: Vec<&str> = told.iter().map(|e| e.step.action.as_str()).collect();
        let expected = ["move etcd-2 to etcd-2.2", "record the confirmation that the quorum is permanently lost"];
        assert_eq!(actions, expected);
        assert_eq!(told[1].step.because, "confirmed after this was shown: 1 of 3 voters");
        assert!(told.iter().all(|e| e.result == Ending::Done));
    }

    #[test]
    fn a_new_cluster_does_not_inherit_the_history_of_another() {
        let (_directory, history) = history();
        recorder(&history, 1).through(&Nobody).report(Event::Begins(&step("etcd-1")));
        Recorder::begin(history.clone(), "up", 1, None, &ledger()).unwrap();
        assert_eq!(history.entries(None).unwrap(), []);
    }

    #[test]
    fn histories_are_merged_by_time_and_each_line_is_kept_once() {
        let (_directory, here) = history();
        let (_other, there) = history();
        recorder(&here, 1).through(&Nobody).report(Event::Begins(&step("etcd-1")));
        there.merge(&here.text().unwrap()).unwrap();
        recorder(&there, 2).through(&Nobody).report(Event::Begins(&step("etcd-2")));
        recorder(&here, 3).through(&Nobody).report(Event::Begins(&step("etcd-3")));
        here.merge(&there.text().unwrap()).unwrap();
        let told = here.entries(None).unwrap();
        let members: Vec<_> = told.iter().filter_map(|e| e.step.member.as_deref()).collect();
        assert_eq!(members, ["etcd-1", "etcd-2", "etcd-3"]);
    }
}
