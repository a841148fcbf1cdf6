//! Removes the data of an abandoned bootstrap.

use quorate_core::model::{DataSeen, ServiceState, Stamp};

use super::config::configured_files;
use super::{data, dcs, processes};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::stamp::{self, describe};
use crate::{AgentError, blocking};

impl Agent {
    /// The DCS comes first: without the data nobody would know any more which keys are those of this cluster.
    pub(super) async fn wipe_postgres(&self, stamp: Stamp) -> Result<(), Refusal> {
        self.check_postgres_stopped().await?;
        let layout = self.layout.clone();
        let look = move || {
            let marked = stamp::read(&layout.postgres_stamp())?;
            Ok::<_, AgentError>((data::look(&layout)?, marked, data::system_id(&layout)))
        };
        let (found, marked, system_id) = blocking(look).await?;
        let state = self.state.get();
        let remembered = state.postgres.last_started.as_ref();
        match (&found, &marked) {
            (_, Some(marked)) if *marked == stamp => {}
            // An earlier wipe was interrupted, or its answer was lost.
            (DataSeen::Empty, None) if remembered.is_none_or(|remembered| *remembered == stamp) => {}
            _ => return Err(Refusal::not_as_expected(describe(&DataSeen::Stamped(stamp)), describe(&found))),
        }
        let layout = self.layout.clone();
        if let Some(kept) = blocking(move || data::replaced(&layout)).await?
            && kept.stamp != stamp
        {
            let found = format!("{} next to it", describe(&DataSeen::Stamped(kept.stamp)));
            return Err(Refusal::not_as_expected(String::from("data of an abandoned bootstrap alone"), found));
        }
        if let Some(system_id) = system_id {
            let files = configured_files(&state);
            dcs::forget(&self.patroni_settings()?, files, &system_id).await?;
        }
        self.check_still_obeyed()?;
        let layout = self.layout.clone();
        blocking(move || data::wipe(&layout)).await?;
        let forget = |state: &mut crate::state::State| {
            (state.postgres.last_started, state.postgres.cloning) = (None, false);
        };
        Ok(self.state.update(forget).await?)
    }

    /// What touches data needs a Patroni and a PostgreSQL that are known to be stopped.
    pub(super) async fn check_postgres_stopped(&self) -> Result<(), Refusal> {
        let layout = self.layout.clone();
        let runs = blocking(move || Ok::<_, AgentError>(processes::find_postmaster(&layout).is_some())).await?;
        let service = self.patroni().await?.look().await;
        let found = match service {
            ServiceState::Stopped if !runs && !self.state.get().postgres.wanted_running => return Ok(()),
            ServiceState::Unknown { why } => format!("one whose state is unknown: {why}"),
            _ => String::from("one that runs or is meant to"),
        };
        Err(Refusal::not_as_expected(String::from("a stopped PostgreSQL"), found))
    }
}
