//! The controller: looks, decides with `core`, acts through agents and providers, and remembers in the ledger.
//!
//! It contains no rule about safety; those are in `quorate_core::planner::safety`.

mod act;
pub mod backup;
pub mod brought;
pub mod clients;
pub mod controller;
pub mod history;
pub mod home;
pub mod image;
pub mod key;
pub mod ledger;
pub mod observe;
mod secrets;
pub mod status;
mod upgrade;
pub mod verbs;

pub use controller::{ControlError, Controller, Event, Outcome, Reporter};
pub use home::Home;
