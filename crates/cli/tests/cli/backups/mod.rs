//! Backups and restores at the command line, on real clusters and against a real S3 server: the whole way of a backup for the oldest,
//! a common and the newest etcd, what is said of damage before anything is given up, and the way back when all is lost.

mod backed;
pub use backed::make_identity;
mod bad_input;
mod damage;
mod elsewhere;
mod lost;
mod whole_way;
