//! PostgreSQL under Patroni: its settings; how a cluster is created, cloned, configured and changed; and the rules that protect its
//! commits.
//!
//! Patroni does the failover. quorate never promotes, demotes or elects; it decides what may be disturbed and when, and asks Patroni
//! to do it.

pub mod backup;
pub mod check;
pub mod desire;
mod facts;
mod hba;
pub mod older_dcs;
pub mod parameters;
pub mod planner;
pub(crate) mod ports;
mod record;
pub(crate) mod remember;
pub mod repository;
mod reserved;
pub mod safety;
pub(crate) mod simulate;
pub mod spec;
mod unfit;
mod wish;

pub use facts::{
    ArchiveSeen, Catalog, CatalogOp, ControlSeen, DataState, LogEnd, PatroniStatus, PostgresFacts, ReplacedSeen,
    RestoreSeen, RestoreState, Role, Standby, TaskSeen,
};
pub use record::{
    DcsCertificate, DcsLogin, DcsUser, Formation, FormedWith, Known, Passwords, Previous, Record, RestoreTarget,
    RestoreWish, Rotation, RotationStage, SwitchoverRequest, Until, Upgrade, UpgradeFailed,
};
pub use unfit::Unfit;
pub use wish::{Dcs, RotationWish, Wish};

/// The service of a machine that keeps PostgreSQL: Patroni, whose child PostgreSQL is.
pub const SERVICE: &str = "patroni";
/// The proxy in front of it.
pub const HAPROXY: &str = "haproxy";
pub const PGBOUNCER: &str = "pgbouncer";
/// The user that owns the data, and the superuser of the database.
pub const SUPERUSER: &str = "postgres";
/// Logs in for streaming replication, and for `pg_rewind`.
pub const REPLICATOR: &str = "replicator";
pub const REWINDER: &str = "rewinder";
pub const CLIENT_PORT: u16 = 5432;
/// The port where the primary offers its files to a replica that takes a backup.
pub const BACKUP_PORT: u16 = 8432;
/// Patroni's REST API.
pub const REST_PORT: u16 = 8008;
