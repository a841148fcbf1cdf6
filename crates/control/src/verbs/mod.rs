//! The decisions of commands, without a terminal. A command is prepared here: what would be done, what is refused, what the
//! operator has to confirm. The caller shows that, asks, and passes the change to a controller's run. The command line is one
//! caller; a dashboard or a long-running process would call the same functions.

pub mod apply;
pub mod destroy;
pub mod passwords;
pub mod reboot;
pub mod recover;
pub mod replace;
pub mod restore;
pub mod status;
pub mod switchover;

use jiff::Timestamp;
use quorate_agent::process;
use quorate_core::kinds::etcd::Formation;
use quorate_core::model::{Consent, Ledger, MemberName, Observation, Power};
use quorate_core::planner::{Plan, UnsafeBecause};
use quorate_core::spec::{ClusterSpec, Kind};

use crate::backup::BackupError;
use crate::brought::BroughtFiles;
use crate::home::Home;
use crate::kinds::postgres::dcs;
use crate::ledger::LedgerError;
use crate::run::error::ControlError;
use crate::run::observe::Observer;

/// A cluster as the operator wants it, with the files that its spec names.
#[derive(Debug)]
pub struct Cluster {
    pub spec: ClusterSpec,
    pub brought: BroughtFiles,
}

impl Cluster {
    /// Records in an etcd cluster's ledger which PostgreSQL clusters keep Patroni's state in it.
    pub fn register_users(&self, home: &Home, ledger: &mut Ledger) {
        dcs::forget_gone(home, ledger);
        self.brought.patroni_of.iter().for_each(|spec| dcs::register(ledger, spec));
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Backup(Box<BackupError>),
    /// The cluster is in no state for this. Another command, without its program's name, changes that.
    #[error("{what}")]
    NotNow { what: String, command: String, does: &'static str },
    #[error("{what}")]
    Refused { what: String, hint: String },
    #[error("cluster {cluster} has no member `{member}`")]
    UnknownMember { cluster: String, member: String, members: Vec<String> },
    #[error("{} cannot be removed", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
}

impl From<BackupError> for VerbError {
    fn from(error: BackupError) -> Self {
        VerbError::Backup(Box::new(error))
    }
}

impl From<LedgerError> for VerbError {
    fn from(error: LedgerError) -> Self {
        VerbError::Control(error.into())
    }
}

/// The operator's confirmation, with what was shown when it was given.
pub fn consent(shown: String) -> Consent {
    Consent { at: Timestamp::now(), by: format!("{}@{}", process::user_name(), process::host_name()), shown }
}

/// Adds what is confirmed now to what is open from before.
fn add(open: &mut Option<Consent>, confirmed: &Option<Consent>) {
    if confirmed.is_some() {
        open.clone_from(confirmed);
    }
}

/// Observes a cluster without changing anything on it.
pub async fn observe(home: &Home, ledger: &Ledger) -> Result<Observation, ControlError> {
    Observer::new(home.provider(ledger)).glance(ledger, None).await
}

/// A deletion that has begun is completed, and nothing else is done meanwhile.
pub fn refuse_if_being_destroyed(ledger: Option<&Ledger>) -> Result<(), VerbError> {
    let Some((ledger, consent)) = ledger.and_then(|l| Some((l, l.destroy.as_ref()?))) else { return Ok(()) };
    let name = &ledger.spec.name;
    let what = format!("cluster {name} is being destroyed, as {} confirmed at {}", consent.by, consent.at);
    Err(VerbError::NotNow { what, command: format!("destroy {name}"), does: "completes it" })
}

/// While it is off, its members cannot be read.
pub(crate) fn refuse_if_off(ledger: &Ledger) -> Result<(), VerbError> {
    let name = &ledger.spec.name;
    match ledger.power {
        Power::On => Ok(()),
        Power::Off => {
            let what = format!("cluster {name} is off");
            Err(VerbError::NotNow { what, command: format!("start {name}"), does: "switches it on" })
        }
    }
}

/// Refuses a cluster that does not serve clients yet, or again.
fn refuse_unless_formed(ledger: &Ledger, consequence: &str) -> Result<(), VerbError> {
    refuse_unless(ledger, Formation::is_formed, consequence)
}

/// Refuses a cluster whose bootstrap has not reached the state that the command needs.
fn refuse_unless(ledger: &Ledger, fits: impl Fn(&Formation) -> bool, consequence: &str) -> Result<(), VerbError> {
    let name = &ledger.spec.name;
    if ledger.spec.kind == Kind::Postgres && ledger.postgres.formation.is_formed() || fits(&ledger.etcd.formation) {
        return Ok(());
    }
    let (state, command, does) = match &ledger.etcd.formation {
        Formation::Recovering { .. } => ("is being recovered", "recover", "continues that"),
        Formation::Restoring { .. } => ("is being restored", "apply", "continues that"),
        _ => ("is not bootstrapped yet", "apply", "bootstraps it"),
    };
    let what = format!("cluster {name} {state}, so {consequence}");
    Err(VerbError::NotNow { what, command: format!("{command} {name}"), does })
}

/// What is refused only because of what a command asks for. If nothing can be done, everything that is in the way: the request would
/// stay in the ledger otherwise, and a later run would carry it out without asking.
fn new_refusals(before: &Plan, with: &Plan) -> Vec<UnsafeBecause> {
    if with.steps.is_empty() {
        return with.end.blocked.clone();
    }
    with.end.blocked.iter().filter(|because| !before.end.blocked.contains(because)).cloned().collect()
}

/// The machine of this name: of a member, or of a proxy.
fn member(ledger: &Ledger, name: &str) -> Result<MemberName, VerbError> {
    let members: Vec<String> = ledger.spec.machines().map(|m| m.name.to_string()).collect();
    match members.iter().any(|member| member == name) {
        true => Ok(name.into()),
        false => {
            let cluster = ledger.spec.name.to_string();
            Err(VerbError::UnknownMember { cluster, member: name.to_owned(), members })
        }
    }
}
