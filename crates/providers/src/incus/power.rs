//! Switching instances on and off.

use hyper::Method;
use quorate_core::model::PowerState;
use serde_json::{Value, json};

use super::Incus;
use super::error::IncusError;
use super::instance::{AUTOSTART_KEY, Instance};
use super::server::{Call, Server};

impl Incus {
    async fn set_state(&self, server: &Server, seen: &Instance, doing: &str, state: &Value) -> Result<(), IncusError> {
        let call = Call::new(format!("{doing} {}", seen.name), Method::PUT, format!("{}/state", seen.path()));
        server.change(call.json(state)).await
    }

    /// The power of exactly the instance that was seen; none where it is gone.
    async fn power_now(&self, server: &Server, seen: &Instance) -> Result<Option<PowerState>, IncusError> {
        let now = self.look_at(server, &seen.name).await?;
        Ok(now.filter(|(now, _)| now.uuid == seen.uuid).map(|(now, _)| now.power))
    }

    /// Also when its host boots.
    pub(super) async fn power_on(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        self.change(server, seen, &json!({ "config": { AUTOSTART_KEY: "true" } })).await?;
        match self.set_state(server, seen, "start", &json!({ "action": "start", "timeout": 60 })).await {
            Err(error @ IncusError::Refused { .. }) => match self.power_now(server, seen).await? {
                Some(PowerState::On) => Ok(()),
                _ => Err(error),
            },
            started => started,
        }
    }

    /// Without a shutdown.
    pub(super) async fn power_off(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        match self.power_now(server, seen).await? {
            None | Some(PowerState::Off) => return Ok(()),
            Some(_) => {}
        }
        match self.set_state(server, seen, "stop", &json!({ "action": "stop", "force": true, "timeout": 30 })).await {
            Err(error @ IncusError::Refused { .. }) => match self.power_now(server, seen).await? {
                None | Some(PowerState::Off) => Ok(()),
                Some(_) => Err(error),
            },
            stopped => stopped,
        }
    }

    /// Shuts an instance down, and kills it after a while.
    pub(super) async fn shut_down(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        if self.power_now(server, seen).await? == Some(PowerState::On) {
            let asked = json!({ "action": "stop", "force": false, "timeout": self.stop_patience.as_secs() });
            // One that does not is killed.
            let _ = self.set_state(server, seen, "stop", &asked).await;
        }
        self.power_off(server, seen).await
    }

    /// Also after its host boots.
    pub(super) async fn keep_off(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        match self.change(server, seen, &json!({ "config": { AUTOSTART_KEY: "false" } })).await {
            Err(error) if error.is_absent() => return Ok(()),
            changed => changed?,
        }
        self.shut_down(server, seen).await
    }
}
