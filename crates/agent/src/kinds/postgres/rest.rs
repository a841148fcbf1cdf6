//! The REST API of the local Patroni. It accepts commands from clients with a certificate of the members' CA.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use quorate_core::kinds::postgres::parameters::moved_limits;
use quorate_core::kinds::postgres::{REST_PORT, Role};
use quorate_core::model::{CertificateUse, https_url};
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::tools;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::kinds::etcd::trust;
use crate::{AgentError, http, tls};

/// The same page as `/patroni`, for which Patroni waits a second if PostgreSQL takes no connections yet.
pub(super) const STATUS: &str = "/health";
/// For a query. A request for facts waits for it.
const ANSWERING: Duration = Duration::from_millis(1500);
const CONFIGURING: Duration = Duration::from_secs(20);
/// PostgreSQL writes all that is in memory before it stops, and recovers when it starts.
const RESTARTING: Duration = Duration::from_secs(480);
/// Until Patroni itself has seen the configuration that it wrote.
const SEEN: Duration = Duration::from_secs(5);
/// Until a standby has replayed that its primary restarted.
const REPLAYED: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// Until it is told again to do the same.
pub(super) const BETWEEN_WAKES: Duration = Duration::from_secs(1);
/// Clients that do something, or could still commit. Those that only wait between transactions lose nothing.
const TRANSACTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
    AND (state IN ('active', 'fastpath function call') OR state LIKE 'idle in transaction%') \
    AND usename NOT IN ('postgres', 'rewinder');\n";

pub(super) struct Rest {
    url: String,
    config: Arc<ClientConfig>,
}

impl Rest {
    pub(super) async fn get(&self, path: &str) -> Result<Value, AgentError> {
        let (status, body) = self.send(Method::GET, path, Bytes::new(), ANSWERING).await?;
        // A page that reports trouble is still that page.
        let unread = |_| AgentError::Patroni { why: format!("{path} is answered with {status}") };
        serde_json::from_slice(&body).map_err(unread)
    }

    /// Patroni's answer to a command.
    async fn command(&self, method: Method, path: &str, body: Value, time: Duration) -> Result<Said, AgentError> {
        let (status, body) = self.send(method, path, Bytes::from(body.to_string()), time).await?;
        Ok(Said { status, text: String::from_utf8_lossy(&body).trim().to_owned() })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        time: Duration,
    ) -> Result<(StatusCode, Bytes), AgentError> {
        match timeout(time, http::send(&self.url, method, path, body, self.config.clone())).await {
            Ok(Ok(answer)) => Ok((answer.status(), answer.into_body())),
            Ok(Err(error)) => Err(AgentError::Patroni { why: error.to_string() }),
            Err(_) => Err(AgentError::Patroni { why: String::from("it does not answer in time") }),
        }
    }
}

struct Said {
    status: StatusCode,
    text: String,
}

impl Said {
    fn refused(self, what: &str) -> Refusal {
        Refusal::Failed { why: format!("Patroni does not {what}: {} ({})", self.text, self.status.as_u16()) }
    }
}

/// Why PostgreSQL is restarted.
enum Waits {
    Parameter,
    Release { running: String, installed: String },
}

impl Agent {
    pub(super) fn rest(&self) -> Result<Rest, AgentError> {
        let state = self.state.get();
        let none = || AgentError::Patroni { why: String::from("it has neither a configuration nor certificates yet") };
        let config = state.node_config.as_ref().ok_or_else(none)?;
        let trust = trust::peer_bundle(&config.config).ok_or_else(none)?;
        let chain = state.chains.get(&CertificateUse::Peer).ok_or_else(none)?;
        let key = state.key(CertificateUse::Peer).ok_or_else(none)?;
        let config = tls::etcd_client_config(trust, Some((chain.as_str(), key)))?;
        Ok(Rest { url: https_url(state.address, REST_PORT), config })
    }

    /// Has Patroni look around at once, and not at the end of its pause, which is ten seconds by default. It does so after every request to change
    /// its configuration, and this one changes nothing: it deletes what is not there.
    pub(super) async fn wake_patroni(&self, rest: &Rest) {
        if let Err(error) = rest.command(Method::PATCH, "/config", json!({ "wake": null }), ANSWERING).await {
            tracing::debug!(%error, "Patroni was not woken");
        }
    }

