//! Takeover after etcd was restored: Patroni promotes no member until `sync` names one. Each member reports the end of its own log, and the
//! one with all commits is ordered to name itself.

use std::time::Duration;

use quorate_core::kinds::postgres::older_dcs::{is_barrier, only};
use quorate_core::kinds::postgres::{LogEnd, PatroniStatus};
use quorate_etcd::KeyValue;

use super::config::configured_files;
use super::dcs;
use crate::agent::Agent;
use crate::api::Refusal;

const ANSWER: Duration = Duration::from_secs(3);
/// The server waits for more log, so it has replayed all that is on its disk. What was received and not replayed counts too. Nothing is printed
/// before.
const LOG_END: &str = "select greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn from pg_stat_activity \
    where backend_type = 'startup' and wait_event in ('RecoveryWalStream', 'RecoveryRetrieveRetryInterval');";

impl Agent {
    /// None: Patroni may promote somebody, or the end is not known yet.
    pub(super) async fn log_end_if_held(&self, status: &PatroniStatus) -> Option<LogEnd> {
        let timeline = status.timeline.filter(|_| status.state == "running")?;
        self.barrier().await.ok()??;
        let location = self.run_sql(LOG_END, ANSWER).await.ok()?.trim().parse().ok()?;
        Some(LogEnd { timeline, location })
    }

    pub(super) async fn let_take_over(&self, end: LogEnd) -> Result<(), Refusal> {
        // The answer to an earlier order was lost, or somebody leads by now.
        let Some(barrier) = self.barrier().await? else { return Ok(()) };
        let status = self.patroni_status().await?;
        if status.held.is_none_or(|own| own < end) {
            let found = status.held.map_or(String::from("unknown"), |own| format!("{own:?}"));
            return Err(Refusal::not_as_expected(format!("a log that ends at {end:?}"), found));
        }
        self.check_still_obeyed()?;
        let settings = self.patroni_settings()?;
        dcs::name_successor(&settings, configured_files(&self.state.get()), &barrier, &only(&settings.name)).await
    }

    /// The value of `sync` since etcd was restored, until Patroni has a leader.
    async fn barrier(&self) -> Result<Option<KeyValue>, Refusal> {
        let settings = self.patroni_settings()?;
        let key = format!("{}sync", settings.key());
        let found = dcs::get(&settings, configured_files(&self.state.get()), &key).await?;
        Ok(found.filter(|found| is_barrier(&found.value)))
    }
}
