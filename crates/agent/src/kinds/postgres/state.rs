//! What the agent remembers about PostgreSQL.

use quorate_core::model::Stamp;
use serde::{Deserialize, Serialize};

use super::programs::Programs;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PostgresState {
    pub(crate) programs: Programs,
    /// Whether Patroni is meant to run.
    pub(crate) wanted_running: bool,
    pub(crate) last_started: Option<Stamp>,
    /// Patroni was started without data, to clone it, and no data has been seen since. One that dies meanwhile is started again; where data
    /// was lost, it is not.
    pub(crate) cloning: bool,
    /// The repositories of backups that were prepared and checked from here.
    pub(crate) repository: Option<String>,
}
