//! The controller's side of a restore's snapshot: sends it to machines, and verifies it. Neither touches the data of a member.

use jiff::Timestamp;
use quorate_agent::api::{Refusal, UploadRequest};
use quorate_agent::client::ClientError;
use quorate_core::model::MemberName;
use quorate_core::text::with_causes;

use super::backup::verify_raised;
use crate::run::controller::Controller;
use crate::run::error::ControlError;

impl Controller {
    /// Sends the snapshot that is stored here to a machine.
    pub(crate) async fn stage(&self, member: &MemberName, sha256: &str, bytes: u64) -> Result<(), ControlError> {
        let path = self.home.snapshot(self.held.ledger().spec.name.as_str(), sha256);
        let opened = tokio::fs::File::open(&path).await;
        let file = opened.map_err(|source| ControlError::Snapshot { path, source })?;
        let request = UploadRequest { fence: self.held.fence(), sha256: sha256.to_owned(), bytes };
        self.agent(member)?.stage(&request, file).await.map_err(|error| match error {
            // No room, or no program to restore with: sending it again does not help.
            ClientError::Refused(Refusal::NotAsExpected { expected, found }) => {
                ControlError::NotStaged { member: member.clone(), expected, found }
            }
            error => error.into(),
        })
    }

    /// Nothing was touched yet. So if it fails, the request is dropped, and whatever else is to be done does not wait for it.
    pub(crate) async fn verify_snapshot(&self, sha256: &str, bump_revision: u64) -> Result<(), ControlError> {
        let ledger = self.held.ledger();
        let Some(wish) = ledger.etcd.restore.as_ref().filter(|wish| wish.sha256 == sha256) else { return Ok(()) };
        let snapshot = self.home.snapshot(ledger.spec.name.as_str(), sha256);
        let verified = verify_raised(&self.home, &ledger.spec, &snapshot, wish.keys, bump_revision).await;
        let Err(error) = verified else { return Ok(()) };
        self.held.write(Timestamp::now(), |ledger| ledger.etcd.restore = None)?;
        Err(ControlError::Verification { why: with_causes(&error) })
    }
}
