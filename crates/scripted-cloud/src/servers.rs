//! Servers: they get their ports and volumes when they are created, and release them when they are deleted.

use serde_json::{Value, json};

use crate::cloud::{Answer, Cloud, NETWORK, PROJECT, absent, merge, refused, wrapped};

/// How often a server was looked at while it is built. Not a field of Nova's.
const LOOKS: &str = "looks";

/// How servers are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Building {
    /// They run as soon as they are made.
    AtOnce,
    /// They are seen in the state BUILD so often.
    Seen(u64),
    /// They stay in the state BUILD.
    Never,
    /// They are seen in the state BUILD once, and then in the state ERROR with this fault.
    Fails(String),
}

impl Cloud {
    pub(crate) fn make_server(&mut self, wanted: &Value) -> Answer {
        let flavor = self.find("flavors", wanted["flavorRef"].as_str().unwrap_or_default());
        let Some(flavor) = flavor.map(|flavor| json!({ "id": flavor["id"], "original_name": flavor["name"] })) else {
            return refused(400, "there is no such flavor");
        };
        let ports = ids(&wanted["networks"], "port");
        for id in &ports {
            match self.find("ports", id) {
                None => return refused(400, format!("Port {id} could not be found.")),
                Some(port) if port["device_id"] != "" => return refused(409, format!("Port {id} is still in use.")),
                Some(_) => {}
            }
        }
        let devices: Vec<&Value> = wanted["block_device_mapping_v2"].as_array().into_iter().flatten().collect();
        let volumes: Vec<&&Value> = devices.iter().filter(|device| device["source_type"] == "volume").collect();
        for volume in &volumes {
            let found = self.find("volumes", volume["uuid"].as_str().unwrap_or_default());
            if found.is_none_or(|found| found["status"] != "available") {
                return refused(400, format!("Invalid volume {}: it is not available.", volume["uuid"]));
            }
        }
        let interface = |port: &Value| {
            json!({
                "addr": port["fixed_ips"][0]["ip_address"], "version": 4, "OS-EXT-IPS:type": "fixed",
                "OS-EXT-IPS-MAC:mac_addr": port["mac_address"],
            })
        };
        let interfaces: Vec<Value> = ports.iter().filter_map(|port| self.find("ports", port)).map(interface).collect();
        let or_empty = |field: &str, empty: Value| wanted.get(field).cloned().unwrap_or(empty);
        let mut server = json!({
            "name": wanted["name"], "OS-EXT-AZ:availability_zone": "nova", "key_name": null,
            "metadata": or_empty("metadata", json!({})), "tags": or_empty("tags", json!([])), "security_groups": [],
            "flavor": flavor, "image": { "id": wanted["imageRef"] }, "addresses": { NETWORK: interfaces },
            "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z", "tenant_id": PROJECT,
        });
        match self.building {
            Building::AtOnce => run(&mut server),
            _ => merge(
                &mut server,
                &json!({
                    "status": "BUILD", "OS-EXT-STS:task_state": "spawning", "OS-EXT-STS:power_state": 0, LOOKS: 0,
                }),
            ),
        }
        let server = self.add("servers", server);
        for port in &ports {
            if let Some(port) = self.change("ports", port) {
                merge(port, &json!({ "device_id": server["id"], "device_owner": "compute:nova", "status": "ACTIVE" }));
            }
        }
        for volume in volumes {
            let attachment = json!({ "server_id": server["id"], "goes": volume["delete_on_termination"] });
            if let Some(found) = self.change("volumes", volume["uuid"].as_str().unwrap_or_default()) {
                merge(found, &json!({ "status": "in-use", "attachments": [attachment] }));
            }
        }
        (202, json!({ "server": { "id": server["id"] } }))
    }

