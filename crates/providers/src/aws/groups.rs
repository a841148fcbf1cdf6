//! Security groups that quorate creates: they allow the same connections as the machines' own firewall. Their tags are their mark. They
//! have exactly these rules: a deleted one is created again, and an additional one is deleted.

use std::collections::BTreeSet;

use quorate_core::providers::access::Access;
use tokio::time::sleep;

use super::Aws;
use super::error::AwsError;
use super::network::Interface;
use super::session::Call;
use super::xml::Xml;
use crate::marks::key;
use crate::rules::{Ids, Role, Rule, member_rules, other_rules};

/// How often rules are compared again after somebody else was first.
const ATTEMPTS: usize = 4;
const DUPLICATE: &str = "InvalidGroup.Duplicate";

/// A rule as AWS has it: one source for one range of ports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Permission {
    is_egress: bool,
    /// `-1`: any.
    protocol: String,
    ports: Option<(i64, i64)>,
    source: Source,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Source {
    V4(String),
    V6(String),
    Group(String),
}

impl Permission {
    fn of(rule: &Rule) -> Self {
        let is_v4 = rule.family == "IPv4";
        let source = match (&rule.group, &rule.range) {
            (Some(group), _) => Source::Group(group.clone()),
            (None, Some(range)) if is_v4 => Source::V4(range.clone()),
            (None, Some(range)) => Source::V6(range.clone()),
            (None, None) if is_v4 => Source::V4(String::from("0.0.0.0/0")),
            (None, None) => Source::V6(String::from("::/0")),
        };
        let (protocol, ports) = match (rule.protocol.as_deref(), rule.ports) {
            (None, _) => ("-1", None),
            // All of its types.
            (Some("icmp"), _) => ("icmp", Some((-1, -1))),
            (Some("ipv6-icmp"), _) => ("icmpv6", Some((-1, -1))),
            (Some(protocol), ports) => (protocol, ports.map(|(first, last)| (port(first), port(last)))),
        };
        Permission { is_egress: rule.direction == "egress", protocol: protocol.to_owned(), ports, source }
    }

    /// From how AWS lists them: several sources for each range of ports.
    fn read(value: &Xml, is_egress: bool) -> Vec<Self> {
        let number = |field: &str| value.text(field).and_then(|text| text.parse::<i64>().ok());
        let protocol = value.text("ipProtocol").unwrap_or_default();
        let protocol = if protocol == "58" { String::from("icmpv6") } else { protocol };
        let ports = number("fromPort").zip(number("toPort")).filter(|_| protocol != "-1");
        let texts = |list: &str, field: &str| value.items(list).filter_map(|one| one.text(field)).collect::<Vec<_>>();
        let v4 = texts("ipRanges", "cidrIp").into_iter().map(Source::V4);
        let v6 = texts("ipv6Ranges", "cidrIpv6").into_iter().map(Source::V6);
        let groups = texts("groups", "groupId").into_iter().map(Source::Group);
        let all = v4.chain(v6).chain(groups);
        all.map(|source| Permission { is_egress, protocol: protocol.clone(), ports, source }).collect()
    }

    fn describe(&self, call: Call, number: usize) -> Call {
        let within = format!("IpPermissions.{number}");
        let call = call.with(format!("{within}.IpProtocol"), &self.protocol);
        let call = call.maybe(&format!("{within}.FromPort"), self.ports.map(|(first, _)| first));
        let call = call.maybe(&format!("{within}.ToPort"), self.ports.map(|(_, last)| last));
        match &self.source {
            Source::V4(range) => call.with(format!("{within}.IpRanges.1.CidrIp"), range),
            Source::V6(range) => call.with(format!("{within}.Ipv6Ranges.1.CidrIpv6"), range),
            Source::Group(group) => call.with(format!("{within}.Groups.1.GroupId"), group),
        }
    }
}

fn port(number: u64) -> i64 {
    i64::try_from(number).unwrap_or_default()
}

/// A group of this cluster, as it is found by its mark.
#[derive(Clone, Debug)]
struct Group {
    id: String,
    name: String,
    role: Role,
    rules: BTreeSet<Permission>,
}

impl Group {
    fn read(value: &Xml) -> Option<Self> {
        let tags = value.tags();
        let role = tags.get(&key("role"))?;
        let of =
            |list: &'static str, is_egress| value.items(list).flat_map(move |one| Permission::read(one, is_egress));
        Some(Group {
            id: value.text("groupId")?,
            name: tags.get("Name").cloned().or_else(|| value.text("groupName")).unwrap_or_default(),
            role: Role::ALL.into_iter().find(|known| known.name() == role)?,
            rules: of("ipPermissions", false).chain(of("ipPermissionsEgress", true)).collect(),
        })
    }
}

