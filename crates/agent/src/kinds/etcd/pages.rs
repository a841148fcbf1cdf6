//! etcd's plain HTTP pages, which need no login: open to anyone with a certificate, or to everyone where no certificate is
//! required. They are the only source of information about a learner when users log in by password, and the only place where a
//! leader reports how far each member has followed it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Bytes;
use quorate_core::kinds::etcd::{AuthLook, EtcdStatus};
use quorate_etcd::Member;
use rustls::ClientConfig;
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;

use crate::http;

/// Raft as etcd sees itself, from `/debug/vars`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Raft {
    #[serde(deserialize_with = "hexadecimal")]
    pub(super) id: u64,
    pub(super) term: u64,
    pub(super) commit: u64,
    pub(super) applied: u64,
    /// Zero: none is known.
    #[serde(deserialize_with = "hexadecimal")]
    pub(super) lead: u64,
    /// On the leader, of each member; elsewhere empty.
    #[serde(deserialize_with = "by_member")]
    pub(super) progress: BTreeMap<u64, Progress>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Progress {
    /// Up to where the member has acknowledged the log to this leader; zero while it has not answered it yet.
    #[serde(rename = "match")]
    pub(super) acknowledged: u64,
}

fn hexadecimal<'de, D: Deserializer<'de>>(text: D) -> Result<u64, D::Error> {
    let text = String::deserialize(text)?;
    u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
}

fn by_member<'de, D: Deserializer<'de>>(map: D) -> Result<BTreeMap<u64, Progress>, D::Error> {
    let map: BTreeMap<String, Progress> = BTreeMap::deserialize(map)?;
    let parse = |(id, progress): (String, Progress)| Ok((u64::from_str_radix(&id, 16)?, progress));
    map.into_iter().map(parse).collect::<Result<_, std::num::ParseIntError>>().map_err(serde::de::Error::custom)
}

/// What all members have agreed to speak.
pub(super) async fn cluster_version(url: &str, config: Arc<ClientConfig>, time: Duration) -> Option<String> {
    #[derive(Deserialize)]
    struct Page {
        etcdcluster: String,
    }
    let page = page(url, "/version", config, time).await?;
    let Page { etcdcluster } = serde_json::from_slice(page.body()).ok()?;
    // Said until the members have agreed, which a new cluster does only some seconds after it serves.
    Some(etcdcluster).filter(|version| version != "not_decided" && version != "3.0.0")
}

pub(super) async fn raft(url: &str, config: Arc<ClientConfig>, time: Duration) -> Option<Raft> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(rename = "raft.status")]
        raft: Raft,
    }
    let page = page(url, "/debug/vars", config, time).await?;
    serde_json::from_slice(page.body()).ok().map(|Page { raft }| raft)
}

/// The members as this one knows them, and the cluster's number, from the peer port.
pub(super) async fn members(url: &str, config: Arc<ClientConfig>, time: Duration) -> Option<(u64, Vec<Member>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Row {
        id: u64,
        #[serde(default)]
        name: String,
        #[serde(rename = "peerURLs")]
        peer_urls: Vec<String>,
        #[serde(rename = "clientURLs", default)]
        client_urls: Vec<String>,
        #[serde(default)]
        is_learner: bool,
    }
    let page = page(url, "/members", config, time).await?;
    let cluster =
        page.headers().get("x-etcd-cluster-id").and_then(|id| u64::from_str_radix(id.to_str().ok()?, 16).ok());
    let rows: Vec<Row> = serde_json::from_slice(page.body()).ok()?;
    let member = |row: Row| {
        let Row { id, name, peer_urls, client_urls, is_learner } = row;
        Member { id, name, peer_urls, client_urls, is_learner }
    };
    Some((cluster.unwrap_or_default(), rows.into_iter().map(member).collect()))
}

/// Status as far as it is known without a login. The list of members, and the cluster's number, come by another way.
pub(super) async fn status(url: &str, config: Arc<ClientConfig>, time: Duration) -> Option<EtcdStatus> {
    let (raft, metrics) = tokio::join!(raft(url, config.clone(), time), page(url, "/metrics", config, time));
    status_in(&raft?, &Metrics(std::str::from_utf8(metrics?.body()).ok()?))
}

