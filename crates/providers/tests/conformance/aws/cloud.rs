//! The API of AWS as the tests themselves use it: moto's server, without the rules that the proxy adds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;

use roxmltree::{Document, Node};

pub const REGION: &str = "eu-west-2";
pub const ZONES: [&str; 2] = ["eu-west-2a", "eu-west-2b"];

/// By which moto knows a call of Elastic Load Balancing.
pub const BALANCING: (&str, &str) = ("Version", "2015-12-01");

/// What moto looks at to find the service.
pub fn scope(service: &str) -> String {
    format!("AWS4-HMAC-SHA256 Credential=lab/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, Signature=0")
}

/// Where moto's server is.
pub fn server() -> String {
    std::env::var(super::SERVER).expect("the lab says where its server is")
}

pub struct Api {
    client: reqwest::Client,
}

/// One for all runtimes: each connection is for one request, because it ends with the runtime that it began in.
pub fn client() -> reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    let build = || {
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client")
    };
    CLIENT.get_or_init(build).clone()
}

/// Names and values of a form.
pub type Fields = Vec<(String, String)>;

pub fn fields<const N: usize>(pairs: [(&str, &str); N]) -> Fields {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub fn get<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// `NAME.1`, `NAME.2` and so on.
pub fn numbered(fields: &Fields, name: &str) -> Vec<String> {
    let is_one = |known: &str| {
        known.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    fields.iter().filter(|(known, _)| is_one(known)).map(|(_, value)| value.clone()).collect()
}

pub fn encode(fields: &Fields) -> String {
    let escape = |text: &str| -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        text.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
    };
    fields.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect::<Vec<_>>().join("&")
}

pub fn decode(body: &[u8]) -> Fields {
    let unescape = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            match byte {
                b'%' => {
                    let pair = [rest.next().unwrap_or_default(), rest.next().unwrap_or_default()];
                    let pair = String::from_utf8_lossy(&pair).into_owned();
                    bytes.push(u8::from_str_radix(&pair, 16).expect("an escape"));
                }
                b'+' => bytes.push(b' '),
                byte => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).expect("text")
    };
    let text = String::from_utf8_lossy(body).into_owned();
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (unescape(name), unescape(value))).collect()
}

/// The texts of all elements of this name.
pub fn texts(xml: &str, name: &str) -> Vec<String> {
    let document = Document::parse(xml).unwrap_or_else(|error| panic!("{error}: {xml}"));
    let named = |node: &Node<'_, '_>| node.tag_name().name() == name;
    document.descendants().filter(named).map(|node| node.text().unwrap_or_default().to_owned()).collect()
}

/// The items of a list, each with its text.
pub fn items(xml: &str, set: &str) -> Vec<String> {
    let document = Document::parse(xml).unwrap_or_else(|error| panic!("{error}: {xml}"));
    let lists = document.descendants().filter(|node| node.tag_name().name() == set);
    let found = lists.flat_map(|list| list.children().filter(Node::is_element).collect::<Vec<_>>());
    found.map(|item| xml[item.range()].to_owned()).collect()
}

/// The value of a tag of an item.
pub fn tag(item: &str, key: &str) -> Option<String> {
    let tags = items(item, "tagSet");
    let found = tags.iter().find(|tag| texts(tag, "key") == [key])?;
    texts(found, "value").into_iter().next()
}

pub fn one(xml: &str, name: &str) -> String {
    texts(xml, name).into_iter().next().unwrap_or_else(|| panic!("no {name} in {xml}"))
}

impl Api {
    pub fn new() -> Self {
        Api { client: client() }
    }

    /// The status and the text of an answer.
    pub async fn ask(&self, fields: &Fields) -> (u16, String) {
        let mut all = fields.clone();
        if get(fields, "Version").is_none() {
            all.push((String::from("Version"), String::from("2016-11-15")));
        }
        let service = if get(fields, "Version") == Some(BALANCING.1) { "elasticloadbalancing" } else { "ec2" };
        let request = self.client.post(format!("{}/", server())).header("authorization", scope(service));
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(encode(&all));
        let answer = request.send().await.expect("moto's server");
        let (status, text) = (answer.status().as_u16(), answer.text().await.expect("an answer"));
        if status == 200 && get(fields, "Action") == Some("DescribeNetworkInterfaces") {
            return (status, self.released(&text).await);
        }
        (status, text)
    }

