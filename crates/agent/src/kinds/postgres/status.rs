//! Translates Patroni's report about its PostgreSQL into quorate's terms.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_core::kinds::postgres::{PatroniStatus, Role, Standby};
use serde::Deserialize;
use serde_json::Value;

use super::rest::{BETWEEN_WAKES, Rest, STATUS};
use crate::AgentError;
use crate::agent::Agent;

/// In seconds, for a DCS that Patroni has not reached yet.
const USUAL_TTL: i64 = 30;
const ANSWER: Duration = Duration::from_secs(3);
/// The state of a PostgreSQL that takes connections.
const RUNNING: &str = "running";
/// The states in which Patroni lets a standby become synchronous.
const ABLE: [&str; 2] = [RUNNING, "streaming"];

/// [`STATUS`].
#[derive(Deserialize)]
struct Page {
    state: String,
    #[serde(default)]
    role: String,
    server_version: Option<u64>,
    xlog: Option<Log>,
    timeline: Option<u64>,
    replication_state: Option<String>,
    #[serde(default)]
    replication: Vec<Connection>,
    dcs_last_seen: Option<i64>,
    database_system_identifier: Option<String>,
    #[serde(default)]
    pending_restart: bool,
    #[serde(default)]
    pending_restart_reason: BTreeMap<String, Reason>,
    #[serde(default)]
    pause: bool,
    patroni: Option<Itself>,
}

#[derive(Deserialize)]
struct Log {
    location: Option<u64>,
    received_location: Option<u64>,
    replayed_location: Option<u64>,
    replayed_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct Connection {
    application_name: String,
    state: String,
}

#[derive(Deserialize)]
struct Reason {
    old_value: String,
    new_value: String,
}

#[derive(Deserialize)]
struct Itself {
    version: String,
}

impl Agent {
    pub(super) async fn patroni_status(&self) -> Result<PatroniStatus, AgentError> {
        let rest = self.rest()?;
        let page = rest.get(STATUS).await?;
        // A Patroni that starts or clones has no time for more: each request costs it a handshake, and these two a question to etcd.
        let (config, cluster) = match page["state"] == RUNNING {
            true => tokio::join!(async { rest.get("/config").await.ok() }, async { rest.get("/cluster").await.ok() }),
            false => (None, None),
        };
        let mut status = status_in(page, config.clone(), Timestamp::now().as_second())?;
        let chosen = cluster.as_ref().map(synchronous_in).unwrap_or_default();
        for (name, standby) in &mut status.standbys {
            standby.synchronous = chosen.contains(name);
        }
        if let (Some(config), Some(cluster)) = (&config, &cluster) {
            self.wake_where_it_helps(&rest, config, cluster, &status).await;
        }
        if status.role == Role::Replica && cluster.is_some_and(|cluster| is_leaderless(&cluster)) {
            status.held = self.log_end_if_held(&status).await;
        }
        if status.role == Role::Replica && status.state == "running" && !status.streaming {
            status.streaming = self.receives_log().await;
        }
        Ok(status)
    }

    /// Patroni on the primary chooses synchronous standbys, and creates the slots of new members, when it looks around. Until a standby is chosen
    /// nobody may take over, and where synchrony is strict, nobody can write.
    async fn wake_where_it_helps(&self, rest: &Rest, config: &Value, cluster: &Value, status: &PatroniStatus) {
        if status.role != Role::Primary {
            return;
        }
        let (members, has_to_choose) = (members_in(cluster), has_to_choose(config, cluster, status));
        let due = self.postgres.woken.lock().expect("no holder panics").due(members, has_to_choose, Instant::now());
        if due {
            self.wake_patroni(rest).await;
        }
    }

    /// As PostgreSQL itself reports it. The page of Patroni 3.0 does not.
    async fn receives_log(&self) -> bool {
        let answer = self.run_sql("select status from pg_stat_wal_receiver;", ANSWER).await;
        answer.is_ok_and(|answer| answer.trim() == "streaming")
    }

