//! The etcd of this machine: its data, its starts and ends, what it says of itself, and the orders that go through it.

mod access;
mod auth;
pub mod binaries;
pub(crate) mod clients;
mod complaint;
mod data;
mod downgrade;
pub(crate) mod health;
mod http;
mod membership;
mod older;
mod pages;
mod probe;
pub(crate) mod read;
mod renew;
pub(crate) mod staging;
mod start;
pub(crate) mod trust;
mod wal;

pub(crate) use access::Access;
pub(crate) use auth::change as change_auth;
pub(crate) use complaint::last_complaint;
pub(crate) use data::look as look_at_data;
pub(crate) use membership::Change;
pub(crate) use probe::{Look, Prober, ask_auth};
pub(crate) use renew::{Origin, Renewal};
pub(crate) use wal::LogReader;
