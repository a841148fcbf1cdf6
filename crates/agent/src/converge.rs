//! Makes files and programs be as the node config says. A running etcd is left alone: it takes up what it reads
//! only at its start when it is ordered to restart. A config is taken as a whole or not at all.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use quorate_core::model::{BinarySeen, ConfigAttempt, EtcdService, NodeConfig, ServiceState};

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::kinds::etcd::binaries::{self, BinaryError};
use crate::layout::Layout;
use crate::state::{Binary, InPlace, State, check_generation};
use quorate_core::text::with_causes;

impl Agent {
    pub(crate) async fn converge(
        self: &Arc<Self>,
        fence: u64,
        in_place: InPlace,
        search: Option<String>,
    ) -> Result<(), Refusal> {
        let (generation, digest, config) = (in_place.generation, in_place.digest.clone(), &in_place.config);
        let state = self.state.get();
        check_generation(state.node_config.as_ref(), generation, &digest)?;
        for file in &config.files {
            check_path(&file.path)?;
            if file.bytes().is_none() {
                return Err(Refusal::Failed { why: format!("{} is said to be hexadecimal and is not", file.path) });
            }
        }
        let search = search.filter(|_| !self.keeps_host).or_else(|| state.search.clone());
        let binary = self.find_binary(&config.etcd, search.as_deref()).await;
        let is_there = binary.seen == BinarySeen::Version(config.etcd.version.clone());
        let attempt = ConfigAttempt::WithoutProgram { digest: digest.clone(), seen: binary.seen.clone() };
        *self.attempt.lock().expect("no holder panics") = (!is_there).then_some((fence, attempt));
        // etcd could not be started with it after a boot, and what it was started with would be gone.
        if !is_there && state.last_started.is_some() {
            tracing::warn!(
                generation,
                version = config.etcd.version,
                "the node config is not taken: its etcd is not here"
            );
            return Ok(());
        }
        // Files first: a generation counts as in place only when it is. What an interrupted one left is overwritten by the
        // next, and files that only an older one had are known from the state.
        let old = state.node_config.as_ref().map(|in_place| NodeConfig::clone(&in_place.config));
        self.put_files(old, NodeConfig::clone(config)).await?;
        self.put_host(config.host.as_deref()).await?;
        let take =
            |state: &mut State| (state.node_config, state.binary, state.search) = (Some(in_place), binary, search);
        self.state.update(take).await?;
        self.help_up().await;
        Ok(())
    }

