//! Orders: carried out one at a time, and refused if older than the newest one seen.

use std::sync::Arc;

use quorate_core::model::Busy;

use crate::agent::{Agent, UnderWay};
use crate::api::{Envelope, Order, Refusal};
use crate::state::InPlace;

impl Agent {
    pub(crate) async fn obey(self: &Arc<Self>, envelope: Envelope) -> Result<(), Refusal> {
        let Envelope { fence, order } = envelope;
        let _one_at_a_time = self.orders.lock().await;
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        self.confirm_trial().await?;
        // Before the fence is checked, so that a controller that raises it afterwards sees the order under way.
        let _under_way = UnderWay::begin(self, Busy { order: order.name().to_owned(), fence });
        self.state.obey_fence(fence).await?;
        tracing::info!(fence, order = order.name(), "ordered");
        match order {
            Order::Converge { generation, digest, services, config, search } => {
                self.converge(fence, InPlace { generation, digest, services, config }, search).await
            }
            Order::InstallCertificates { trust, certificates } => self.install_certificates(trust, certificates).await,
            Order::Service { name, command } => self.act_on_service(&name, command).await,
            Order::Etcd(order) => self.obey_for_etcd(order).await,
            Order::Postgres(order) => self.obey_for_postgres(order).await,
            Order::Drain { member, for_ms } => self.drain(&member, for_ms).await,
            Order::Reboot { boot, upgrade_packages } => self.reboot(fence, boot, upgrade_packages),
        }
    }
}
