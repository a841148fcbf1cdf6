//! etcd's part of the controller: status, orders, client certificates, Kubernetes, fronts, backups, and the snapshot of a restore.

pub mod backup;
pub mod clients;
pub mod front;
pub mod kubernetes;
pub(crate) mod orders;
mod snapshot;
pub(crate) mod status;
