//! Security groups that quorate creates: they have exactly their rules, whatever someone changed, and other groups are unchanged.

use libtest_mimic::Trial;
use quorate_core::model::MachineId;
use quorate_core::providers::access::Access;
use quorate_core::providers::aws::AwsSettings;
use quorate_providers::{Aws, Data, Provider};

use super::cloud::{items, one, tag, texts};
use super::{Api, Place};
use crate::suite::{Enrolment, Ground, runtime};

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("aws::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial("rules_and_interfaces_are_put_right", || runtime().block_on(put_right())),
        trial("groups_that_others_use_are_reported", || runtime().block_on(groups_that_others_use())),
        trial("groups_of_the_operator_are_exchanged_on_interfaces", || runtime().block_on(groups_are_exchanged())),
    ]
}

struct Stage {
    place: Place,
    provider: Aws,
    api: Api,
    machine: MachineId,
}

impl Stage {
    async fn new(change: impl FnOnce(&mut AwsSettings)) -> Self {
        let place = Place::new();
        let mut settings = place.settings();
        change(&mut settings);
        let provider = place.aws(&place.cluster_id, &settings);
        let (enrolment, machine) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
        provider.admit(1).await.expect("admitted");
        let new = enrolment.machine("etcd-1", machine.clone(), place.pinned("etcd-1"), Data::Goes, 1);
        provider.create(&new).await.expect("a machine");
        Stage { place, provider, api: Api::new(), machine }
    }

    async fn group(&self, role: &str) -> Option<String> {
        let all = items(&self.api.call("DescribeSecurityGroups", []).await, "securityGroupInfo");
        let name = format!("{}-{role}", self.place.cluster);
        let mut found = all.into_iter().filter(|group| tag(group, "Name").as_deref() == Some(&name));
        let group = found.next();
        assert_eq!(found.next(), None, "one is enough");
        group
    }

    async fn member_group(&self) -> String {
        self.group("member").await.expect("a group")
    }

    async fn interface_groups(&self) -> Vec<String> {
        let all = items(&self.api.call("DescribeNetworkInterfaces", []).await, "networkInterfaceSet");
        let ours =
            all.into_iter().find(|one| tag(one, "quorate.cluster_id").as_deref() == Some(&self.place.cluster_id));
        texts(&ours.expect("an interface"), "groupId")
    }

    async fn end(&self) {
        self.provider.destroy(&self.machine, Data::Goes).await.expect("destroyed");
        self.provider.dismiss(9).await.expect("dismissed");
        self.provider.forget().await.expect("forgotten");
        let left = self.api.inventory(&[&self.place.cluster_id]).await;
        assert_eq!(left.len(), 0, "{left:?}");
    }
}

/// Permissions without order.
fn rules(group: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for set in ["ipPermissions", "ipPermissionsEgress"] {
        for rule in items(group, set).iter().filter(|item| item.contains("<ipProtocol>")) {
            let text = |name: &str| texts(rule, name).join(",");
            let (protocol, from) = (text("ipProtocol"), text("fromPort"));
            for source in ["cidrIp", "cidrIpv6", "groupId"].into_iter().flat_map(|name| texts(rule, name)) {
                all.push(format!("{set} {protocol} {from} {source}"));
            }
        }
    }
    all.sort();
    all
}

