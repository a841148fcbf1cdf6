//! The Network Load Balancer in front of etcd, with a listener that passes TLS through, and a target group of addresses. The names of both
//! contain the cluster's ID, because Elastic Load Balancing looks up by name; their tags are their mark.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use quorate_core::model::{CLIENT_PORT, FixtureSeen, HEALTH_PORT, MemberName, Obstacle};
use quorate_core::providers::aws::{AwsSettings, SCHEME};
use tokio::time::sleep;

use super::Aws;
use super::error::AwsError;
use super::network::{Wish, choices};
use super::session::Call;
use super::xml::Xml;
use crate::marks::key;

/// Longer names are refused.
const LONGEST_NAME: usize = 32;
const HEALTH_PATH: &str = "/health";
/// How often members are asked, in seconds, and after how many answers they count as healthy or not.
const HEALTH_INTERVAL: u64 = 10;
const HEALTH_ANSWERS: u64 = 2;
/// How long connections to a member that was taken out may go on, in seconds.
const DRAINING: u64 = 30;
/// How long a deleted load balancer may keep its target group and its interfaces.
const LETTING_GO: Duration = Duration::from_secs(300);
const ABSENT: [&str; 3] = ["LoadBalancerNotFound", "TargetGroupNotFound", "ListenerNotFound"];
const THERE: [&str; 3] = ["DuplicateLoadBalancerName", "DuplicateTargetGroupName", "DuplicateListener"];
const IN_USE: &str = "ResourceInUse";

#[derive(Clone, Debug)]
struct Balancer {
    arn: String,
    /// Its name for clients, and the hosted zone of that name.
    dns: String,
    zone: String,
    scheme: String,
    state: String,
    reason: Option<String>,
    subnets: BTreeMap<String, String>,
    groups: BTreeSet<String>,
    is_ours: bool,
}

impl Balancer {
    fn read(value: &Xml) -> Option<Self> {
        let subnet = |zone: &Xml| Some((zone.text("ZoneName")?, zone.text("SubnetId")?));
        Some(Balancer {
            arn: value.text("LoadBalancerArn")?,
            dns: value.text("DNSName")?,
            zone: value.text("CanonicalHostedZoneId").unwrap_or_default(),
            scheme: value.text("Scheme").unwrap_or_default(),
            state: value.text("State/Code").unwrap_or_default(),
            reason: value.text("State/Reason"),
            subnets: value.items("AvailabilityZones").filter_map(subnet).collect(),
            groups: value.items("SecurityGroups").filter_map(Xml::own_text).collect(),
            is_ours: false,
        })
    }

    /// What AWS writes into the description of its interfaces.
    fn interfaces(&self) -> String {
        let name = self.arn.split_once(":loadbalancer/").map_or("", |(_, name)| name);
        format!("ELB {name}")
    }
}

#[derive(Clone, Debug)]
struct TargetGroup {
    arn: String,
    /// Whether its settings are those of this program.
    fits: bool,
    is_ours: bool,
}

impl TargetGroup {
    fn read(value: &Xml) -> Option<Self> {
        let has = |field: &str, expected: String| value.text(field).is_some_and(|found| found == expected);
        let fits = has("Protocol", String::from("TCP"))
            && has("Port", CLIENT_PORT.to_string())
            && has("TargetType", String::from("ip"))
            && has("HealthCheckPort", HEALTH_PORT.to_string())
            && has("HealthCheckPath", HEALTH_PATH.to_owned());
        Some(TargetGroup { arn: value.text("TargetGroupArn")?, fits, is_ours: false })
    }
}

/// A member as the load balancer sees it.
struct Target {
    address: IpAddr,
    state: String,
    reason: String,
}

impl Target {
    fn read(value: &Xml) -> Option<Self> {
        Some(Target {
            address: value.text("Target/Id")?.parse().ok()?,
            state: value.text("TargetHealth/State").unwrap_or_default(),
            reason: value
                .text("TargetHealth/Description")
                .or_else(|| value.text("TargetHealth/Reason"))
                .unwrap_or_default(),
        })
    }

