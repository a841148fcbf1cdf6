//! What the scripted cloud knows and answers: records of servers, ports and networks, made and read through the paths
//! of OpenStack's services. Servers run as soon as they are made, and nothing runs in them. It counts what it is asked.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

pub const IMAGE: &str = "machine";
pub const FLAVOR: &str = "small";
pub const NETWORK: &str = "internal";
pub const REGION: &str = "bench";
const PROJECT: &str = "bench";
/// Addresses of the loopback interface: nobody listens there, which is known at once.
const SUBNET: &str = "127.77.0.0/16";
/// What lists are narrowed by. Other parameters say which fields are wanted, or how many.
const FILTERS: [&str; 6] = ["id", "name", "description", "network_id", "project_id", "status"];

/// Calls, by method, service and path, with `ID` in place of every id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls(BTreeMap<String, usize>);

impl Calls {
    fn add(&mut self, method: &str, path: &str) {
        *self.0.entry(shape(method, path)).or_default() += 1;
    }

    #[cfg(test)]
    pub fn of(calls: &[(&str, &str)]) -> Self {
        let mut all = Calls::default();
        calls.iter().for_each(|(method, path)| all.add(method, path));
        all
    }

    pub fn all(&self) -> usize {
        self.0.values().sum()
    }

    pub fn logins(&self) -> usize {
        self.0.iter().filter(|(call, _)| call.contains("auth/tokens")).map(|(_, times)| times).sum()
    }
}

/// `2 × GET compute/servers/detail, 1 × POST identity/auth/tokens`.
impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> = self.0.iter().map(|(call, times)| format!("{times} × {call}")).collect();
        f.write_str(&calls.join(", "))
    }
}

fn shape(method: &str, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let is_version = |part: &str| part.starts_with('v') && part[1..].starts_with(|first: char| first.is_ascii_digit());
    let parts = path.split('/').filter(|part| !part.is_empty() && !is_version(part));
    let parts: Vec<&str> = parts.map(|part| if is_id(part) { "ID" } else { part }).collect();
    format!("{method} {}", parts.join("/"))
}

fn is_id(part: &str) -> bool {
    part.len() == 36 && part.matches('-').count() == 4
}

/// Status and body.
pub type Answer = (u16, Value);

pub struct Cloud {
    url: String,
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
    pub fn new(url: String) -> Self {
        let mut cloud = Cloud { url, records: BTreeMap::new(), made: 0, calls: Calls::default() };
        cloud.add("images", json!({ "name": IMAGE, "status": "active", "visibility": "private", "min_disk": 0 }));
        cloud.add("flavors", json!({ "name": FLAVOR, "vcpus": 1, "ram": 1024, "disk": 10 }));
        let network = cloud.add("networks", json!({ "name": NETWORK, "status": "ACTIVE", "admin_state_up": true }));
        let subnet = json!({ "name": NETWORK, "network_id": network["id"], "cidr": SUBNET, "ip_version": 4 });
        cloud.add("subnets", subnet);
        cloud
    }

    /// What it was asked since the last time.
    pub fn take_calls(&mut self) -> Calls {
        std::mem::take(&mut self.calls)
    }

    /// Servers whose metadata has all of this.
    pub fn servers_with(&self, metadata: &[(&str, &str)]) -> usize {
        let has = |server: &&Value| metadata.iter().all(|(key, value)| server["metadata"][key] == *value);
        self.of("servers").iter().filter(has).count()
    }

