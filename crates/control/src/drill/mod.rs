//! The drill: rehearses faults on a running cluster under a workload, and gives a verdict.

pub mod check;
pub mod history;