    /// One that was taken out is listed for as long as its connections go on.
    fn counts(&self) -> bool {
        self.state != "draining"
    }
}

impl Aws {
    fn balancer_name(&self) -> String {
        let room = LONGEST_NAME.saturating_sub("q--".len() + self.cluster_id.len());
        let short: String = self.spec.name.as_str().chars().take(room).collect();
        format!("q-{}-{}", short.trim_end_matches('-'), self.cluster_id)
    }

    fn balancing_tags(&self, name: &str) -> BTreeMap<String, String> {
        let mut tags = self.tags(name);
        tags.insert(key("cluster_id"), self.cluster_id.clone());
        tags
    }

    /// By name. Its tags show whether it belongs to this cluster.
    async fn find_balancer(&self) -> Result<Option<Balancer>, AwsError> {
        let call = Call::balancing("read the load balancer", "DescribeLoadBalancers");
        let found = self.balancing_list(call.members("Names", [self.balancer_name()]), "LoadBalancers").await?;
        let Some(mut balancer) = found.iter().find_map(Balancer::read) else { return Ok(None) };
        balancer.is_ours = self.has_mark(&balancer.arn).await?;
        Ok(Some(balancer))
    }

    async fn find_target_group(&self) -> Result<Option<TargetGroup>, AwsError> {
        let call = Call::balancing("read the target group", "DescribeTargetGroups");
        let found = self.balancing_list(call.members("Names", [self.balancer_name()]), "TargetGroups").await?;
        let Some(mut group) = found.iter().find_map(TargetGroup::read) else { return Ok(None) };
        group.is_ours = self.has_mark(&group.arn).await?;
        Ok(Some(group))
    }

    /// What such a call lists; nothing where what it is about does not exist.
    async fn balancing_list(&self, call: Call, list: &str) -> Result<Vec<Xml>, AwsError> {
        let answer = match self.session()?.call(&call).await {
            Err(error) if error.has_code(&ABSENT) => return Ok(Vec::new()),
            answer => answer?,
        };
        Ok(answer.result().into_iter().flat_map(|result| result.items(list)).cloned().collect())
    }

    async fn has_mark(&self, arn: &str) -> Result<bool, AwsError> {
        let call = Call::balancing("read the tags of the load balancer", "DescribeTags").members("ResourceArns", [arn]);
        let described = self.balancing_list(call, "TagDescriptions").await?;
        let mut tags = described.iter().flat_map(|one| one.items("Tags"));
        let is_mark = |tag: &Xml| {
            tag.text("Key") == Some(key("cluster_id")) && tag.text("Value").as_deref() == Some(self.cluster_id.as_str())
        };
        Ok(tags.any(is_mark))
    }

    async fn targets(&self, group: &TargetGroup) -> Result<Vec<Target>, AwsError> {
        let call = Call::balancing("read the members of the load balancer", "DescribeTargetHealth");
        let found = self.balancing_list(call.with("TargetGroupArn", &group.arn), "TargetHealthDescriptions").await?;
        Ok(found.iter().filter_map(Target::read).collect())
    }

    /// Whether its listener forwards clients to the target group.
    async fn is_listening(&self, balancer: &Balancer, group: &TargetGroup) -> Result<Option<bool>, AwsError> {
        let call = Call::balancing("read the listener of the load balancer", "DescribeListeners");
        let found = self.balancing_list(call.with("LoadBalancerArn", &balancer.arn), "Listeners").await?;
        let port = CLIENT_PORT.to_string();
        let listener = found.iter().find(|one| one.text("Port").as_ref() == Some(&port));
        let leads = |one: &Xml| {
            let is_tcp = one.text("Protocol").as_deref() == Some("TCP");
            let mut actions = one.items("DefaultActions");
            is_tcp && actions.any(|action| action.text("TargetGroupArn").as_ref() == Some(&group.arn))
        };
        Ok(listener.map(leads))
    }

