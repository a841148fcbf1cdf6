//! The simulated cluster: machines, agents and etcd members, in all that the planner can distinguish.
//!
//! `plan` runs `decide` against it until nothing is left to do. The model check adds an adversary. It makes no promise about time or data,
//! only about what the planner observes.

mod certificates;
mod effect;
mod machines;
mod world;

pub use certificates::take_up_trust;
pub(crate) use world::running;
pub use world::{SimAgent, SimMachine, World};
