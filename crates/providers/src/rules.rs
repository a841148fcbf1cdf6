//! The rules of security groups, for every cloud: rendered from the same list as the machines' own firewall.

use std::collections::BTreeSet;

use quorate_core::model::{Audience, Opening};

/// What the two families of addresses are called.
pub(crate) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// Whose ports have the group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Role {
    /// The machines of the cluster.
    Member,
    /// Machines of the operator, from which clients come.
    Client,
    /// Machines of the operator, from which people and quorate itself come.
    Bastion,
}

impl Role {
    pub(crate) const ALL: [Role; 3] = [Role::Member, Role::Client, Role::Bastion];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Member => "member",
            Role::Client => "client",
            Role::Bastion => "bastion",
        }
    }
}

/// What a group lets through. The words are those of OpenStack; None: any.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rule {
    pub(crate) direction: String,
    pub(crate) family: String,
    pub(crate) protocol: Option<String>,
    pub(crate) ports: Option<(u64, u64)>,
    /// A range of addresses.
    pub(crate) range: Option<String>,
    /// A group, by id.
    pub(crate) group: Option<String>,
}

impl Rule {
    pub(crate) fn egress(family: &str) -> Self {
        Rule {
            direction: String::from("egress"),
            family: family.to_owned(),
            protocol: None,
            ports: None,
            range: None,
            group: None,
        }
    }

    pub(crate) fn ingress(family: &str, protocol: &str) -> Self {
        let (direction, protocol) = (String::from("ingress"), Some(protocol.to_owned()));
        Rule { direction, protocol, ..Self::egress(family) }
    }
}

/// By id, the groups of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Ids<'a> {
    pub(crate) member: &'a str,
    /// Where access is by group.
    pub(crate) others: Option<(&'a str, &'a str)>,
}

/// What the group of members lets through.
pub(crate) fn member_rules(openings: &[Opening], ids: Ids<'_>) -> BTreeSet<Rule> {
    let mut rules: BTreeSet<Rule> = FAMILIES.into_iter().map(Rule::egress).collect();
    let from_group = |rule: Rule, group: &str| Rule { group: Some(group.to_owned()), ..rule };
    for (family, protocol) in [("IPv4", "icmp"), ("IPv6", "ipv6-icmp")] {
        let rule = Rule::ingress(family, protocol);
        match ids.others {
            None => drop(rules.insert(rule)),
            Some((client, bastion)) => {
                rules.extend([ids.member, client, bastion].map(|group| from_group(rule.clone(), group)));
            }
        }
    }
    for opening in openings {
        let by_group = ids.others.and_then(|(client, bastion)| match opening.to {
            Audience::Clients => Some(client),
            Audience::Operators => Some(bastion),
            Audience::Peers | Audience::Monitoring => None,
        });
        for port in &opening.ports {
            let port = u64::from(*port);
            let of = |family: &str| Rule { ports: Some((port, port)), ..Rule::ingress(family, "tcp") };
            // They are peers and clients of each other, and knock at each other's agents.
            let for_members = opening.to != Audience::Monitoring && port != SSH;
            let is_open = by_group.is_none() && is_anywhere(opening);
            if for_members && !is_open {
                rules.extend(FAMILIES.map(|family| from_group(of(family), ids.member)));
            }
            match (by_group, &opening.from) {
                (Some(group), _) => rules.extend(FAMILIES.map(|family| from_group(of(family), group))),
                // The other members, which the group is.
                (None, None) if opening.to == Audience::Peers => {}
                (None, None) => rules.extend(FAMILIES.map(of)),
                (None, Some(ranges)) => rules.extend(ranges.iter().map(|range| {
                    let family = if range.address.is_ipv4() { FAMILIES[0] } else { FAMILIES[1] };
                    Rule { range: Some(range.to_string()).filter(|_| range.prefix > 0), ..of(family) }
                })),
            }
        }
    }
    rules
}

const SSH: u64 = 22;

fn is_anywhere(opening: &Opening) -> bool {
    opening.from.is_none() && opening.to != Audience::Peers
}

/// The groups of clients and bastions are names of where these come from. They themselves let nobody in.
pub(crate) fn other_rules() -> BTreeSet<Rule> {
    FAMILIES.into_iter().map(Rule::egress).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(to: Audience, ports: &[u16], from: Option<&[&str]>) -> Opening {
        let from = from.map(|ranges| ranges.iter().map(|range| range.parse().unwrap()).collect());
        Opening { to, ports: ports.to_vec(), from }
    }

    fn shown(openings: &[Opening], ids: Ids<'_>) -> Vec<String> {
        let tcp = member_rules(openings, ids).into_iter().filter(|rule| rule.protocol.as_deref() == Some("tcp"));
        tcp.map(|rule| {
            let from = rule.range.or(rule.group).unwrap_or_else(|| String::from("anywhere"));
            format!("{} {} {from}", rule.family, rule.ports.unwrap().0)
        })
        .collect()
    }

    const OPEN: Ids<'_> = Ids { member: "m", others: None };
    const CLOSED: Ids<'_> = Ids { member: "m", others: Some(("c", "b")) };

    #[test]
    fn ranges_of_the_firewall_become_rules() {
        let openings = [
            opening(Audience::Peers, &[2380], Some(&["10.0.0.11"])),
            opening(Audience::Clients, &[2379], Some(&["10.0.0.0/8", "fd00::/8"])),
            opening(Audience::Operators, &[22], Some(&[])),
            opening(Audience::Operators, &[2390], None),
            opening(Audience::Monitoring, &[9100], Some(&["0.0.0.0/0"])),
        ];
        let expected = [
            "IPv4 2379 m",
            "IPv4 2379 10.0.0.0/8",
            "IPv4 2380 m",
            "IPv4 2380 10.0.0.11/32",
            "IPv4 2390 anywhere",
            "IPv4 9100 anywhere",
            "IPv6 2379 m",
            "IPv6 2379 fd00::/8",
            "IPv6 2380 m",
            "IPv6 2390 anywhere",
        ];
        assert_eq!(shown(&openings, OPEN), expected);
    }

    #[test]
    fn without_ranges_peers_are_the_members() {
        let peers = [opening(Audience::Peers, &[2380], None)];
        assert_eq!(shown(&peers, OPEN), ["IPv4 2380 m", "IPv6 2380 m"]);
    }

    #[test]
    fn access_by_group_rejects_everyone_else() {
        let openings = [
            opening(Audience::Clients, &[2379], None),
            opening(Audience::Operators, &[22], None),
            opening(Audience::Operators, &[2390], Some(&["10.0.0.0/8"])),
            opening(Audience::Monitoring, &[9100], Some(&["10.9.0.0/16"])),
        ];
        let mut rules = shown(&openings, CLOSED);
        rules.retain(|rule| rule.starts_with("IPv4"));
        let expected =
            ["IPv4 22 b", "IPv4 2379 c", "IPv4 2379 m", "IPv4 2390 b", "IPv4 2390 m", "IPv4 9100 10.9.0.0/16"];
        assert_eq!(rules, expected);
        assert!(
            !member_rules(&openings, CLOSED)
                .iter()
                .any(|rule| { rule.direction == "ingress" && rule.group.is_none() && rule.range.is_none() })
        );
    }
}