    /// The target of Route53's records: its name and the zone of that.
    pub(super) async fn balancer_alias(&self) -> Result<Option<(String, String)>, AwsError> {
        let balancer = self.find_balancer().await?.filter(|balancer| balancer.is_ours);
        Ok(balancer.map(|balancer| (balancer.dns.to_lowercase(), balancer.zone)))
    }

    pub(super) async fn see_balancer(&self) -> Result<Option<FixtureSeen>, AwsError> {
        let (balancer, group) = (self.find_balancer().await?, self.find_target_group().await?);
        let others = [
            balancer.as_ref().filter(|one| !one.is_ours).map(|_| "load balancer"),
            group.as_ref().filter(|one| !one.is_ours).map(|_| "target group"),
        ];
        let obstacle = others.into_iter().flatten().next().map(|what| Obstacle {
            what: format!("there is a {what} {} without the mark of this cluster", self.balancer_name()),
            remedy: format!("delete that {what} if it is not needed, or remove `load_balancer` from the spec"),
        });
        let is_ours = balancer.as_ref().is_some_and(|one| one.is_ours) || group.as_ref().is_some_and(|one| one.is_ours);
        if !is_ours && obstacle.is_none() {
            return Ok(None);
        }
        let mut seen = FixtureSeen {
            id: AwsSettings::balancer(),
            is_ours,
            obstacle,
            fixed: BTreeMap::new(),
            leads_to: BTreeMap::new(),
            to_balancer: false,
            names: BTreeSet::new(),
            fault: None,
            pending: None,
        };
        if let (Some(balancer), Some(group), None) = (&balancer, &group, &seen.obstacle) {
            let targets = self.targets(group).await?;
            seen.leads_to = targets.iter().filter(|one| one.counts()).map(|one| (one.address, None)).collect();
            seen.fault = match self.is_listening(balancer, group).await? {
                _ if !group.fits => Some(String::from("its target group has been changed")),
                None => Some(format!("it does not listen on port {CLIENT_PORT}")),
                Some(false) => Some(String::from("it points somewhere else")),
                Some(true) => self.other_groups(balancer).await,
            };
            seen.pending = pending(balancer, &targets);
        }
        let is_whole = balancer.is_some() && group.is_some();
        if let Some(balancer) = balancer.filter(|balancer| balancer.is_ours) {
            seen.fixed.insert(SCHEME.to_owned(), balancer.scheme);
            seen.names.insert(balancer.dns.to_lowercase());
        }
        if seen.is_ours && !is_whole {
            seen.fault = Some(String::from("a part of it is missing"));
        }
        Ok(Some(seen))
    }

    /// Whether its security groups are not those that it should have, as far as these are known by now.
    async fn other_groups(&self, balancer: &Balancer) -> Option<String> {
        let wanted: BTreeSet<String> = match &self.settings.security_groups {
            Some(given) => given.iter().cloned().collect(),
            None => self.member_group.lock().await.iter().cloned().collect(),
        };
        let differs = !wanted.is_empty() && wanted != balancer.groups;
        differs.then(|| String::from("it has other security groups than the members"))
    }

    pub(super) async fn put_balancer(&self, leads_to: &BTreeMap<MemberName, IpAddr>) -> Result<(), AwsError> {
        let balancer = self.whole_balancer().await?;
        let group = self.whole_target_group().await?;
        match self.is_listening(&balancer, &group).await? {
            Some(true) => {}
            Some(false) => {
                self.delete_listener(&balancer).await?;
                self.create_listener(&balancer, &group).await?;
            }
            None => self.create_listener(&balancer, &group).await?,
        }
        self.set_targets(&group, &leads_to.values().copied().collect()).await
    }