    pub(super) async fn set_patroni_config(&self, config: String) -> Result<(), Refusal> {
        let wanted: Value =
            serde_json::from_str(&config).map_err(|_| Refusal::failed("the configuration for the DCS is not JSON"))?;
        let rest = self.rest()?;
        let said = rest.command(Method::PUT, "/config", wanted.clone(), CONFIGURING).await?;
        if said.status != StatusCode::OK {
            return Err(said.refused("take the configuration"));
        }
        let deadline = Instant::now() + SEEN;
        while Instant::now() < deadline && rest.get("/config").await.ok() != Some(wanted.clone()) {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Only where a parameter or another minor release waits for it, so an order that comes late disturbs nobody.
    pub(super) async fn restart_postgres(self: &Arc<Self>) -> Result<(), Refusal> {
        let rest = self.rest()?;
        self.wait_for_lowered_limits().await?;
        let body = match self.waits_for_restart().await? {
            None => return Ok(()),
            Some(Waits::Parameter) => json!({ "restart_pending": true }),
            Some(Waits::Release { .. }) => json!({}),
        };
        let said = rest.command(Method::POST, "/restart", body, RESTARTING).await?;
        match (self.waits_for_restart().await?, said.status) {
            (None, _) => Ok(()),
            (Some(Waits::Parameter), StatusCode::OK) => {
                Err(Refusal::failed("PostgreSQL restarted and still waits for a restart"))
            }
            (Some(Waits::Release { running, installed }), StatusCode::OK) => Err(Refusal::failed(format!(
                "PostgreSQL restarted and is still {running}, although {installed} is installed"
            ))),
            _ => Err(said.refused("restart PostgreSQL")),
        }
    }

    /// Changes that take effect when PostgreSQL restarts.
    async fn waits_for_restart(self: &Arc<Self>) -> Result<Option<Waits>, Refusal> {
        if self.patroni_status().await?.pending_restart {
            return Ok(Some(Waits::Parameter));
        }
        let facts = self.postgres_facts(false).await?;
        let release = facts.as_ref().and_then(|facts| facts.other_release());
        Ok(release.map(|(running, installed)| Waits::Release {
            running: running.to_owned(),
            installed: installed.to_owned(),
        }))
    }

    /// A standby starts with no less of some limits than its data says that the primary has. The primary has restarted with less by now;
    /// until the standby has replayed that, its restart would be in vain.
    async fn wait_for_lowered_limits(&self) -> Result<(), Refusal> {
        let status = self.patroni_status().await?;
        if status.role != Role::Replica {
            return Ok(());
        }
        let (lowered, _) = moved_limits(&status.pending);
        let new = |name: &String| status.pending.get(name)?.1.as_ref()?.parse::<u64>().ok();
        let wanted: Vec<(&String, u64)> = lowered.iter().filter_map(|name| Some((name, new(name)?))).collect();
        let deadline = Instant::now() + REPLAYED;
        while !wanted.is_empty() {
            let known = self.limits_in_data().await?;
            let higher = wanted.iter().find(|(name, wanted)| known.get(*name).is_some_and(|known| known > wanted));
            let Some((name, _)) = higher else { return Ok(()) };
            if Instant::now() > deadline {
                let why = format!(
                    "the primary still has a higher {name}, and no standby may have less: it must restart first"
                );
                return Err(Refusal::Failed { why });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// The limits of the primary, as far as its changes were replayed here.
    async fn limits_in_data(&self) -> Result<BTreeMap<String, u64>, Refusal> {
        let state = self.state.get();
        let program = self.postgres_directory(&state)?.join("pg_controldata");
        let mut command = self.run_as().await?.command(&program);
        command.arg(self.layout.postgres_data()).env("LC_ALL", "C");
        Ok(limits_in(&tools::run(command, "", CONFIGURING).await?))
    }

    pub(super) async fn switch_over(&self, to: &str, drain: Duration) -> Result<(), Refusal> {
        let name = self.patroni_settings()?.name;
        let rest = self.rest()?;
        if self.patroni_status().await?.role != Role::Primary {
            // The answer to an earlier order was lost.
            return match leader(&rest.get("/cluster").await?) {
                Some(leader) if leader == to => Ok(()),
                found => Err(Refusal::not_as_expected(
                    format!("{name} as the primary"),
                    found.unwrap_or_else(|| String::from("none")),
                )),
            };
        }
        self.wait_for_transactions(drain).await;
        let body = json!({ "leader": name, "candidate": to });
        let said = rest.command(Method::POST, "/switchover", body, RESTARTING).await?;
        if said.status == StatusCode::OK { Ok(()) } else { Err(said.refused("switch over")) }
    }
}

impl Agent {
    /// Until no client is within a transaction, or the time is up: then PostgreSQL ends what is left.
    async fn wait_for_transactions(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            match self.run_sql(TRANSACTIONS, ANSWERING).await {
                Ok(count) if count.trim() == "0" => return,
                Ok(_) => tokio::time::sleep(POLL).await,
                Err(error) => return tracing::warn!(%error, "cannot tell whether clients have open transactions"),
            }
        }
        tracing::info!("clients are still within transactions; the switchover ends them");
    }
}

/// What `pg_controldata` prints of the limits, by the names of the parameters.
fn limits_in(printed: &str) -> BTreeMap<String, u64> {
    let limit = |line: &str| {
        let (name, value) = line.split_once(" setting:")?;
        let name = name.replace("_xacts", "_transactions").replace("_xact", "_transaction");
        Some((name, value.trim().parse().ok()?))
    };
    printed.lines().filter_map(limit).collect()
}

fn leader(cluster: &Value) -> Option<String> {
    let members = cluster["members"].as_array()?;
    let leader = members.iter().find(|member| member["role"] == "leader")?;
    leader["name"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_control_data() {
        let printed = "wal_level setting:                    replica\nwal_log_hints setting:                on\n\
            max_connections setting:              60\nmax_worker_processes setting:         8\n\
            max_wal_senders setting:              10\nmax_prepared_xacts setting:           0\n\
            max_locks_per_xact setting:           64\ntrack_commit_timestamp setting:       off\n";
        let limits = limits_in(printed);
        let wanted = [
            ("max_connections", 60),
            ("max_locks_per_transaction", 64),
            ("max_prepared_transactions", 0),
            ("max_wal_senders", 10),
            ("max_worker_processes", 8),
        ];
        assert_eq!(limits, wanted.map(|(name, value)| (name.to_owned(), value)).into());
    }
}
