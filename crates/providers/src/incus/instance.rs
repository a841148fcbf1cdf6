//! A machine as Incus knows it: an instance. Its configuration carries quorate's mark, from which follows all that belongs to it. Every
//! user of the project can read that configuration, so no secret is in it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use quorate_core::model::{Build, MachineId, MemberName, PowerState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Says of which cluster an instance is, for people and for filters; the mark itself is beside it.
pub(super) const CLUSTER_KEY: &str = "user.quorate.cluster";
const MARK_KEY: &str = "user.quorate.mark";
pub(super) const AUTOSTART_KEY: &str = "boot.autostart";
/// The device of the data volume, by which a virtual machine finds it too.
pub(super) const DATA_DEVICE: &str = "etcd";
/// The device of a virtual machine's seed.
pub(super) const SEED_DEVICE: &str = "seed";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) cluster: String,
    pub(super) cluster_id: String,
    pub(super) member: MemberName,
    pub(super) incarnation: u64,
    pub(super) address: IpAddr,
    /// Of the controller that makes it.
    pub(super) fence: u64,
    pub(super) state: State,
    /// The data volume that was made for its member, and may stay.
    pub(super) data: Option<String>,
    /// The volume from which a virtual machine learns what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seed: Option<String>,
    /// What it was made of.
    pub(super) build: Option<Build>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Its files are being written. It is nobody's machine yet.
    Draft,
    Whole,
    /// It is being removed.
    Going,
}

impl Mark {
    /// As configuration.
    pub(super) fn config(&self) -> BTreeMap<&'static str, String> {
        let mark = serde_json::to_string(self).expect("plain data serializes");
        BTreeMap::from([(CLUSTER_KEY, self.cluster.clone()), (MARK_KEY, mark)])
    }

    pub(super) fn machine(&self) -> MachineId {
        MachineId::new(&self.member, self.incarnation)
    }

    pub(super) fn is_of(&self, machine: &MachineId) -> bool {
        self.member == machine.member && self.incarnation == machine.incarnation
    }
}

/// An instance as it was found.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) name: String,
    /// Made by Incus for this very instance.
    pub(super) uuid: String,
    pub(super) power: PowerState,
    pub(super) mark: Option<Mark>,
    /// Addresses that are reserved for it.
    pub(super) addresses: Vec<IpAddr>,
    /// The host that it is on, in an Incus cluster.
    pub(super) location: String,
    pub(super) devices: Value,
}

impl Instance {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let text = |field: &str| value.get(field).and_then(Value::as_str);
        let config = |key: &str| value.get("config")?.get(key)?.as_str();
        let devices = value.get("expanded_devices").and_then(Value::as_object).into_iter().flatten();
        let reserved = devices.flat_map(|(_, device)| ["ipv4.address", "ipv6.address"].map(|key| device.get(key)));
        Some(Instance {
            name: text("name")?.to_owned(),
            uuid: config("volatile.uuid").unwrap_or_default().to_owned(),
            power: power(text("status").unwrap_or_default()),
            mark: config(MARK_KEY).and_then(|mark| serde_json::from_str(mark).ok()),
            addresses: reserved.flatten().filter_map(|address| address.as_str()?.parse().ok()).collect(),
            location: text("location").unwrap_or_default().to_owned(),
            devices: value.get("devices").cloned().unwrap_or_else(|| json!({})),
        })
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.mark.as_ref().is_some_and(|mark| mark.address == address)
    }

    pub(super) fn path(&self) -> String {
        path(&self.name)
    }
}

pub(super) fn path(name: &str) -> String {
    format!("/1.0/instances/{}", super::server::escaped(name))
}

/// A frozen instance is on, though nothing in it answers.
fn power(status: &str) -> PowerState {
    match status {
        "Running" | "Ready" | "Frozen" | "Freezing" | "Thawed" => PowerState::On,
        "Stopped" => PowerState::Off,
        "Starting" => PowerState::Starting,
        "Stopping" | "Aborting" => PowerState::Stopping,
        // Its host may be away.
        _ => PowerState::Unknown,
    }
}

/// A dot cannot be in the name of an instance.
pub(super) fn name(cluster: &str, machine: &MachineId) -> String {
    match machine.incarnation {
        0 | 1 => format!("{cluster}-{}", machine.member),
        later => format!("{cluster}-{}-i{later}", machine.member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_read_with_its_mark_and_its_addresses() {
        let mark = Mark {
            cluster: String::from("demo"),
            cluster_id: String::from("c"),
            member: "etcd-1".into(),
            incarnation: 2,
            address: "10.0.0.11".parse().unwrap(),
            fence: 7,
            state: State::Whole,
            data: None,
            seed: None,
            build: None,
        };
        let mut config = json!(mark.config());
        config["volatile.uuid"] = json!("u");
        let mut value = json!({
            "name": "demo-etcd-1-i2", "status": "Running", "config": config, "devices": {},
            "expanded_devices": {"eth0": {"type": "nic", "ipv4.address": "10.0.0.11", "ipv6.address": "none"}},
        });
        let found = Instance::read(&value).unwrap();
        assert_eq!((found.mark.as_ref(), found.power, found.uuid.as_str()), (Some(&mark), PowerState::On, "u"));
        assert!(found.has("10.0.0.11".parse().unwrap()) && !found.has("10.0.0.12".parse().unwrap()));
        assert_eq!(found.name, name("demo", &MachineId::new(&"etcd-1".into(), 2)));
        value["status"] = json!("Error");
        assert_eq!(Instance::read(&value).unwrap().power, PowerState::Unknown);
        value["config"][MARK_KEY] = json!("{}");
        assert_eq!(Instance::read(&value).unwrap().mark, None);
    }
}