    async fn whole_balancer(&self) -> Result<Balancer, AwsError> {
        let (groups, subnets) = (self.groups_of_interfaces().await?, self.balancer_subnets().await?);
        let name = self.balancer_name();
        let found = match self.find_balancer().await? {
            Some(found) => found,
            None => {
                let scheme = self.settings.load_balancer.clone().unwrap_or_default().scheme;
                let call = Call::balancing("create the load balancer", "CreateLoadBalancer")
                    .with("Name", &name)
                    .with("Type", "network")
                    .with("IpAddressType", "ipv4")
                    .with("Scheme", scheme)
                    .members("Subnets", &subnets)
                    .members("SecurityGroups", &groups)
                    .pairs("Tags", self.balancing_tags(&format!("{}-balancer", self.spec.name)));
                match self.session()?.call(&call).await {
                    // An earlier attempt may have been carried out.
                    Err(error) if error.has_code(&THERE) => {}
                    made => drop(made?),
                }
                self.appears(async || self.find_balancer().await, "load balancer").await?
            }
        };
        if !found.is_ours {
            return Err(AwsError::NotOurs { what: format!("the load balancer {name}") });
        }
        let missing: Vec<&String> = subnets.iter().filter(|id| !found.subnets.values().any(|has| has == *id)).collect();
        if !missing.is_empty() {
            let call = Call::balancing("add subnets to the load balancer", "SetSubnets");
            let call = call.with("LoadBalancerArn", &found.arn).members("Subnets", &subnets);
            self.session()?.call(&call).await?;
        }
        if groups.iter().cloned().collect::<BTreeSet<_>>() != found.groups {
            let call = Call::balancing("change the security groups of the load balancer", "SetSecurityGroups");
            let call = call.with("LoadBalancerArn", &found.arn).members("SecurityGroups", &groups);
            self.session()?.call(&call).await?;
        }
        // A zone whose member is down forwards to members in others.
        let call = Call::balancing("configure the load balancer", "ModifyLoadBalancerAttributes")
            .with("LoadBalancerArn", &found.arn)
            .pairs("Attributes", [("load_balancing.cross_zone.enabled", "true")]);
        self.session()?.call(&call).await?;
        Ok(found)
    }

    /// One in each zone that members may be in.
    async fn balancer_subnets(&self) -> Result<Vec<String>, AwsError> {
        let given = self.settings.load_balancer.as_ref().map(|balancer| balancer.subnets.clone()).unwrap_or_default();
        if !given.is_empty() {
            return Ok(given);
        }
        let site = self.site().await?;
        let chosen = choices(&site.subnets, &self.settings.zones, &Wish::default());
        Ok(chosen.into_iter().map(|subnet| subnet.id.clone()).collect())
    }

    async fn whole_target_group(&self) -> Result<TargetGroup, AwsError> {
        let name = self.balancer_name();
        let found = match self.find_target_group().await? {
            Some(found) => found,
            None => {
                let call = Call::balancing("create the target group", "CreateTargetGroup")
                    .with("Name", &name)
                    .with("Protocol", "TCP")
                    .with("Port", CLIENT_PORT)
                    .with("TargetType", "ip")
                    .with("VpcId", &self.site().await?.vpc)
                    .pairs("Tags", self.balancing_tags(&format!("{}-members", self.spec.name)));
                match self.session()?.call(&Self::health_check(call)).await {
                    Err(error) if error.has_code(&THERE) => {}
                    made => drop(made?),
                }
                self.appears(async || self.find_target_group().await, "target group").await?
            }
        };
        if !found.is_ours {
            return Err(AwsError::NotOurs { what: format!("the target group {name}") });
        }
        if !found.fits {
            let call = Call::balancing("configure the target group", "ModifyTargetGroup");
            self.session()?.call(&Self::health_check(call.with("TargetGroupArn", &found.arn))).await?;
        }
        // Keeps the client's address for members' firewalls and logs. When a member leaves, its connections are closed:
        // etcd's clients reconnect.
        let attributes = [
            ("preserve_client_ip.enabled", String::from("true")),
            ("deregistration_delay.timeout_seconds", DRAINING.to_string()),
            ("deregistration_delay.connection_termination.enabled", String::from("true")),
        ];
        let call = Call::balancing("configure the target group", "ModifyTargetGroupAttributes");
        let call = call.with("TargetGroupArn", &found.arn).pairs("Attributes", attributes);
        self.session()?.call(&call).await?;
        Ok(found)
    }

