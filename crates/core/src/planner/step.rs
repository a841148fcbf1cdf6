//! Steps: one action each, with its reason and its precondition.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Action;
use crate::kinds::etcd::Membership;
use crate::model::DataSeen;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Step {
    pub action: Action,
    pub why: Reason,
    pub expects: Precondition,
}

/// The reason of a step, for the operator.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reason(String);

impl Reason {
    pub fn new(text: impl Into<String>) -> Self {
        Reason(text.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The condition that must still hold when the step runs; the agent checks it again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precondition {
    Nothing,
    Data(DataSeen),
    /// etcd's own list of members.
    Membership(Membership),
    /// The member is not the primary: Patroni may have promoted it since the observation.
    Replica,
}
