//! A proxy between a provider and moto's server. It is as strict as AWS where moto is not: the same client token creates nothing twice,
//! images and addresses must be valid, user data has a limit, resources in use cannot be deleted, and lists lag behind. Tests can also make
//! it damage requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use quorate_core::spec::AddressRange;
use roxmltree::{Document, Node};

use super::balancing::Balancing;
use super::cloud::{Api, BALANCING, Fields, client, decode, encode, fields, get, items, numbered, one, server, texts};
use super::names;

/// What is done to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is answered with this status and code, and not carried out.
    Error(u16, &'static str),
    /// It is carried out, and the connection is cut.
    Cut,
    /// It is carried out, and answered with this status and code.
    DoneBut(u16, &'static str),
}

/// Calls that make something, with its id; and lists of such things.
const NEW: [(&str, &str); 7] = [
    ("CreateLoadBalancer", "LoadBalancerArn"),
    ("CreateTargetGroup", "TargetGroupArn"),
    ("RunInstances", "instanceId"),
    ("CreateVpc", "vpcId"),
    ("CreateSubnet", "subnetId"),
    ("CreateInternetGateway", "internetGatewayId"),
    ("CreateNatGateway", "natGatewayId"),
];
const LISTED: [(&str, &str); 7] = [
    ("DescribeLoadBalancers", "LoadBalancers"),
    ("DescribeTargetGroups", "TargetGroups"),
    ("DescribeInstances", "reservationSet"),
    ("DescribeVpcs", "vpcSet"),
    ("DescribeSubnets", "subnetSet"),
    ("DescribeInternetGateways", "internetGatewaySet"),
    ("DescribeNatGateways", "natGatewaySet"),
];

type Judge = dyn Fn(&Fields) -> Option<Fault> + Send + Sync;
pub type Answer = (u16, String);

/// A request as it was sent.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub fields: Fields,
}

impl Sent {
    pub fn action(&self) -> String {
        get(&self.fields, "Action").unwrap_or_default().to_owned()
    }
}

pub struct Proxy {
    judge: Arc<Judge>,
    pub seen: Arc<Mutex<Vec<Sent>>>,
    /// In how many answers something new is missing, and a NAT gateway is not ready.
    pub lag: u32,
    /// Client tokens with what was asked and answered.
    tokens: Mutex<BTreeMap<(String, String), (String, Answer)>>,
    hidden: Mutex<BTreeMap<String, u32>>,
    balancing: Balancing,
}

pub fn error(status: u16, code: &str, message: &str) -> Answer {
    let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    (status, format!("<Response><Errors>{error}</Errors><RequestID>lab</RequestID></Response>"))
}

fn in_use() -> Answer {
    error(400, "DependencyViolation", "resource has a dependent object")
}

impl Proxy {
    pub fn new(judge: impl Fn(&Fields) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Proxy {
            judge: Arc::new(judge),
            seen: Arc::default(),
            lag: 2,
            tokens: Mutex::default(),
            hidden: Mutex::default(),
            balancing: Balancing::default(),
        }
    }

    /// Calls that change anything fail once there were so many of them, as if the provider had been killed.
    pub fn mortal(calls: usize) -> (Self, Arc<AtomicI64>) {
        let left = Arc::new(AtomicI64::new(i64::try_from(calls).expect("few calls")));
        let counted = left.clone();
        let proxy = Proxy::new(move |fields| {
            let action = get(fields, "Action").unwrap_or_default();
            let reads = ["Describe", "Get", "List"].iter().any(|word| action.starts_with(word));
            (!reads && counted.fetch_sub(1, Ordering::SeqCst) <= 0).then_some(Fault::Error(500, "InternalError"))
        });
        (proxy, left)
    }