async fn put_right() {
    let stage = Stage::new(|_| {}).await;
    let Stage { api, provider, .. } = &stage;
    let before = stage.member_group().await;
    let (id, expected) = (one(&before, "groupId"), rules(&before));
    assert!(expected.contains(&format!("ipPermissions tcp 2380 {id}")), "{expected:#?}");
    assert!(expected.contains(&String::from("ipPermissions tcp 2379 0.0.0.0/0")), "{expected:#?}");
    assert!(!expected.iter().any(|rule| rule.contains("2380 0.0.0.0/0")), "{expected:#?}");
    // One more, one less, and an interface without it.
    let open = |port: &'static str, id: &str| {
        let within = |field: &str| format!("IpPermissions.1.{field}");
        [
            (String::from("GroupId"), id.to_owned()),
            (within("IpProtocol"), String::from("tcp")),
            (within("FromPort"), port.to_owned()),
            (within("ToPort"), port.to_owned()),
            (within("IpRanges.1.CidrIp"), String::from("0.0.0.0/0")),
        ]
    };
    for (action, port) in [("AuthorizeSecurityGroupIngress", "23"), ("RevokeSecurityGroupIngress", "2379")] {
        let mut fields = super::cloud::fields([("Action", action)]);
        fields.extend(open(port, &id));
        let (status, text) = api.ask(&fields).await;
        assert_eq!(status, 200, "{text}");
    }
    assert_ne!(rules(&stage.member_group().await), expected);
    let interface = api.call("DescribeNetworkInterfaces", [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &id)]);
    let interface = one(&interface.await, "networkInterfaceId");
    let default = items(&api.call("DescribeSecurityGroups", []).await, "securityGroupInfo");
    let is_default = |group: &&String| {
        texts(group, "groupName").contains(&String::from("default")) && texts(group, "vpcId").contains(&stage.place.vpc)
    };
    let default = one(default.iter().find(is_default).expect("a default group"), "groupId");
    let pairs = [("NetworkInterfaceId", interface.as_str()), ("SecurityGroupId.1", default.as_str())];
    api.call("ModifyNetworkInterfaceAttribute", pairs).await;
    assert_eq!(stage.interface_groups().await, std::slice::from_ref(&default));
    provider.admit(2).await.expect("admitted");
    assert_eq!(rules(&stage.member_group().await), expected);
    assert_eq!(stage.interface_groups().await, std::slice::from_ref(&id));
    stage.end().await;
}

/// A machine of the operator is in the group of clients while the cluster is destroyed.
async fn groups_that_others_use() {
    let stage = Stage::new(|settings| settings.access = Access::Groups).await;
    let Stage { api, provider, place, machine } = &stage;
    let member = stage.member_group().await;
    let [client, bastion] = ["client", "bastion"].map(|role| stage.group(role));
    let (client, bastion) = (client.await.expect("a group"), bastion.await.expect("a group"));
    let (client, bastion) = (one(&client, "groupId"), one(&bastion, "groupId"));
    let rules = rules(&member);
    for rule in [format!("tcp 2379 {client}"), format!("tcp 22 {bastion}"), format!("tcp 2390 {bastion}")] {
        assert!(rules.contains(&format!("ipPermissions {rule}")), "{rule}: {rules:#?}");
    }
    assert!(!rules.iter().any(|rule| rule.starts_with("ipPermissions ") && rule.contains("0.0.0.0/0")), "{rules:#?}");
    let address = place.pinned("etcd-9").expect("an address");
    let planted = api.plant("of the operator", &place.subnets[0], address).await;
    let pairs = [("NetworkInterfaceId", planted.as_str()), ("SecurityGroupId.1", client.as_str())];
    api.call("ModifyNetworkInterfaceAttribute", pairs).await;
    provider.destroy(machine, Data::Goes).await.expect("destroyed");
    provider.dismiss(1).await.expect("dismissed");
    let said = provider.forget().await.expect_err("it is in use").to_string();
    assert!(said.contains(&format!("{}-client", place.cluster)) && !said.contains("-member"), "{said}");
    assert!(stage.group("client").await.is_some() && stage.group("bastion").await.is_none());
    api.call("DeleteNetworkInterface", [("NetworkInterfaceId", &planted)]).await;
    stage.end().await;
}

/// From a group of quorate to one of the operator, and back: interfaces follow without new machines.
async fn groups_are_exchanged() {
    let stage = Stage::new(|_| {}).await;
    let Stage { api, place, .. } = &stage;
    let pairs = [("GroupName", "of-the-operator"), ("GroupDescription", "x"), ("VpcId", place.vpc.as_str())];
    let own = one(&api.call("CreateSecurityGroup", pairs).await, "groupId");
    let with = |groups: Option<Vec<String>>| {
        place.aws(&place.cluster_id, &AwsSettings { security_groups: groups, ..place.settings() })
    };
    with(Some(vec![own.clone()])).admit(2).await.expect("admitted");
    assert_eq!(stage.interface_groups().await, std::slice::from_ref(&own));
    assert_eq!(stage.group("member").await, None, "ours is of no use any more");
    with(None).admit(3).await.expect("admitted");
    assert_eq!(stage.interface_groups().await, [one(&stage.member_group().await, "groupId")]);
    stage.end().await;
}
