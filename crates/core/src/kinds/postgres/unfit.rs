//! Why a member cannot take over from the primary, in words. Which reasons apply is decided in `safety`; refusals repeat them.

use std::fmt;

use serde::Serialize;

/// A standby that lags by more does not take over in a switchover: clients would wait for it.
pub(crate) const MOST_LAG: u64 = 16 << 20;

/// Why a member cannot take over from the primary.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Unfit {
    Leaves,
    /// Its tags say so.
    NeverPrimary,
    /// Its position, or the primary's, is not known.
    Silent,
    NotStreaming,
    /// A commit does not wait for it, so it may lack some. Those that commits wait for are named as Patroni calls them.
    NotSynchronous {
        standbys: Vec<String>,
    },
    Lags {
        bytes: u64,
    },
}

impl Unfit {
    /// Another member that can take over.
    pub(crate) fn other(&self) -> Option<&str> {
        match self {
            Unfit::NotSynchronous { standbys } => standbys.first().map(String::as_str),
            Unfit::Leaves | Unfit::NeverPrimary | Unfit::Silent | Unfit::NotStreaming | Unfit::Lags { .. } => None,
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Leaves => write!(f, "the spec does not name it"),
            Unfit::NeverPrimary => write!(f, "its tags say that it never becomes the primary"),
            Unfit::Silent => write!(f, "its position in the log is unknown"),
            Unfit::NotStreaming => write!(f, "it does not stream from the primary"),
            Unfit::NotSynchronous { standbys } if standbys.is_empty() => {
                write!(f, "it may lack confirmed commits: Patroni has recorded no synchronous standby yet")
            }
            Unfit::NotSynchronous { standbys } => {
                write!(f, "it may lack confirmed commits: commits wait for {}", standbys.join(", "))
            }
            Unfit::Lags { bytes } => write!(f, "it lags by {bytes} bytes (at most {MOST_LAG} are allowed)"),
        }
    }
}
