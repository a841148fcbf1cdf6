//! Upgrades the agent of one machine to this program, over the agent's port.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use quorate_agent::api::{FactsRequest, UploadRequest};
use quorate_agent::client::{AgentClient, ClientError, Look};
use quorate_agent::upload::file_digest;
use quorate_core::model::{MemberName, Program, ProgramSeen};
use quorate_core::text::with_causes;
use tokio::sync::OnceCell;

use crate::run::controller::Controller;
use crate::run::error::ControlError;

/// This program, also when its file has been replaced since it was started.
const THIS: &str = "/proc/self/exe";
/// For the old agent to exit and the new one to start. A later one is rolled back by itself.
const PATIENCE: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(100);

impl Controller {
    /// Sends this program to a machine and waits until its agent runs it. If the agent does not accept it, it is not tried again in this
    /// run.
    pub(crate) async fn upgrade_agent(&self, member: &MemberName) -> Result<(), ControlError> {
        let upgraded = self.send_program(member).await;
        if let Err(error) = &upgraded {
            self.not_upgraded.borrow_mut().insert(member.clone(), with_causes(error));
        }
        upgraded
    }

    async fn send_program(&self, member: &MemberName) -> Result<(), ControlError> {
        let (sha256, bytes) = offer().await?.clone();
        let agent = self.agent(member)?;
        let fence = self.held.fence();
        let program = tokio::fs::File::open(THIS).await.map_err(unread)?;
        let request = UploadRequest { fence, sha256, bytes };
        // Afterwards it remembers our number, also if it was of another protocol and is asked for its facts only then.
        self.sight.told(member);
        match agent.upgrade(&request, program).await {
            // It may have left for the new program before its answer was on its way.
            Ok(()) | Err(ClientError::Unreachable { .. }) => self.await_upgrade(member, agent, fence).await,
            Err(error) => Err(error.into()),
        }
    }

    /// The first request also shows the new agent that it can be reached.
    async fn await_upgrade(&self, member: &MemberName, agent: &AgentClient, fence: u64) -> Result<(), ControlError> {
        let upgraded = async {
            loop {
                match look(agent, fence).await {
                    Ok(Some(program)) if !program.runs.is_older_than(Program::this()) => return Ok(()),
                    Ok(Some(ProgramSeen { failed: Some(failed), .. })) => return Err(failed.why),
                    Ok(_) | Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        let waited = tokio::time::timeout(PATIENCE, upgraded).await;
        let late = || Err(format!("the new program did not answer within {} s", PATIENCE.as_secs()));
        waited.unwrap_or_else(|_| late()).map_err(|why| ControlError::Upgrade { member: member.clone(), why })
    }
}

/// SHA-256 and length of this program, which stay the same for as long as it runs.
async fn offer() -> Result<&'static (String, u64), ControlError> {
    static OFFER: OnceCell<(String, u64)> = OnceCell::const_new();
    let digest = || tokio::task::spawn_blocking(|| file_digest(Path::new(THIS)));
    OFFER.get_or_try_init(async || digest().await.expect("reading a file does not panic").map_err(unread)).await
}

fn unread(source: std::io::Error) -> ControlError {
    ControlError::OwnProgram { source }
}

async fn look(agent: &AgentClient, fence: u64) -> Result<Option<ProgramSeen>, ClientError> {
    Ok(match agent.look(&FactsRequest { fence: Some(fence), auth: false, reach: BTreeSet::new() }).await? {
        Look::Facts(facts) => Some(facts.program),
        Look::OtherProtocol { program, .. } => Some(program),
        Look::Unenrolled { .. } => None,
    })
}
