//! The cloud's state and answers: records, created and read through the paths of its services.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::calls::Calls;
use crate::query::Filters;
use crate::servers::Building;

pub const IMAGE: &str = "machine";
pub const FLAVOR: &str = "small";
pub const NETWORK: &str = "internal";
pub const REGION: &str = "bench";
pub const PROJECT: &str = "bench";
/// Addresses of the loopback interface: nobody listens there, which is known at once.
const SUBNET: &str = "127.77.0.0/16";

/// Status and body.
pub type Answer = (u16, Value);

pub struct Cloud {
    url: String,
    region: String,
    /// Other regions of the same cloud, and where their services are.
    neighbours: Vec<(String, String)>,
    pub(crate) building: Building,
    /// By kind, as paths have it, and in the order in which they were made.
    records: BTreeMap<&'static str, Vec<Value>>,
    made: u32,
    calls: Calls,
}

/// Path, and the name of one of them in bodies.
const KINDS: [(&str, &str); 10] = [
    ("servers", "server"),
    ("flavors", "flavor"),
    ("os-server-groups", "server_group"),
    ("networks", "network"),
    ("subnets", "subnet"),
    ("ports", "port"),
    ("security-groups", "security_group"),
    ("floatingips", "floatingip"),
    ("volumes", "volume"),
    ("images", "image"),
];

impl Cloud {
    /// With an image, a flavor and a network. Its services are below this URL.
    pub fn new(url: String, region: &str) -> Self {
        let mut cloud = Cloud {
            url,
            region: region.to_owned(),
            neighbours: Vec::new(),
            building: Building::AtOnce,
            records: BTreeMap::new(),
            made: 0,
            calls: Calls::default(),
        };
        cloud.add("images", json!({ "name": IMAGE, "status": "active", "visibility": "private", "min_disk": 0 }));
        cloud.add("flavors", json!({ "name": FLAVOR, "vcpus": 1, "ram": 1024, "disk": 10 }));
        let network = cloud.add("networks", json!({ "name": NETWORK, "status": "ACTIVE", "admin_state_up": true }));
        let subnet = json!({ "name": NETWORK, "network_id": network["id"], "cidr": SUBNET, "ip_version": 4 });
        cloud.add("subnets", subnet);
        cloud
    }

    /// Its catalogue shows another region first.
    pub fn add_neighbour(&mut self, region: &str, url: &str) {
        self.neighbours.push((region.to_owned(), url.to_owned()));
    }

    /// How servers are built from now on.
    pub fn build(&mut self, building: Building) {
        self.building = building;
    }

    /// What it was asked since the last time.
    pub fn take_calls(&mut self) -> Calls {
        std::mem::take(&mut self.calls)
    }

    /// Servers whose metadata has all of this.
    pub fn servers_with(&self, metadata: &[(&str, &str)]) -> usize {
        let has = |server: &&Value| metadata.iter().all(|(key, value)| server["metadata"][key] == *value);
        self.all("servers").iter().filter(has).count()
    }

    /// The id of the only one of a kind.
    pub fn id_of(&self, kind: &str) -> String {
        let id = self.all(kind).first().and_then(|one| one["id"].as_str());
        id.unwrap_or_default().to_owned()
    }

    /// Records of a kind, as paths call it.
    pub fn all(&self, kind: &str) -> &[Value] {
        self.records.get(kind).map(Vec::as_slice).unwrap_or_default()
    }

