//! How etcd is kept running: as a supervised child under the local provider, by systemd on machines. Whether it may run is
//! decided elsewhere; a service only keeps running what it was told to start, and says how that goes.

pub(crate) mod child;
pub(crate) mod systemd;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::model::ServiceState;
use serde::{Deserialize, Serialize};

use crate::AgentError;
use crate::files::Owner;

pub(crate) type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// etcd hands its leadership over and closes its database when asked to end.
pub(crate) const PATIENT: Duration = Duration::from_secs(10);
/// For one whose data is given up. A follower ends well within this; a leader whose followers are gone would look for a successor in vain.
pub(crate) const HURRIED: Duration = Duration::from_millis(500);

/// Asked before etcd is started again by itself, in this way.
pub(crate) type Gate = Arc<dyn Fn(Launch) -> Doing<'static, Result<(), AgentError>> + Send + Sync>;

/// How etcd is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Further arguments, for as long as etcd has not come into being. Never remembered: whoever comes later cannot know
    /// that etcd still has not.
    #[serde(skip)]
    pub(crate) first_args: Vec<String>,
    /// Of the inputs that etcd is started with.
    pub(crate) digest: String,
    /// What the program must be. Not known of an etcd that an older agent started.
    #[serde(default)]
    pub(crate) version: Option<String>,
}

/// Said at every start but the first. etcd ignores it where it has data; where the data has vanished, it makes etcd fail
/// instead of founding a cluster of its own.
pub(crate) const NEVER_NEW: &str = "--initial-cluster-state=existing";

impl Launch {
    pub(crate) fn all_args(&self) -> Vec<String> {
        let mut args = self.args.clone();
        if self.first_args.is_empty() {
            args.push(NEVER_NEW.to_owned());
        }
        args.extend(self.first_args.iter().cloned());
        args
    }
}

pub(crate) trait Service: Send + Sync {
    /// Starts etcd and from then on keeps it running.
    fn start(&self, launch: Launch, gate: Gate) -> Doing<'_, Result<(), AgentError>>;

    /// Takes over an etcd that an earlier agent started, if it still runs.
    fn adopt(&self, gate: Gate) -> Doing<'_, bool>;

    /// Ends etcd, or what is left of it, and keeps it ended. One that takes longer than this is killed.
    fn stop(&self, patience: Duration) -> Doing<'_, Result<(), AgentError>>;

    fn look(&self) -> Doing<'_, ServiceState>;

    /// etcd has come into being: what was for its first start only is forgotten.
    fn came_into_being(&self);

    /// To whom etcd's files must belong, where not to the agent's own user.
    fn owner(&self) -> Result<Option<Owner>, AgentError>;
}
