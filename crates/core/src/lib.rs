//! The pure heart of quorate: what the operator wrote, what was seen, and which one safe step follows.
//!
//! Nothing here reads a clock, a file or a socket; time and all that was seen are arguments. `cargo xtask lint`
//! proves that no crate with input or output hides among its dependencies.

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
