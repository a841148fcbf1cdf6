//! One run: observe, decide, act, until nothing is left to do.

mod act;
pub mod controller;
pub mod error;
pub mod event;
pub mod history;
pub mod observe;
mod upgrade;