    /// Serves until the process ends. Returns its address.
    pub fn serve(self) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let proxy = Arc::new(self);
        std::thread::spawn(move || {
            crate::suite::runtime().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    let proxy = proxy.clone();
                    let service = service_fn(move |request| {
                        let proxy = proxy.clone();
                        async move { proxy.pass(request).await }
                    });
                    let serving =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(serving);
                }
            });
        });
        url
    }

    /// An error cuts the connection.
    async fn pass(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let answer = |(status, text): Answer| {
            Ok(Response::builder().status(status).body(Full::new(Bytes::from(text))).expect("an answer"))
        };
        if parts.headers.contains_key("x-amz-target") {
            return answer(relay(&parts, body).await);
        }
        let is_rest = parts.uri.path().starts_with(names::BELOW);
        let fields = if is_rest { names::fields(&parts) } else { decode(&body) };
        let bytes = body.clone();
        let pair = |name: &hyper::header::HeaderName, value: &hyper::header::HeaderValue| {
            (name.to_string(), value.to_str().unwrap_or_default().to_owned())
        };
        let headers: Vec<(String, String)> = parts.headers.iter().map(|(name, value)| pair(name, value)).collect();
        let body = String::from_utf8_lossy(&body).into_owned();
        self.seen.lock().expect("a list").push(Sent { headers, body, fields: fields.clone() });
        let signed = parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !signed.starts_with("AWS4-HMAC-SHA256 Credential=") || !parts.headers.contains_key("x-amz-date") {
            return answer(error(401, "AuthFailure", "AWS was not able to validate the provided access credentials"));
        }
        if !is_allowed(get(&fields, "Action").unwrap_or_default()) {
            return answer(error(403, "UnauthorizedOperation", "You are not authorized to perform this operation."));
        }
        match (self.judge)(&fields) {
            Some(Fault::Error(status, code)) => answer(error(status, code, "spoiled by the lab")),
            Some(Fault::Cut) => {
                self.obey(&parts, bytes, &fields).await;
                Err(std::io::Error::other("cut by the lab"))
            }
            Some(Fault::DoneBut(status, code)) => {
                self.obey(&parts, bytes, &fields).await;
                answer(error(status, code, "spoiled by the lab"))
            }
            None => answer(self.obey(&parts, bytes, &fields).await),
        }
    }

    async fn obey(&self, parts: &Parts, body: Bytes, fields: &Fields) -> Answer {
        if !parts.uri.path().starts_with(names::BELOW) {
            return self.carry_out(fields).await;
        }
        match names::refusal(parts.uri.path(), &body).await {
            Some(refused) => refused,
            None => relay(parts, body).await,
        }
    }

    async fn carry_out(&self, asked: &Fields) -> Answer {
        let action = get(asked, "Action").unwrap_or_default().to_owned();
        let key = get(asked, "ClientToken").map(|token| (action.clone(), token.to_owned()));
        let same = encode(asked);
        if let Some((earlier, answer)) =
            key.as_ref().and_then(|key| self.tokens.lock().expect("tokens").get(key).cloned())
        {
            return match earlier == same {
                true => answer,
                false => error(400, "IdempotentParameterMismatch", "The client token was used with other parameters"),
            };
        }
        let api = Api::new();
        if let Some(refused) = refusal(&api, &action, asked).await {
            return refused;
        }
        if let Some(refused) = self.balancing.refusal(&api, &action, asked, self.lag).await {
            return refused;
        }
        let mut passed = asked.clone();
        // moto knows the filter by client token as little as the token; and pages are as small as AWS allows.
        passed.retain(|(name, _)| name != "ClientToken");
        passed.iter_mut().filter(|(name, _)| name == "MaxResults").for_each(|(_, value)| *value = String::from("5"));
        if action == "RunInstances" {
            complete(&api, &mut passed).await;
        }
        let mut answer = api.ask(&passed).await;
        if let Some((_, id)) = NEW.iter().find(|(known, _)| answer.0 == 200 && *known == action) {
            let mut hidden = self.hidden.lock().expect("a list");
            hidden.extend(texts(&answer.1, id).into_iter().map(|id| (id, self.lag)));
        }
        answer = self.balancing.as_aws_says(&action, answer);
        if let Some((_, set)) = LISTED.iter().find(|(known, _)| answer.0 == 200 && *known == action) {
            answer = self.hide(asked, answer, set);
        }
        if let Some(key) = key.filter(|_| answer.0 == 200) {
            self.tokens.lock().expect("tokens").insert(key, (same, answer.clone()));
        }
        answer
    }

    /// What was just made is not listed yet. A NAT gateway is, and is not ready.
    fn hide(&self, asked: &Fields, (status, text): Answer, set: &str) -> Answer {
        let mut hidden = self.hidden.lock().expect("a list");
        let new: Vec<String> = hidden.keys().filter(|id| text.contains(id.as_str())).cloned().collect();
        if new.is_empty() {
            return (status, text);
        }
        for id in &new {
            let left = hidden.get_mut(id).expect("it is there");
            *left -= 1;
            if *left == 0 {
                hidden.remove(id);
            }
        }
        if numbered(asked, "InstanceId").iter().any(|id| new.contains(id)) {
            return error(400, "InvalidInstanceID.NotFound", "The instance ID does not exist");
        }
        if set == "natGatewaySet" {
            return (status, text.replace("<state>available</state>", "<state>pending</state>"));
        }
        let document = Document::parse(&text).expect("XML");
        let is_new = |node: &Node<'_, '_>| new.iter().any(|id| text[node.range()].contains(id.as_str()));
        let lists = document.descendants().filter(|node| node.tag_name().name() == set);
        let found = lists.flat_map(|list| list.children().filter(is_new).collect::<Vec<_>>());
        let mut ranges: Vec<_> = found.map(|node| node.range()).collect();
        ranges.reverse();
        let mut shown = text.clone();
        ranges.into_iter().for_each(|range| shown.replace_range(range, ""));
        (status, shown)
    }
}