    /// Whether this member is the primary, or follows it.
    pub(crate) async fn postgres_health(&self) -> Result<(), &'static str> {
        let status = self.patroni_status().await.map_err(|_| "Patroni does not answer")?;
        match status.role {
            Role::Primary if status.state == "running" => Ok(()),
            Role::Replica if status.streaming => Ok(()),
            Role::Primary | Role::Unknown => Err("PostgreSQL does not run"),
            Role::Replica => Err("this replica does not stream"),
        }
    }
}

/// The standbys that may take over, as Patroni has recorded them in the DCS. PostgreSQL waits for a standby before that.
fn synchronous_in(cluster: &Value) -> BTreeSet<String> {
    let members = cluster["members"].as_array().into_iter().flatten();
    let chosen = members.filter(|member| ["sync_standby", "quorum_standby"].iter().any(|role| member["role"] == *role));
    chosen.filter_map(|member| member["name"].as_str().map(str::to_owned)).collect()
}

fn is_leaderless(cluster: &Value) -> bool {
    let mut members = cluster["members"].as_array().into_iter().flatten();
    !members.any(|member| ["leader", "standby_leader"].iter().any(|role| member["role"] == *role))
}

/// When Patroni was last told to look around, and what there was to see.
#[derive(Default)]
pub(super) struct Woken {
    at: Option<Instant>,
    members: BTreeMap<String, String>,
}

impl Woken {
    /// Whether it is told again: something has changed since, or it has not chosen yet what it could.
    fn due(&mut self, members: BTreeMap<String, String>, has_to_choose: bool, now: Instant) -> bool {
        let waited = self.at.is_none_or(|at| now.duration_since(at) >= BETWEEN_WAKES);
        let due = members != self.members || has_to_choose && waited;
        if due {
            *self = Woken { at: Some(now), members };
        }
        due
    }
}

/// The members as Patroni knows them from the DCS, with their states.
fn members_in(cluster: &Value) -> BTreeMap<String, String> {
    let members = cluster["members"].as_array().into_iter().flatten();
    let text = |member: &Value, field: &str| member[field].as_str().map(str::to_owned);
    members.filter_map(|member| Some((text(member, "name")?, text(member, "state")?))).collect()
}

/// Whether more standbys could be synchronous, and should be. Patroni chooses among those that stream and that the DCS says are able.
fn has_to_choose(config: &Value, cluster: &Value, primary: &PatroniStatus) -> bool {
    let known = members_in(cluster);
    let is_able = |name: &String| known.get(name).is_some_and(|state| ABLE.contains(&state.as_str()));
    let able = primary.standbys.iter().filter(|(name, of)| of.state == "streaming" && is_able(name)).count();
    let chosen = primary.standbys.values().filter(|standby| standby.synchronous).count();
    let wanted = config["synchronous_node_count"].as_u64().unwrap_or(1);
    primary.role == Role::Primary && config["synchronous_mode"] == true && (chosen as u64) < wanted.min(able as u64)
}

