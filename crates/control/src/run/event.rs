//! What a run reports while it continues.

use std::pin::Pin;

use quorate_core::model::Observation;
use quorate_core::planner::{Decision, Step};

use crate::run::error::ControlError;

/// Progress of a run, for its reporter.
#[derive(Debug)]
pub enum Event<'a> {
    Looked { seen: &'a Observation, decision: &'a Decision },
    Begins(&'a Step),
    Done(&'a Step),
    Failed(&'a Step, &'a ControlError),
}

/// An answer that may take as long as a person needs.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Agreed, ControlError>> + 'a>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agreed {
    /// Everything was agreed to before.
    Before,
    /// The operator was asked. The cluster may have changed since it was observed.
    Now,
}

pub trait Reporter {
    fn report(&self, event: Event<'_>);

    /// Asked before steps are carried out. An error ends the run.
    fn agrees<'a>(&'a self, _: &'a [Step]) -> Answer<'a> {
        Box::pin(std::future::ready(Ok(Agreed::Before)))
    }
}
