//! The name of a member: a seat in a cluster, for life. A former machine of the seat, which may still be part of the cluster
//! while its successor comes, is called by the seat and its incarnation: `etcd-2#1`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// No name in a spec can hold it.
const FORMER: char = '#';

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberName(String);

impl MemberName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the machine of an earlier incarnation is called.
    pub fn former(&self, incarnation: u64) -> MemberName {
        MemberName(format!("{}{FORMER}{incarnation}", self.seat()))
    }

    pub fn is_former(&self) -> bool {
        self.0.contains(FORMER)
    }

    /// The name of the seat alone.
    pub fn seat(&self) -> &str {
        self.0.split(FORMER).next().unwrap_or(&self.0)
    }
}

impl<T: Into<String>> From<T> for MemberName {
    fn from(name: T) -> Self {
        MemberName(name.into())
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
