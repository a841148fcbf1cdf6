//! What instances are created from, where they are, and what remains of them: types, zones, addresses, volumes, images and user data.

use std::net::IpAddr;
use std::process::Command;
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use libtest_mimic::Trial;
use quorate_agent::api::Seed;
use quorate_core::model::{MachineId, PowerState};
use quorate_core::providers::Settings;
use quorate_core::providers::aws::AwsSettings;
use quorate_core::spec::ClusterSpec;
use quorate_providers::{Aws, Data, Provider};
use serde_json::{Value, json};

use super::cloud::{ZONES, fields, get, one, tag, texts};
use super::strict::{Fault, Proxy};
use super::{Api, Place, TYPES};
use crate::suite::{Enrolment, Ground, runtime};

/// The Python that moto runs in, which has AWS' own library.
const PYTHON: &str = "QUORATE_LAB_AWS_PYTHON";

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("aws::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial("without_capacity_the_next_type_and_then_the_next_zone_is_tried", || runtime().block_on(capacity())),
        trial("where_a_subnet_is_full_the_next_zone_is_tried", || runtime().block_on(full_subnets())),
        trial("members_are_spread_over_zones", || runtime().block_on(spread())),
        trial("data_does_not_leave_its_zone", || runtime().block_on(zone_bound())),
        trial("an_interface_outlives_its_instance", || runtime().block_on(interface_outlives())),
        trial("instances_match_the_spec", || runtime().block_on(as_the_spec_says())),
        trial("missing_aws_resources_are_refused_and_leave_nothing", || runtime().block_on(not_there())),
        trial("images_are_found_by_name_and_by_parameter", || runtime().block_on(images())),
        trial("an_instance_that_aws_stopped_is_seen_and_started", || runtime().block_on(stopped_by_aws())),
        trial("signatures_are_those_of_botocore", || runtime().block_on(signatures())),
    ]
}

struct Run {
    provider: Aws,
    enrolment: Enrolment,
}

impl Run {
    async fn begin(provider: Aws, fence: u64) -> Self {
        provider.admit(fence).await.expect("admitted");
        Run { provider, enrolment: Enrolment::new() }
    }

    async fn create(&self, member: &str, incarnation: u64, address: Option<IpAddr>, data: Data) -> Result<(), String> {
        let id = MachineId::new(&member.into(), incarnation);
        let name = if incarnation == 1 { member.to_owned() } else { format!("{member}.{incarnation}") };
        let new = self.enrolment.machine(&name, id, address, data, 1);
        self.provider.create(&new).await.map_err(|error| error.to_string())
    }

    async fn destroy(&self, member: &str, incarnation: u64, data: Data) {
        self.provider.destroy(&MachineId::new(&member.into(), incarnation), data).await.expect("destroyed");
    }

    async fn end(&self, place: &Place) {
        self.provider.dismiss(9).await.expect("dismissed");
        self.provider.forget().await.expect("forgotten");
        let left = place.inventory().await;
        assert_eq!(left.len(), 0, "{left:?}");
    }
}

async fn instance(place: &Place, machine: &str) -> String {
    Api::new().instance(&place.instance(machine)).await.expect("an instance")
}

/// Of an instance: its type and its zone.
fn kind_and_zone(instance: &str) -> (String, String) {
    (one(instance, "instanceType"), one(instance, "availabilityZone"))
}

async fn full_subnets() {
    let place = Rc::new(Place::new());
    for everywhere in [false, true] {
        let first = place.subnets[0].clone();
        let proxy = Proxy::new(move |asked| {
            let is_made = get(asked, "Action") == Some("CreateNetworkInterface");
            let is_full = everywhere || get(asked, "SubnetId") == Some(&first);
            (is_made && is_full).then_some(Fault::Error(400, "InsufficientFreeAddressesInSubnet"))
        });
        let run = Run::begin(place.through(proxy), 1).await;
        let made = run.create("etcd-1", 1, None, Data::Goes).await;
        if everywhere {
            let said = made.expect_err("there is no address");
            assert!(said.contains(&format!("no address is free for etcd-1 in {}", place.subnets.join(", "))), "{said}");
        } else {
            made.expect("a machine");
            assert_eq!(kind_and_zone(&instance(&place, "etcd-1").await).1, ZONES[1]);
            run.destroy("etcd-1", 1, Data::Goes).await;
        }
        run.end(&place).await;
    }
}