/// Whether the policy in docs/aws.md allows it. A user has that policy and no other.
fn is_allowed(action: &str) -> bool {
    const PAGE: &str = include_str!("../../../../../docs/aws.md");
    let policy = PAGE.split("a policy must allow:").nth(1).and_then(|rest| rest.split("```").nth(1));
    policy.expect("a policy in docs/aws.md").split_whitespace().any(|word| word == action)
}

/// Passes a request of another service on as it is.
async fn relay(parts: &Parts, body: Bytes) -> Answer {
    let place = parts.uri.path_and_query().map_or("/", |place| place.as_str());
    let mut passed = client().request(parts.method.clone(), format!("{}{place}", server())).body(body);
    for (name, value) in parts.headers.iter().filter(|(name, _)| *name != "host" && *name != "content-length") {
        passed = passed.header(name, value);
    }
    let real = passed.send().await.expect("moto's server");
    (real.status().as_u16(), real.text().await.expect("an answer"))
}

/// What AWS takes from the image and the interface, and moto does not.
async fn complete(api: &Api, asked: &mut Fields) {
    const SIZE: &str = "BlockDeviceMapping.1.Ebs.VolumeSize";
    if get(asked, SIZE).is_none() {
        asked.extend(fields([(SIZE, "8")]));
    }
    if let Some(interface) =
        interface(api, get(asked, "NetworkInterface.1.NetworkInterfaceId").unwrap_or_default()).await
    {
        asked.extend(fields([("Placement.AvailabilityZone", &one(&interface, "availabilityZone"))]));
    }
}

