//! Backups of etcd clusters: full snapshots and the changes between them, in an object store or a directory; what there is, what is
//! damaged, what may go; and the proof that one can be restored. It promises that a backup whose manifest exists is complete, and that
//! nothing is called good that was not restored and compared. It is given the living cluster as a [`Source`] and changes nothing there.

pub mod catalog;
pub mod choose;
mod damage;
mod error;
pub mod full;
pub mod keys;
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
