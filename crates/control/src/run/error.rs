//! Errors of a run, or of one of its steps.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use quorate_core::model::MemberName;
use quorate_core::planner::WaitingFor;
use quorate_providers::ProviderError;

use crate::ledger::LedgerError;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("{users} keeps Patroni's state in {cluster}")]
    UsedBy { cluster: String, users: String },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error("a certificate could not be created")]
    Pki(#[from] quorate_pki::Error),
    #[error(transparent)]
    Agent(#[from] quorate_agent::client::ClientError),
    #[error("could not {action}")]
    Step { action: String, source: Box<ControlError> },
    #[error("{0}")]
    Enrolment(String),
    #[error("the agent of {member} did not accept the new program: {why}")]
    Upgrade { member: MemberName, why: String },
    #[error("this program's own file cannot be read")]
    OwnProgram { source: io::Error },
    #[error("the snapshot {} cannot be read", path.display())]
    Snapshot { path: PathBuf, source: io::Error },
    #[error("the snapshot was not verified, so the restore is abandoned and existing data was not touched: {why}")]
    Verification { why: String },
    #[error("{member} cannot take the snapshot: expected {expected}, found {found}")]
    NotStaged { member: MemberName, expected: String, found: String },
    #[error("the bootstrap failed {times} times: {why}")]
    FormationFails { times: u32, why: String },
    #[error("after {rounds} rounds there is still something to do, which is a bug in quorate: {step}")]
    NeverSettles { rounds: u32, step: String },
    #[error("a step that was not in the plan shown needs confirmation: {}", steps.join("; "))]
    NotAgreed { steps: Vec<String> },
    #[error("no progress for {} seconds; still waiting for {}{}", waited.as_secs(), texts(waiting).join("; "), consoles(last_words))]
    OutOfPatience {
        waited: Duration,
        waiting: Vec<WaitingFor>,
        /// The last console output of machines whose agents never answered.
        last_words: Vec<(MemberName, String)>,
    },
}

fn texts(items: &[impl ToString]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn consoles(last_words: &[(MemberName, String)]) -> String {
    let shown = last_words.iter().map(|(member, words)| {
        let lines: Vec<String> = words.lines().map(|line| format!("    {line}")).collect();
        format!("\n  the console of {member} ends with:\n{}", lines.join("\n"))
    });
    shown.collect()
}

impl ControlError {
    /// The error, whatever step it prevented.
    pub fn cause(&self) -> &Self {
        match self {
            ControlError::Step { source, .. } => source.cause(),
            cause => cause,
        }
    }

    /// Whether another attempt right away would end the same way.
    pub fn is_final(&self) -> bool {
        matches!(self.cause(), ControlError::Verification { .. } | ControlError::NotStaged { .. })
    }

    /// Why the provider has no room for another machine, if that is what failed.
    pub fn no_room(&self) -> Option<String> {
        match self.cause() {
            ControlError::Provider(error) => error.no_room(),
            _ => None,
        }
    }

    /// Whether continuing would conflict with another controller. Only the ledger can say so: an agent that claims it may lie.
    pub fn is_taken_over(&self) -> bool {
        matches!(self.cause(), ControlError::Ledger(LedgerError::Lost { .. }))
    }
}
