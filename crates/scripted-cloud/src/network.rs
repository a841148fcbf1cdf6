//! Ports, one address each, and security groups.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cloud::{Answer, Cloud, PROJECT, absent, merge, refused, wrapped};

impl Cloud {
    pub(crate) fn make_port(&mut self, wanted: &Value) -> Answer {
        let used: BTreeSet<&str> =
            self.all("ports").iter().filter_map(|port| port["fixed_ips"][0]["ip_address"].as_str()).collect();
        let address = match wanted["fixed_ips"][0]["ip_address"].as_str() {
            Some(address) if used.contains(address) => {
                return refused(409, format!("IP address {address} already allocated in subnet"));
            }
            Some(address) => address.to_owned(),
            None => {
                let mut free = (2..60_000).map(|n| format!("127.77.{}.{}", n / 250, n % 250 + 1));
                free.find(|address| !used.contains(address.as_str())).unwrap_or_default()
            }
        };
        let groups: Vec<&str> = texts(&wanted["security_groups"]);
        if let Some(group) = groups.into_iter().find(|group| self.find("security-groups", group).is_none()) {
            return refused(404, format!("Security group {group} does not exist"));
        }
        let [high, low] = [2, 3].map(|at| address.split('.').nth(at).and_then(|part| part.parse::<u8>().ok()));
        let (high, low) = (high.unwrap_or_default(), low.unwrap_or_default());
        let fixed = json!([{ "subnet_id": self.id_of("subnets"), "ip_address": address }]);
        let mut port = json!({
            "name": "", "description": "", "device_id": "", "device_owner": "", "status": "DOWN", "project_id": PROJECT,
            "tenant_id": PROJECT, "admin_state_up": true, "port_security_enabled": true, "security_groups": [],
            "allowed_address_pairs": [], "tags": [], "mac_address": format!("fa:16:3e:00:{high:02x}:{low:02x}"),
        });
        merge(&mut port, wanted);
        port["fixed_ips"] = fixed;
        (201, wrapped("ports", self.add("ports", port)))
    }

    pub(crate) fn change_port(&mut self, id: &str, change: &Value) -> Answer {
        let Some(port) = self.change("ports", id) else { return absent() };
        merge(port, change);
        (200, wrapped("ports", port.clone()))
    }

    /// Neutron lets everything out of a new group.
    pub(crate) fn make_security_group(&mut self, wanted: &Value) -> Answer {
        let rules: Vec<Value> = ["IPv4", "IPv6"]
            .map(|family| json!({ "id": self.new_id(), "direction": "egress", "ethertype": family }))
            .into();
        let mut group = json!({ "name": "", "description": "", "project_id": PROJECT, "security_group_rules": rules });
        merge(&mut group, wanted);
        (201, wrapped("security-groups", self.add("security-groups", group)))
    }

    pub(crate) fn delete_security_group(&mut self, id: &str) -> Answer {
        if self.all("ports").iter().any(|port| texts(&port["security_groups"]).contains(&id)) {
            return refused(409, format!("Security Group {id} in use."));
        }
        self.delete("security-groups", id)
    }

    pub(crate) fn add_rules(&mut self, rules: &Value) -> Answer {
        let mut made = Vec::new();
        for rule in rules.as_array().into_iter().flatten() {
            let mut rule = rule.clone();
            rule["id"] = json!(self.new_id());
            let group = rule["security_group_id"].as_str().unwrap_or_default();
            let Some(group) = self.change("security-groups", group) else { return absent() };
            if let Some(rules) = group["security_group_rules"].as_array_mut() {
                rules.push(rule.clone());
            }
            made.push(rule);
        }
        (201, json!({ "security_group_rules": made }))
    }

    pub(crate) fn delete_rule(&mut self, id: &str) -> Answer {
        let mut found = false;
        self.change_all("security-groups", |group| {
            if let Some(rules) = group["security_group_rules"].as_array_mut() {
                found |= rules.iter().any(|rule| rule["id"] == id);
                rules.retain(|rule| rule["id"] != id);
            }
        });
        if found { (204, Value::Null) } else { absent() }
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::tests::cloud;

    #[test]
    fn no_two_ports_have_one_address() {
        let mut cloud = cloud();
        let mut make = |wanted: Value| cloud.answer("POST", "/network/v2.0/ports", &json!({ "port": wanted }));
        let address = |answer: Answer| answer.1["port"]["fixed_ips"][0]["ip_address"].as_str().map(str::to_owned);
        let (first, second) = (address(make(json!({}))).unwrap(), address(make(json!({}))).unwrap());
        assert_ne!(first, second);
        assert_eq!(make(json!({ "fixed_ips": [{ "ip_address": second }] })).0, 409);
        let port = cloud.all("ports")[0]["id"].as_str().unwrap().to_owned();
        assert_eq!(cloud.answer("DELETE", &format!("/network/v2.0/ports/{port}"), &Value::Null).0, 204);
        let again = address(cloud.answer("POST", "/network/v2.0/ports", &json!({ "port": {} })));
        assert_eq!(again, Some(first), "it is free again");
    }

    #[test]
    fn a_security_group_has_rules_and_stays_while_a_port_has_it() {
        let mut cloud = cloud();
        let wanted = json!({ "security_group": { "name": "g", "description": "d" } });
        let (_, made) = cloud.answer("POST", "/network/v2.0/security-groups", &wanted);
        let id = made["security_group"]["id"].as_str().unwrap().to_owned();
        let rule = json!({ "security_group_rules": [{ "security_group_id": id, "direction": "ingress" }] });
        assert_eq!(cloud.answer("POST", "/network/v2.0/security-group-rules", &rule).0, 201);
        let (_, listed) = cloud.answer("GET", "/network/v2.0/security-groups?description=d", &Value::Null);
        let rules = listed["security_groups"][0]["security_group_rules"].as_array().unwrap();
        assert_eq!(rules.len(), 3);
        let of_rule = format!("/network/v2.0/security-group-rules/{}", rules[0]["id"].as_str().unwrap());
        assert_eq!(cloud.answer("DELETE", &of_rule, &Value::Null).0, 204);
        assert_eq!(cloud.answer("DELETE", &of_rule, &Value::Null).0, 404);
        let (_, port) = cloud.answer("POST", "/network/v2.0/ports", &json!({ "port": { "security_groups": [id] } }));
        let path = format!("/network/v2.0/security-groups/{id}");
        assert_eq!(cloud.answer("DELETE", &path, &Value::Null).0, 409);
        let port = format!("/network/v2.0/ports/{}", port["port"]["id"].as_str().unwrap());
        cloud.answer("PUT", &port, &json!({ "port": { "security_groups": [] } }));
        assert_eq!(cloud.answer("DELETE", &path, &Value::Null).0, 204);
    }
}