    /// The id of the only one of a kind.
    pub fn id_of(&self, kind: &str) -> String {
        let id = self.of(kind).first().and_then(|one| one["id"].as_str());
        id.unwrap_or_default().to_owned()
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
        match (method, parts.get(skipped..).unwrap_or_default()) {
            ("GET", []) => (200, json!({ "version": { "id": "v2.1", "status": "CURRENT", "version": "2.90" } })),
            ("GET", ["limits"]) => (200, json!({ "limits": { "absolute": {} } })),
            ("GET", [kind] | [kind, "detail"]) => self.list(kind, query),
            ("GET", [kind, id]) => self.find(kind, id).map_or_else(absent, |one| (200, wrapped(kind, one.clone()))),
            ("GET", ["servers", id, "tags"]) => {
                self.find("servers", id).map_or_else(absent, |one| (200, json!({ "tags": one["tags"] })))
            }
            ("POST", ["servers"]) => self.make_server(&body["server"]),
            ("POST", ["ports"]) => self.make_port(&body["port"]),
            ("POST", ["servers", id, "metadata"]) => self.mark_server(id, &body["metadata"]),
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
        let entry = |(kind, path): &(&str, &str)| {
            let url = format!("{}{path}", self.url);
            let endpoint = json!({
                "id": kind, "interface": "public", "region": REGION, "region_id": REGION, "url": url,
            });
            json!({ "id": kind, "name": kind, "type": kind, "endpoints": [endpoint] })
        };
        let catalog: Vec<Value> = services.iter().map(entry).collect();
        let project = json!({ "id": PROJECT, "name": PROJECT, "domain": { "id": "default", "name": "Default" } });
        json!({ "token": {
            "expires_at": "2099-01-01T00:00:00.000000Z", "issued_at": "2025-01-01T00:00:00.000000Z",
            "methods": ["password"], "project": project, "catalog": catalog,
        } })
    }

    fn of(&self, kind: &str) -> &[Value] {
        self.records.get(kind).map(Vec::as_slice).unwrap_or_default()
    }

    fn find(&self, kind: &str, id: &str) -> Option<&Value> {
        self.of(kind).iter().find(|one| one["id"] == id)
    }

    fn change(&mut self, kind: &str, id: &str) -> Option<&mut Value> {
        self.records.get_mut(kind)?.iter_mut().find(|one| one["id"] == id)
    }

    fn list(&self, kind: &str, query: &str) -> Answer {
        let Some((known, one)) = KINDS.iter().find(|(known, _)| *known == kind) else { return absent() };
        let wanted = filters(query);
        let fits = |record: &&Value| wanted.iter().all(|(field, values)| values.iter().any(|v| has(record, field, v)));
        let found: Vec<&Value> = self.of(known).iter().filter(fits).collect();
        (200, json!({ format!("{one}s"): found }))
    }

    fn add(&mut self, kind: &'static str, mut record: Value) -> Value {
        self.made += 1;
        record["id"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.made));
        self.records.entry(kind).or_default().push(record.clone());
        record
    }

    fn make_port(&mut self, wanted: &Value) -> Answer {
        let n = self.of("ports").len() + 2;
        let (high, low) = (n / 250, n % 250 + 1);
        let fixed = json!([{ "subnet_id": self.id_of("subnets"), "ip_address": format!("127.77.{high}.{low}") }]);
        let mut port = json!({
            "name": "", "description": "", "device_id": "", "device_owner": "", "status": "DOWN", "project_id": PROJECT,
            "tenant_id": PROJECT, "admin_state_up": true, "port_security_enabled": true, "security_groups": [],
            "allowed_address_pairs": [], "tags": [], "mac_address": format!("fa:16:3e:00:{high:02x}:{low:02x}"),
        });
        merge(&mut port, wanted);
        port["fixed_ips"] = fixed;
        (201, wrapped("ports", self.add("ports", port)))
    }

    fn make_server(&mut self, wanted: &Value) -> Answer {
        let flavor = self.find("flavors", wanted["flavorRef"].as_str().unwrap_or_default());
        let flavor = flavor.map(|flavor| json!({ "id": flavor["id"], "original_name": flavor["name"] }));
        let ports: Vec<String> = wanted["networks"].as_array().into_iter().flatten().filter_map(port_of).collect();
        let interface = |port: &Value| {
            json!({
                "addr": port["fixed_ips"][0]["ip_address"], "version": 4, "OS-EXT-IPS:type": "fixed",
                "OS-EXT-IPS-MAC:mac_addr": port["mac_address"],
            })
        };
        let interfaces: Vec<Value> = ports.iter().filter_map(|port| self.find("ports", port)).map(interface).collect();
        let or_empty = |field: &str, empty: Value| wanted.get(field).cloned().unwrap_or(empty);
        let server = self.add(
            "servers",
            json!({
                "name": wanted["name"], "status": "ACTIVE", "OS-EXT-STS:power_state": 1,
                "OS-EXT-STS:task_state": null, "OS-EXT-AZ:availability_zone": "nova", "key_name": null,
                "metadata": or_empty("metadata", json!({})), "tags": or_empty("tags", json!([])), "security_groups": [],
                "flavor": flavor, "image": { "id": wanted["imageRef"] }, "addresses": { NETWORK: interfaces },
                "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z", "tenant_id": PROJECT,
            }),
        );
        for port in &ports {
            if let Some(port) = self.change("ports", port) {
                merge(port, &json!({ "device_id": server["id"], "device_owner": "compute:nova", "status": "ACTIVE" }));
            }
        }
        (202, json!({ "server": { "id": server["id"] } }))
    }

    fn mark_server(&mut self, id: &str, metadata: &Value) -> Answer {
        let Some(server) = self.change("servers", id) else { return absent() };
        merge(&mut server["metadata"], metadata);
        (200, json!({ "metadata": server["metadata"] }))
    }
}

fn absent() -> Answer {
    (404, json!({ "itemNotFound": { "message": "there is no such thing in this cloud" } }))
}

fn port_of(network: &Value) -> Option<String> {
    network["port"].as_str().map(str::to_owned)
}

/// Glance alone does not say of which kind its answers are.
fn wrapped(kind: &str, one: Value) -> Value {
    match KINDS.iter().find(|(known, _)| *known == kind && kind != "images") {
        Some((_, name)) => json!({ *name: one }),
        None => one,
    }
}

