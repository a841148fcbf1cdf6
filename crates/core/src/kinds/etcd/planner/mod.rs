//! What is decided about etcd alone, one file per concern.

pub(crate) mod auth;
pub(crate) mod formation;
pub(crate) mod log;
pub(crate) mod membership;
pub(crate) mod program;
pub(crate) mod recovery;
pub(crate) mod restart;
pub(crate) mod restore;
pub(crate) mod version;

pub use formation::is_silent;