/// What AWS refuses, and moto does not.
async fn refusal(api: &Api, action: &str, asked: &Fields) -> Option<Answer> {
    let asks = |name: &str| get(asked, name).unwrap_or_default();
    match action {
        "RunInstances" => {
            let data = base64::engine::general_purpose::STANDARD.decode(asks("UserData")).unwrap_or_default();
            if data.len() > 16384 {
                return Some(error(400, "InvalidParameterValue", "User data is limited to 16384 bytes"));
            }
            let (status, _) = api.ask(&fields([("Action", "DescribeImages"), ("ImageId.1", asks("ImageId"))])).await;
            if status != 200 {
                return Some(error(400, "InvalidAMIID.NotFound", "The image id does not exist"));
            }
            let interface = interface(api, asks("NetworkInterface.1.NetworkInterfaceId")).await?;
            let is_used = interface.contains("<instanceId>");
            is_used.then(|| error(400, "InvalidNetworkInterface.InUse", "The interface is currently in use"))
        }
        "CreateNetworkInterface" => {
            let wanted = get(asked, "PrivateIpAddress")?;
            let all = items(&api.call("DescribeNetworkInterfaces", []).await, "networkInterfaceSet");
            let is_there = |one: &&String| {
                texts(one, "subnetId").contains(&asks("SubnetId").to_owned())
                    && texts(one, "privateIpAddress").contains(&wanted.to_owned())
            };
            let taken = all.iter().find(is_there).map(|_| error(400, "InvalidIPAddress.InUse", "Address is in use."));
            let subnet = api.call("DescribeSubnets", [("SubnetId.1", asks("SubnetId"))]).await;
            let range: AddressRange = one(&subnet, "cidrBlock").parse().expect("a range");
            let outside = !range.contains(wanted.parse().expect("an address"));
            taken.or_else(|| {
                outside.then(|| error(400, "InvalidParameterValue", "Address does not fall within the subnet"))
            })
        }
        "AttachVolume" => {
            let volume = api.call("DescribeVolumes", [("VolumeId.1", asks("VolumeId"))]).await;
            let instance = api.call("DescribeInstances", [("InstanceId.1", asks("InstanceId"))]).await;
            let zone = |text: &str| texts(text, "availabilityZone").into_iter().next();
            if !texts(&volume, "status").contains(&String::from("available")) {
                return Some(error(400, "VolumeInUse", "The volume is already attached"));
            }
            let differs = zone(&volume) != zone(&instance);
            differs.then(|| error(400, "InvalidVolume.ZoneMismatch", "The volume is not in the zone of the instance"))
        }
        "DeleteNetworkInterface" => {
            let is_used = interface(api, asks("NetworkInterfaceId")).await?.contains("<instanceId>");
            is_used.then(|| error(400, "InvalidParameterValue", "Network interface is currently in use."))
        }
        // Those of these are shorter than of other lists, or do not come in pages.
        "DescribeRouteTables" | "DescribeAddresses" | "DescribeAvailabilityZones"
            if get(asked, "MaxResults").is_some() =>
        {
            Some(error(400, "UnknownParameter", "The parameter MaxResults is not recognized"))
        }
        "DeleteSubnet" => {
            let interfaces = api.call("DescribeNetworkInterfaces", []).await;
            let balancers = api.call("DescribeLoadBalancers", [BALANCING]).await;
            let used = texts(&interfaces, "subnetId").into_iter().chain(texts(&balancers, "SubnetId"));
            used.into_iter().any(|id| id == asks("SubnetId")).then(in_use)
        }
        "DetachInternetGateway" => {
            let nats = items(&api.call("DescribeNatGateways", []).await, "natGatewaySet");
            let is_there = |nat: &String| one(nat, "vpcId") == asks("VpcId") && one(nat, "state") != "deleted";
            nats.iter().any(is_there).then(in_use)
        }
        "DeleteVpc" => {
            let gateways = api.call("DescribeInternetGateways", []).await;
            let groups = items(&api.call("DescribeSecurityGroups", []).await, "securityGroupInfo");
            let is_there =
                |group: &String| one(group, "vpcId") == asks("VpcId") && one(group, "groupName") != "default";
            let is_used = gateways.contains(asks("VpcId")) || groups.iter().any(is_there);
            is_used.then(in_use)
        }
        "ReleaseAddress" => {
            let addresses = items(&api.call("DescribeAddresses", []).await, "addressesSet");
            let its =
                addresses.iter().find(|one| texts(one, "allocationId").contains(&asks("AllocationId").to_owned()));
            its?.contains("<associationId>").then(|| error(400, "InvalidIPAddress.InUse", "The address is in use"))
        }
        "DeleteSecurityGroup" => {
            let id = asks("GroupId");
            let interfaces = items(&api.call("DescribeNetworkInterfaces", []).await, "networkInterfaceSet");
            let groups = items(&api.call("DescribeSecurityGroups", []).await, "securityGroupInfo");
            let others = groups.iter().filter(|group| one(group, "groupId") != id);
            let balancers = items(&api.call("DescribeLoadBalancers", [BALANCING]).await, "LoadBalancers");
            let is_used = interfaces.iter().chain(others).chain(&balancers).any(|one| one.contains(id));
            is_used.then(in_use)
        }
        _ => None,
    }
}

async fn interface(api: &Api, id: &str) -> Option<String> {
    let (status, text) =
        api.ask(&fields([("Action", "DescribeNetworkInterfaces"), ("NetworkInterfaceId.1", id)])).await;
    (status == 200).then_some(text)
}
