//! Backups and restores at the command line, on real clusters and against a real S3 server: the whole way of a backup for the oldest,
//! a common and the newest etcd, what is said of damage before anything is given up, and the way back when all is lost.

#[path = "backups/backed.rs"]
mod backed;
#[path = "backups/bad_input.rs"]
mod bad_input;
mod common;
#[path = "backups/damage.rs"]
mod damage;
#[path = "backups/elsewhere.rs"]
mod elsewhere;
#[path = "backups/lost.rs"]
mod lost;
#[path = "backups/whole_way.rs"]
mod whole_way;
