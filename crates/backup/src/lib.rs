//! Backups of etcd clusters: full snapshots and the changes between them, in an object store or a directory. Lists them, finds damage,
//! prunes, and proves that one can be restored. A backup with a manifest is complete, and a backup is called good only after it was
//! restored and compared. The running cluster is passed in as a [`Source`], and nothing is changed there.

pub mod catalog;
pub mod choose;
mod damage;
mod error;
pub mod full;
pub mod keys;
mod leases;
mod living;
pub mod manifest;
pub mod mirror;
mod names;
mod pipe;
pub mod postgres;
pub mod prepare;
pub mod prune;
pub mod recorder;
pub mod replay;
pub mod retention;
pub mod segment;
pub mod settings;
mod signed;
mod small;
pub mod source;
pub mod store;
pub mod throwaway;
pub mod verify;

pub use damage::Damage;
pub use error::Error;
pub use names::{BackupId, Names, Span};
pub use signed::{Signature, Trust};
pub use source::{Source, SourceError};
pub use store::Store;
