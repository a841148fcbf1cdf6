//! The planner: a pure function from the desired state and an observation to the next safe steps.
//!
//! One file per concern; each gets the same `View`. Safety rules are in `safety` and nowhere else. `simulate` runs the same function
//! against a simulated cluster, which `plan` shows and the model check explores.

mod action;
mod agents;
mod blocked;
pub(crate) mod certificates;
pub(crate) mod config;
mod decide;
mod decision;
mod destroy;
pub(crate) mod enrolment;
pub(crate) mod fixtures;
pub(crate) mod machines;
mod plan;
pub(crate) mod proxies;
pub(crate) mod reboot;
mod remarks;
pub mod remember;
pub(crate) mod renewal;
pub(crate) mod repair;
pub(crate) mod revocation;
mod rule;
pub mod safety;
pub mod simulate;
mod step;
pub(crate) mod trust;
mod view;
pub mod voters;
mod waiting;

pub use action::{Action, Effect};
pub use blocked::{Change, UnsafeBecause};
pub use certificates::{is_due, renewal_window, sans as certificate_sans};
pub use decide::decide;
pub use decision::Decision;
pub use plan::{Plan, plan};
pub use remarks::{Remark, RemarkKind, Surroundings, remarks};
pub(crate) use repair::Loss;
pub use rule::Rule;
pub use step::{Precondition, Reason, Step};
pub use view::View;
pub use voters::Strength;
pub use waiting::{Outstanding, WaitingFor};