    /// The health page is plain HTTP.
    fn health_check(call: Call) -> Call {
        call.with("HealthCheckProtocol", "HTTP")
            .with("HealthCheckPort", HEALTH_PORT)
            .with("HealthCheckPath", HEALTH_PATH)
            .with("HealthCheckIntervalSeconds", HEALTH_INTERVAL)
            .with("HealthyThresholdCount", HEALTH_ANSWERS)
            .with("UnhealthyThresholdCount", HEALTH_ANSWERS)
    }

    async fn create_listener(&self, balancer: &Balancer, group: &TargetGroup) -> Result<(), AwsError> {
        let call = Call::balancing("create the listener of the load balancer", "CreateListener")
            .with("LoadBalancerArn", &balancer.arn)
            .with("Protocol", "TCP")
            .with("Port", CLIENT_PORT)
            .with("DefaultActions.member.1.Type", "forward")
            .with("DefaultActions.member.1.TargetGroupArn", &group.arn);
        match self.session()?.call(&call).await {
            Err(error) if error.has_code(&THERE) => Ok(()),
            made => made.map(drop),
        }
    }

    /// One with another target.
    async fn delete_listener(&self, balancer: &Balancer) -> Result<(), AwsError> {
        let call = Call::balancing("read the listener of the load balancer", "DescribeListeners");
        let found = self.balancing_list(call.with("LoadBalancerArn", &balancer.arn), "Listeners").await?;
        let port = CLIENT_PORT.to_string();
        for listener in found.iter().filter(|one| one.text("Port").as_ref() == Some(&port)) {
            let arn = listener.text("ListenerArn").unwrap_or_default();
            let call = Call::balancing("delete a listener of the load balancer", "DeleteListener");
            self.balancing_list(call.with("ListenerArn", arn), "").await?;
        }
        Ok(())
    }

    /// Missing members are added first.
    async fn set_targets(&self, group: &TargetGroup, wanted: &BTreeSet<IpAddr>) -> Result<(), AwsError> {
        let there = self.targets(group).await?;
        let has: BTreeSet<IpAddr> = there.iter().filter(|one| one.counts()).map(|one| one.address).collect();
        let changes = [
            ("RegisterTargets", "point the load balancer to members", wanted.difference(&has).collect::<Vec<_>>()),
            ("DeregisterTargets", "remove members from the load balancer", has.difference(wanted).collect()),
        ];
        for (action, doing, addresses) in changes.into_iter().filter(|(.., addresses)| !addresses.is_empty()) {
            let call = Call::balancing(doing, action).with("TargetGroupArn", &group.arn);
            let call = addresses.iter().enumerate().fold(call, |call, (at, address)| {
                let target = format!("Targets.member.{}", at + 1);
                call.with(format!("{target}.Id"), address).with(format!("{target}.Port"), CLIENT_PORT)
            });
            self.session()?.call(&call).await?;
        }
        Ok(())
    }

    /// Something that was just made may not be listed yet.
    async fn appears<T>(
        &self,
        look: impl AsyncFn() -> Result<Option<T>, AwsError>,
        what: &'static str,
    ) -> Result<T, AwsError> {
        const TIMES: usize = 10;
        for _ in 0..TIMES {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            sleep(self.polling).await;
        }
        Err(AwsError::Missing { what, name: self.balancer_name(), names: Vec::new() })
    }

