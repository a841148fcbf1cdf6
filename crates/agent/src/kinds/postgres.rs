//! The PostgreSQL of this machine, under Patroni: its data, starting and stopping it, its status, and the orders that use it.
//!
//! Patroni never creates data here. The agent creates the first data of a cluster, once; every other member clones it.

mod backup;
mod catalog;
mod config;
mod data;
mod dcs;
mod facts;
mod haproxy;
mod holding;
mod initialize;
pub mod jobs;
mod layout;
pub mod order;
mod orders;
mod pgbackrest;
mod pgbouncer;
mod private;
mod processes;
mod programs;
mod psql;
mod rest;
mod restore;
mod serve;
mod service;
mod start;
mod state;
mod status;
mod tablespaces;
mod takeover;
mod temporary;
mod tools;
mod upgrade;
mod user;
mod verify;
mod watchdog;
mod wipe;

use std::sync::{Arc, Mutex};

use quorate_core::kinds::postgres::{RestoreSeen, TaskSeen, desire, repository};
use quorate_core::model::Exit;

use jobs::Jobs;
use tokio::task::JoinHandle;

use crate::AgentError;

pub(crate) use haproxy::complaint as haproxy_complaint;
pub(crate) use pgbouncer::SETTINGS as PGBOUNCER_SETTINGS;
pub(crate) use private::remove_remnants;
pub(crate) use quorate_core::kinds::postgres::{HAPROXY, PGBOUNCER, SERVICE};
pub(crate) use state::PostgresState;

/// Below the root, what is written for PostgreSQL by the agent alone, and what is stored next to it under longer names.
pub(crate) const PLACES: [&str; 6] = [
    desire::HOME_DIRECTORY,
    desire::PKI_DIRECTORY,
    desire::CONFIG_FILE,
    repository::CONFIG_FILE,
    haproxy::CONFIG_FILE,
    pgbouncer::DIRECTORY,
];

/// What an agent holds for its PostgreSQL while it runs.
#[derive(Default)]
pub(crate) struct Postgres {
    /// Why Patroni, which should run, does not, though nobody keeps starting it.
    not_started: Mutex<Option<Exit>>,
    jobs: Jobs,
    /// A backup that is being restored next to the data, or has failed to be.
    restoring: Mutex<Option<RestoreSeen>>,
    /// What works on that.
    restore_task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// Looks for programs that are missing.
    search: tokio::sync::Mutex<Option<JoinHandle<Result<(), AgentError>>>>,
    /// What is done in the background, or was.
    task: Mutex<Option<TaskSeen>>,
    /// Whose clients are held back now.
    held: Arc<Mutex<holding::Held>>,
    woken: Mutex<status::Woken>,
}