    /// All that somebody has created.
    pub fn created(&self) -> BTreeMap<&'static str, Vec<Value>> {
        let given = ["images", "flavors", "networks", "subnets"];
        let created = self.records.iter().filter(|(kind, all)| !given.contains(*kind) && !all.is_empty());
        created.map(|(kind, all)| (*kind, all.clone())).collect()
    }

    pub fn answer(&mut self, method: &str, target: &str, body: &Value) -> Answer {
        self.calls.add(method, target);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if path.ends_with("/auth/tokens") {
            return (201, self.token());
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        // The service and the version of its API, and the project for volumes.
        let skipped = if parts.first() == Some(&"volume") { 3 } else { 2 };
        let parts = parts.get(skipped..).unwrap_or_default();
        match (method, parts) {
            ("GET", []) => (200, json!({ "version": { "id": "v2.1", "status": "CURRENT", "version": "2.90" } })),
            ("GET", ["limits"]) => (200, json!({ "limits": { "absolute": {} } })),
            ("GET", [kind] | [kind, "detail"]) => self.list(kind, query),
            ("GET", ["servers", id]) => self.look_at_server(id),
            ("GET", ["servers", id, "tags"]) => {
                self.find("servers", id).map_or_else(absent, |one| (200, json!({ "tags": one["tags"] })))
            }
            ("GET", [kind, id]) => self.find(kind, id).map_or_else(absent, |one| (200, wrapped(kind, one.clone()))),
            ("POST", ["servers"]) => self.make_server(&body["server"]),
            ("POST", ["servers" | "volumes", id, "metadata"]) => self.mark(parts[0], id, &body["metadata"]),
            ("POST", ["servers", id, "action"]) => self.act_on_server(id, body),
            ("PUT", ["servers", id, "tags", tag]) => self.tag_server(id, tag),
            ("DELETE", ["servers", id]) => self.delete_server(id),
            ("POST", ["volumes"]) => self.make_volume(&body["volume"]),
            ("DELETE", ["volumes", id]) => self.delete_volume(id),
            ("POST", ["ports"]) => self.make_port(&body["port"]),
            ("PUT", ["ports", id]) => self.change_port(id, &body["port"]),
            ("POST", ["security-groups"]) => self.make_security_group(&body["security_group"]),
            ("DELETE", ["security-groups", id]) => self.delete_security_group(id),
            ("POST", ["security-group-rules"]) => self.add_rules(&body["security_group_rules"]),
            ("DELETE", ["security-group-rules", id]) => self.delete_rule(id),
            ("POST", ["os-server-groups"]) => {
                let mut group = json!({ "members": [] });
                merge(&mut group, &body["server_group"]);
                (200, wrapped("os-server-groups", self.add("os-server-groups", group)))
            }
            ("DELETE", [kind @ ("ports" | "os-server-groups"), id]) => self.delete(kind, id),
            _ => absent(),
        }
    }

    fn token(&self) -> Value {
        let services = [
            ("identity", "/identity/v3"),
            ("compute", "/compute/v2.1"),
            ("network", "/network"),
            ("image", "/image"),
            ("block-storage", "/volume/v3"),
        ];
        let own = (self.region.clone(), self.url.clone());
        let regions: Vec<&(String, String)> = self.neighbours.iter().chain([&own]).collect();
        let entry = |(kind, path): &(&str, &str)| {
            let endpoint = |(region, url): &&(String, String)| {
                let url = format!("{url}{path}");
                json!({ "id": kind, "interface": "public", "region": region, "region_id": region, "url": url })
            };
            let endpoints: Vec<Value> = regions.iter().map(endpoint).collect();
            json!({ "id": kind, "name": kind, "type": kind, "endpoints": endpoints })
        };
        let catalog: Vec<Value> = services.iter().map(entry).collect();
        let project = json!({ "id": PROJECT, "name": PROJECT, "domain": { "id": "default", "name": "Default" } });
        json!({ "token": {
            "expires_at": "2099-01-01T00:00:00.000000Z", "issued_at": "2025-01-01T00:00:00.000000Z",
            "methods": ["password"], "project": project, "catalog": catalog,
        } })
    }

    pub(crate) fn find(&self, kind: &str, id: &str) -> Option<&Value> {
        self.all(kind).iter().find(|one| one["id"] == id)
    }

    pub(crate) fn change(&mut self, kind: &str, id: &str) -> Option<&mut Value> {
        self.records.get_mut(kind)?.iter_mut().find(|one| one["id"] == id)
    }

    /// Records that `changed` has to see.
    pub(crate) fn change_all(&mut self, kind: &str, changed: impl FnMut(&mut Value)) {
        self.records.get_mut(kind).into_iter().flatten().for_each(changed);
    }

    /// Whether there was one.
    pub(crate) fn remove(&mut self, kind: &str, id: &str) -> bool {
        let Some(all) = self.records.get_mut(kind) else { return false };
        let before = all.len();
        all.retain(|one| one["id"] != id);
        all.len() < before
    }

    pub(crate) fn delete(&mut self, kind: &str, id: &str) -> Answer {
        if self.remove(kind, id) { (204, Value::Null) } else { absent() }
    }

    fn list(&self, kind: &str, query: &str) -> Answer {
        let Some((known, one)) = KINDS.iter().find(|(known, _)| *known == kind) else { return absent() };
        let filters = Filters::read(query);
        let found: Vec<&Value> = self.all(known).iter().filter(|record| filters.fit(record)).collect();
        (200, json!({ format!("{one}s"): found }))
    }

    pub(crate) fn new_id(&mut self) -> String {
        self.made += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.made)
    }

    pub(crate) fn add(&mut self, kind: &'static str, mut record: Value) -> Value {
        record["id"] = json!(self.new_id());
        self.records.entry(kind).or_default().push(record.clone());
        record
    }

    fn mark(&mut self, kind: &str, id: &str, metadata: &Value) -> Answer {
        let Some(one) = self.change(kind, id) else { return absent() };
        merge(&mut one["metadata"], metadata);
        (200, json!({ "metadata": one["metadata"] }))
    }
}

