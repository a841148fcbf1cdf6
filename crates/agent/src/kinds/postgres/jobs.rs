//! Backup jobs, which can take hours. One request starts a job and others poll it, so it continues when the controller exits. One at a
//! time.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quorate_core::Secret;
use quorate_core::kinds::postgres::RestoreTarget;
use quorate_core::kinds::postgres::backup::{BackupChecked, BackupKind, BackupTaken, Mark};
use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::api::Refusal;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobRequest {
    /// Starts it, unless the job with this id was started before.
    Begin {
        id: String,
        job: Job,
    },
    Look {
        id: String,
    },
    /// Ends a job that runs until it is ended.
    End {
        id: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Writes a row into the primary, which identifies a restored backup.
    Mark,
    /// Archives all log that was written until now.
    StoreLog,
    BackUp {
        kind: BackupKind,
        /// pgBackRest's number of the store.
        repository: u8,
        /// On a replica: how to reach the primary, which has what a replica lacks.
        #[serde(default)]
        primary: Option<PrimaryFiles>,
    },
    /// Offers files of the primary to the replica that takes a backup, until it is ended or no longer polled.
    Serve(ServerPass),
    /// Restores a backup into a temporary PostgreSQL and checks all of it.
    Verify { target: RestoreTarget, mark: Mark },
    /// Removes a backup, those that depend on it, and the log that only they need.
    Expire { label: String, repository: u8 },
}

impl Job {
    fn name(&self) -> String {
        match self {
            Job::Mark => String::from("mark the data"),
            Job::StoreLog => String::from("store the log"),
            Job::BackUp { kind, .. } => format!("take a backup ({kind})"),
            Job::Serve(_) => String::from("give files to the replica that takes a backup"),
            Job::Verify { target, .. } => format!("verify backup {}", target.label),
            Job::Expire { label, .. } => format!("remove backup {label}"),
        }
    }
}

/// The certificate of a server for one backup, and its one client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerPass {
    pub pass: Pass,
    /// The common name of the one client.
    pub client: String,
}

/// A certificate that is made for one backup, its key, and the CA of both ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pass {
    pub ca: String,
    pub certificate: String,
    pub key: Secret,
}

/// How a replica reaches the files of the primary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrimaryFiles {
    pub address: IpAddr,
    pub pass: Pass,
    pub paths: ServedPaths,
}

/// Where files are on the machine of the primary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServedPaths {
    pub data: PathBuf,
    /// pgBackRest's configuration there.
    pub config: PathBuf,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobAnswer {
    /// Of a server, once it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<ServedPaths>,
    pub doing: String,
    /// Absent while it is running.
    pub outcome: Option<JobOutcome>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    Marked(Mark),
    LogStored,
    BackedUp(Box<BackupTaken>),
    /// The result, or the problem of the backup.
    Verified(Result<BackupChecked, String>),
    Expired,
    /// It was ended, or no longer polled.
    Served,
    /// It failed. For a verification, this says nothing about the backup.
    Failed {
        why: String,
    },
}

/// The last one that was begun.
#[derive(Default)]
pub(crate) struct Jobs(Mutex<Option<Begun>>);

struct Begun {
    id: String,
    name: String,
    doing: String,
    serves: Option<ServedPaths>,
    /// When the controller last asked for it.
    looked: Instant,
    is_over: bool,
    outcome: Option<JobOutcome>,
}

impl Jobs {
    /// The state of the job with this id.
    fn look(&self, id: &str) -> Option<JobAnswer> {
        let mut begun = self.0.lock().expect("no holder panics");
        let begun = begun.as_mut().filter(|begun| begun.id == id)?;
        begun.looked = Instant::now();
        Some(JobAnswer { serves: begun.serves.clone(), doing: begun.doing.clone(), outcome: begun.outcome.clone() })
    }

    /// Whether a job that runs until it is ended should end.
    pub(super) fn is_over(&self, lease: Duration) -> bool {
        let begun = self.0.lock().expect("no holder panics");
        begun.as_ref().is_none_or(|begun| begun.is_over || begun.looked.elapsed() > lease)
    }

    fn have_ended(&self, id: &str) {
        if let Some(begun) = self.0.lock().expect("no holder panics").as_mut().filter(|begun| begun.id == id) {
            begun.is_over = true;
        }
    }

    pub(super) fn serves(&self, paths: ServedPaths) {
        if let Some(begun) = self.0.lock().expect("no holder panics").as_mut() {
            begun.serves = Some(paths);
        }
    }

    fn begin(&self, id: &str, job: &Job) -> Result<(), Refusal> {
        let mut begun = self.0.lock().expect("no holder panics");
        if let Some(Begun { name, outcome: None, .. }) = &*begun {
            return Err(Refusal::failed(format!("this machine is busy: {name}")));
        }
        let (name, doing) = (job.name(), job.name());
        let looked = Instant::now();
        *begun = Some(Begun { id: id.to_owned(), name, doing, serves: None, looked, is_over: false, outcome: None });
        Ok(())
    }

    pub(super) fn doing(&self, what: impl Into<String>) {
        if let Some(begun) = self.0.lock().expect("no holder panics").as_mut() {
            begun.doing = what.into();
        }
    }

    fn end(&self, outcome: JobOutcome) {
        if let Some(begun) = self.0.lock().expect("no holder panics").as_mut() {
            begun.outcome = Some(outcome);
        }
    }
}

impl Agent {
    pub(crate) async fn job(self: &Arc<Self>, request: JobRequest) -> Result<JobAnswer, Refusal> {
        let (id, job) = match request {
            JobRequest::Begin { id, job } => (id, Some(job)),
            JobRequest::Look { id } => (id, None),
            JobRequest::End { id } => {
                self.postgres.jobs.have_ended(&id);
                (id, None)
            }
        };
        let jobs = &self.postgres.jobs;
        if let Some(answer) = jobs.look(&id) {
            return Ok(answer);
        }
        let Some(job) = job else {
            return Err(Refusal::failed(
                "the agent was restarted during the work; it cannot tell whether the work was done",
            ));
        };
        jobs.begin(&id, &job)?;
        tracing::info!(job = job.name(), "begins");
        let agent = self.clone();
        tokio::spawn(async move {
            let name = job.name();
            let outcome = agent.carry_out(job).await.unwrap_or_else(|why| JobOutcome::Failed { why: why.to_string() });
            tracing::info!(job = name, failed = matches!(outcome, JobOutcome::Failed { .. }), "has ended");
            agent.postgres.jobs.end(outcome);
        });
        jobs.look(&id).ok_or_else(|| Refusal::failed("another one was begun at the same time"))
    }

    async fn carry_out(self: &Arc<Self>, job: Job) -> Result<JobOutcome, Refusal> {
        match job {
            Job::Mark => self.mark().await.map(JobOutcome::Marked),
            Job::StoreLog => self.store_log().await.map(|()| JobOutcome::LogStored),
            Job::BackUp { kind, repository, primary } => {
                Ok(JobOutcome::BackedUp(Box::new(self.back_up(kind, repository, primary).await?)))
            }
            Job::Serve(pass) => self.serve_files(&pass).await.map(|()| JobOutcome::Served),
            Job::Verify { target, mark } => self.verify_backup(&target, mark).await.map(JobOutcome::Verified),
            Job::Expire { label, repository } => {
                self.expire_backup(&label, repository).await.map(|()| JobOutcome::Expired)
            }
        }
    }
}
