//! Makes files and programs match the configuration. Running services are not touched: they read what they need only at
//! startup when they are ordered to restart. A configuration is applied completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use quorate_core::model::{NodeConfig, Runs, ServiceConfig};

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::kinds::{etcd, postgres};
use crate::layout::Layout;
use crate::services::Service;
use crate::state::{InPlace, State, check_generation};

/// The owner of a service's files.
pub(crate) type Owners = BTreeMap<String, Owner>;

impl Agent {
    pub(crate) async fn converge(
        self: &Arc<Self>,
        fence: u64,
        in_place: InPlace,
        search: Option<String>,
    ) -> Result<(), Refusal> {
        let config = &in_place.config;
        let state = self.state.get();
        check_generation(state.node_config.as_ref(), in_place.generation, &in_place.digest)?;
        check_services(&config.services)?;
        for file in &config.files {
            check_path(&file.path)?;
            if file.bytes().is_none() {
                return Err(Refusal::Failed { why: format!("{} is not hexadecimal", file.path) });
            }
        }
        let in_the_way = self.certificates_in_the_way(config)?.or_else(|| self.pod_in_the_way(config));
        let in_the_way = in_the_way.or_else(|| self.watchdog_in_the_way(config));
        if let Some(obstacle) = in_the_way {
            self.note_not_ready(fence, &in_place.digest, obstacle);
            return Ok(());
        }
        let search = search.filter(|_| !self.keeps_host).or_else(|| state.search.clone());
        let Some(binary) = self.program_for(fence, &in_place, search.as_deref()).await else { return Ok(()) };
        // Files first: a generation counts as in place only when it is. What an interrupted one left is overwritten by the
        // next, and files that only an older one had are known from the state.
        let old = state.node_config.as_ref().map(|in_place| NodeConfig::clone(&in_place.config));
        self.put_files(old, NodeConfig::clone(config)).await?;
        self.put_host(config).await?;
        let programs = self.postgres_programs_for(config, search.as_deref()).await;
        if config.patroni().is_some() {
            self.note_programs(fence, &in_place.digest, programs.missing());
        }
        let take = |state: &mut State| {
            (state.node_config, state.etcd.binary, state.search) = (Some(in_place), binary, search);
            state.postgres.programs = programs;
        };
        self.state.update(take).await?;
        self.put_patroni_config().await?;
        // They may have to be somewhere else now. Those of an etcd that runs stay where it was told that they are.
        self.put_certificates().await?;
        self.reload_postgres().await;
        self.stop_unlisted().await?;
        self.keep_haproxy().await;
        self.keep_pgbouncer().await;
        self.keep_front().await;
        self.help_up().await;
        Ok(())
    }

    pub(crate) async fn put_files(&self, old: Option<NodeConfig>, config: NodeConfig) -> Result<(), AgentError> {
        let mut owners = Owners::new();
        for service in &config.services {
            if let Some(owner) = self.service_of(service).await?.owner()? {
                owners.extend(service.inputs.iter().map(|path| (path.clone(), owner)));
            }
        }
        let layout = self.layout.clone();
        crate::blocking(move || put(&layout, old.as_ref(), &config, &owners)).await
    }

    async fn service_of(&self, service: &ServiceConfig) -> Result<Arc<dyn Service>, AgentError> {
        match &service.runs {
            Runs::Etcd(_) => Ok(self.etcd.service.clone()),
            Runs::Patroni(_) => self.patroni().await,
            Runs::Haproxy(_) | Runs::Pgbouncer(_) | Runs::Front(_) | Runs::Program(_) => {
                self.services.with(self.plain_profile(service)).await
            }
        }
    }
}

/// Names become file and unit names, so they must be valid and unique.
fn check_services(services: &[ServiceConfig]) -> Result<(), Refusal> {
    let mut names = BTreeSet::new();
    for ServiceConfig { name, runs, .. } in services {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let own = match runs {
            Runs::Etcd(_) => name == etcd::SERVICE,
            Runs::Patroni(_) => name == postgres::SERVICE,
            Runs::Haproxy(_) => name == postgres::HAPROXY,
            Runs::Pgbouncer(_) => name == postgres::PGBOUNCER,
            Runs::Front(_) => name == etcd::FRONT,
            Runs::Program(_) => {
                let taken =
                    [etcd::SERVICE, etcd::FRONT, postgres::SERVICE, postgres::HAPROXY, postgres::PGBOUNCER, "agent"];
                !taken.contains(&name.as_str())
            }
        };
        if name.is_empty() || !name.chars().all(is_plain) || !own || !names.insert(name) {
            return Err(Refusal::Failed { why: format!("{name:?} cannot be the name of a service here") });
        }
    }
    Ok(())
}

/// A configuration comes from the controller, but must not reach outside of the root or into the agent's own state.
fn check_path(path: &str) -> Result<(), Refusal> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    // And what is stored next to them under a longer name: `etcd.stamp`, `etcd.staged`, `etcd.before-…`, `pki-…`.
    let own = ["var/lib/quorate", "run/quorate", "run/agent.lock", "usr/lib/quorate"];
    let clean = Path::new(path).components().collect::<PathBuf>();
    let clean = clean.to_string_lossy();
    if plain
        && !path.is_empty()
        && !own.iter().chain(&etcd::PLACES).chain(&postgres::PLACES).any(|taken| clean.starts_with(taken))
    {
        Ok(())
    } else {
        Err(Refusal::Failed { why: format!("a configuration may not write {path:?}") })
    }
}

pub(crate) fn put(
    layout: &Layout,
    old: Option<&NodeConfig>,
    config: &NodeConfig,
    owners: &Owners,
) -> Result<(), AgentError> {
    for file in &config.files {
        let content = file.bytes().unwrap_or_default();
        // Files that no service reads, such as root's password, must not be readable by service users.
        files::ensure(&layout.root().join(&file.path), &content, file.mode, owners.get(&file.path).copied())?;
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
