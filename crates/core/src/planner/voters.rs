//! Majorities as numbers, shared by rules, messages and member lists.

use serde::Serialize;

/// How many of `voters` must agree.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// How many more of the healthy voters may fail before the cluster stops.
pub fn failures_survived(voters: usize, healthy: usize) -> usize {
    healthy.saturating_sub(quorum(voters))
}

/// The voters of a formed cluster: how many there are, and how many of them are healthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Voters {
    pub all: usize,
    pub healthy: usize,
}

/// "2 of 3 voters are healthy".
pub fn healthy_of(healthy: usize, all: usize) -> String {
    let are = if all == 1 { "voter is" } else { "voters are" };
    format!("{healthy} of {all} {are} healthy")
}

/// The fault tolerance of a cluster while a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Strength {
    pub voters: usize,
    pub healthy: usize,
    pub quorum: usize,
    pub failures_survived: usize,
}