fn merge(into: &mut Value, more: &Value) {
    if let (Some(into), Some(more)) = (into.as_object_mut(), more.as_object()) {
        let more: Map<String, Value> = more.clone();
        into.extend(more);
    }
}

/// Which values a field may have.
fn filters(query: &str) -> BTreeMap<String, Vec<String>> {
    let mut filters: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (field, value) in query.split('&').filter_map(|part| part.split_once('=')) {
        if FILTERS.contains(&field) || field == "tags" || field == "fixed_ips" {
            filters.entry(field.to_owned()).or_default().push(unescaped(value));
        }
    }
    filters
}

fn has(record: &Value, field: &str, value: &str) -> bool {
    match field {
        "tags" => record["tags"].as_array().is_some_and(|tags| tags.iter().any(|tag| tag == value)),
        "fixed_ips" => {
            let address = value.strip_prefix("ip_address=").unwrap_or_default();
            record["fixed_ips"].as_array().is_some_and(|all| all.iter().any(|one| one["ip_address"] == address))
        }
        // Not every record says to whom it belongs: all are of one project.
        _ => record.get(field).is_none_or(|found| found == value),
    }
}

/// Without the escapes of a URL.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let code = others.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &others[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = others;
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "00000000-0000-4000-8000-00000000002a";

    fn cloud() -> Cloud {
        Cloud::new(String::from("http://cloud"))
    }

    #[test]
    fn calls_are_counted_by_what_they_ask_for_whatever_it_is_called() {
        let tags = format!("/compute/v2.1/servers/{ID}/tags");
        let calls = Calls::of(&[
            ("POST", "/identity/v3/auth/tokens"),
            ("GET", "/compute/v2.1/servers/detail?tags=quorate.c1"),
            ("GET", "/compute/v2.1/servers/detail"),
            ("GET", tags.as_str()),
            ("GET", "/volume/v3/volumes/detail"),
        ]);
        assert_eq!((calls.all(), calls.logins()), (5, 1));
        let expected = "1 × GET compute/servers/ID/tags, 2 × GET compute/servers/detail, \
                        1 × GET volume/volumes/detail, 1 × POST identity/auth/tokens";
        assert_eq!(calls.to_string(), expected);
    }

    #[test]
    fn calls_are_handed_out_once() {
        let mut cloud = cloud();
        cloud.answer("GET", "/network/v2.0/networks", &Value::Null);
        assert_eq!(cloud.take_calls().all(), 1);
        assert_eq!(cloud.take_calls().all(), 0);
    }

    #[test]
    fn a_server_has_its_port_and_is_found_by_its_tag_and_by_its_marks() {
        let mut cloud = cloud();
        let (_, port) = cloud.answer("POST", "/network/v2.0/ports", &json!({ "port": { "description": "quorate c" } }));
        let port = port["port"]["id"].as_str().unwrap().to_owned();
        let flavor = cloud.id_of("flavors");
        let wanted = json!({ "server": {
            "name": "a", "flavorRef": flavor, "networks": [{ "port": port }], "tags": ["t"],
            "metadata": { "k": "draft" },
        } });
        let (status, made) = cloud.answer("POST", "/compute/v2.1/servers", &wanted);
        assert_eq!(status, 202);
        let server = made["server"]["id"].as_str().unwrap().to_owned();
        let path = format!("/compute/v2.1/servers/{server}/metadata");
        cloud.answer("POST", &path, &json!({ "metadata": { "k": "whole" } }));
        assert_eq!((cloud.servers_with(&[("k", "whole")]), cloud.servers_with(&[("k", "draft")])), (1, 0));
        let mut count =
            |path: &str, field: &str| cloud.answer("GET", path, &Value::Null).1[field].as_array().unwrap().len();
        assert_eq!(count("/compute/v2.1/servers/detail?tags=t", "servers"), 1);
        assert_eq!(count("/compute/v2.1/servers/detail?tags=u", "servers"), 0);
        assert_eq!(count("/network/v2.0/ports?project_id=bench&description=quorate%20c", "ports"), 1);
        assert_eq!(count("/network/v2.0/ports?fixed_ips=ip_address%3D127.77.0.3", "ports"), 1);
        assert_eq!(count("/network/v2.0/ports?fixed_ips=ip_address%3D127.77.0.4", "ports"), 0);
        let (_, port) = cloud.answer("GET", &format!("/network/v2.0/ports/{port}"), &Value::Null);
        assert_eq!(port["port"]["device_id"], json!(server));
    }

    #[test]
    fn what_is_not_there_is_absent() {
        let mut cloud = cloud();
        assert_eq!(
            cloud.answer("GET", "/volume/v3/bench/volumes/detail", &Value::Null),
            (200, json!({ "volumes": [] }))
        );
        for path in [format!("/compute/v2.1/servers/{ID}"), String::from("/network/v2.0/routers")] {
            assert_eq!(cloud.answer("GET", &path, &Value::Null).0, 404, "{path}");
        }
    }
}