impl Aws {
    fn wanted_roles(&self) -> &'static [Role] {
        match (&self.settings.security_groups, self.settings.access) {
            (Some(_), _) => &[],
            (None, Access::Firewall) => &Role::ALL[..1],
            (None, Access::Groups) => &Role::ALL,
        }
    }

    /// What people call it.
    fn group_name_of(&self, role: Role) -> String {
        let namespace = self.spec.namespace.as_ref().map(|namespace| format!("-{namespace}")).unwrap_or_default();
        format!("{}-{}{namespace}", self.spec.name, role.name())
    }

    /// Groups that were made for this cluster, in one list.
    async fn own_groups(&self) -> Result<Vec<Group>, AwsError> {
        let call = Call::new("list security groups", "DescribeSecurityGroups");
        let call = call.filter(&format!("tag:{}", key("cluster_id")), [&self.cluster_id]);
        let all = self.session()?.list(call, "securityGroupInfo").await?;
        let mut groups: Vec<Group> = all.iter().filter_map(Group::read).collect();
        // The group of members refers to the others, so it comes first when they are deleted.
        groups.sort_by(|a, b| (a.role, &a.id).cmp(&(b.role, &b.id)));
        Ok(groups)
    }

    /// The groups of interfaces, by id: the operator's, or those that quorate creates. Machines that are made together share them.
    pub(super) async fn groups_of_interfaces(&self) -> Result<Vec<String>, AwsError> {
        if let Some(given) = &self.settings.security_groups {
            return Ok(given.clone());
        }
        let mut known = self.member_group.lock().await;
        if known.is_none() {
            *known = Some(self.put_groups().await?);
        }
        Ok(known.clone().into_iter().collect())
    }

    /// Gives an interface the groups that it should have.
    pub(super) async fn set_groups(&self, interface: &Interface) -> Result<(), AwsError> {
        let wanted = self.groups_of_interfaces().await?;
        if interface.groups.iter().collect::<BTreeSet<_>>() == wanted.iter().collect() {
            return Ok(());
        }
        let doing = format!("change the network interface {}", interface.id);
        let call = Call::new(doing, "ModifyNetworkInterfaceAttribute").with("NetworkInterfaceId", &interface.id);
        self.session()?.unless_absent(&call.list("SecurityGroupId", &wanted)).await.map(drop)
    }

    /// Corrects changes of others: rules of the groups, and which groups interfaces have.
    pub(super) async fn keep_groups(&self, interfaces: &[Interface]) -> Result<(), AwsError> {
        *self.member_group.lock().await = None;
        for interface in interfaces {
            self.set_groups(interface).await?;
        }
        self.drop_groups(self.wanted_roles()).await.map(drop)
    }

    /// Creates the missing groups, and gives all of them their rules. Returns the id of the members' group.
    async fn put_groups(&self) -> Result<String, AwsError> {
        let mut there = self.own_groups().await?;
        for role in self.wanted_roles() {
            if !there.iter().any(|group| group.role == *role) {
                self.make_group(*role).await?;
            }
        }
        for attempt in 1.. {
            there = self.own_groups().await?;
            let id = |role: Role| there.iter().find(|group| group.role == role).map(|group| group.id.as_str());
            let missing = self.wanted_roles().iter().any(|role| id(*role).is_none());
            if missing && attempt < ATTEMPTS {
                // One that was just made may not be listed yet.
                sleep(self.polling).await;
                continue;
            }
            let lost = || AwsError::Missing {
                what: "security group",
                name: self.group_name_of(Role::Member),
                names: Vec::new(),
            };
            let others = id(Role::Client).zip(id(Role::Bastion)).filter(|_| self.wanted_roles().len() > 1);
            let ids = Ids { member: id(Role::Member).ok_or_else(lost)?, others };
            let mut unsure = None;
            for role in self.wanted_roles() {
                let group = there.iter().find(|group| group.role == *role).ok_or_else(lost)?;
                let wanted = match role {
                    Role::Member => member_rules(&self.openings, ids),
                    Role::Client | Role::Bastion => other_rules(),
                };
                unsure = unsure.or(self.put_rules(group, &wanted.iter().map(Permission::of).collect()).await?);
            }
            match unsure {
                None => return Ok(ids.member.to_owned()),
                Some(error) if attempt >= ATTEMPTS => return Err(error),
                Some(_) => sleep(self.polling).await,
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn make_group(&self, role: Role) -> Result<(), AwsError> {
        let name = self.group_name_of(role);
        let mut tags = self.tags(&name);
        tags.insert(key("cluster_id"), self.cluster_id.clone());
        tags.insert(key("role"), role.name().to_owned());
        // Its name is unique in the VPC, so it has the cluster's ID, and a second attempt is known by it.
        let call = Call::new(format!("create the security group {name}"), "CreateSecurityGroup")
            .with("GroupName", format!("{name}-{}", self.cluster_id))
            .with("GroupDescription", format!("quorate {} {}", self.cluster_id, role.name()))
            .with("VpcId", &self.site().await?.vpc)
            .tagged("security-group", &tags);
        match self.session()?.call(&call).await {
            Err(error) if error.has_code(&[DUPLICATE]) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Returns why it is not known whether the group has its rules now. What is missing comes first, so that nobody is shut out in
    /// between.
    async fn put_rules(&self, group: &Group, wanted: &BTreeSet<Permission>) -> Result<Option<AwsError>, AwsError> {
        let missing = wanted.difference(&group.rules);
        let surplus = group.rules.difference(wanted);
        let changes = missing.map(|rule| (rule, true)).chain(surplus.map(|rule| (rule, false)));
        let changes: Vec<(&Permission, bool)> = changes.collect();
        let actions = [
            ("AuthorizeSecurityGroupIngress", true, false),
            ("AuthorizeSecurityGroupEgress", true, true),
            ("RevokeSecurityGroupIngress", false, false),
            ("RevokeSecurityGroupEgress", false, true),
        ];
        for (action, adds, is_egress) in actions {
            let fits = |(rule, added): &&(&Permission, bool)| *added == adds && rule.is_egress == is_egress;
            let rules: Vec<&Permission> = changes.iter().filter(fits).map(|(rule, _)| *rule).collect();
            if rules.is_empty() {
                continue;
            }
            let doing = format!("change the rules of the security group {}", group.name);
            let call = Call::new(doing, action).with("GroupId", &group.id);
            let call = rules.iter().enumerate().fold(call, |call, (at, rule)| rule.describe(call, at + 1));
            match self.session()?.call(&call).await {
                // Looked at again: an earlier attempt may have been carried out, or somebody else was first.
                Err(error) if error.has_code(&["InvalidPermission.Duplicate", "InvalidPermission.NotFound"]) => {
                    return Ok(Some(error));
                }
                changed => drop(changed?),
            }
        }
        Ok(None)
    }

    /// Deletes groups of the cluster, but for one of each of these roles. Returns those that others use, by name: they stay.
    pub(super) async fn drop_groups(&self, but: &[Role]) -> Result<Vec<String>, AwsError> {
        let mut known = if but.is_empty() { Some(self.member_group.lock().await) } else { None };
        let mut used = Vec::new();
        let mut seen: BTreeSet<Role> = BTreeSet::new();
        for group in self.own_groups().await? {
            if seen.insert(group.role) && but.contains(&group.role) {
                continue;
            }
            let call = Call::new(format!("delete the security group {}", group.name), "DeleteSecurityGroup");
            match self.session()?.unless_absent(&call.with("GroupId", &group.id)).await {
                Err(error) if error.has_code(&["DependencyViolation", "InvalidGroup.InUse"]) => used.push(group.name),
                deleted => drop(deleted?),
            }
        }
        if let Some(known) = &mut known {
            **known = None;
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::model::{Audience, Opening};

    use super::*;

    #[test]
    fn rules_are_read_as_they_are_described() {
        let clients = Opening {
            to: Audience::Clients,
            ports: vec![2379],
            from: Some(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]),
        };
        let rules = member_rules(&[clients], Ids { member: "sg-m", others: None });
        let wanted: BTreeSet<Permission> = rules.iter().map(Permission::of).collect();
        let range =
            |list: &str, field: &str, text: &str| format!("<{list}><item><{field}>{text}</{field}></item></{list}>");
        let read = |protocol: &str, ports: &str, sources: String, is_egress: bool| {
            let text = format!("<item><ipProtocol>{protocol}</ipProtocol>{ports}{sources}</item>");
            Permission::read(&Xml::read(&text).unwrap(), is_egress)
        };
        let ports = |from: i64, to: i64| format!("<fromPort>{from}</fromPort><toPort>{to}</toPort>");
        let sources = [
            range("ipRanges", "cidrIp", "10.0.0.0/8"),
            range("ipv6Ranges", "cidrIpv6", "fd00::/8"),
            range("groups", "groupId", "sg-m"),
        ];
        let found = [
            read("tcp", &ports(2379, 2379), sources.concat(), false),
            read("icmp", &ports(-1, -1), range("ipRanges", "cidrIp", "0.0.0.0/0"), false),
            read("58", &ports(-1, -1), range("ipv6Ranges", "cidrIpv6", "::/0"), false),
            read("-1", "", range("ipRanges", "cidrIp", "0.0.0.0/0"), true),
            read("-1", &ports(0, 0), range("ipv6Ranges", "cidrIpv6", "::/0"), true),
        ];
        assert_eq!(found.into_iter().flatten().collect::<BTreeSet<_>>(), wanted);
    }
}