    /// An instance that is terminated releases its interfaces, which moto does not know.
    async fn released(&self, text: &str) -> String {
        let ended = fields([
            ("Action", "DescribeInstances"),
            ("Filter.1.Name", "instance-state-name"),
            ("Filter.1.Value.1", "terminated"),
        ]);
        let ended = texts(&Box::pin(self.ask(&ended)).await.1, "instanceId");
        let document = Document::parse(text).expect("XML");
        let named = |name: &'static str| move |node: &Node<'_, '_>| node.tag_name().name() == name;
        let mut changes = Vec::new();
        for item in document.descendants().filter(named("attachment")).filter_map(|node| node.parent()) {
            let attachment = item.children().find(named("attachment")).expect("it has one");
            let by = attachment.children().find(named("instanceId")).and_then(|id| id.text()).unwrap_or_default();
            if ended.iter().any(|id| id == by) {
                changes.push((attachment.range(), String::new()));
                let status = item.children().find(named("status")).expect("a status");
                changes.push((status.range(), String::from("<status>available</status>")));
            }
        }
        changes.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        changes.into_iter().fold(text.to_owned(), |mut text, (range, new)| {
            text.replace_range(range, &new);
            text
        })
    }

    /// A parameter of Systems Manager.
    pub async fn put_parameter(&self, name: &str, value: &str) {
        let body = serde_json::json!({ "Name": name, "Value": value, "Type": "String" }).to_string();
        let request = self.client.post(format!("{}/", server())).header("authorization", scope("ssm")).body(body);
        let request = request.header("x-amz-target", "AmazonSSM.PutParameter");
        let answer = request.header("content-type", "application/x-amz-json-1.1").send().await.expect("moto's server");
        assert!(answer.status().is_success(), "{answer:?}");
    }

    pub async fn call<const N: usize>(&self, action: &str, pairs: [(&str, &str); N]) -> String {
        let mut all = fields([("Action", action)]);
        all.extend(fields(pairs));
        let (status, text) = self.ask(&all).await;
        assert!(status == 200, "{action}: {status} {text}");
        text
    }

    /// A VPC with a subnet in each of two zones.
    pub async fn network(&self) -> (String, [String; 2]) {
        let vpc = one(&self.call("CreateVpc", [("CidrBlock", "10.80.0.0/16")]).await, "vpcId");
        let mut made = Vec::new();
        for (zone, range) in ZONES.iter().zip(["10.80.1.0/24", "10.80.2.0/24"]) {
            let pairs = [("VpcId", vpc.as_str()), ("CidrBlock", range), ("AvailabilityZone", zone)];
            made.push(one(&self.call("CreateSubnet", pairs).await, "subnetId"));
        }
        (vpc, made.try_into().expect("two"))
    }

    /// Instances that are not terminated.
    pub async fn instances(&self) -> Vec<String> {
        let all = items(&self.call("DescribeInstances", []).await, "instancesSet");
        all.into_iter().filter(|instance| !items(instance, "instanceState").concat().contains("terminated")).collect()
    }

    /// The instance with this name.
    pub async fn instance(&self, name: &str) -> Option<String> {
        let mut found = self.instances().await;
        found.retain(|instance| tag(instance, "Name").as_deref() == Some(name));
        assert!(found.len() < 2, "{found:?}");
        found.pop()
    }

