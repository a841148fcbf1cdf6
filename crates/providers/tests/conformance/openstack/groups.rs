//! Security groups that quorate creates: they have exactly their rules, whatever someone changed, and other groups are unchanged.

use std::collections::BTreeSet;
use std::rc::Rc;

use hyper::Method;
use libtest_mimic::Trial;
use quorate_core::model::MachineId;
use quorate_core::providers::access::Access;
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_providers::{Data, Provider};
use serde_json::{Value, json};

use super::{Api, NETWORK, Place, clouds};
use crate::suite::{Enrolment, Ground, runtime};

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("openstack::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial("rules_and_ports_are_put_right", || runtime().block_on(rules_and_ports_are_put_right())),
        trial("a_group_with_a_forged_mark_is_nobodys", || runtime().block_on(a_forged_mark())),
        trial("groups_that_others_use_are_reported", || runtime().block_on(groups_that_others_use())),
        trial("groups_of_the_operator_are_exchanged_on_ports", || runtime().block_on(groups_are_exchanged())),
    ]
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap_or_else(|| panic!("no id: {value}")).to_owned()
}

/// Rules of a group without their ids, sorted.
fn rules(group: &Value) -> BTreeSet<String> {
    let fields = [
        "direction",
        "ethertype",
        "protocol",
        "port_range_min",
        "port_range_max",
        "remote_ip_prefix",
        "remote_group_id",
    ];
    let rules = group["security_group_rules"].as_array().expect("rules");
    let shown: Vec<String> = rules.iter().map(|rule| fields.map(|field| rule[field].to_string()).join(" ")).collect();
    let set: BTreeSet<String> = shown.iter().cloned().collect();
    assert_eq!(set.len(), shown.len(), "no rule is there twice: {shown:#?}");
    set
}

async fn group(api: &Api, name: &str) -> Value {
    let mut found = api.items("network", &format!("/security-groups?name={name}"), "security_groups").await;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

struct Stage {
    place: Rc<Place>,
    provider: Rc<dyn Provider>,
    api: Api,
    machine: MachineId,
    before: BTreeSet<String>,
}

impl Stage {
    /// With one machine.
    async fn new(change: impl Fn(&mut OpenstackSettings)) -> Self {
        let place = Rc::new(Place::new());
        let before = place.inventory().await;
        let mut settings = place.settings();
        change(&mut settings);
        let provider: Rc<dyn Provider> = Rc::new(place.openstack(&place.cluster_id, &settings, &clouds()));
        let (enrolment, machine) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
        provider.admit(1).await.expect("admitted");
        let new = enrolment.machine("etcd-1", machine.clone(), place.pinned("etcd-1"), Data::Goes, 1);
        provider.create(&new).await.expect("a machine");
        Stage { place, provider, api: Api::new().await, machine, before }
    }

    fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.place.cluster)
    }

    async fn port(&self) -> Value {
        let path = format!("/ports?name={}-etcd-1.1.1", self.place.cluster);
        self.api.items("network", &path, "ports").await.remove(0)
    }

    async fn end(&self) {
        self.provider.destroy(&self.machine, Data::Goes).await.expect("destroyed");
        self.provider.dismiss(9).await.expect("dismissed");
        self.provider.forget().await.expect("forgotten");
        assert_eq!(self.place.inventory().await, self.before);
    }
}

async fn rules_and_ports_are_put_right() {
    let stage = Stage::new(|settings| settings.allowed_addresses = vec!["10.80.9.9".parse().expect("a range")]).await;
    let Stage { api, provider, .. } = &stage;
    let whole = group(api, &stage.name("member")).await;
    let expected = rules(&whole);
    for port in [2379, 2380, 2390, 2391, 22] {
        let port = format!(" {port} {port} ");
        assert!(expected.iter().any(|rule| rule.contains(&port)), "{port} in {expected:#?}");
    }
    let (group_id, port) = (id(&whole), stage.port().await);
    assert_eq!(port["security_groups"], json!([group_id]));
    assert_eq!(port["allowed_address_pairs"][0]["ip_address"], "10.80.9.9/32");

    // One rule is deleted, one is added, and the port is given away.
    let first = whole["security_group_rules"].as_array().expect("rules").iter().find(|rule| rule["protocol"] == "tcp");
    let gone = id(first.expect("a rule"));
    api.call(Method::DELETE, "network", &format!("/security-group-rules/{gone}"), None).await;
    let added = json!({ "security_group_id": group_id, "direction": "ingress", "ethertype": "IPv4" });
    api.post("network", "/security-group-rules", json!({ "security_group_rule": added })).await;
    let path = format!("/ports/{}", id(&port));
    let change = json!({ "port": { "security_groups": [], "allowed_address_pairs": [] } });
    api.call(Method::PUT, "network", &path, Some(change)).await;
    assert_ne!(rules(&group(api, &stage.name("member")).await), expected);
    provider.admit(2).await.expect("admitted");
    assert_eq!(rules(&group(api, &stage.name("member")).await), expected);
    let port = stage.port().await;
    assert_eq!(port["security_groups"], json!([group_id]));
    assert_eq!(port["allowed_address_pairs"][0]["ip_address"], "10.80.9.9/32");

    // The whole group goes, which neutron allows once no port has it, and a second one comes with the same mark.
    let change = json!({ "port": { "security_groups": [] } });
    api.call(Method::PUT, "network", &path, Some(change)).await;
    api.call(Method::DELETE, "network", &format!("/security-groups/{group_id}"), None).await;
    provider.admit(3).await.expect("admitted");
    let again = group(api, &stage.name("member")).await;
    assert_eq!(stage.port().await["security_groups"], json!([id(&again)]));
    let double = json!({ "name": "x", "description": again["description"] });
    api.post("network", "/security-groups", json!({ "security_group": double })).await;
    provider.admit(4).await.expect("admitted");
    assert_eq!(stage.port().await["security_groups"], json!([id(&group(api, &stage.name("member")).await)]));
    let marked = api.items("network", "/security-groups", "security_groups").await;
    let marked = marked.iter().filter(|group| group["description"] == again["description"]).count();
    assert_eq!(marked, 1, "one is enough");
    // Nothing is changed where nothing is wrong.
    let before = group(api, &stage.name("member")).await;
    provider.admit(5).await.expect("admitted");
    assert_eq!(group(api, &stage.name("member")).await, before);
    stage.end().await;
}

