//! The simulated world: machines, agents and etcds, as far as the planner can distinguish them from real ones.
//!
//! `plan` runs `decide` against it until it settles. The model check lets an adversary loose in it. It promises nothing about time or data,
//! only about what the planner looks at.

mod certificates;
mod effect;
mod machines;
mod world;

pub use certificates::take_up_trust;
pub(crate) use world::running;
pub use world::{SimAgent, SimMachine, World};
