//! Backup jobs on members. They take long, so they are started and then polled.

use std::time::Duration;

use quorate_agent::api::{Job, JobAnswer, JobOutcome, JobRequest, ServedPaths, ServerPass};
use quorate_agent::client::{AgentClient, ClientError};
use quorate_core::kinds::postgres::backup::{Sources, sources};
use quorate_core::model::{Ledger, MemberName};

use crate::backup::{BackupError, Doing, Teller, note};
use crate::home::Home;
use crate::run::observe::Observer;

/// More often than an agent's timeout.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const GIVE: &str = "give its files to the replica";
const PAUSE: Duration = Duration::from_millis(500);
/// An unreachable agent may be about to be replaced, or its network may be down.
const UNREACHED: u32 = 240;

pub(super) struct Members<'a> {
    cluster: &'a str,
    sight: Observer,
    sources: Sources,
}

impl<'a> Members<'a> {
    pub(super) async fn look(home: &Home, ledger: &'a Ledger) -> Result<Self, BackupError> {
        let now = note::ledger_of_now(home, ledger);
        let mut sight = Observer::new(home.provider(&now));
        let seen = sight.glance(&now, None).await?;
        let cluster = ledger.spec.name.as_str();
        let none = || BackupError::NoPrimary { cluster: cluster.to_owned() };
        Ok(Members { cluster, sight, sources: sources(&seen).ok_or_else(none)? })
    }

    pub(super) fn primary(&self) -> &MemberName {
        &self.sources.primary
    }

    /// A replica from which a backup can be taken.
    pub(super) fn replica(&self) -> Option<&MemberName> {
        self.sources.replica()
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

    /// Makes the primary offer its files to a replica during a backup, which begins when their address is known.
    pub(super) async fn with_files_of_primary(
        &self,
        pass: ServerPass,
        backup: impl AsyncFnOnce(ServedPaths) -> Result<JobOutcome, BackupError>,
    ) -> Result<JobOutcome, BackupError> {
        let (primary, id) = (&self.sources.primary, quorate_pki::random_hex(8));
        let none = || BackupError::NoPrimary { cluster: self.cluster.to_owned() };
        let agent = self.sight.agent(primary).ok_or_else(none)?;
        let asked = |source| BackupError::Agent { member: primary.to_string(), source };
        let begin = JobRequest::Begin { id: id.clone(), job: Job::Serve(pass) };
        let mut answer = agent.job(&begin).await.map_err(asked)?;
        let paths = loop {
            if let Some(paths) = answer.serves {
                break paths;
            }
            if let Some(outcome) = answer.outcome {
                let why = match outcome {
                    JobOutcome::Failed { why } => why,
                    _ => String::from("it ended at once"),
                };
                return Err(BackupError::Job { member: primary.to_string(), what: GIVE, why });
            }
            tokio::time::sleep(PAUSE).await;
            answer = agent.job(&JobRequest::Look { id: id.clone() }).await.map_err(asked)?;
        };
        let taken = tokio::select! {
            taken = backup(paths) => taken,
            why = until_not_served(agent, &id) => Err(BackupError::FilesLost { member: primary.to_string(), why }),
        };
        // It ends by itself if it is not polled.
        let _ = agent.job(&JobRequest::End { id }).await;
        taken
    }

    pub(super) async fn on(
        &self,
        member: &MemberName,
        job: Job,
        what: &'static str,
        teller: &dyn Teller,
    ) -> Result<JobOutcome, BackupError> {
        self.carry_out(member.clone(), job, what, teller).await
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

    /// An agent answered with the result of something else.
    pub(super) fn misunderstood(&self) -> BackupError {
        let why = String::from("its agent gives an unexpected answer");
        BackupError::Job { member: self.sources.primary.to_string(), what: "do what it was asked for", why }
    }
}

/// Polls a server, which runs while it is polled. Returns why it ended; an agent that does not answer may answer later.
async fn until_not_served(agent: &AgentClient, id: &str) -> String {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        match agent.job(&JobRequest::Look { id: id.to_owned() }).await {
            Ok(JobAnswer { outcome: Some(JobOutcome::Failed { why }), .. }) => return why,
            Ok(JobAnswer { outcome: Some(_), .. }) => return String::from("it stopped"),
            Ok(_) | Err(ClientError::Unreachable { .. }) => {}
            Err(error) => return error.to_string(),
        }
    }
}

async fn until_ended(
    agent: &AgentClient,
    id: String,
    mut answer: JobAnswer,
    tell: impl Fn(&str),
) -> Result<JobOutcome, ClientError> {
    let (mut unreached, mut told) = (0, String::new());
    loop {
        if let Some(outcome) = answer.outcome {
            return Ok(outcome);
        }
        if answer.doing != told {
            tell(&answer.doing);
            told.clone_from(&answer.doing);
        }
        tokio::time::sleep(PAUSE).await;
        let looked = agent.job(&JobRequest::Look { id: id.clone() }).await;
        answer = match looked {
            Err(ClientError::Unreachable { .. }) if unreached < UNREACHED => {
                unreached += 1;
                JobAnswer { outcome: None, ..answer }
            }
            looked => looked?,
        };
    }
}
