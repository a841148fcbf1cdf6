//! A new formation from a copy of what one survivor holds.

use quorate_core::model::Stamp;

use crate::agent::Agent;
use crate::api::Refusal;

impl Agent {
    pub(crate) async fn downgrade(&self, version: String) -> Result<(), Refusal> {
        Err(Refusal::Failed { why: format!("downgrade to {version}") })
    }

    pub(crate) async fn rebuild(&self, _was: Stamp, _stamp: Stamp, _url: String, _bump: u64) -> Result<(), Refusal> {
        Err(Refusal::Failed { why: String::from("rebuild") })
    }
}
