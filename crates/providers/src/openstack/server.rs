//! A machine as OpenStack knows it: a server. Its metadata is quorate's mark.

use std::collections::BTreeMap;

use quorate_core::model::{Build, PowerState};
use serde_json::{Value, json};

use super::error::OpenstackError;
use crate::marks::{Mark, key};

/// Deleted, in a cloud that can restore servers for some time. It still has its disks, its ports and its volumes.
pub(super) const SOFT_DELETED: &str = "SOFT_DELETED";

/// The tag by which the servers of clusters of this name are listed.
pub(super) fn tag(cluster: &str) -> String {
    key(cluster)
}

/// The mark in a server's metadata.
fn read_mark(metadata: &Value) -> Option<Mark> {
    let texts = metadata.as_object()?.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    Mark::read(&texts.collect::<BTreeMap<String, String>>())
}

/// A server with a mark.
pub(super) fn marked(value: &Value) -> Option<(Server, Mark)> {
    let server = Server::read(value)?;
    let mark = server.mark.clone()?;
    Some((server, mark))
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
    /// The flavor that it has, by name.
    flavor: Option<String>,
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
            flavor: value.pointer("/flavor/original_name").and_then(Value::as_str).map(str::to_owned),
            mark: value.get("metadata").and_then(read_mark),
        })
    }

    /// One that is broken counts as on: nobody knows what still runs. If its agent does not answer, it is replaced like any dead machine.
    pub(super) fn power(&self) -> PowerState {
        match (self.status.as_str(), self.task.as_deref()) {
            (_, Some("deleting" | "soft-deleting")) => PowerState::Stopping,
            ("ACTIVE", Some("powering-off")) => PowerState::Stopping,
            ("ACTIVE" | "REBOOT" | "HARD_REBOOT" | "PASSWORD" | "MIGRATING" | "VERIFY_RESIZE", _) => PowerState::On,
            ("SHUTOFF", Some("powering-on")) | ("BUILD" | "REBUILD", _) => PowerState::Starting,
            ("SHUTOFF" | "SHELVED" | "SHELVED_OFFLOADED" | "PAUSED" | "SUSPENDED" | SOFT_DELETED, _) => PowerState::Off,
            ("ERROR", _) => PowerState::On,
            _ => PowerState::Unknown,
        }
    }

    /// Whether it keeps its memory: anybody may let it go on where it was, without quorate.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self.status.as_str(), "PAUSED" | "SUSPENDED")
    }

    pub(super) fn is_soft_deleted(&self) -> bool {
        self.status == SOFT_DELETED
    }

    /// Whether it is broken and does not run.
    pub(super) fn is_down(&self) -> bool {
        self.status == "ERROR" && self.runs != Some(1)
    }

    /// What brings it back from where somebody has put it. Data is where it was: a resize is never reverted, because the previous disk
    /// has forgotten what was written since.
    pub(super) fn return_with(&self) -> Option<(&'static str, Value)> {
        let (doing, action) = match self.status.as_str() {
            "SHUTOFF" => ("start", "os-start"),
            "PAUSED" => ("unpause", "unpause"),
            "SUSPENDED" => ("resume", "resume"),
            "SHELVED" | "SHELVED_OFFLOADED" => ("unshelve", "unshelve"),
            "VERIFY_RESIZE" => ("confirm the resize of", "confirmResize"),
            SOFT_DELETED => ("restore", "restore"),
            "ERROR" if self.is_down() => return Some(("reboot", json!({ "reboot": { "type": "HARD" } }))),
            _ => return None,
        };
        Some((doing, json!({ action: null })))
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

    /// Why it does not run as it should, and what quorate leaves to people.
    pub(super) fn hindrance(&self) -> Option<OpenstackError> {
        let (name, id) = (self.name.clone(), &self.id);
        let aside = |state, command: &str| {
            let remedy = format!("`openstack server {command} {id}`");
            Some(OpenstackError::SetAside { name: self.name.clone(), state, remedy })
        };
        match self.status.as_str() {
            "ERROR" => Some(OpenstackError::Broken { name, fault: self.fault() }),
            "RESCUE" => aside("in rescue mode", "unrescue"),
            _ => None,
        }
    }

    /// What it was created from, with the flavor that somebody has given it since.
    pub(super) fn build(&self, mark: &Mark) -> Option<Build> {
        let resized = self.flavor.as_ref().zip(mark.flavor.as_ref()).filter(|(now, then)| now != then);
        match resized {
            Some((now, _)) => mark.build.as_ref().map(|build| build.with("flavor", now)),
            None => mark.build.clone(),
        }
    }

    pub(super) fn path(&self) -> String {
        format!("/servers/{}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::State;

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
            flavor: Some(String::from("m1.small")),
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
            "OS-EXT-STS:power_state": 1, "metadata": mark().parts(),
        });
        let found = Server::read(&value).unwrap();
        assert_eq!((found.mark.as_ref(), found.power()), (Some(&mark()), PowerState::On));
        for (key, value) in mark().parts() {
            assert!(key.len() <= 255 && value.len() <= 255, "{key}");
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
        assert_eq!(power("PAUSED", None, 3), PowerState::Off);
        assert_eq!(power("SUSPENDED", None, 4), PowerState::Off);
        for runs in [0, 1] {
            assert_eq!(power("ERROR", None, runs), PowerState::On, "what it does is not known");
        }
        for status in ["RESCUE", "RESIZE", "UNKNOWN"] {
            assert_eq!(power(status, None, 0), PowerState::Unknown, "{status}");
        }
    }

    #[test]
    fn every_state_has_an_answer() {
        let server = |status: &str, runs: u64| {
            let fault = json!({ "message": "no host" });
            let value = json!({
                "id": "s1", "name": "demo-a", "status": status, "fault": fault, "OS-EXT-STS:power_state": runs,
            });
            Server::read(&value).unwrap()
        };
        let answers = [
            ("SHUTOFF", "start"),
            ("PAUSED", "unpause"),
            ("SUSPENDED", "resume"),
            ("SHELVED", "unshelve"),
            ("SHELVED_OFFLOADED", "unshelve"),
            ("VERIFY_RESIZE", "confirm the resize of"),
            ("SOFT_DELETED", "restore"),
            ("ERROR", "reboot"),
        ];
        for (status, doing) in answers {
            assert_eq!(server(status, 4).return_with().map(|(doing, _)| doing), Some(doing), "{status}");
        }
        for status in ["ACTIVE", "RESCUE", "MIGRATING", "BUILD"] {
            assert_eq!(server(status, 1).return_with(), None, "{status}");
        }
        assert_eq!(server("ERROR", 1).return_with(), None, "what runs is left alone");
        let frozen = ["PAUSED", "SUSPENDED", "SHELVED", "SHUTOFF"].map(|status| server(status, 4).is_frozen());
        assert_eq!(frozen, [true, true, false, false]);
        let said = |status: &str| server(status, 0).hindrance().map(|error| error.to_string());
        assert_eq!(
            said("RESCUE").as_deref(),
            Some("the server demo-a is in rescue mode: `openstack server unrescue s1`, then run this again")
        );
        assert!(said("ERROR").unwrap().contains("no host"));
        assert_eq!(said("SHUTOFF"), None);
    }

    #[test]
    fn a_resized_server_is_not_what_it_was_created_from() {
        let server = |flavor: &str| {
            let value = json!({ "id": "s1", "flavor": { "original_name": flavor }, "metadata": mark().parts() });
            Server::read(&value).unwrap()
        };
        assert_eq!(server("m1.small").build(&mark()), mark().build);
        assert_ne!(server("m1.large").build(&mark()), mark().build);
        let unknown = Mark { flavor: None, ..mark() };
        assert_eq!(server("m1.large").build(&unknown), mark().build, "an older mark does not say");
    }
}
