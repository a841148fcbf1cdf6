//! The etcd program of this machine: found for a configuration, and checked again before each start.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use quorate_core::model::{BinarySeen, ConfigAttempt, EtcdService, ServiceState};
use quorate_core::text::with_causes;

use super::binaries::{self, BinaryError};
use super::state::Binary;
use crate::AgentError;
use crate::agent::Agent;
use crate::error::Obstacle;
use crate::state::InPlace;

impl Agent {
    /// The program for a config that is to be taken. None: the config cannot be taken, as its etcd is not here and could not be started with
    /// it after a boot, and what etcd was started with would be gone.
    pub(crate) async fn program_for(&self, fence: u64, given: &InPlace, search: Option<&str>) -> Option<Binary> {
        let Some(etcd) = given.config.etcd() else { return Some(Binary::default()) };
        let binary = self.find_binary(etcd, search).await;
        let is_there = binary.seen == BinarySeen::Version(etcd.version.clone());
        let attempt = ConfigAttempt::WithoutProgram { digest: given.digest.clone(), seen: binary.seen.clone() };
        *self.etcd.attempt.lock().expect("no holder panics") = (!is_there).then_some((fence, attempt));
        if !is_there && self.state.get().etcd.last_started.is_some() {
            let (generation, version) = (given.generation, &etcd.version);
            tracing::warn!(generation, version, "the configuration is not accepted: its etcd program is not here");
            return None;
        }
        Some(binary)
    }

    /// The config with this digest is not accepted, and the facts report why.
    pub(crate) fn note_not_ready(&self, fence: u64, digest: &str, Obstacle { why, remedy }: Obstacle) {
        tracing::warn!(why, "the configuration is not accepted");
        let attempt = ConfigAttempt::NotReady { digest: digest.to_owned(), why, remedy };
        *self.etcd.attempt.lock().expect("no holder panics") = Some((fence, attempt));
    }

    /// The config with this digest is accepted, although a program was not found.
    pub(crate) fn note_programs(&self, fence: u64, digest: &str, missing: Option<&BinarySeen>) {
        let without =
            |seen: &BinarySeen| ConfigAttempt::WithoutProgram { digest: digest.to_owned(), seen: seen.clone() };
        *self.etcd.attempt.lock().expect("no holder panics") = missing.map(|seen| (fence, without(seen)));
    }

    /// An etcd that keeps ending, or that could not be started, is not left to its old settings: these may be the cause.
    pub(crate) async fn help_up(self: &Arc<Self>) {
        let failed = self.etcd.not_started.lock().expect("no holder panics").is_some();
        if !failed && !matches!(self.etcd.service.look().await, ServiceState::BackingOff { .. }) {
            return;
        }
        if let Err(why) = self.restart_etcd().await {
            tracing::info!(%why, "etcd is not started with its new settings");
        }
    }

    /// Another version, or none at all, does not fail the order: the facts report it, and the planner decides.
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
        let in_place = state.node_config.as_ref()?.config.etcd()?;
        let same = in_place.version == etcd.version && in_place.binary == etcd.binary;
        let now = if same { self.binary_now().await } else { return None };
        (now.seen == BinarySeen::Version(etcd.version.clone())).then_some(now)
    }

    /// systemd starts etcd again without asking. So its unit names a separate program, which nobody exchanges unasked as an upgrade of
    /// packages does.
    fn keep_program(&self, found: binaries::Binary) -> Binary {
        let binaries::Binary { etcd, version } = found;
        let home = etcd.parent().map(Path::to_owned);
        let path = if self.keeps_host {
            let in_use = self.state.get().etcd.binary.path.clone();
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
        let known = self.state.get().etcd.binary.clone();
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
        let Some(etcd) = state.node_config.as_ref().and_then(|in_place| in_place.config.etcd()) else { return Ok(()) };
        let binary = self.find_binary(etcd, state.search.as_deref()).await;
        self.state.update(|state| state.etcd.binary = binary).await
    }
}