async fn capacity() {
    let place = Rc::new(Place::new());
    let subnet = place.subnets[0].clone();
    // Which types there is no capacity for, in the first zone; where all, in no zone.
    let cases: [(&[&str], bool); 3] = [(&TYPES[..1], false), (&TYPES, false), (&TYPES, true)];
    for (lacking, everywhere) in cases {
        let (first, lacks) = (subnet.clone(), lacking.to_vec());
        let proxy = Proxy::new(move |asked| {
            let is_launch = get(asked, "Action") == Some("RunInstances");
            let kind = get(asked, "InstanceType").unwrap_or_default();
            if !is_launch || !lacks.contains(&kind) {
                return None;
            }
            let interface = get(asked, "NetworkInterface.1.NetworkInterfaceId").unwrap_or_default().to_owned();
            let first = first.clone();
            let looked = std::thread::spawn(move || {
                runtime().block_on(async move {
                    let ask = fields([("Action", "DescribeNetworkInterfaces"), ("NetworkInterfaceId.1", &interface)]);
                    texts(&Api::new().ask(&ask).await.1, "subnetId").contains(&first)
                })
            });
            let is_first = looked.join().expect("a look");
            (is_first || everywhere).then_some(Fault::Error(500, "InsufficientInstanceCapacity"))
        });
        let run = Run::begin(place.through(proxy), 1).await;
        let made = run.create("etcd-1", 1, None, Data::Goes).await;
        if everywhere {
            let said = made.expect_err("there is no capacity");
            let zones = ZONES.join(", ");
            assert!(said.contains("no capacity for m5.large or m6i.large in ") && said.contains(&zones), "{said}");
        } else {
            made.expect("a machine");
            let expected = match lacking.len() {
                1 => (TYPES[1], ZONES[0]),
                _ => (TYPES[0], ZONES[1]),
            };
            let found = kind_and_zone(&instance(&place, "etcd-1").await);
            assert_eq!((found.0.as_str(), found.1.as_str()), expected);
            // Each type of the list is as good.
            let wanted = place.settings().build(&place.spec(&place.settings()).members[0]).expect("a build");
            let seen = run.provider.machines().await.expect("a look").found.remove(0).1;
            assert_eq!(seen.build.expect("a build").difference(&wanted), None);
            run.destroy("etcd-1", 1, Data::Goes).await;
        }
        run.end(&place).await;
    }
}

async fn spread() {
    let place = Place::new();
    let run = Run::begin(place.aws(&place.cluster_id, &place.settings()), 1).await;
    let mut zones = Vec::new();
    for member in ["etcd-1", "etcd-2", "etcd-3"] {
        run.create(member, 1, None, Data::Goes).await.expect("a machine");
        zones.push(kind_and_zone(&instance(&place, member).await).1);
    }
    assert_eq!(zones, [ZONES[0], ZONES[1], ZONES[0]]);
    for member in ["etcd-1", "etcd-2", "etcd-3"] {
        run.destroy(member, 1, Data::Goes).await;
    }
    run.end(&place).await;
}

/// With a member's section changed.
fn with_section(place: &Place, section: Value) -> ClusterSpec {
    let mut spec = place.spec(&place.settings());
    spec.members[0].aws = serde_json::from_value(section).expect("a section");
    spec
}

