//! Backups and restores at the command line, on real clusters and with a real S3 server: the life of a backup for the oldest, a
//! common and the newest etcd, reports of damage before any data is replaced, and the restore after a total loss.

mod backed;
pub use backed::make_identity;
mod bad_input;
mod damage;
mod elsewhere;
mod lost;
mod whole_way;