    /// An etcd that keeps ending, or that could not be started, is not left to its old settings: these may be the cause.
    async fn help_up(self: &Arc<Self>) {
        let failed = self.not_started.lock().expect("no holder panics").is_some();
        if !failed && !matches!(self.service.look().await, ServiceState::BackingOff { .. }) {
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
    async fn find_binary(&self, etcd: &EtcdService, search: Option<&str>) -> Binary {
        // What was found once is as good for as long as it is there, also for a controller whose PATH leads elsewhere.
        if let Some(kept) = self.kept_program(etcd).await {
            return kept;
        }
        let own = std::env::var_os("PATH").unwrap_or_default();
        let all = search.map(OsStr::new).into_iter().chain([own.as_os_str()]).flat_map(std::env::split_paths);
        let all = std::env::join_paths(all).unwrap_or_default();
        let found = binaries::locate(&etcd.binary, &etcd.version, &self.cache, Some(&all)).await;
        match found {
            Ok(binary) => self.keep_program(binary),
            Err(BinaryError::WrongVersion { found, path, .. }) => {
                Binary { path: Some(path), seen: BinarySeen::Version(found), home: None }
            }
            Err(error) => {
                let mut why = AgentError::from(error).in_full();
                if let Some(trouble) = self.network_trouble(&etcd.binary).await {
                    why = format!("{why}; {trouble}");
                }
                tracing::warn!(why, "etcd's program is missing");
                Binary { path: None, seen: BinarySeen::Missing { why }, home: None }
            }
        }
    }

    /// The program of the config in place, where the same is wanted from the same source and it still is what it was.
    async fn kept_program(&self, etcd: &EtcdService) -> Option<Binary> {
        let state = self.state.get();
        let in_place = &state.node_config.as_ref()?.config.etcd;
        let same = in_place.version == etcd.version && in_place.binary == etcd.binary;
        let now = if same { self.binary_now().await } else { return None };
        (now.seen == BinarySeen::Version(etcd.version.clone())).then_some(now)
    }

    /// systemd starts etcd again without asking. So its unit names a program of our own, which nobody exchanges unasked as an upgrade of
    /// packages does.
    fn keep_program(&self, found: binaries::Binary) -> Binary {
        let binaries::Binary { etcd, version } = found;
        let home = etcd.parent().map(Path::to_owned);
        let path = if self.keeps_host {
            let in_use = self.state.get().binary.path.clone();
            binaries::keep(&etcd, &version, &self.cache, in_use.as_deref()).unwrap_or_else(|error| {
                tracing::warn!(error = with_causes(&error), "etcd's program could not be kept apart");
                etcd.clone()
            })
        } else {
            etcd
        };
        Binary { path: Some(path), seen: BinarySeen::Version(version), home }
    }

    /// The program as it is now: it may have been exchanged or removed since it was found.
    pub(crate) async fn binary_now(&self) -> Binary {
        let known = self.state.get().binary.clone();
        let Some(path) = &known.path else { return known };
        let seen = match binaries::version_of(path, &self.cache).await {
            Ok(version) => BinarySeen::Version(version),
            Err(error) => BinarySeen::Missing { why: AgentError::from(error).in_full() },
        };
        Binary { seen, ..known }
    }

    /// Looks for the program of the config in place once more, where it is not what it was.
    pub(crate) async fn find_binary_again(&self) -> Result<(), AgentError> {
        let state = self.state.get();
        let Some(in_place) = &state.node_config else { return Ok(()) };
        let binary = self.find_binary(&in_place.config.etcd, state.search.as_deref()).await;
        self.state.update(|state| state.binary = binary).await
    }
}

/// A node config comes from the controller, and still nothing it says may reach outside of the root or into the agent's
/// own memory.
fn check_path(path: &str) -> Result<(), Refusal> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    // And what lies beside them under a longer name: `etcd.stamp`, `etcd.staged`, `etcd.before-…`, `pki-…`.
    let own = ["var/lib/quorate", "var/lib/etcd", "etc/etcd/pki", "run/quorate", "run/agent.lock", "usr/lib/quorate"];
    let clean = Path::new(path).components().collect::<PathBuf>();
    let clean = clean.to_string_lossy();
    if plain && !path.is_empty() && !own.iter().any(|taken| clean.starts_with(taken)) {
        Ok(())
    } else {
        Err(Refusal::Failed { why: format!("a node config may not write {path:?}") })
    }
}

pub(crate) fn put(
    layout: &Layout,
    old: Option<&NodeConfig>,
    config: &NodeConfig,
    owner: Option<Owner>,
) -> Result<(), AgentError> {
    for file in &config.files {
        let content = file.bytes().unwrap_or_default();
        // What etcd does not read, such as root's password, is none of its user's business.
        let owner = owner.filter(|_| config.etcd.inputs.contains(&file.path));
        files::ensure(&layout.root().join(&file.path), &content, file.mode, owner)?;
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
        let outside = ["", "/etc/passwd", "../up", "etc/../../up", "./var/lib/etcd", "var//lib/etcd.stamp"];
        let own = [
            "var/lib/quorate/state.json",
            "etc/etcd/pki/ca.crt",
            "etc/etcd/pki-2/ca.crt",
            "run/agent.lock",
            "usr/lib/quorate/quorate",
        ];
        let data =
            ["etcd/member", "etcd.stamp", "etcd.staged/x", "etcd.disk/etcd.stamp", "etcd.before-t", "etcd.renewal"];
        let data = data.map(|name| format!("var/lib/{name}"));
        for path in outside.into_iter().chain(own).chain(data.iter().map(String::as_str)) {
            assert!(check_path(path).is_err(), "{path:?}");
        }
    }
}