pub(crate) fn absent() -> Answer {
    (404, json!({ "itemNotFound": { "message": "there is no such thing in this cloud" } }))
}

pub(crate) fn refused(code: u16, message: impl Into<String>) -> Answer {
    (code, json!({ "refused": { "message": message.into() } }))
}

/// Glance alone does not say of which kind its answers are.
pub(crate) fn wrapped(kind: &str, one: Value) -> Value {
    match KINDS.iter().find(|(known, _)| *known == kind && kind != "images") {
        Some((_, name)) => json!({ *name: one }),
        None => one,
    }
}

pub(crate) fn merge(into: &mut Value, more: &Value) {
    if let (Some(into), Some(more)) = (into.as_object_mut(), more.as_object()) {
        let more: Map<String, Value> = more.clone();
        into.extend(more);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cloud() -> Cloud {
        Cloud::new(String::from("http://cloud"), REGION)
    }

    #[test]
    fn calls_are_handed_out_once() {
        let mut cloud = cloud();
        cloud.answer("GET", "/network/v2.0/networks", &Value::Null);
        assert_eq!(cloud.take_calls().all(), 1);
        assert_eq!(cloud.take_calls().all(), 0);
    }

    #[test]
    fn an_empty_cloud_lists_nothing_and_answers_404() {
        let mut cloud = cloud();
        assert_eq!(
            cloud.answer("GET", "/volume/v3/bench/volumes/detail", &Value::Null),
            (200, json!({ "volumes": [] }))
        );
        let server = "/compute/v2.1/servers/00000000-0000-4000-8000-00000000002a";
        for (method, path) in [("GET", server), ("DELETE", server), ("GET", "/network/v2.0/routers")] {
            assert_eq!(cloud.answer(method, path, &Value::Null).0, 404, "{method} {path}");
        }
        assert!(cloud.created().is_empty());
    }

    #[test]
    fn the_catalogue_has_every_region() {
        let mut cloud = cloud();
        cloud.add_neighbour("south", "http://south");
        let (_, token) = cloud.answer("POST", "/identity/v3/auth/tokens", &Value::Null);
        let endpoints = &token["token"]["catalog"][1]["endpoints"];
        assert_eq!(endpoints[0]["url"], "http://south/compute/v2.1");
        assert_eq!(
            (&endpoints[1]["region"], &endpoints[1]["url"]),
            (&json!(REGION), &json!("http://cloud/compute/v2.1"))
        );
    }

    #[test]
    fn a_server_group_is_made_listed_and_deleted() {
        let mut cloud = cloud();
        let wanted = json!({ "server_group": { "name": "g", "policy": "anti-affinity" } });
        let (_, made) = cloud.answer("POST", "/compute/v2.1/os-server-groups", &wanted);
        let (_, listed) = cloud.answer("GET", "/compute/v2.1/os-server-groups", &Value::Null);
        assert_eq!(listed["server_groups"], json!([made["server_group"]]));
        assert_eq!(made["server_group"]["policy"], "anti-affinity");
        let path = format!("/compute/v2.1/os-server-groups/{}", cloud.id_of("os-server-groups"));
        assert_eq!(cloud.answer("DELETE", &path, &Value::Null), (204, Value::Null));
        assert!(cloud.created().is_empty());
    }
}
