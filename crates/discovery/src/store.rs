//! Where registries are kept. The protocols know nothing else about it.

use async_trait::async_trait;
use tokio::sync::watch;

use crate::registry::{MemberId, Refusal, Registration, Registry, Token};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub registry: Registry,
    /// The index of the store as a whole. It only grows.
    pub index: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    pub registration: Registration,
    pub index: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no such token, or it has expired")]
    NoToken { index: u64 },
    #[error("{refusal}")]
    Refused { refusal: Refusal, index: u64 },
    #[error("the store is full: {what}; tokens expire by themselves")]
    Full { what: String },
    #[error("{0}")]
    Failed(String),
}

/// A successful change survives a crash of this process and of its machine.
#[async_trait]
pub trait Store: Send + Sync {
    async fn create(&self, token: &Token, size: u16) -> Result<(), StoreError>;
    async fn read(&self, token: &Token) -> Result<Seen, StoreError>;
    async fn register(&self, token: &Token, id: &MemberId, value: &str) -> Result<Registered, StoreError>;
    /// Changes when the token's registry may have changed. It may also do so when nothing has.
    fn changes(&self, token: &Token) -> watch::Receiver<()>;
    /// Whether requests can be served now.
    async fn check(&self) -> Result<(), StoreError>;
    /// Deletes what has expired. Called every minute or so.
    async fn tend(&self) -> Result<(), StoreError>;
}
