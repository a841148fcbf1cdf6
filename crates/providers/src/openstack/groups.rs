//! Security groups that quorate creates: they allow the same connections as the machines' own firewall. Their description is their mark.
//! They have exactly these rules: a deleted one is created again, and an additional one is deleted.

use std::collections::BTreeSet;

use quorate_core::providers::access::Access;
use quorate_core::spec::AddressRange;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::catalogue::Service::Network;
use super::error::OpenstackError;
use super::network::OwnPort;
use super::session::Call;
use super::{Openstack, text};
use crate::rules::{Ids, Role, Rule, member_rules, other_rules};
use crate::web::escaped;

/// How often rules are compared again after an answer was lost, or somebody else was first.
const ATTEMPTS: usize = 4;

/// A rule, from how neutron describes it.
fn read_rule(value: &Value) -> Rule {
    let port = |field: &str| value.get(field).and_then(Value::as_u64);
    let is_narrow = |range: &String| range.parse::<AddressRange>().map_or(true, |range| range.prefix > 0);
    Rule {
        direction: text(value, "direction").unwrap_or_default(),
        family: text(value, "ethertype").unwrap_or_default(),
        protocol: text(value, "protocol"),
        ports: port("port_range_min").zip(port("port_range_max")),
        range: text(value, "remote_ip_prefix").filter(is_narrow),
        group: text(value, "remote_group_id"),
    }
}

/// How neutron describes it.
fn describe_rule(wanted: &Rule, group: &str) -> Value {
    let mut rule = json!({
        "security_group_id": group, "direction": wanted.direction, "ethertype": wanted.family,
        "description": "quorate",
    });
    let mut set = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            rule[field] = value;
        }
    };
    set("protocol", wanted.protocol.as_ref().map(|protocol| json!(protocol)));
    set("port_range_min", wanted.ports.map(|(first, _)| json!(first)));
    set("port_range_max", wanted.ports.map(|(_, last)| json!(last)));
    set("remote_ip_prefix", wanted.range.as_ref().map(|range| json!(range)));
    set("remote_group_id", wanted.group.as_ref().map(|group| json!(group)));
    rule
}

/// A group of this cluster, as it is found by its mark.
#[derive(Clone, Debug)]
struct Group {
    id: String,
    name: String,
    role: Role,
    made: String,
    /// With their ids. Two may be the same.
    rules: Vec<(String, Rule)>,
}