async fn zone_bound() {
    let place = Place::new();
    let run = Run::begin(place.aws(&place.cluster_id, &place.settings()), 1).await;
    run.create("etcd-1", 1, None, Data::Goes).await.expect("a machine");
    place.write_data("etcd-1", "precious").await;
    let before = place.data_volume("etcd-1").await.expect("a volume");

    // Said afterwards, the zone that it is in changes nothing, and another one means other data.
    for (zone, same) in [(ZONES[0], true), (ZONES[1], false)] {
        let spec = with_section(&place, json!({ "zone": zone }));
        let wanted = place.settings().build(&spec.members[0]).expect("a build");
        let provider = place.aws_of(&place.cluster_id, &place.settings(), spec);
        let seen = provider.machines().await.expect("a look").found.remove(0).1;
        assert_eq!(seen.build.expect("a build").difference(&wanted).is_none(), same, "{zone}");
        assert_eq!(seen.data == wanted.data(), same, "{zone}");
    }
    run.destroy("etcd-1", 1, Data::Stays).await;

    let spec = with_section(&place, json!({ "zone": ZONES[1] }));
    let other = Run::begin(place.aws_of(&place.cluster_id, &place.settings(), spec), 1).await;
    let said = other.create("etcd-1", 2, None, Data::Stays).await.expect_err("the data is elsewhere");
    assert!(said.contains(&before) && said.contains(ZONES[0]) && said.contains("do not leave their zone"), "{said}");
    let address = "10.80.2.11".parse().ok();
    let said = run.create("etcd-1", 2, address, Data::Stays).await.expect_err("the address is elsewhere");
    assert!(said.contains("10.80.2.11 is not in a subnet of that zone"), "{said}");
    // Where the spec says nothing, it follows its data.
    run.create("etcd-1", 2, None, Data::Stays).await.expect("a machine");
    assert_eq!(place.read_data("etcd-1.2").await.as_deref(), Some("precious"));
    run.destroy("etcd-1", 2, Data::Goes).await;
    run.end(&place).await;
}

async fn interface_outlives() {
    let place = Place::new();
    let settings = place.settings();
    let mut spec = place.spec(&settings);
    let address = place.pinned("etcd-1");
    spec.members[0].address = address;
    let run = Run::begin(place.aws_of(&place.cluster_id, &settings, spec), 1).await;
    run.create("etcd-1", 1, address, Data::Goes).await.expect("a machine");
    let interface = async |machine: &str| tag(&instance(&place, machine).await, "quorate.port").expect("an interface");
    let first = interface("etcd-1").await;
    let there = one(&instance(&place, "etcd-1").await, "networkInterfaceId");
    assert_eq!(there, first);
    // The spec pins the address, so nobody else may get it in between, and a run that ends leaves it too.
    run.destroy("etcd-1", 1, Data::Goes).await;
    run.provider.dismiss(1).await.expect("dismissed");
    run.provider.admit(2).await.expect("admitted");
    let pairs = [("NetworkInterfaceId.1", first.as_str())];
    assert!(Api::new().call("DescribeNetworkInterfaces", pairs).await.contains("<status>available</status>"));
    run.create("etcd-1", 2, address, Data::Goes).await.expect("a machine");
    assert_eq!(interface("etcd-1.2").await, first);
    // Without a pinned address it stays with the data alone.
    let loose = Run::begin(place.aws(&place.cluster_id, &settings), 3).await;
    loose.destroy("etcd-1", 2, Data::Stays).await;
    loose.create("etcd-1", 3, address, Data::Stays).await.expect("a machine");
    assert_eq!(interface("etcd-1.3").await, first);
    loose.destroy("etcd-1", 3, Data::Goes).await;
    let left = Api::new().inventory(&[&place.cluster_id]).await;
    assert!(!left.iter().any(|item| item.starts_with("networkInterfaceId")), "{left:?}");
    loose.end(&place).await;
}