/// Somebody else shares a group with our project that has our mark and our name, and one of the same name is in our project.
async fn a_forged_mark() {
    let place = Place::new();
    let (ours, other) = (Api::new().await, Api::of("other").await);
    let description = format!("quorate {} member", place.cluster_id);
    let name = format!("{}-member", place.cluster);
    let make = async |api: &Api, description: &str| {
        let group = json!({ "security_group": { "name": name, "description": description } });
        let made = api.post("network", "/security-groups", group).await;
        id(&made["security_group"])
    };
    let forged = make(&other, &description).await;
    let shared = json!({ "rbac_policy": {
        "object_type": "security_group", "object_id": forged, "action": "access_as_shared",
        "target_tenant": ours.project,
    } });
    let policy = id(&other.post("network", "/rbac-policies", shared).await["rbac_policy"]);
    let named = make(&ours, "of the operator").await;
    let seen = ours.items("network", "/security-groups", "security_groups").await;
    assert!(seen.iter().any(|group| group["id"] == *forged), "it is shared");

    let provider = place.provider();
    let (enrolment, machine) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
    provider.admit(1).await.expect("admitted");
    let new = enrolment.machine("etcd-1", machine.clone(), place.pinned("etcd-1"), Data::Goes, 1);
    provider.create(&new).await.expect("a machine");
    let ports = ours.items("network", &format!("/ports?name={}-etcd-1.1.1", place.cluster), "ports").await;
    let groups = ports[0]["security_groups"].as_array().expect("groups");
    assert!(groups.len() == 1 && groups[0] != *forged && groups[0] != *named, "{groups:?}");
    provider.destroy(&machine, Data::Goes).await.expect("destroyed");
    provider.dismiss(1).await.expect("dismissed");
    provider.forget().await.expect("forgotten");

    for (api, id, rules) in [(&other, &forged, 2), (&ours, &named, 2)] {
        let left = api.get("network", &format!("/security-groups/{id}")).await;
        let found = left["security_group"]["security_group_rules"].as_array().map(Vec::len);
        assert_eq!(found, Some(rules), "{left:#}");
    }
    other.call(Method::DELETE, "network", &format!("/rbac-policies/{policy}"), None).await;
    other.call(Method::DELETE, "network", &format!("/security-groups/{forged}"), None).await;
    ours.call(Method::DELETE, "network", &format!("/security-groups/{named}"), None).await;
}

/// A machine of the operator is in the group of clients while the cluster is destroyed.
async fn groups_that_others_use() {
    let stage = Stage::new(|settings| settings.access = Access::Groups).await;
    let Stage { api, provider, .. } = &stage;
    let [member, client, bastion] = ["member", "client", "bastion"].map(|role| stage.name(role));
    let (member, client, bastion) = (group(api, &member).await, group(api, &client).await, group(api, &bastion).await);
    let open = rules(&member).into_iter().filter(|rule| rule.contains("ingress") && rule.ends_with("null null"));
    assert_eq!(open.collect::<Vec<_>>(), Vec::<String>::new(), "by group alone");
    for (port, from) in [("2379 2379", &client), ("22 22", &bastion), ("2390 2390", &bastion)] {
        let rule = |rule: &String| rule.contains(port) && rule.contains(&id(from));
        assert!(rules(&member).iter().any(rule), "{port}: {:#?}", rules(&member));
    }
    let name = format!("{}-planted", stage.place.cluster);
    let planted = api.plant(&name, NETWORK, stage.place.pinned("etcd-9").expect("an address")).await;
    let path = format!("/ports/{planted}");
    let change = json!({ "port": { "security_groups": [id(&client)] } });
    api.call(Method::PUT, "network", &path, Some(change)).await;
    provider.destroy(&stage.machine, Data::Goes).await.expect("destroyed");
    provider.dismiss(1).await.expect("dismissed");
    let said = provider.forget().await.expect_err("it is in use").to_string();
    assert!(said.contains(&stage.name("client")) && !said.contains(&stage.name("member")), "{said}");
    assert_eq!(id(&group(api, &stage.name("client")).await), id(&client), "it stays");
    api.call(Method::DELETE, "network", &path, None).await;
    stage.end().await;
}

/// From groups of quorate to one of the operator, and back: ports follow without new machines.
async fn groups_are_exchanged() {
    let stage = Stage::new(|_| {}).await;
    let Stage { api, place, .. } = &stage;
    let with = |groups: Option<Vec<String>>| {
        let settings = OpenstackSettings { security_groups: groups, ..place.settings() };
        place.openstack(&place.cluster_id, &settings, &clouds())
    };
    with(Some(vec![String::from("default")])).admit(2).await.expect("admitted");
    let default = id(&group(api, "default").await);
    assert_eq!(stage.port().await["security_groups"], json!([default]));
    let left = api.items("network", "/security-groups", "security_groups").await;
    assert!(!left.iter().any(|group| group.to_string().contains(&place.cluster_id)), "ours are of no use any more");
    with(None).admit(3).await.expect("admitted");
    assert_eq!(stage.port().await["security_groups"], json!([id(&group(api, &stage.name("member")).await)]));
    stage.end().await;
}
