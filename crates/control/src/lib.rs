//! The controller: observes, decides with `core`, acts through agents and providers, and records in the ledger.
//!
//! It contains no safety rules; those are in `quorate_core::planner::safety`.

pub mod backup;
pub mod brought;
pub mod clients;
pub mod home;
pub mod image;
pub mod key;
pub mod kinds;
pub mod ledger;
pub mod requests;
pub mod run;
mod secrets;
mod sign;
pub mod verbs;

pub use home::Home;
pub use run::controller::{Controller, Outcome};
pub use run::error::ControlError;
pub use run::event::{Agreed, Answer, Event, Reporter};
