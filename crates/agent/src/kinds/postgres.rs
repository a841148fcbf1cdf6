//! The PostgreSQL of this machine, under Patroni: its data, its starts and ends, what Patroni says of it, and the orders that go through it.
//!
//! Patroni never creates data here. The agent creates the first data of a cluster itself, once; every other member clones it.

mod catalog;
mod config;
mod data;
mod dcs;
mod facts;
mod initialize;
mod layout;
pub mod order;
mod orders;
mod processes;
mod programs;
mod psql;
mod rest;
mod service;
mod start;
mod state;
mod status;
mod tools;
mod user;
mod wipe;

use std::sync::Mutex;

use quorate_core::kinds::postgres::desire;
use quorate_core::model::Exit;

pub(crate) use quorate_core::kinds::postgres::SERVICE;
pub(crate) use state::PostgresState;

/// Below the root, what is written for PostgreSQL by the agent alone, and what is stored next to it under longer names.
pub(crate) const PLACES: [&str; 3] = ["var/lib/postgresql", desire::PKI_DIRECTORY, desire::CONFIG_FILE];

/// What an agent holds for its PostgreSQL while it runs.
#[derive(Default)]
pub(crate) struct Postgres {
    /// Why Patroni, which should run, does not, though nobody keeps starting it.
    not_started: Mutex<Option<Exit>>,
}