fn status_in(raft: &Raft, metrics: &Metrics<'_>) -> Option<EtcdStatus> {
    let number = |name| metrics.number(name).unwrap_or_default();
    Some(EtcdStatus {
        member_id: raft.id,
        cluster_id: 0,
        leader: raft.lead,
        is_learner: number("etcd_server_is_learner") == 1,
        healthy: false,
        version: metrics.label("etcd_server_version", "server_version")?.to_owned(),
        cluster_version: None,
        downgrade_target: None,
        storage_version: None,
        db_size: number("etcd_mvcc_db_total_size_in_bytes"),
        db_size_in_use: number("etcd_mvcc_db_total_size_in_use_in_bytes"),
        raft_term: raft.term,
        raft_index: raft.commit,
        raft_applied_index: raft.applied,
        revision: number("etcd_debugging_mvcc_current_revision"),
        members: Vec::new(),
        alarms: Vec::new(),
        auth: AuthLook::NotAsked,
    })
}

async fn page(url: &str, path: &str, config: Arc<ClientConfig>, time: Duration) -> Option<Response<Bytes>> {
    match timeout(time, http::get(url, path, config)).await {
        Ok(Ok(page)) => Some(page),
        Ok(Err(error)) => {
            tracing::trace!(url, path, error, "etcd does not show a page");
            None
        }
        Err(_) => None,
    }
}

/// `NAME{LABEL="VALUE"} NUMBER`, one in a line.
pub(super) struct Metrics<'a>(pub(super) &'a str);

impl<'a> Metrics<'a> {
    fn find(&self, name: &str) -> Option<(&'a str, &'a str)> {
        let of = |line: &'a str| {
            line.strip_prefix(name)?.rsplit_once(' ').filter(|(l, _)| l.is_empty() || l.starts_with('{'))
        };
        self.0.lines().find_map(of)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        // Prometheus knows only floating point, and writes large numbers as 1.234e+06.
        let number: f64 = self.find(name)?.1.parse().ok()?;
        Some(number as u64)
    }

    fn label(&self, name: &str, label: &str) -> Option<&'a str> {
        let (_, rest) = self.find(name)?.0.split_once(&format!("{label}=\""))?;
        rest.split('"').next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raft_is_read_from_etcds_variables() {
        let text = r#"{"id":"a3b6ca3ab4057ed","term":2,"vote":"0","commit":10,"lead":"a6efd1f65191c909","applied":9,
            "raftState":"StateLeader","leadtransferee":"0",
            "progress":{"a6efd1f65191c909":{"match":10,"next":11,"state":"StateReplicate"}}}"#;
        let raft: Raft = serde_json::from_str(text).unwrap();
        assert_eq!((raft.id, raft.lead), (0x0a3b_6ca3_ab40_57ed, 0xa6ef_d1f6_5191_c909));
        assert_eq!(raft.progress[&0xa6ef_d1f6_5191_c909].acknowledged, 10);
    }

    #[test]
    fn metrics_are_found_by_their_whole_name() {
        let metrics = Metrics("# HELP a_b things\na_bc 3\na_b 1.2e+06\nv{v=\"3.4.23\",w=\"x\"} 1\n");
        assert_eq!(metrics.number("a_b"), Some(1_200_000));
        assert_eq!(metrics.number("a"), None);
        assert_eq!(metrics.label("v", "v"), Some("3.4.23"));
    }

    /// Pages as another program may show them that was started at etcd's port.
    #[test]
    fn fuzz_pages() {
        let raft = br#"{"raft.status": {"id":"8e9e05c52164694d","term":2,"vote":"8e9e05c52164694d","commit":4,
            "lead":"8e9e05c52164694d","raftState":"StateLeader","applied":4,"progress":{"8e9e05c52164694d":{"match":4}}}}"#;
        let metrics = b"# HELP a page\netcd_server_is_learner 0\netcd_mvcc_db_total_size_in_bytes 2.4576e+04\n\
            etcd_server_version{server_version=\"3.5.30\"} 1\netcd_debugging_mvcc_current_revision NaN\n";
        let known = Raft { id: 1, term: 2, commit: 3, applied: 3, lead: 1, progress: BTreeMap::new() };
        quorate_fuzz::campaign(&[raft.to_vec(), metrics.to_vec()], |input| {
            let _ = serde_json::from_slice::<BTreeMap<String, Raft>>(input);
            if let Ok(text) = std::str::from_utf8(input) {
                let _ = status_in(&known, &Metrics(text));
            }
        });
    }
}
