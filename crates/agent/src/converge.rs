//! Makes files and programs be as the node config says. A running etcd is left alone: it takes up what it reads
//! only at its start when it is ordered to restart.

use std::path::{Component, Path};
use std::sync::Arc;

use quorate_core::model::{BinarySeen, NodeConfig, ServiceState};

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::binaries::{self, BinaryError};
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::state::{Binary, InPlace, check_generation};

impl Agent {
    pub(crate) async fn converge(self: &Arc<Self>, generation: u64, config: NodeConfig) -> Result<(), Refusal> {
        let digest = config.digest();
        let state = self.state.get();
        check_generation(state.node_config.as_ref(), generation, &digest)?;
        for file in &config.files {
            check_path(&file.path)?;
        }
        // Files first: a generation counts as in place only when it is. What an interrupted one left is overwritten by the
        // next, and files that only an older one had are known from the state.
        let old = state.node_config.as_ref().map(|in_place| in_place.config.clone());
        self.put_files(old, config.clone()).await?;
        self.put_host(config.host.as_deref()).await?;
        let binary = self.find_binary(&config).await;
        let in_place = InPlace { generation, digest, config };
        self.state.update(|state| (state.node_config, state.binary) = (Some(in_place), binary)).await?;
        self.help_up().await;
        Ok(())
    }

    /// An etcd that keeps ending is not left to its old settings: these may be the cause.
    async fn help_up(self: &Arc<Self>) {
        if !matches!(self.service.look().await, ServiceState::BackingOff { .. }) {
            return;
        }
        if let Err(why) = self.restart_etcd().await {
            tracing::info!(%why, "etcd is not started with its new settings");
        }
    }

    pub(crate) async fn put_files(&self, old: Option<NodeConfig>, config: NodeConfig) -> Result<(), AgentError> {
        let (layout, owner) = (self.layout.clone(), self.service.owner()?);
        crate::blocking(move || put(&layout, old.as_ref(), &config, owner)).await
    }

    /// Another version, or none at all, does not fail the order: the facts carry it, and whoever plans decides.
    async fn find_binary(&self, config: &NodeConfig) -> Binary {
        let search = std::env::var_os("PATH");
        let found = binaries::locate(&config.etcd.binary, &config.etcd.version, &self.cache, search.as_deref()).await;
        match found {
            Ok(binary) => Binary { path: Some(binary.etcd), seen: BinarySeen::Version(binary.version) },
            Err(BinaryError::WrongVersion { found, path, .. }) => {
                Binary { path: Some(path), seen: BinarySeen::Version(found) }
            }
            Err(error) => {
                let mut why = AgentError::from(error).in_full();
                if let Some(trouble) = self.network_trouble(&config.etcd.binary).await {
                    why = format!("{why}; {trouble}");
                }
                tracing::warn!(why, "etcd's program is missing");
                Binary { path: None, seen: BinarySeen::Missing { why } }
            }
        }
    }
}

/// A node config comes from the controller, and still nothing it says may reach outside of the root or into the agent's
/// own memory.
fn check_path(path: &str) -> Result<(), Refusal> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let own = ["var/lib/quorate", "var/lib/etcd", "var/lib/etcd.disk", "etc/etcd/pki"];
    if plain && !path.is_empty() && !own.iter().any(|taken| Path::new(path).starts_with(taken)) {
        Ok(())
    } else {
        Err(Refusal::Failed { why: format!("a node config may not write {path:?}") })
    }
}

fn put(layout: &Layout, old: Option<&NodeConfig>, config: &NodeConfig, owner: Option<Owner>) -> Result<(), AgentError> {
    for file in &config.files {
        let content = file.content.expose().as_bytes();
        files::ensure(&layout.root().join(&file.path), content, file.mode, owner)?;
    }
    let gone = |path: &str| !config.files.iter().any(|file| file.path == path);
    for file in old.iter().flat_map(|old| &old.files).filter(|file| gone(&file.path)) {
        files::remove(&layout.root().join(&file.path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_config_stays_inside_the_root_and_outside_of_the_agents_memory() {
        assert!(check_path("etc/etcd/jwt.pem").is_ok());
        for path in ["", "/etc/passwd", "../up", "etc/../../up", "var/lib/quorate/state.json", "etc/etcd/pki/ca.crt"] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
    }
}
