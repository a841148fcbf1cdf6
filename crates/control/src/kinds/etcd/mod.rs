//! etcd's part of the controller: its status, the certificates of its clients, and its backups.

pub mod backup;
pub mod clients;
pub mod status;
