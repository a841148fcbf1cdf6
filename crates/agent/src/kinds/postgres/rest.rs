//! Patroni's REST API, as the Patroni of this machine serves it. It takes commands from clients with a certificate of the members' CA.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use quorate_core::kinds::postgres::{REST_PORT, Role};
use quorate_core::model::{CertificateUse, https_url};
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::agent::Agent;
use crate::api::Refusal;
use crate::kinds::etcd::trust;
use crate::{AgentError, http, tls};

/// For a question. A request for facts waits for it.
const ANSWERING: Duration = Duration::from_millis(1500);
const CONFIGURING: Duration = Duration::from_secs(20);
/// PostgreSQL writes all that is in memory before it stops, and recovers when it starts.
const RESTARTING: Duration = Duration::from_secs(480);
/// Until Patroni itself has seen the configuration that it wrote.
const SEEN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);

pub(super) struct Rest {
    url: String,
    config: Arc<ClientConfig>,
}

impl Rest {
    pub(super) async fn get(&self, path: &str) -> Result<Value, AgentError> {
        let (status, body) = self.send(Method::GET, path, Bytes::new(), ANSWERING).await?;
        // A page that tells of trouble is still that page.
        let unread = |_| AgentError::Patroni { why: format!("{path} is answered with {status}") };
        serde_json::from_slice(&body).map_err(unread)
    }

    /// What Patroni says to a command.
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

    /// Only where a parameter waits for it, so an order that comes late disturbs nobody.
    pub(super) async fn restart_postgres(&self) -> Result<(), Refusal> {
        let rest = self.rest()?;
        let body = json!({ "restart_pending": true });
        let said = rest.command(Method::POST, "/restart", body, RESTARTING).await?;
        if !self.patroni_status().await?.pending_restart {
            return Ok(());
        }
        match said.status {
            // A standby may not have less of it than its primary.
            StatusCode::OK => Err(Refusal::failed(
                "PostgreSQL restarted and still waits for a restart: a limit such as max_connections was lowered, and then \
                 the primary must restart first, with `patronictl restart`",
            )),
            _ => Err(said.refused("restart PostgreSQL")),
        }
    }

    pub(super) async fn switch_over(&self, to: &str) -> Result<(), Refusal> {
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
        let body = json!({ "leader": name, "candidate": to });
        let said = rest.command(Method::POST, "/switchover", body, RESTARTING).await?;
        if said.status == StatusCode::OK { Ok(()) } else { Err(said.refused("switch over")) }
    }
}

fn leader(cluster: &Value) -> Option<String> {
    let members = cluster["members"].as_array()?;
    let leader = members.iter().find(|member| member["role"] == "leader")?;
    leader["name"].as_str().map(str::to_owned)
}