    /// Each look at a server that is built brings its end nearer.
    pub(crate) fn look_at_server(&mut self, id: &str) -> Answer {
        let building = self.building.clone();
        let Some(server) = self.change("servers", id) else { return absent() };
        if server["status"] == "BUILD" {
            let looks = server[LOOKS].as_u64().unwrap_or_default();
            server[LOOKS] = json!(looks + 1);
            match building {
                Building::AtOnce => run(server),
                Building::Seen(times) if looks >= times => run(server),
                Building::Fails(fault) if looks >= 1 => merge(
                    server,
                    &json!({
                        "status": "ERROR", "OS-EXT-STS:task_state": null, "fault": { "code": 500, "message": fault },
                    }),
                ),
                Building::Seen(_) | Building::Never | Building::Fails(_) => {}
            }
        }
        (200, wrapped("servers", server.clone()))
    }

    pub(crate) fn act_on_server(&mut self, id: &str, action: &Value) -> Answer {
        let Some(server) = self.change("servers", id) else { return absent() };
        let names: Vec<&str> =
            action.as_object().into_iter().flat_map(|action| action.keys()).map(String::as_str).collect();
        match names[..] {
            ["os-start"] => run(server),
            ["os-stop"] => merge(
                server,
                &json!({ "status": "SHUTOFF", "OS-EXT-STS:task_state": null, "OS-EXT-STS:power_state": 4 }),
            ),
            ["os-getConsoleOutput"] => return (200, json!({ "output": "" })),
            _ => return refused(400, format!("the scripted cloud does not know {names:?}")),
        }
        (202, Value::Null)
    }

    pub(crate) fn tag_server(&mut self, id: &str, tag: &str) -> Answer {
        let Some(server) = self.change("servers", id) else { return absent() };
        if let Some(tags) = server["tags"].as_array_mut().filter(|tags| !tags.iter().any(|known| known == tag)) {
            tags.push(json!(tag));
        }
        (201, Value::Null)
    }

    /// It is gone at once: its ports are free, and so are its volumes, unless they go with it.
    pub(crate) fn delete_server(&mut self, id: &str) -> Answer {
        if !self.remove("servers", id) {
            return absent();
        }
        self.change_all("ports", |port| {
            if port["device_id"] == id {
                merge(port, &json!({ "device_id": "", "device_owner": "", "status": "DOWN" }));
            }
        });
        let of_it = |volume: &Value| volume["attachments"][0]["server_id"] == id;
        let doomed =
            self.all("volumes").iter().filter(|volume| of_it(volume) && volume["attachments"][0]["goes"] == true);
        let doomed: Vec<String> = doomed.filter_map(|volume| Some(volume["id"].as_str()?.to_owned())).collect();
        for volume in &doomed {
            self.remove("volumes", volume);
        }
        self.change_all("volumes", |volume| {
            if of_it(volume) {
                merge(volume, &json!({ "status": "available", "attachments": [] }));
            }
        });
        (204, Value::Null)
    }
}

fn run(server: &mut Value) {
    merge(server, &json!({ "status": "ACTIVE", "OS-EXT-STS:task_state": null, "OS-EXT-STS:power_state": 1 }));
}