async fn as_the_spec_says() {
    let place = Place::new();
    let key = Api::new().call("CreateKeyPair", [("KeyName", &format!("{}-key", place.cluster))]).await;
    let key = one(&key, "keyName");
    let settings = AwsSettings {
        key_name: Some(key.clone()),
        root_size: Some("12GiB".parse().expect("a size")),
        tags: [(String::from("team"), String::from("storage"))].into(),
        ..place.settings()
    };
    let run = Run::begin(place.aws(&place.cluster_id, &settings), 1).await;
    run.create("etcd-1", 1, place.pinned("etcd-1"), Data::Goes).await.expect("a machine");
    let api = Api::new();
    let made = instance(&place, "etcd-1").await;
    let id = one(&made, "instanceId");
    let found = ["httpTokens", "httpPutResponseHopLimit", "keyName", "imageId"].map(|name| one(&made, name));
    assert_eq!(found, ["required", "1", key.as_str(), super::IMAGE]);
    let volumes = api.call("DescribeVolumes", [("Filter.1.Name", "attachment.instance-id"), ("Filter.1.Value.1", &id)]);
    let volumes = super::cloud::items(&volumes.await, "volumeSet");
    let mut shown: Vec<[String; 4]> = volumes
        .iter()
        .map(|volume| {
            let role = tag(volume, "quorate.role").expect("a role");
            [role, one(volume, "size"), one(volume, "encrypted"), tag(volume, "team").unwrap_or_default()]
        })
        .collect();
    shown.sort();
    assert_eq!(shown, [["data", "1", "true", "storage"], ["root", "12", "true", "storage"]]);
    assert_eq!(tag(&made, "team").as_deref(), Some("storage"));

    // What the instance reads is what was sent.
    let attribute = api.call("DescribeInstanceAttribute", [("InstanceId", id.as_str()), ("Attribute", "userData")]);
    let data = texts(&attribute.await, "value").into_iter().find(|text| text.len() > 100).expect("user data");
    let data = String::from_utf8(STANDARD.decode(data).expect("base64")).expect("text");
    let config: Value = serde_json::from_str(data.strip_prefix("#cloud-config\n").expect("cloud-init")).expect("JSON");
    let file = config["write_files"][0]["content"].as_str().expect("a file");
    let seed: Seed = serde_json::from_slice(&STANDARD.decode(file).expect("base64")).expect("a seed");
    assert_eq!((seed.member.as_str(), Some(seed.address)), ("etcd-1", place.pinned("etcd-1")));
    run.destroy("etcd-1", 1, Data::Goes).await;
    run.end(&place).await;
}

