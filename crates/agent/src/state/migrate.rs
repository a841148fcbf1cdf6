//! Converts states of older programs to the current form.

use serde_json::{Map, Value, json};

/// The first protocol whose state keeps etcd's part apart, and whose configs list services by name.
const SERVICES: u32 = 3;
const OF_ETCD: [&str; 6] = ["binary", "wanted_running", "last_started", "peers", "older", "launched"];

pub(super) fn to_present(mut state: Value, written_by: u32) -> Value {
    if written_by < SERVICES
        && let Some(state) = state.as_object_mut()
    {
        let etcd: Map<String, Value> =
            OF_ETCD.iter().filter_map(|name| Some(((*name).to_owned(), state.remove(*name)?))).collect();
        state.insert(String::from("etcd"), Value::Object(etcd));
        if let Some(in_place) = state.get_mut("node_config").and_then(Value::as_object_mut) {
            name_services(in_place);
        }
    }
    state
}

fn name_services(in_place: &mut Map<String, Value>) {
    if let Some(Value::String(digest)) = in_place.remove("etcd_digest") {
        in_place.insert(String::from("services"), json!({ "etcd": digest }));
    }
    let Some(config) = in_place.get_mut("config").and_then(Value::as_object_mut) else { return };
    let Some(Value::Object(mut etcd)) = config.remove("etcd") else { return };
    let inputs = etcd.remove("inputs").unwrap_or_else(|| json!([]));
    let service = json!({ "name": "etcd", "user": "etcd", "runs": { "etcd": etcd }, "inputs": inputs });
    config.insert(String::from("services"), json!([service]));
}

#[cfg(test)]
mod tests {
    use quorate_core::model::BinarySeen;

    use super::*;
    use crate::state::State;

    /// As an agent of protocol 2 wrote it, with its certificates and keys left out.
    const WRITTEN: &str = include_str!("protocol-2.json");

    #[test]
    fn state_of_a_protocol_2_agent_is_read_in_full() {
        let written: Value = serde_json::from_str(WRITTEN).unwrap();
        let state: State = serde_json::from_value(to_present(written.clone(), 2)).unwrap();
        assert!(state.etcd.wanted_running && state.services.is_empty());
        assert_eq!(state.etcd.last_started.as_ref().unwrap().token, written["last_started"]["token"]);
        assert_eq!(state.etcd.binary.seen, BinarySeen::Version(String::from("3.6.16")));
        assert_eq!((state.etcd.peers.len(), state.etcd.launched.len()), (2, 1));
        let in_place = state.node_config.unwrap();
        // The etcd that runs is known by it: with another one it would be restarted for nothing.
        assert_eq!(in_place.service_digest("etcd"), written["node_config"]["etcd_digest"]);
        assert_eq!(in_place.config.etcd().unwrap().flags["name"], "etcd-3");
        assert_eq!(in_place.config.service("etcd").unwrap().inputs.len(), 2);
    }

    #[test]
    fn state_of_protocol_3_is_not_migrated() {
        let written = json!({ "protocol": 3, "etcd": { "wanted_running": true }, "peers": "of another time" });
        assert_eq!(to_present(written.clone(), 3), written);
    }
}
