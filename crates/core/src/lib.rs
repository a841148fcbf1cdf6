//! The pure core of quorate: given the spec, the ledger and an observation, it decides on the next safe steps.
//!
//! Nothing here reads a clock, a file or a socket; time and observations are arguments. `cargo xtask lint` proves that
//! no dependency does I/O.

pub mod desire;
pub mod kinds;
mod listed;
pub mod model;
pub mod planner;
pub mod providers;
mod secret;
pub mod spec;
pub mod text;

pub use secret::Secret;