/// What these have in a field.
fn ids(list: &Value, field: &str) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|one| one[field].as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::tests::cloud;

    /// A server with a port, a boot volume and a data volume: its id, and that of its port.
    fn make(cloud: &mut Cloud) -> (String, String) {
        let (_, port) = cloud.answer("POST", "/network/v2.0/ports", &json!({ "port": { "description": "quorate c" } }));
        let port = port["port"]["id"].as_str().unwrap().to_owned();
        let devices: Vec<Value> = [true, false]
            .map(|goes| {
                let wanted = json!({ "volume": { "name": "v", "size": 1 } });
                let (_, volume) = cloud.answer("POST", "/volume/v3/bench/volumes", &wanted);
                json!({ "source_type": "volume", "uuid": volume["volume"]["id"], "delete_on_termination": goes })
            })
            .into();
        let wanted = json!({ "server": {
            "name": "a", "flavorRef": cloud.id_of("flavors"), "networks": [{ "port": port }], "tags": ["t"],
            "metadata": { "k": "draft" }, "block_device_mapping_v2": devices,
        } });
        let (status, made) = cloud.answer("POST", "/compute/v2.1/servers", &wanted);
        assert_eq!(status, 202, "{made}");
        assert_eq!(cloud.answer("POST", "/compute/v2.1/servers", &wanted).0, 409, "its port is in use");
        (made["server"]["id"].as_str().unwrap().to_owned(), port)
    }

    fn state(cloud: &mut Cloud, server: &str) -> Value {
        cloud.answer("GET", &format!("/compute/v2.1/servers/{server}"), &Value::Null).1["server"].take()
    }

    #[test]
    fn a_server_has_its_port_and_is_found_by_its_tag_and_by_its_marks() {
        let mut cloud = cloud();
        let (server, port) = make(&mut cloud);
        let path = format!("/compute/v2.1/servers/{server}/metadata");
        cloud.answer("POST", &path, &json!({ "metadata": { "k": "whole" } }));
        assert_eq!((cloud.servers_with(&[("k", "whole")]), cloud.servers_with(&[("k", "draft")])), (1, 0));
        let mut count =
            |path: &str, field: &str| cloud.answer("GET", path, &Value::Null).1[field].as_array().unwrap().len();
        assert_eq!(count("/compute/v2.1/servers/detail?tags=t", "servers"), 1);
        assert_eq!(count("/compute/v2.1/servers/detail?tags=u", "servers"), 0);
        assert_eq!(count("/network/v2.0/ports?project_id=bench&description=quorate%20c", "ports"), 1);
        let (_, port) = cloud.answer("GET", &format!("/network/v2.0/ports/{port}"), &Value::Null);
        assert_eq!(port["port"]["device_id"], json!(server));
        assert_eq!(state(&mut cloud, &server)["status"], "ACTIVE");
    }

    #[test]
    fn a_deleted_server_releases_resources_that_outlive_it() {
        let mut cloud = cloud();
        let (server, port) = make(&mut cloud);
        let volumes: Vec<String> = ids(&json!(cloud.all("volumes")), "id");
        let of_volume = |id: &str| format!("/volume/v3/bench/volumes/{id}");
        assert_eq!(cloud.answer("DELETE", &of_volume(&volumes[1]), &Value::Null).0, 400, "it is attached");
        assert_eq!(cloud.answer("DELETE", &format!("/compute/v2.1/servers/{server}"), &Value::Null).0, 204);
        assert_eq!(cloud.answer("GET", &of_volume(&volumes[0]), &Value::Null).0, 404, "it went with its server");
        let (_, left) = cloud.answer("GET", &of_volume(&volumes[1]), &Value::Null);
        assert_eq!((&left["volume"]["status"], &left["volume"]["attachments"]), (&json!("available"), &json!([])));
        assert_eq!(cloud.find("ports", &port).unwrap()["device_id"], "");
        assert_eq!(cloud.answer("DELETE", &of_volume(&volumes[1]), &Value::Null).0, 204);
    }

    #[test]
    fn servers_are_built_as_scripted() {
        let mut cloud = cloud();
        let expected = [
            (Building::Seen(2), vec!["BUILD", "BUILD", "ACTIVE", "ACTIVE"]),
            (Building::Never, vec!["BUILD"; 4]),
            (Building::Fails(String::from("no host")), vec!["BUILD", "ERROR", "ERROR"]),
        ];
        for (building, states) in expected {
            cloud.build(building);
            let (server, _) = make(&mut cloud);
            for expected in states {
                let found = state(&mut cloud, &server);
                assert_eq!(found["status"], expected, "{:?}", cloud.building);
                assert_eq!(found["OS-EXT-STS:task_state"].is_null(), expected != "BUILD");
            }
        }
        assert!(cloud.all("servers").iter().any(|server| server["fault"]["message"] == "no host"));
    }
}
