//! The etcd of this machine: its data, starting and stopping it, its status, and the orders that use it.

mod access;
mod auth;
pub mod binaries;
mod clients;
mod complaint;
mod data;
mod downgrade;
mod facts;
mod front;
mod membership;
mod old_entries;
mod older;
pub mod order;
mod orders;
mod pages;
mod parts;
mod probe;
mod prober;
mod program;
mod read;
mod recreate;
mod service;
mod staging;
mod start;
mod state;
pub(crate) mod trust;
mod wal;

pub(crate) use front::SETTINGS as FRONT_SETTINGS;
pub(crate) use parts::Etcd;
pub(crate) use quorate_core::kinds::etcd::SERVICE;
pub(crate) use quorate_core::kinds::etcd::front::FRONT;
use quorate_core::kinds::etcd::{front as of_front, pki};
pub(crate) use service::profile;
pub(crate) use state::EtcdState;

/// Below the root, what is written for etcd by the agent alone, and what is stored next to it under longer names.
pub(crate) const PLACES: [&str; 5] =
    ["var/lib/etcd", pki::DIRECTORY, pki::KUBEADM_DIRECTORY, of_front::PKI_DIRECTORY, of_front::DRAINED_FILE];
