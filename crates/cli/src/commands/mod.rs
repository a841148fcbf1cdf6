//! The commands, one file each. A command records a request in the ledger and runs the loop; it has no other way to
//! change a cluster.

pub mod agent;
pub mod apply;
pub mod backup;
pub mod clients;
pub mod destroy;
pub mod discard;
pub mod discovery;
pub mod drill;
pub mod front;
pub mod history;
pub mod image;
pub mod key;
pub mod kubernetes;
pub mod ledger;
pub mod logs;
pub mod outputs;
pub mod passwords;
pub mod plan;
pub mod power;
pub mod reboot;
pub mod recover;
pub mod replace;
pub mod requests;
pub mod restore;
pub mod spec;
pub mod status;
pub mod switchover;
pub mod unlock;
pub mod up;
pub mod v2;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use quorate_control::brought::BroughtFiles;
use quorate_control::kinds::postgres::outdated::{Ways, outdated, ways};
use quorate_control::kinds::status::Status;
use quorate_control::kinds::summarize;
use quorate_control::ledger::LEASE;
use quorate_control::verbs::{self, VerbError};
use quorate_control::{Controller, Home, Outcome};
use quorate_core::model::{Ledger, Lock};
use quorate_core::planner::{Decision, Effect, Plan, UnsafeBecause};
use quorate_core::spec::{ClusterSpec, Kind};
use tokio::signal::unix::{self, signal};

use crate::error::{Error, SignalKind};
use crate::exit::Exit;
use crate::load;
use crate::output::plan::Detail;
use crate::output::progress::Progress;
use crate::output::{self, block};
use crate::saved_plan::deed;

/// The context of every command.
#[derive(Debug)]
pub struct Context {
    pub home: Home,
    /// Whether the home directory was named on the command line: then it is part of every printed command.
    home_given: bool,
    /// The plan of each cluster that was shown.
    shown: RefCell<BTreeMap<String, Shown>>,
    /// Whether the operator confirmed only the plans shown. With `--yes` quorate also does what becomes necessary later.
    as_shown: Cell<bool>,
    /// Of each etcd cluster that a run may have changed: how Patroni reached it before.
    ways: RefCell<BTreeMap<String, Ways>>,
}

/// What is stored of a plan that was shown.
#[derive(Clone, Debug)]
struct Shown {
    steps: usize,
    /// The steps that destroy something.
    destroys: BTreeSet<String>,
}

impl Context {
    pub fn new(home: Home, home_given: bool) -> Self {
        Context { home, home_given, shown: RefCell::default(), as_shown: Cell::new(false), ways: RefCell::default() }
    }

    /// Shows a plan that is about to be carried out.
    pub fn show_plan(&self, cluster: &str, plan: &Plan) -> Result<(), Error> {
        let destroys = plan.steps.iter().filter(|step| step.action.effect() == Effect::Destroys);
        let destroys = destroys.map(|step| deed(&step.action)).collect();
        self.shown.borrow_mut().insert(cluster.to_owned(), Shown { steps: plan.steps.len(), destroys });
        output::show(&output::plan::page(cluster, plan, Detail::Reasons))
    }

    /// A quorate command that the operator can type.
    pub fn command(&self, arguments: &str) -> String {
        if !self.home_given {
            return format!("quorate {arguments}");
        }
        format!("quorate --home {} {arguments}", quoted(&self.home.root().to_string_lossy()))
    }

    /// A refusal of a command's preparation, with a remedy that the operator can type.
    pub fn error(&self, error: VerbError) -> Error {
        match error {
            VerbError::Control(error) => error.into(),
            VerbError::Backup(error) => Error::Backup(error),
            VerbError::NotNow { what, command, does } => {
                Error::refused(what, format!("`{}` {does}", self.command(&command)))
            }
            VerbError::Refused { what, hint } => Error::refused(what, hint),
            VerbError::UnknownMember { cluster, member, members } => Error::UnknownMember { cluster, member, members },
            VerbError::File { path, source } => Error::file("removed", path)(source),
        }
    }

    /// Says which PostgreSQL clusters do not know yet what this command changed of the etcd cluster that they need.
    pub fn tell_outdated(&self) {
        for (etcd, before) in self.ways.borrow().iter() {
            for name in outdated(&self.home, etcd, before) {
                let apply = self.command(&format!("apply {name}"));
                output::talk(&format!(
                    "note: Patroni of {name} still has the previous addresses, CA or login of {etcd}; `{apply}` updates it\n"
                ));
            }
        }
    }

    fn refuse_if_being_destroyed(&self, ledger: Option<&Ledger>) -> Result<(), Error> {
        verbs::refuse_if_being_destroyed(ledger).map_err(|error| self.error(error))
    }
}

/// A word quoted for a shell.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,@%+=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Asks whether to carry out the steps shown.
fn agree(context: &Context, yes: bool, steps: usize) -> Result<(), Error> {
    context.as_shown.set(!yes);
    if yes || steps == 0 {
        return Ok(());
    }
    let these = if steps == 1 { String::from("this step") } else { format!("these {steps} steps") };
    confirm(&format!("apply {these}?"))
}