fn status_in(page: Value, config: Option<Value>, now: i64) -> Result<PatroniStatus, AgentError> {
    let unread = |error: serde_json::Error| AgentError::Patroni { why: format!("it is not understood: {error}") };
    let page: Page = serde_json::from_value(page).map_err(unread)?;
    let ttl = config.as_ref().and_then(|config| config["ttl"].as_i64()).unwrap_or(USUAL_TTL);
    let log = page.xlog.as_ref();
    let standby = |of: Connection| (of.application_name, Standby { state: of.state, synchronous: false });
    Ok(PatroniStatus {
        role: match page.role.as_str() {
            "primary" | "master" => Role::Primary,
            "replica" => Role::Replica,
            _ => Role::Unknown,
        },
        state: page.state,
        streaming: page.replication_state.as_deref() == Some("streaming"),
        timeline: page.timeline,
        location: log.and_then(|log| log.location.or(log.received_location)),
        replayed: log.and_then(|log| log.replayed_location),
        replayed_at: log.and_then(|log| log.replayed_timestamp.as_ref()?.parse().ok()),
        system_id: page.database_system_identifier,
        // 150020 is 15.20.
        server_version: page.server_version.map(|version| format!("{}.{}", version / 10_000, version % 10_000)),
        patroni_version: page.patroni.map(|patroni| patroni.version),
        pending_restart: page.pending_restart,
        pending: page
            .pending_restart_reason
            .into_iter()
            .map(|(name, Reason { old_value, new_value })| (name, (Some(old_value), Some(new_value))))
            .collect(),
        paused: page.pause,
        standbys: page.replication.into_iter().map(standby).collect::<BTreeMap<_, _>>(),
        config: config.filter(Value::is_object).map(|config| config.to_string()),
        dcs: page.dcs_last_seen.is_some_and(|seen| now.saturating_sub(seen) <= ttl),
        held: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pages_of_a_primary_and_of_its_standby_are_read() {
        let primary = json!({
            "state": "running", "role": "primary", "server_version": 150_020, "xlog": {"location": 50_331_648},
            "timeline": 2, "dcs_last_seen": 1_794_919_902, "database_system_identifier": "7709122112588023710",
            "replication": [{"usename": "replicator", "application_name": "pg-2", "client_addr": "127.0.0.1",
                "state": "streaming", "sync_state": "sync", "sync_priority": 1}],
            "pending_restart": true,
            "pending_restart_reason": {"max_connections": {"old_value": "60", "new_value": "50"}}, "patroni": {"version": "4.1.5", "scope": "shop", "name": "pg-1"}
        });
        let config = json!({ "ttl": 20, "loop_wait": 10 });
        let status = status_in(primary.clone(), Some(config.clone()), 1_794_919_922).unwrap();
        assert_eq!((status.role, status.location, status.timeline), (Role::Primary, Some(50_331_648), Some(2)));
        assert_eq!((status.server_version.as_deref(), status.pending_restart), (Some("15.20"), true));
        let lowered = (Some(String::from("60")), Some(String::from("50")));
        assert_eq!(status.pending, BTreeMap::from([(String::from("max_connections"), lowered)]));
        assert_eq!(status.standbys["pg-2"], Standby { state: String::from("streaming"), synchronous: false });
        let cluster = json!({ "members": [
            {"name": "pg-1", "role": "leader"}, {"name": "pg-2", "role": "sync_standby"}, {"name": "pg-3", "role": "replica"}
        ] });
        assert_eq!(synchronous_in(&cluster), BTreeSet::from([String::from("pg-2")]));
        assert_eq!(synchronous_in(&json!({ "members": 7 })), BTreeSet::new());
        assert!(
            !is_leaderless(&cluster) && is_leaderless(&json!({ "members": [{"name": "pg-2", "role": "replica"}] }))
        );
        assert_eq!(status.config.as_deref(), Some(r#"{"loop_wait":10,"ttl":20}"#));
        assert!(status.dcs && !status.streaming && !status.paused);
        assert!(
            !status_in(primary, Some(config), 1_794_919_923).unwrap().dcs,
            "the DCS was not seen for longer than ttl"
        );
        let replica = json!({
            "state": "running", "role": "replica", "replication_state": "streaming", "timeline": 2,
            "xlog": {"received_location": 7, "replayed_location": 5, "replayed_timestamp": null, "paused": false},
        });
        let mut later = replica.clone();
        later["xlog"]["replayed_timestamp"] = json!("2026-11-18 23:50:01.123456+01:00");
        let replayed = status_in(later, None, 0).unwrap().replayed_at;
        assert_eq!(replayed, Some("2026-11-18T22:50:01.123456Z".parse().unwrap()));
        let status = status_in(replica, None, 0).unwrap();
        assert_eq!((status.role, status.streaming), (Role::Replica, true));
        assert_eq!((status.location, status.replayed, status.dcs), (Some(7), Some(5), false));
    }

    /// The cluster's page, with the states of members.
    fn cluster(members: &[(&str, &str)]) -> Value {
        let member = |(name, state): &(&str, &str)| json!({ "name": name, "state": state, "role": "replica" });
        json!({ "members": members.iter().map(member).collect::<Vec<_>>() })
    }

    #[test]
    fn patroni_has_to_choose_while_a_standby_streams_that_could_be_synchronous() {
        let config = json!({ "synchronous_mode": true, "synchronous_node_count": 1 });
        let connection = |name: &str, state: &str| json!({ "application_name": name, "state": state });
        let primary = |replication: Value| {
            status_in(json!({ "state": "running", "role": "primary", "replication": replication }), None, 0).unwrap()
        };
        let all = cluster(&[("pg-1", "running"), ("pg-2", "streaming"), ("pg-3", "running")]);
        let mut streaming = primary(json!([connection("pg-2", "streaming"), connection("pg-3", "streaming")]));
        assert!(has_to_choose(&config, &all, &streaming));
        assert!(!has_to_choose(&json!({ "synchronous_mode": false }), &all, &streaming));
        let unknown = cluster(&[("pg-1", "running"), ("pg-2", "starting"), ("pg-3", "creating replica")]);
        assert!(!has_to_choose(&config, &unknown, &streaming), "Patroni does not know yet that they run");
        streaming.standbys.get_mut("pg-3").unwrap().synchronous = true;
        assert!(!has_to_choose(&config, &all, &streaming));
        let two = json!({ "synchronous_mode": true, "synchronous_node_count": 2 });
        assert!(has_to_choose(&two, &all, &streaming));
        let none = json!([connection("pg_basebackup", "streaming"), connection("pg-2", "catchup")]);
        assert!(!has_to_choose(&config, &all, &primary(none)));
        streaming.role = Role::Replica;
        assert!(!has_to_choose(&two, &all, &streaming));
    }

    #[test]
    fn patroni_is_woken_at_once_by_what_is_new_and_otherwise_only_now_and_then() {
        let (mut woken, begun) = (Woken::default(), Instant::now());
        let members = |state: &str| members_in(&cluster(&[("pg-1", "running"), ("pg-2", state)]));
        assert!(woken.due(members("starting"), false, begun), "a member is new");
        assert!(!woken.due(members("starting"), false, begun + BETWEEN_WAKES));
        assert!(woken.due(members("running"), true, begun), "it can be chosen now");
        assert!(!woken.due(members("running"), true, begun + BETWEEN_WAKES / 2));
        assert!(woken.due(members("running"), true, begun + BETWEEN_WAKES), "Patroni has not chosen it");
        assert!(!woken.due(members("running"), true, begun + BETWEEN_WAKES));
        assert!(!woken.due(members("running"), false, begun + BETWEEN_WAKES * 9), "it is chosen");
    }

    #[test]
    fn a_patroni_that_has_no_postgresql_yet_has_no_role() {
        let page = json!({ "state": "creating replica", "role": "uninitialized", "patroni": {"version": "4.1.5"} });
        let status = status_in(page, None, 0).unwrap();
        assert_eq!((status.role, status.state.as_str()), (Role::Unknown, "creating replica"));
    }

    /// Pages as another program may show them that was started at Patroni's port.
    #[test]
    fn fuzz_pages() {
        let page = br#"{"state": "running", "role": "primary", "server_version": 150020, "xlog": {"location": 5},
            "replication": [{"application_name": "a", "state": "s", "sync_state": "sync"}], "dcs_last_seen": 1}"#;
        quorate_fuzz::campaign(&[page.to_vec()], |input| {
            if let Ok(page) = serde_json::from_slice::<Value>(input) {
                let _ = status_in(page.clone(), Some(page), 0);
            }
        });
    }
}
