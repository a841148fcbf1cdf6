//! Completions that clap does not know: cluster and member names. The shell's script runs this program each time, because names
//! change. Nothing here may ask for a key or print an error.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};
use quorate_control::Home;
use quorate_core::model::Ledger;

use crate::cli::Cli;

/// Set only by the scripts. The usual name, COMPLETE, may be set for something else.
const VARIABLE: &str = "QUORATE_COMPLETE";

/// Answers a completion request of a shell and exits.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The script that a shell runs at startup.
pub fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let writer = shells.completer(&shell.to_string()).expect("both lists have the same shells");
    writer.write_registration(VARIABLE, "quorate", "quorate", "quorate", &mut script).expect("memory can be written");
    script
}

/// The clusters known here.
pub fn clusters() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        known().into_iter().map(|ledger| CompletionCandidate::new(ledger.spec.name.as_str())).collect()
    })
}

/// The clusters known here, and files.
pub fn clusters_or_files() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let starts = |name: &str| typed.to_str().is_some_and(|typed| name.starts_with(typed));
        let names = known().into_iter().map(|ledger| ledger.spec.name.to_string()).filter(|name| starts(name));
        names.map(CompletionCandidate::new).chain(PathCompleter::file().complete(typed)).collect()
    })
}

/// The members and proxies of the cluster that the command line names.
pub fn members() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let words = words();
        let is_named = |ledger: &Ledger| words.iter().any(|word| word == ledger.spec.name.as_str());
        let names = |ledger: Ledger| ledger.spec.machines().map(|machine| machine.name.to_string()).collect::<Vec<_>>();
        known().into_iter().filter(is_named).flat_map(names).map(CompletionCandidate::new).collect()
    })
}

fn known() -> Vec<Ledger> {
    let Some(home) = home() else { return Vec::new() };
    let entries = std::fs::read_dir(home.clusters()).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut ledgers: Vec<Ledger> = names.filter_map(|name| home.store(&name).without_secrets()).collect();
    ledgers.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    ledgers
}

/// Resolved like in the command itself.
fn home() -> Option<Home> {
    let words = words();
    let given = words.iter().enumerate().find_map(|(at, word)| match word.to_str()?.strip_prefix("--home")? {
        "" => words.get(at + 1).map(PathBuf::from),
        rest => rest.strip_prefix('=').map(PathBuf::from),
    });
    given.map_or_else(Home::from_environment, |root| Some(Home::at(root)))
}

/// The words of the command line that is being completed: the script puts them behind `--`.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(1).collect()
}