    pub(super) async fn drop_balancer(&self) -> Result<(), AwsError> {
        let (balancer, group) = (self.find_balancer().await?, self.find_target_group().await?);
        let group = group.filter(|group| group.is_ours);
        if group.is_some() && balancer.as_ref().is_some_and(|balancer| !balancer.is_ours) {
            // It would keep the target group for ever.
            return Err(AwsError::NotOurs { what: format!("the load balancer {}", self.balancer_name()) });
        }
        if let Some(balancer) = balancer.filter(|balancer| balancer.is_ours) {
            let call = Call::balancing("delete the load balancer", "DeleteLoadBalancer");
            self.balancing_list(call.with("LoadBalancerArn", &balancer.arn), "").await?;
            self.until_let_go("the load balancer's network interfaces", async || {
                let call = Call::new("list network interfaces", "DescribeNetworkInterfaces");
                let call = call.filter("description", [balancer.interfaces()]);
                Ok(self.session()?.list(call, "networkInterfaceSet").await?.is_empty())
            })
            .await?;
        }
        if let Some(group) = group {
            self.until_let_go("the target group", async || {
                let call = Call::balancing("delete the target group", "DeleteTargetGroup");
                match self.balancing_list(call.with("TargetGroupArn", &group.arn), "").await {
                    Err(error) if error.has_code(&[IN_USE]) => Ok(false),
                    deleted => deleted.map(|_| true),
                }
            })
            .await?;
        }
        Ok(())
    }

    /// A load balancer releases its resources some time after it is deleted.
    async fn until_let_go(
        &self,
        what: &str,
        is_free: impl AsyncFn() -> Result<bool, AwsError>,
    ) -> Result<(), AwsError> {
        let begun = Instant::now();
        while !is_free().await? {
            if begun.elapsed() > LETTING_GO {
                let (state, seconds) = (String::from("in use"), LETTING_GO.as_secs());
                return Err(AwsError::TooSlow { what: what.to_owned(), state, seconds, remedy: None });
            }
            sleep(self.polling).await;
        }
        Ok(())
    }
}

/// Why clients cannot use it, or not all of its members.
fn pending(balancer: &Balancer, targets: &[Target]) -> Option<String> {
    let reason = |text: &str| if text.is_empty() { String::new() } else { format!(" ({text})") };
    if balancer.state != "active" && !balancer.state.is_empty() {
        return Some(format!(
            "its state is {}{}",
            balancer.state,
            reason(balancer.reason.as_deref().unwrap_or_default())
        ));
    }
    let waits = targets.iter().filter(|one| one.counts() && one.state != "healthy");
    let waits: Vec<String> =
        waits.map(|one| format!("{} is {}{}", one.address, one.state, reason(&one.reason))).collect();
    (!waits.is_empty()).then(|| waits.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_balancer_and_its_targets_are_read() {
        let text = "<member><LoadBalancerArn>arn:aws:elasticloadbalancing:eu-west-2:1:loadbalancer/net/q-demo-1/50dc</LoadBalancerArn>\
                    <DNSName>q-demo-1-50dc.elb.eu-west-2.amazonaws.com</DNSName><Scheme>internal</Scheme>\
                    <CanonicalHostedZoneId>ZD4D7Y8KGAS4G</CanonicalHostedZoneId><State><Code>provisioning</Code></State>\
                    <AvailabilityZones><member><ZoneName>eu-west-2a</ZoneName><SubnetId>subnet-1</SubnetId></member></AvailabilityZones>\
                    <SecurityGroups><member>sg-1</member></SecurityGroups></member>";
        let mut balancer = Balancer::read(&Xml::read(text).unwrap()).unwrap();
        assert_eq!(balancer.groups, BTreeSet::from([String::from("sg-1")]));
        assert_eq!(balancer.subnets["eu-west-2a"], "subnet-1");
        assert_eq!(balancer.interfaces(), "ELB net/q-demo-1/50dc");
        let target = |state: &str| {
            let health = format!(
                "<TargetHealth><State>{state}</State><Reason>Target.FailedHealthChecks</Reason></TargetHealth>"
            );
            let text = format!("<member><Target><Id>10.0.0.7</Id><Port>2379</Port></Target>{health}</member>");
            Target::read(&Xml::read(&text).unwrap()).unwrap()
        };
        let targets = [target("healthy"), target("draining")];
        assert_eq!(pending(&balancer, &targets).as_deref(), Some("its state is provisioning"));
        balancer.state = String::from("active");
        assert_eq!(pending(&balancer, &targets), None, "one that leaves is not waited for");
        let said = pending(&balancer, &[target("unhealthy")]);
        assert_eq!(said.as_deref(), Some("10.0.0.7 is unhealthy (Target.FailedHealthChecks)"));
    }
}
