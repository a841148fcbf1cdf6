//! etcd's part of the controller: its status, the certificates of its clients, what Kubernetes needs, and its backups.

pub mod backup;
pub mod clients;
pub mod kubernetes;
pub mod status;
