//! What a run reports while it goes on.

use quorate_core::model::Observation;
use quorate_core::planner::{Decision, Step};

use crate::run::error::ControlError;

/// What the loop tells whoever watches it.
#[derive(Debug)]
pub enum Event<'a> {
    Looked { seen: &'a Observation, decision: &'a Decision },
    Begins(&'a Step),
    Done(&'a Step),
    Failed(&'a Step, &'a ControlError),
}

pub trait Reporter {
    fn report(&self, event: Event<'_>);
}
