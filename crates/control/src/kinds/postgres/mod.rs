//! What only clusters of PostgreSQL have.

pub mod backup;
pub mod clients;
pub mod dcs;
pub(crate) mod orders;
pub mod outdated;
pub(crate) mod passwords;
pub(crate) mod status;
pub mod upgrade;
