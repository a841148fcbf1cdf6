//! What the API of the lab has of a cluster. boto3 asks it, not quorate.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::Run;

/// Where the server is, the proxy in front of it that is as strict as AWS, and what asks the server.
const SERVER: &str = "QUORATE_LAB_AWS";
pub const STRICT: &str = "QUORATE_LAB_AWS_STRICT";
const PYTHON: &str = "QUORATE_LAB_AWS_PYTHON";
const BODIES: &str = "QUORATE_LAB_AWS_BODIES";

pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("there is no AWS here: run `cargo xtask lab aws`"))
}

/// What EC2 answers, or `SERVICE.OPERATION`, as boto3 shows it.
pub fn ec2(operation: &str, arguments: Value) -> Value {
    let mut command = Command::new(variable(PYTHON));
    command.arg(variable(BODIES)).args(["ask", &variable(SERVER), operation, &arguments.to_string()]);
    Run::from(command.output().expect("Python runs")).ok().json()
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The id of a new VPC with a subnet of each range, in the zone with this letter.
pub fn vpc(subnets: &[(char, &str)]) -> String {
    let vpc = text(&ec2("create_vpc", json!({ "CidrBlock": "10.80.0.0/16" }))["Vpc"]["VpcId"]);
    for (zone, range) in subnets {
        let zone = format!("eu-west-2{zone}");
        ec2("create_subnet", json!({ "VpcId": vpc, "CidrBlock": range, "AvailabilityZone": zone }));
    }
    vpc
}

/// Load balancers and target groups, by ARN.
pub fn load_balancers() -> BTreeSet<String> {
    let lists = [
        ("elbv2.describe_load_balancers", "LoadBalancers", "LoadBalancerArn"),
        ("elbv2.describe_target_groups", "TargetGroups", "TargetGroupArn"),
    ];
    let ask = |(operation, list, id): (&str, &str, &str)| -> Vec<String> {
        ec2(operation, json!({}))[list].as_array().expect("a list").iter().map(|one| text(&one[id])).collect()
    };
    lists.into_iter().flat_map(ask).collect()
}

/// The name that AWS gave to the load balancer.
pub fn name_of_load_balancer() -> String {
    let found = ec2("elbv2.describe_load_balancers", json!({}));
    text(&found["LoadBalancers"][0]["DNSName"])
}

/// The addresses that the load balancer leads to.
pub fn targets() -> BTreeSet<String> {
    let group = load_balancers().into_iter().find(|arn| arn.contains(":targetgroup/")).expect("a target group");
    let found = ec2("elbv2.describe_target_health", json!({ "TargetGroupArn": group }));
    let all = found["TargetHealthDescriptions"].as_array().expect("a list").iter();
    all.map(|one| text(&one["Target"]["Id"])).collect()
}

/// The cluster of this name, whose hosted zone is for it alone.
pub struct Place {
    pub name: String,
    pub zone: String,
}

impl Place {
    pub fn new(name: &str) -> Self {
        let zone = format!("{name}.example.com");
        ec2("route53.create_hosted_zone", json!({ "Name": zone, "CallerReference": name }));
        Place { name: name.to_owned(), zone }
    }

    /// The name that leads to the cluster.
    pub fn dns(&self) -> String {
        format!("orders.{}", self.zone)
    }

    /// Instances that are not terminated, and other resources of the cluster.
    pub fn inventory(&self) -> BTreeSet<String> {
        let lists = [
            ("describe_volumes", "Volumes", "VolumeId"),
            ("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
            ("describe_security_groups", "SecurityGroups", "GroupId"),
        ];
        let mut found: BTreeSet<String> = self.instances().iter().map(|one| text(&one["InstanceId"])).collect();
        for (operation, list, id) in lists {
            let all = ec2(operation, self.filter());
            found.extend(all[list].as_array().expect("a list").iter().map(|one| text(&one[id])));
        }
        found.extend(load_balancers());
        found.extend(self.records());
        found
    }

    fn filter(&self) -> Value {
        json!({ "Filters": [{ "Name": "tag:quorate.cluster", "Values": [self.name] }] })
    }

    /// Types and names of records that are not the zone's own, with what they lead to.
    pub fn records(&self) -> BTreeSet<String> {
        let zone = ec2("route53.list_hosted_zones_by_name", json!({ "DNSName": self.zone }));
        let found = json!({ "HostedZoneId": zone["HostedZones"][0]["Id"] });
        let found = ec2("route53.list_resource_record_sets", found);
        let all = found["ResourceRecordSets"].as_array().expect("a list").iter();
        let shown = |one: &Value| {
            let values = one["ResourceRecords"].as_array().into_iter().flatten().map(|value| text(&value["Value"]));
            let values: Vec<String> = values.chain(one["AliasTarget"]["DNSName"].as_str().map(str::to_owned)).collect();
            format!("{} {} {}", text(&one["Type"]), text(&one["Name"]), values.join(","))
        };
        all.map(shown).filter(|record| !record.starts_with("NS ") && !record.starts_with("SOA ")).collect()
    }

    /// The record that leads to a member.
    pub fn record_of(&self, member: &str) -> String {
        format!("A {member}.{}. {}", self.dns(), self.of(member).1)
    }

    pub fn instances(&self) -> Vec<Value> {
        let found = ec2("describe_instances", self.filter());
        let all = found["Reservations"].as_array().expect("a list").iter().flat_map(|one| one["Instances"].as_array());
        all.flatten().filter(|one| one["State"]["Name"] != "terminated").cloned().collect()
    }

    pub fn addresses(&self) -> BTreeSet<String> {
        self.instances().iter().map(|one| text(&one["PrivateIpAddress"])).collect()
    }

    pub fn volumes(&self) -> usize {
        self.inventory().into_iter().filter(|id| id.starts_with("vol-")).count()
    }

    /// The id and the address of a member's instance.
    pub fn of(&self, member: &str) -> (String, String) {
        let tag = json!({ "Key": "quorate.member", "Value": member });
        let is_its = |one: &&Value| one["Tags"].as_array().is_some_and(|tags| tags.contains(&tag));
        let all = self.instances();
        let found = all.iter().find(is_its).unwrap_or_else(|| panic!("no instance of {member} in {all:#?}"));
        (text(&found["InstanceId"]), text(&found["PrivateIpAddress"]))
    }

    /// Does this to a member's instance, as AWS would, and returns the instance's id and address.
    pub fn befall(&self, operation: &str, member: &str) -> (String, String) {
        let (id, address) = self.of(member);
        ec2(operation, json!({ "InstanceIds": [id] }));
        (id, address)
    }
}
