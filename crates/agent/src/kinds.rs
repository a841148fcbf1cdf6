//! What only one kind of cluster has on its machines, one module per kind.

pub mod etcd;
pub mod postgres;

use crate::agent::Agent;

impl Agent {
    /// Whether this member can serve clients, for the health page.
    pub(crate) async fn health(&self) -> Result<(), &'static str> {
        if self.has_patroni() { self.postgres_health().await } else { self.etcd_health().await }
    }
}
