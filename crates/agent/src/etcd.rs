//! The etcd of this machine: its data, its starts and ends, what it says of itself, and the orders that go through it.

mod access;
mod auth;
mod complaint;
mod data;
mod downgrade;
mod http;
mod membership;
mod older;
mod pages;
mod probe;
mod renew;
mod start;
mod wal;

pub(crate) use access::Access;
pub(crate) use auth::change as change_auth;
pub(crate) use complaint::last_complaint;
pub(crate) use data::look as look_at_data;
pub(crate) use membership::Change;
pub(crate) use probe::{Look, Prober, ask_auth};
pub(crate) use renew::{Origin, Renewal};
pub(crate) use wal::LogReader;
