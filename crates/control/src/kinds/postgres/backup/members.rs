//! The members of a cluster, as far as they work on backups. What they do takes long: it is begun, and looked at until it has ended.

use std::time::Duration;

use quorate_agent::api::{Job, JobAnswer, JobOutcome, JobRequest};
use quorate_agent::client::{AgentClient, ClientError};
use quorate_core::kinds::postgres::backup::{Sources, sources};
use quorate_core::model::{Ledger, MemberName};

use crate::home::Home;
use crate::kinds::etcd::backup::{BackupError, Doing, Teller, note};
use crate::run::observe::Sight;

const PAUSE: Duration = Duration::from_millis(500);
/// An agent that is not reached may be about to be replaced, or its network is.
const UNREACHED: u32 = 240;

pub(super) struct Members<'a> {
    cluster: &'a str,
    sight: Sight,
    sources: Sources,
}

impl<'a> Members<'a> {
    pub(super) async fn look(home: &Home, ledger: &'a Ledger) -> Result<Self, BackupError> {
        let now = note::ledger_of_now(home, ledger);
        let mut sight = Sight::new(home.provider(&now));
        let seen = sight.glance(&now, None).await?;
        let cluster = ledger.spec.name.as_str();
        let none = || BackupError::NoPrimary { cluster: cluster.to_owned() };
        Ok(Members { cluster, sight, sources: sources(&seen).ok_or_else(none)? })
    }

    pub(super) fn primary(&self) -> &MemberName {
        &self.sources.primary
    }

    pub(super) fn workshop(&self) -> &MemberName {
        &self.sources.workshop
    }

    pub(super) async fn on_primary(
        &self,
        job: Job,
        what: &'static str,
        teller: &dyn Teller,
    ) -> Result<JobOutcome, BackupError> {
        self.carry_out(self.sources.primary.clone(), job, what, teller).await
    }

    pub(super) async fn in_workshop(
        &self,
        job: Job,
        what: &'static str,
        teller: &dyn Teller,
    ) -> Result<JobOutcome, BackupError> {
        self.carry_out(self.sources.workshop.clone(), job, what, teller).await
    }

    async fn carry_out(
        &self,
        member: MemberName,
        job: Job,
        what: &'static str,
        teller: &dyn Teller,
    ) -> Result<JobOutcome, BackupError> {
        let none = || BackupError::NoPrimary { cluster: self.cluster.to_owned() };
        let agent = self.sight.agent(&member).ok_or_else(none)?;
        let id = quorate_pki::random_hex(8);
        let asked = |source| BackupError::Agent { member: member.to_string(), source };
        let answer = agent.job(&JobRequest::Begin { id: id.clone(), job }).await.map_err(asked)?;
        match until_ended(agent, id, answer, |doing| {
            teller.doing(Doing::Working { member: member.as_str(), what: doing })
        })
        .await
        .map_err(asked)?
        {
            JobOutcome::Failed { why } => Err(BackupError::Job { member: member.to_string(), what, why }),
            outcome => Ok(outcome),
        }
    }

    /// An agent answers with the outcome of something else.
    pub(super) fn misunderstood(&self) -> BackupError {
        let why = String::from("its agent answers with something else");
        BackupError::Job { member: self.sources.primary.to_string(), what: "do what it was asked for", why }
    }
}

async fn until_ended(
    agent: &AgentClient,
    id: String,
    mut answer: JobAnswer,
    tell: impl Fn(&str),
) -> Result<JobOutcome, ClientError> {
    let mut unreached = 0;
    loop {
        if let Some(outcome) = answer.outcome {
            return Ok(outcome);
        }
        tell(&answer.doing);
        tokio::time::sleep(PAUSE).await;
        let looked = agent.job(&JobRequest::Look { id: id.clone() }).await;
        answer = match looked {
            Err(ClientError::Unreachable { .. }) if unreached < UNREACHED => {
                unreached += 1;
                JobAnswer { doing: answer.doing, outcome: None }
            }
            looked => looked?,
        };
    }
}