    /// Everything that contains the name or one of the ids of a cluster.
    pub async fn inventory(&self, words: &[&str]) -> BTreeSet<String> {
        let lists = [
            ("DescribeNetworkInterfaces", "networkInterfaceSet", "networkInterfaceId"),
            ("DescribeVolumes", "volumeSet", "volumeId"),
            ("DescribeSecurityGroups", "securityGroupInfo", "groupId"),
            ("DescribeVpcs", "vpcSet", "vpcId"),
            ("DescribeSubnets", "subnetSet", "subnetId"),
            ("DescribeInternetGateways", "internetGatewaySet", "internetGatewayId"),
            ("DescribeRouteTables", "routeTableSet", "routeTableId"),
            ("DescribeNatGateways", "natGatewaySet", "natGatewayId"),
            ("DescribeAddresses", "addressesSet", "allocationId"),
        ];
        let mut all: Vec<(&str, String)> =
            self.instances().await.into_iter().map(|instance| ("instanceId", instance)).collect();
        for (action, set, id) in lists {
            all.extend(items(&self.call(action, []).await, set).into_iter().map(|item| (id, item)));
        }
        for (action, set, id) in [
            ("DescribeLoadBalancers", "LoadBalancers", "LoadBalancerArn"),
            ("DescribeTargetGroups", "TargetGroups", "TargetGroupArn"),
        ] {
            all.extend(items(&self.call(action, [BALANCING]).await, set).into_iter().map(|item| (id, item)));
        }
        // AWS lists it for an hour.
        all.retain(|(id, item)| *id != "natGatewayId" || one(item, "state") != "deleted");
        let is_ours = |(_, item): &&(&str, String)| words.iter().any(|word| item.contains(word));
        all.iter().filter(is_ours).map(|(id, item)| format!("{id} {}", one(item, id))).collect()
    }

    /// A request of Route53, below its version.
    pub async fn route53(&self, path: &str, body: String) -> String {
        let url = format!("{}/2013-04-01/{path}", server());
        let request = if body.is_empty() { self.client.get(url) } else { self.client.post(url).body(body) };
        let answer = request.header("authorization", scope("route53")).send().await.expect("moto's server");
        let (status, text) = (answer.status(), answer.text().await.expect("an answer"));
        assert!(status.is_success(), "{path}: {status} {text}");
        text
    }

    /// The id of a new hosted zone.
    pub async fn zone(&self, name: &str) -> String {
        let caller = quorate_pki::random_hex(8);
        let body = format!(
            "<CreateHostedZoneRequest><Name>{name}.</Name><CallerReference>{caller}</CallerReference></CreateHostedZoneRequest>"
        );
        one(&self.route53("hostedzone", body).await, "Id").trim_start_matches("/hostedzone/").to_owned()
    }

    /// The records of a zone but for its own, each as `TYPE NAME VALUES`.
    pub async fn records(&self, zone: &str) -> BTreeSet<String> {
        let all = items(&self.route53(&format!("hostedzone/{zone}/rrset"), String::new()).await, "ResourceRecordSets");
        let shown = |record: &String| {
            let values = texts(record, "Value").into_iter().chain(texts(record, "DNSName")).collect::<Vec<_>>();
            format!("{} {} {}", one(record, "Type"), one(record, "Name"), values.join(","))
        };
        all.iter().map(shown).filter(|record| !record.starts_with("NS ") && !record.starts_with("SOA ")).collect()
    }

    /// Somebody changes a record.
    pub async fn change_record(&self, zone: &str, action: &str, kind: &str, name: &str, value: &str) {
        let body = format!(
            "<ChangeResourceRecordSetsRequest><ChangeBatch><Changes><Change><Action>{action}</Action><ResourceRecordSet><Name>{name}.</Name>\
             <Type>{kind}</Type><TTL>60</TTL><ResourceRecords><ResourceRecord><Value>{value}</Value></ResourceRecord></ResourceRecords>\
             </ResourceRecordSet></Change></Changes></ChangeBatch></ChangeResourceRecordSetsRequest>"
        );
        self.route53(&format!("hostedzone/{zone}/rrset/"), body).await;
    }

    pub async fn plant(&self, name: &str, subnet: &str, address: IpAddr) -> String {
        let address = address.to_string();
        let made = self.call(
            "CreateNetworkInterface",
            [
                ("SubnetId", subnet),
                ("PrivateIpAddress", &address),
                ("TagSpecification.1.ResourceType", "network-interface"),
                ("TagSpecification.1.Tag.1.Key", "Name"),
                ("TagSpecification.1.Tag.1.Value", name),
            ],
        );
        one(&made.await, "networkInterfaceId")
    }
}