async fn not_there() {
    let place = Place::new();
    let usual = place.settings();
    let with = |change: Value| {
        let mut settings = serde_json::to_value(&usual).expect("settings");
        settings.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        serde_json::from_value::<AwsSettings>(settings).expect("settings")
    };
    let keys: Vec<String> = (0..200).map(|n| format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{n:0>60} ada")).collect();
    let cases = [
        (json!({ "image": { "id": "ami-00000000" } }), "AWS has no image ami-00000000"),
        (
            json!({ "image": { "newest": { "owner": "amazon", "name": "no-such-*" } } }),
            "AWS has no image no-such-* of amazon",
        ),
        (json!({ "image": { "parameter": "/no/such" } }), "AWS has no parameter /no/such"),
        (json!({ "instance_types": ["nothing.large"] }), "AWS has no type of instance among nothing.large"),
        (json!({ "instance_types": ["t2.micro"] }), "are not built on Nitro"),
        (json!({ "key_name": "nobody" }), "AWS has no key pair nobody"),
        (json!({ "subnets": ["subnet-00000000"] }), "AWS has no subnet subnet-00000000 in the region eu-west-2"),
        (json!({ "subnets": [], "subnet_tags": { "tier": "none" } }), "AWS has no subnet of tier=none"),
        (json!({ "zones": ["eu-west-2c"] }), "there is no subnet"),
        (json!({ "admin": { "user": "ada", "ssh_keys": keys } }), "AWS takes 16384"),
    ];
    for (change, expected) in cases {
        let run = Run::begin(place.aws(&place.cluster_id, &with(change.clone())), 1).await;
        let said = run.create("etcd-1", 1, None, Data::Goes).await.expect_err("it is refused");
        assert!(said.contains(expected), "{change}: {said}");
        run.end(&place).await;
    }
    // By id there is one, and AWS keeps the first addresses of it.
    let run = Run::begin(place.aws(&place.cluster_id, &usual), 1).await;
    for (address, expected) in
        [("10.80.1.3", "it reserves the first four"), ("10.81.1.9", "there is no subnet with the address")]
    {
        let said = run.create("etcd-1", 1, address.parse().ok(), Data::Goes).await.expect_err("it is refused");
        assert!(said.contains(expected), "{said}");
    }
    run.end(&place).await;
}

async fn images() {
    let place = Place::new();
    let parameter = format!("/lab/{}", place.cluster);
    Api::new().put_parameter(&parameter, super::IMAGE).await;
    let cases = [json!({ "newest": { "owner": "amazon", "name": "amzn2-ami-*" } }), json!({ "parameter": parameter })];
    for image in cases {
        let settings =
            AwsSettings { image: serde_json::from_value(image.clone()).expect("an image"), ..place.settings() };
        let run = Run::begin(place.aws(&place.cluster_id, &settings), 1).await;
        run.create("etcd-1", 1, None, Data::Goes).await.unwrap_or_else(|error| panic!("{image}: {error}"));
        assert!(one(&instance(&place, "etcd-1").await, "imageId").starts_with("ami-"));
        run.destroy("etcd-1", 1, Data::Goes).await;
        run.end(&place).await;
    }
}

async fn stopped_by_aws() {
    let place = Place::new();
    let run = Run::begin(place.aws(&place.cluster_id, &place.settings()), 1).await;
    run.create("etcd-1", 1, None, Data::Goes).await.expect("a machine");
    let api = Api::new();
    let id = one(&instance(&place, "etcd-1").await, "instanceId");
    let seen = async || run.provider.machines().await.expect("a look").found.remove(0).1;
    api.call("StopInstances", [("InstanceId.1", &id)]).await;
    assert_eq!(seen().await.power, PowerState::Off);
    let machine = MachineId::new(&"etcd-1".into(), 1);
    let console = run.provider.console(&machine).await.expect("a console");
    assert!(console.starts_with(&format!("the instance {id} is stopped")), "{console}");
    // Somebody makes it larger meanwhile.
    let pairs = [("InstanceId", id.as_str()), ("InstanceType.Value", "m5.xlarge")];
    api.call("ModifyInstanceAttribute", pairs).await;
    run.provider.start(&machine).await.expect("started");
    let now = seen().await;
    let wanted = place.settings().build(&place.spec(&place.settings()).members[0]).expect("a build");
    let difference = now.build.expect("a build").difference(&wanted).expect("another type");
    assert!(now.power == PowerState::On && difference.contains("has instance type m5.xlarge"), "{difference}");
    // And somebody ends it: then there is no machine, and what it left is used or deleted.
    api.call("TerminateInstances", [("InstanceId.1", &id)]).await;
    assert_eq!(run.provider.machines().await.expect("a look").found.len(), 0);
    let said = run.provider.start(&machine).await.expect_err("it is gone").to_string();
    assert!(said.contains("there is no machine"), "{said}");
    run.end(&place).await;
}

/// AWS' own library signs a request that was sent, at the time at which it was.
async fn signatures() {
    let place = Place::new();
    let proxy = Proxy::new(|_| None);
    let calls = proxy.seen.clone();
    place.through(proxy).machines().await.expect("a look");
    let sent = calls.lock().expect("a list").last().cloned().expect("a request");
    let header = |name: &str| sent.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let request = json!({
        "host": header("host"), "date": header("x-amz-date"), "type": header("content-type"), "body": sent.body,
    });
    let script = r#"
import json, sys
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
asked = json.loads(sys.argv[1])
headers = {"content-type": asked["type"], "host": asked["host"], "x-amz-date": asked["date"]}
request = AWSRequest("POST", "http://" + asked["host"] + "/", data=asked["body"].encode(), headers=headers)
request.context["timestamp"] = asked["date"]
auth = SigV4Auth(Credentials("AKLAB", "secret of the lab"), "ec2", "eu-west-2")
text = auth.string_to_sign(request, auth.canonical_request(request))
print(auth.signature(text, request))
"#;
    let python = std::env::var_os(PYTHON).expect("the lab says which Python moto runs in");
    let done = Command::new(python).args(["-c", script, &request.to_string()]).output().expect("Python runs");
    let expected = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    let shown = header("authorization").expect("a signature");
    assert!(!expected.is_empty() && shown.ends_with(&format!("Signature={expected}")), "{shown}\n{done:?}");
}
