//! One run: observe, decide, act, until nothing is left to do.

mod act;
mod certificates;
pub mod controller;
pub mod error;
pub mod event;
pub mod history;
mod met;
pub mod observe;
mod upgrade;
