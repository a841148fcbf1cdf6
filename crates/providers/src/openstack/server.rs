//! A machine as OpenStack knows it: a server. Its metadata is quorate's mark, one key for each part because values are short. Every user
//! of the project can read it, so it contains no secret.

use std::collections::BTreeMap;
use std::net::IpAddr;

use quorate_core::model::{Build, MachineId, MemberName, PowerState};
use serde_json::{Map, Value, json};

use super::error::OpenstackError;

const PREFIX: &str = "quorate.";
const BUILD: &str = "quorate.build.";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) cluster: String,
    pub(super) cluster_id: String,
    pub(super) member: MemberName,
    pub(super) incarnation: u64,
    pub(super) address: IpAddr,
    /// Of the controller that creates it.
    pub(super) fence: u64,
    pub(super) state: State,
    /// The port that was made for it, by id. None: the port is the operator's.
    pub(super) port: Option<String>,
    /// The data volume, by id. Of a draft, and of a server that is being removed: only one that goes with it.
    pub(super) data: Option<String>,
    /// What it was created from.
    pub(super) build: Option<Build>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is being built. It does not count as a machine yet.
    Draft,
    Whole,
    /// It is being removed.
    Going,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Draft => "draft",
            State::Whole => "whole",
            State::Going => "going",
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        [State::Draft, State::Whole, State::Going].into_iter().find(|state| state.name() == text)
    }
}

/// The tag by which the servers of clusters of this name are listed.
pub(super) fn tag(cluster: &str) -> String {
    format!("{PREFIX}{cluster}")
}

pub(super) fn key(part: &str) -> String {
    format!("{PREFIX}{part}")
}

impl Mark {
    pub(super) fn metadata(&self) -> Value {
        let incarnation = self.incarnation.to_string();
        let fence = self.fence.to_string();
        let address = self.address.to_string();
        let parts = [
            ("cluster", self.cluster.as_str()),
            ("cluster_id", &self.cluster_id),
            ("member", self.member.as_str()),
            ("incarnation", &incarnation),
            ("address", &address),
            ("fence", &fence),
            ("state", self.state.name()),
            ("port", self.port.as_deref().unwrap_or_default()),
            ("data", self.data.as_deref().unwrap_or_default()),
        ];
        let parts = parts.into_iter().map(|(part, value)| (key(part), json!(value)));
        let build = serde_json::to_value(&self.build).ok();
        let build = build.as_ref().and_then(Value::as_object).into_iter().flatten();
        let build = build.map(|(part, value)| (format!("{BUILD}{part}"), value.clone()));
        Value::Object(parts.chain(build).collect())
    }

    fn read(metadata: &Value) -> Option<Self> {
        let part = |name: &str| metadata.get(key(name)).and_then(Value::as_str);
        let some = |name: &str| part(name).filter(|value| !value.is_empty()).map(str::to_owned);
        let parts = metadata.as_object().into_iter().flatten();
        let build: Map<String, Value> =
            parts.filter_map(|(name, value)| Some((name.strip_prefix(BUILD)?.to_owned(), value.clone()))).collect();
        Some(Mark {
            cluster: part("cluster")?.to_owned(),
            cluster_id: part("cluster_id")?.to_owned(),
            member: part("member")?.into(),
            incarnation: part("incarnation")?.parse().ok()?,
            address: part("address")?.parse().ok()?,
            fence: part("fence")?.parse().ok()?,
            state: State::read(part("state")?)?,
            port: some("port"),
            data: some("data"),
            build: serde_json::from_value(Value::Object(build)).ok().filter(|build| *build != Build::default()),
        })
    }

    pub(super) fn is_of(&self, machine: &MachineId) -> bool {
        self.member == machine.member && self.incarnation == machine.incarnation
    }
}

/// A server as it was found.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) status: String,
    task: Option<String>,
    /// As the hypervisor has it: 1 is running.
    runs: Option<u64>,
    fault: Option<String>,
    pub(super) mark: Option<Mark>,
}