impl Openstack {
    fn wanted_roles(&self) -> &'static [Role] {
        match (&self.settings.security_groups, self.settings.access) {
            (Some(_), _) => &[],
            (None, Access::Firewall) => &Role::ALL[..1],
            (None, Access::Groups) => &Role::ALL,
        }
    }

    fn group_mark_of(&self, role: Role) -> String {
        format!("{} {}", self.port_mark(), role.name())
    }

    fn group_name_of(&self, role: Role) -> String {
        let namespace = self.spec.namespace.as_ref().map(|namespace| format!("-{namespace}")).unwrap_or_default();
        format!("{}-{}{namespace}", self.spec.name, role.name())
    }

    /// Groups that were made for this cluster, in one list, the oldest first.
    async fn own_groups(&self) -> Result<Vec<Group>, OpenstackError> {
        let session = self.session()?;
        let project = session.project().await?;
        let marks = Role::ALL.map(|role| format!("description={}", escaped(&self.group_mark_of(role))));
        let path = format!("/security-groups?project_id={}&{}", escaped(&project), marks.join("&"));
        let all = session.list("list security groups", Network, &path, "security_groups", None).await?;
        let read = |value: &Value| {
            let description = text(value, "description")?;
            let role = Role::ALL.into_iter().find(|role| self.group_mark_of(*role) == description)?;
            let rules = value.get("security_group_rules").and_then(Value::as_array).into_iter().flatten();
            Some(Group {
                id: text(value, "id")?,
                name: text(value, "name").unwrap_or_default(),
                role,
                made: text(value, "created_at").unwrap_or_default(),
                rules: rules.filter_map(|rule| Some((text(rule, "id")?, read_rule(rule)))).collect(),
            })
        };
        // A group of another project may be shared with this one, and have any description.
        let is_ours = |value: &&Value| text(value, "project_id").is_none_or(|of| of == project);
        let mut groups: Vec<Group> = all.iter().filter(is_ours).filter_map(read).collect();
        groups.sort_by(|a, b| (a.role, &a.made, &a.id).cmp(&(b.role, &b.made, &b.id)));
        Ok(groups)
    }

    /// How many groups must be made.
    pub(super) async fn missing_groups(&self) -> Result<usize, OpenstackError> {
        let wanted = self.wanted_roles();
        if wanted.is_empty() {
            return Ok(0);
        }
        let there = self.own_groups().await?;
        Ok(wanted.iter().filter(|role| !there.iter().any(|group| group.role == **role)).count())
    }

    /// The groups of ports, by id: the operator's, or those that quorate creates. Machines that are made together share them.
    pub(super) async fn groups_of_ports(&self) -> Result<Vec<String>, OpenstackError> {
        if self.settings.security_groups.is_some() {
            return self.given_groups().await;
        }
        let mut known = self.member_group.lock().await;
        if known.is_none() {
            *known = Some(self.put_groups().await?);
        }
        Ok(known.clone().into_iter().collect())
    }

    /// Corrects changes of others: rules of the groups, and which groups ports have.
    pub(super) async fn keep_groups(&self, ports: &[OwnPort]) -> Result<(), OpenstackError> {
        *self.member_group.lock().await = None;
        let wanted = self.groups_of_ports().await?;
        let pairs: BTreeSet<AddressRange> = self.settings.allowed_addresses.iter().copied().collect();
        for port in ports.iter().filter(|port| port.is_guarded) {
            let mut change = json!({});
            if port.groups.iter().collect::<BTreeSet<_>>() != wanted.iter().collect() {
                change["security_groups"] = json!(wanted);
            }
            if port.pairs != pairs {
                change["allowed_address_pairs"] = self.address_pairs();
            }
            if change != json!({}) {
                let path = format!("/ports/{}", port.id);
                let call = Call::new(format!("change the port {}", port.name), Network, Method::PUT, path);
                match self.session()?.change(call.json(json!({ "port": change }))).await {
                    // Its machine is being removed.
                    Err(error) if error.is_absent() => {}
                    changed => drop(changed?),
                }
            }
        }
        self.drop_groups(self.wanted_roles()).await.map(drop)
    }

    /// Creates the missing groups, and gives all of them their rules. Returns the id of the members' group.
    async fn put_groups(&self) -> Result<String, OpenstackError> {
        let mut there = self.own_groups().await?;
        for role in self.wanted_roles() {
            if !there.iter().any(|group| group.role == *role) {
                self.make_group(*role).await?;
                there = self.own_groups().await?;
            }
        }
        for attempt in 1.. {
            let id = |role: Role| there.iter().find(|group| group.role == role).map(|group| group.id.as_str());
            let others =
                id(Role::Client).zip(id(Role::Bastion)).filter(|_| self.wanted_roles().contains(&Role::Client));
            let lost = || OpenstackError::Missing {
                what: "security group",
                name: self.group_name_of(Role::Member),
                names: Vec::new(),
            };
            let ids = Ids { member: id(Role::Member).ok_or_else(lost)?, others };
            let mut unsure = None;
            for role in self.wanted_roles() {
                let group = there.iter().find(|group| group.role == *role).ok_or_else(lost)?;
                let wanted = match role {
                    Role::Member => member_rules(&self.openings, ids),
                    Role::Client | Role::Bastion => other_rules(),
                };
                unsure = unsure.or(self.put_rules(group, &wanted).await?);
            }
            match unsure {
                None => return Ok(ids.member.to_owned()),
                Some(error) if attempt >= ATTEMPTS => return Err(error),
                Some(_) => sleep(self.polling).await,
            }
            there = self.own_groups().await?;
        }
        unreachable!("the last attempt returns")
    }

    async fn make_group(&self, role: Role) -> Result<(), OpenstackError> {
        let name = self.group_name_of(role);
        let group = json!({ "security_group": { "name": name, "description": self.group_mark_of(role) } });
        let find = async || {
            let there = self.own_groups().await?;
            Ok(there.into_iter().find(|group| group.role == role).map(|group| json!({ "id": group.id })))
        };
        let call = Call::new(format!("create the security group {name}"), Network, Method::POST, "/security-groups");
        self.session()?.create(call.json(group), find).await.map(drop)
    }

    /// Returns why it is not known whether the group has its rules now. What is missing comes first, so that nobody is shut out in
    /// between.
    async fn put_rules(
        &self,
        group: &Group,
        wanted: &BTreeSet<Rule>,
    ) -> Result<Option<OpenstackError>, OpenstackError> {
        let mut there: BTreeSet<&Rule> = BTreeSet::new();
        let (kept, surplus): (Vec<_>, Vec<_>) =
            group.rules.iter().partition(|(_, rule)| wanted.contains(rule) && there.insert(rule));
        let missing: Vec<Value> = wanted
            .iter()
            .filter(|rule| !kept.iter().any(|(_, there)| there == *rule))
            .map(|rule| describe_rule(rule, &group.id))
            .collect();
        if !missing.is_empty() {
            let doing = format!("add rules to the security group {}", group.name);
            let call = Call::new(doing, Network, Method::POST, "/security-group-rules");
            match self.session()?.change(call.json(json!({ "security_group_rules": missing }))).await {
                // Looked at again: they may be there, or somebody else made some of them.
                Err(error) if error.is_unsure() || (error.is_conflict() && !error.is_quota()) => {
                    return Ok(Some(error));
                }
                made => drop(made?),
            }
        }
        for (id, _) in surplus {
            let doing = format!("delete a rule of the security group {}", group.name);
            self.session()?.delete(&doing, Network, &format!("/security-group-rules/{id}")).await?;
        }
        Ok(None)
    }

    /// Deletes groups of the cluster, but for one of each of these roles. Returns those that others use, by name: they stay.
    pub(super) async fn drop_groups(&self, but: &[Role]) -> Result<Vec<String>, OpenstackError> {
        let mut known = if but.is_empty() { Some(self.member_group.lock().await) } else { None };
        let mut used = Vec::new();
        let mut seen: BTreeSet<Role> = BTreeSet::new();
        for group in self.own_groups().await? {
            if seen.insert(group.role) && but.contains(&group.role) {
                continue;
            }
            let doing = format!("delete the security group {}", group.name);
            match self.session()?.delete(&doing, Network, &format!("/security-groups/{}", group.id)).await {
                Err(error) if error.is_conflict() => used.push(group.name),
                deleted => deleted?,
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

    const CLOSED: Ids<'_> = Ids { member: "m", others: Some(("c", "b")) };

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let from = Some(vec!["10.0.0.0/8".parse().unwrap()]);
        let clients = Opening { to: Audience::Clients, ports: vec![2379], from };
        for rule in member_rules(&[clients], CLOSED) {
            assert_eq!(read_rule(&describe_rule(&rule, "m")), rule);
        }
        let anywhere =
            json!({ "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "remote_ip_prefix": "0.0.0.0/0" });
        assert_eq!(read_rule(&anywhere), Rule::ingress("IPv4", "tcp"));
    }
}
