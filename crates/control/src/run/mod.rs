//! One run: observe, decide, act, until nothing is left to do.

pub(crate) mod act;
pub mod controller;
pub mod history;
pub mod observe;
mod upgrade;