impl Server {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let text = |field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(Server {
            id: text("id")?,
            name: text("name").unwrap_or_default(),
            status: text("status").unwrap_or_default(),
            task: text("OS-EXT-STS:task_state"),
            runs: value.get("OS-EXT-STS:power_state").and_then(Value::as_u64),
            fault: value.pointer("/fault/message").and_then(Value::as_str).map(str::to_owned),
            mark: value.get("metadata").and_then(Mark::read),
        })
    }

    /// A server that keeps its memory may go on where it was, without quorate, so it is not off.
    pub(super) fn power(&self) -> PowerState {
        match (self.status.as_str(), self.task.as_deref()) {
            (_, Some("deleting" | "soft-deleting")) => PowerState::Stopping,
            ("ACTIVE", Some("powering-off")) => PowerState::Stopping,
            ("ACTIVE" | "REBOOT" | "HARD_REBOOT" | "PASSWORD" | "MIGRATING" | "VERIFY_RESIZE", _) => PowerState::On,
            ("SHUTOFF", Some("powering-on")) | ("BUILD" | "REBUILD", _) => PowerState::Starting,
            ("SHUTOFF" | "SHELVED" | "SHELVED_OFFLOADED" | "SOFT_DELETED", _) => PowerState::Off,
            ("ERROR", _) if self.runs == Some(1) => PowerState::On,
            ("ERROR", _) => PowerState::Off,
            _ => PowerState::Unknown,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// For people: its state, and what OpenStack does with it.
    pub(super) fn state(&self) -> String {
        match &self.task {
            Some(task) => format!("{} ({task})", self.status),
            None => self.status.clone(),
        }
    }

    pub(super) fn fault(&self) -> String {
        self.fault.clone().unwrap_or_else(|| String::from("OpenStack does not say why"))
    }

    /// Why it cannot be switched on as it is.
    pub(super) fn hindrance(&self) -> Option<OpenstackError> {
        let (name, id) = (self.name.clone(), &self.id);
        let aside = |state, command: &str| {
            let remedy = format!("`openstack server {command} {id}`");
            Some(OpenstackError::SetAside { name: self.name.clone(), state, remedy })
        };
        match self.status.as_str() {
            "ERROR" => Some(OpenstackError::Broken { name, fault: self.fault() }),
            "PAUSED" => aside("paused", "unpause"),
            "SUSPENDED" => aside("suspended", "resume"),
            "SHELVED" | "SHELVED_OFFLOADED" => aside("shelved", "unshelve"),
            "RESCUE" => aside("in rescue mode", "unrescue"),
            "VERIFY_RESIZE" => aside("resized, and nobody has confirmed it", "resize confirm"),
            "SOFT_DELETED" => aside("deleted, and not yet reclaimed", "restore"),
            _ => None,
        }
    }

    pub(super) fn path(&self) -> String {
        format!("/servers/{}", self.id)
    }
}

/// The parts of a mark on something else than a server.
pub(super) fn parts(cluster_id: &str, machine: &MachineId, fence: u64) -> BTreeMap<String, String> {
    let parts = [
        ("cluster_id", cluster_id.to_owned()),
        ("member", machine.member.to_string()),
        ("incarnation", machine.incarnation.to_string()),
        ("fence", fence.to_string()),
    ];
    parts.into_iter().map(|(part, value)| (key(part), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark {
            cluster: String::from("demo"),
            cluster_id: String::from("c"),
            member: "etcd-1".into(),
            incarnation: 2,
            address: "10.0.0.11".parse().unwrap(),
            fence: 7,
            state: State::Whole,
            port: Some(String::from("p")),
            data: None,
            build: Some(Build::new([
                ("image", Some(String::from("debian"))),
                ("data volume", Some(String::from("1GiB"))),
            ])),
        }
    }

    #[test]
    fn a_server_is_read_with_its_mark() {
        let value = json!({
            "id": "s", "name": "demo-etcd-1.2", "status": "ACTIVE", "OS-EXT-STS:task_state": null,
            "OS-EXT-STS:power_state": 1, "metadata": mark().metadata(),
        });
        let found = Server::read(&value).unwrap();
        assert_eq!((found.mark.as_ref(), found.power()), (Some(&mark()), PowerState::On));
        for (key, value) in mark().metadata().as_object().unwrap() {
            assert!(key.len() <= 255 && value.as_str().unwrap().len() <= 255, "{key}");
        }
        let mut other = value.clone();
        other["metadata"] = json!({ "quorate.cluster": "demo" });
        assert_eq!(Server::read(&other).unwrap().mark, None);
    }

    #[test]
    fn only_what_cannot_run_by_itself_is_off() {
        let power = |status: &str, task: Option<&str>, runs: u64| {
            let value = json!({
                "id": "s", "status": status, "OS-EXT-STS:task_state": task, "OS-EXT-STS:power_state": runs,
            });
            Server::read(&value).unwrap().power()
        };
        assert_eq!(power("SHUTOFF", None, 4), PowerState::Off);
        assert_eq!(power("SHUTOFF", Some("powering-on"), 4), PowerState::Starting);
        assert_eq!(power("ACTIVE", Some("powering-off"), 1), PowerState::Stopping);
        assert_eq!(power("ACTIVE", Some("deleting"), 1), PowerState::Stopping);
        assert_eq!(power("SHELVED", None, 4), PowerState::Off);
        assert_eq!(power("ERROR", None, 0), PowerState::Off);
        assert_eq!(power("ERROR", None, 1), PowerState::On, "a failed resize leaves it running");
        for status in ["PAUSED", "SUSPENDED", "RESCUE", "RESIZE", "UNKNOWN"] {
            assert_eq!(power(status, None, 0), PowerState::Unknown, "{status}");
        }
    }

    #[test]
    fn a_server_that_was_set_aside_says_how_to_get_it_back() {
        let said = |status: &str| {
            let value = json!({ "id": "s1", "name": "demo-a", "status": status, "fault": { "message": "no host" } });
            Server::read(&value).unwrap().hindrance().map(|error| error.to_string())
        };
        assert_eq!(
            said("PAUSED").as_deref(),
            Some("the server demo-a is paused: `openstack server unpause s1`, then run this again")
        );
        assert!(said("ERROR").unwrap().contains("no host"));
        assert!(said("SHELVED_OFFLOADED").unwrap().contains("unshelve"));
        assert_eq!(said("SHUTOFF"), None);
    }
}
