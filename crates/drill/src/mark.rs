//! Marks: moments of a run, and what happened to the cluster then.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Microseconds since the run began, by a clock that never goes back.
pub type Moment = u64;

/// Something that happened to the cluster while the clients were at work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    pub kind: MarkKind,
    pub text: String,
    pub from: Moment,
    pub to: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    Fault,
    /// A command of ours, from its start to its end.
    Command,
    /// A step that such a command did.
    Step,
}

/// A moment in seconds, with milliseconds.
pub fn seconds(moment: Moment) -> String {
    format!("{:.3}", moment as f64 / 1e6)
}

/// Moments since the beginning of the run.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// One whose run begins now.
    pub fn begin() -> Self {
        Clock(Instant::now())
    }

    pub fn now(self) -> Moment {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(Moment::MAX)
    }
}