/// Asks whether to record a request. If nothing can be done yet, a later run carries it out without another look at it.
fn agree_to_request(context: &Context, yes: bool, steps: usize) -> Result<(), Error> {
    if yes || steps > 0 {
        return agree(context, yes, steps);
    }
    context.as_shown.set(true);
    confirm("nothing can be done yet; request it, and wait?")
}

fn confirm(question: &str) -> Result<(), Error> {
    if !output::can_ask() {
        return Err(Error::refused(
            "there is no terminal to ask for confirmation",
            "pass --yes to apply without asking",
        ));
    }
    match output::ask(&format!("{question} [y/N] "))?.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::Declined),
    }
}

/// Asks for the cluster's name, because the command cannot be undone.
fn agree_by_name(yes: bool, name: &str, verb: &str) -> Result<(), Error> {
    if yes {
        return Ok(());
    }
    if !output::can_ask() {
        let what = format!("there is no terminal to ask whether to {verb} cluster {name}");
        return Err(Error::refused(what, format!("pass --yes to {verb} it without asking")));
    }
    let answer = output::ask(&format!("type the name of the cluster to {verb} it: "))?;
    if answer == name { Ok(()) } else { Err(Error::Declined) }
}

/// Takes the lock and runs the loop, with progress.
async fn run_loop(
    context: &Context,
    spec: &ClusterSpec,
    brought: &BroughtFiles,
    verb: &str,
    change: impl FnOnce(&mut Ledger),
) -> Result<Outcome, Error> {
    free_lapsed(context, spec.name.as_str()).await?;
    if spec.kind == Kind::Etcd {
        let before = || ways(&context.home, spec.name.as_str());
        context.ways.borrow_mut().entry(spec.name.to_string()).or_insert_with(before);
    }
    let shown = context.shown.borrow().get(spec.name.as_str()).cloned();
    let planned = shown.as_ref().map(|shown| shown.steps);
    let agreed = shown.map(|shown| shown.destroys).filter(|_| context.as_shown.get());
    let machines: Vec<String> = spec.machines().map(|machine| machine.name.to_string()).collect();
    let progress = Progress::new(spec.name.as_str(), machines.iter().map(String::as_str), planned, agreed);
    let had_key =
        load::remembered(&context.home, spec.name.as_str())?.is_some_and(|ledger| ledger.backup_signing.is_some());
    let stopped = stop_signal();
    let controller = Controller::take(&context.home, spec, brought.clone(), verb, change)?;
    let outcome = tokio::select! {
        outcome = controller.run(&progress) => outcome.map_err(Error::from),
        never = progress.keep_drawing() => match never {},
        stopped = stopped => Err(stopped),
    };
    match &outcome {
        Err(Error::Stopped { .. }) => progress.clear(),
        _ => progress.finish(),
    }
    let outcome = outcome?;
    if !had_key {
        output::talk(&backup::signer_note(&outcome.ledger));
    }
    Ok(outcome)
}

/// Waits for a signal to stop. Work in progress is then dropped, as if it had been killed: the ledger records each step that was begun,
/// and the lock of a process that has exited is free.
fn stop_signal() -> impl Future<Output = Error> {
    // Installed here and not at the first wait, because a signal may come before that.
    let signals = (signal(unix::SignalKind::interrupt()), signal(unix::SignalKind::terminate()));
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return std::future::pending().await };
        let signal = tokio::select! {
            _ = interrupt.recv() => SignalKind::Interrupt,
            _ = terminate.recv() => SignalKind::Terminate,
        };
        Error::Stopped { signal }
    }
}

/// Frees a lock whose holder is gone. If this host cannot tell, it takes as long as a lease.
async fn free_lapsed(context: &Context, name: &str) -> Result<(), Error> {
    let tell = |lock: &Lock| {
        let seconds = LEASE.as_secs();
        let (holder, host) = (&lock.holder, &lock.host);
        output::talk(&format!(
            "cluster {name} is locked ({holder} on {host}); waiting {seconds} s to see whether the lock is renewed\n"
        ));
    };
    Ok(context.home.store(name).free_lapsed(tell).await?)
}

/// Prints how a run ended, and what was refused on the way.
fn conclude(context: &Context, outcome: Outcome) -> Result<Exit, Error> {
    let Outcome { blocked, seen, ledger, .. } = outcome;
    let decision = Decision { blocked, ..Decision::default() };
    let status: Status = summarize(&ledger, &seen, &decision);
    output::show(&block::page(context, &ledger, &status))?;
    Ok(if decision.blocked.is_empty() { Exit::Done } else { refused(ledger.spec.name.as_str(), &decision.blocked) })
}

/// Prints what was refused.
fn refused(cluster: &str, blocked: &[UnsafeBecause]) -> Exit {
    output::talk("\nnot done:");
    output::talk_page(&output::plan::blocked(cluster, blocked));
    Exit::Blocked
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("https://127.0.0.1:2379,x"), "https://127.0.0.1:2379,x");
        assert_eq!(quoted("root:it's $HOME"), r"'root:it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
