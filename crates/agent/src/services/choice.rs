//! A service that runs either under this machine's usual supervisor or under its kubelet, as each start says; never both. What one of
//! them runs is stopped before the other one starts it.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::model::ServiceState;

use super::static_pod::StaticPod;
use super::{Doing, Gate, Launch, PATIENT, Profile, Service};
use crate::AgentError;
use crate::files::Owner;
use crate::layout::Layout;

pub(crate) struct Choice {
    usual: Arc<dyn Service>,
    pod: StaticPod,
}

impl Choice {
    pub(crate) fn new(layout: Layout, profile: Profile, usual: Arc<dyn Service>) -> Self {
        Choice { usual, pod: StaticPod::new(layout, profile) }
    }
}

impl Service for Choice {
    fn start(&self, launch: Launch, gate: Gate) -> Doing<'_, Result<(), AgentError>> {
        Box::pin(async move {
            if launch.pod.is_some() {
                self.usual.stop(PATIENT).await?;
                return self.pod.start(launch, gate, self.usual.owner()?).await;
            }
            self.pod.stop(PATIENT).await?;
            self.usual.start(launch, gate).await
        })
    }

    fn adopt(&self, gate: Gate) -> Doing<'_, bool> {
        Box::pin(async move {
            let owner = self.usual.owner().unwrap_or_default();
            self.pod.adopt(gate.clone(), owner).await || self.usual.adopt(gate).await
        })
    }

    fn stop(&self, patience: Duration) -> Doing<'_, Result<(), AgentError>> {
        Box::pin(async move {
            // The kubelet first: it would start again what somebody else has ended.
            self.pod.stop(patience).await?;
            self.usual.stop(patience).await
        })
    }

    fn look(&self) -> Doing<'_, ServiceState> {
        Box::pin(async move { if self.pod.is_there() { self.pod.look() } else { self.usual.look().await } })
    }

    fn first_start_succeeded(&self) {
        self.pod.first_start_succeeded();
        self.usual.first_start_succeeded();
    }

    fn owner(&self) -> Result<Option<Owner>, AgentError> {
        self.usual.owner()
    }
}
