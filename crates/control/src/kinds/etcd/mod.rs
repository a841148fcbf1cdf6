//! etcd's part of the controller: its status, its orders, the certificates of its clients, what Kubernetes needs, what a front needs,
//! its backups, and the snapshot of a restore.

pub mod backup;
pub mod clients;
pub mod front;
pub mod kubernetes;
pub(crate) mod orders;
mod snapshot;
pub(crate) mod status;
