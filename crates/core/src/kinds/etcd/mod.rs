//! etcd: its settings and flags, versions and users; how a cluster is bootstrapped, changed, recovered and restored; and the rules that
//! protect its data and quorum.

pub(crate) mod check;
pub mod cluster;
pub mod desire;
mod facts;
pub mod flags;
pub mod front;
pub mod limits;
pub mod pki;
pub mod planner;
pub mod pod;
pub(crate) mod ports;
mod record;
pub(crate) mod remember;
pub mod safety;
pub mod simulate;
pub mod spec;
mod users;
pub mod versions;
mod wish;

pub use facts::{
    AlarmSeen, AuthLook, EtcdFacts, EtcdStatus, LogEnd, MemberEntry, Membership, OldEntries, OlderData, Staged,
};
pub use record::{
    AuthRecord, Formation, FormedWith, FormingMember, JwtKeys, LostMajority, OwnedUser, Record, RecoveryRequest,
    RestoreWish,
};
pub use users::{Access, AuthOp, AuthSeen, Permission};
pub use wish::{AuthWish, Restore, UserWish, Wish};

/// Its name among the services of a machine, and the user it runs as there.
pub const SERVICE: &str = "etcd";
