//! Detects a data directory that is older than it was, from a disk backup or a machine snapshot. Such a member has lost what
//! it acknowledged and could vote twice. Before etcd starts on data that this agent did not watch, it asks the leader how
//! far this member had followed. If there is no leader or no answer, etcd starts: a cluster that is switched on as a whole
//! must come up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::kinds::etcd::{LogEnd, OlderData};
use quorate_core::model::DataSeen;
use tokio::task::JoinSet;

use super::pages;
use super::wal::Log;
use crate::agent::Agent;
use crate::services::Gate;
use crate::{AgentError, blocking};

/// All peers are asked at once.
const PATIENCE: Duration = Duration::from_secs(2);

impl Agent {
    /// For anyone who starts etcd again on its own.
    pub(super) fn gate(self: &Arc<Self>) -> Gate {
        let agent = self.clone();
        Arc::new(move |launch| {
            let agent = agent.clone();
            Box::pin(async move {
                agent.check_program(&launch).await?;
                agent.check_age().await
            })
        })
    }

    /// What was found out once holds for as long as the data stays as it is: a later leader does not remember.
    pub(super) async fn check_age(&self) -> Result<(), AgentError> {
        let Some(log) = self.log().await else { return Ok(()) };
        let holds = log.end.index;
        let known = self.state.get().etcd.older.clone().filter(|older| holds < older.acknowledged);
        let older = match known {
            Some(older) => Some(OlderData { holds, ..older }),
            None => self.ask_peers(&log).await,
        };
        self.state.update(|state| state.etcd.older = older.clone()).await?;
        older.map_or(Ok(()), |older| Err(AgentError::Older(older)))
    }

    async fn ask_peers(&self, log: &Log) -> Option<OlderData> {
        let state = self.state.get();
        let (_, config) = self.etcd.access.pages(&state)?;
        let mut asked: JoinSet<_> = (state.etcd.peers.iter().cloned())
            .map(|url| {
                let config = config.clone();
                async move { pages::raft(&url, config, PATIENCE).await.map(|raft| (url, raft)) }
            })
            .collect();
        while let Some(answer) = asked.join_next().await {
            let Ok(Some((told_by, raft))) = answer else { continue };
            // One that was cut off may believe for a moment that it still leads, and what it heard before need not hold.
            let Some(progress) = raft.progress.get(&log.member_id).filter(|_| raft.term >= log.end.term) else {
                continue;
            };
            let (holds, acknowledged) = (log.end.index, progress.acknowledged);
            return (holds < acknowledged).then_some(OlderData { holds, acknowledged, told_by });
        }
        None
    }

    /// How far the log on disk goes, or why it cannot be read; told while etcd does not run.
    pub(crate) async fn log_end(&self, data: &DataSeen) -> Result<Option<LogEnd>, String> {
        if *data == DataSeen::Empty {
            return Ok(None);
        }
        Ok(self.read_log().await.map_err(|error| error.in_full())?.map(|log| log.end))
    }

    /// A log that cannot be read is etcd's to complain about.
    async fn log(&self) -> Option<Log> {
        self.read_log().await.unwrap_or_else(|error| {
            tracing::warn!(error = error.in_full(), "cannot parse etcd's log");
            None
        })
    }

    async fn read_log(&self) -> Result<Option<Log>, AgentError> {
        let (log, data) = (self.etcd.log.clone(), self.layout.data());
        blocking(move || log.read(&data)).await
    }

    /// Keeps in mind where the others are to be asked. Nobody waits for it.
    pub(super) fn remember_peers(self: &Arc<Self>, peers: BTreeSet<String>) {
        if self.state.get().etcd.peers == peers {
            return;
        }
        let agent = self.clone();
        tokio::spawn(async move {
            if let Err(error) = agent.state.update(|state| state.etcd.peers = peers).await {
                tracing::warn!(error = error.in_full(), "the peers' endpoints are not remembered");
            }
        });
    }
}
