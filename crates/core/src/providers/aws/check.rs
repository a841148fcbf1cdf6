//! Checks of AWS instances: ids, zones, sizes and tags. What only AWS knows, such as whether an image exists, is checked when
//! instances are created.

use std::collections::BTreeMap;

use super::vpc::{KEPT, LARGEST as LARGEST_VPC, LETTERS, LONGEST, Layout, USED_ZONES, is_reserved};
use super::{Access, AwsSettings, Image, Internet, MemberSpec, Scheme, SeedFormat, VolumeType, section};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{Kind, Millis, Size};

/// No instance starts and boots faster.
const LEAST_PATIENCE: Millis = Millis(10_000);
const GIB: u64 = 1 << 30;
/// For gp3 and io2, which have the same limit.
const LARGEST: u64 = 64 << 40;
/// AWS allows 50 tags on a resource. The rest are quorate's.
const MOST_TAGS: usize = 20;
/// Of DNS.
const LONGEST_NAME: usize = 253;

pub(super) fn check(settings: &AwsSettings, cluster: &Cluster, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.aws.{field}"));
    if let Some(region) = settings.region.as_ref().filter(|region| !is_region(region)) {
        found.error(
            at("region"),
            format!("{region:?} is not a region of AWS"),
            "use one such as eu-west-2; `aws ec2 describe-regions` lists them",
        );
    }
    network(settings, &at, found);
    own_vpc(settings, cluster, found);
    types(&settings.instance_types, &at("instance_types"), found);
    image(&settings.image, &at, found);
    if settings.seed == SeedFormat::Ignition && settings.program.is_none() {
        found.error(
            at("seed"),
            "images with Ignition have no agent, and `program` does not say where to get it",
            "add `program: {url: …, sha256: …}`",
        );
    }
    if settings.seed == SeedFormat::Quorate && settings.program.is_some() {
        found.error(
            at("program"),
            "with `seed: quorate` the image has the agent, and nothing on it would fetch another one",
            "remove `program`; `quorate apply` brings newer agents to machines itself",
        );
    }
    if let Some(program) = &settings.program {
        program.check(&at("program"), found);
    }
    groups(settings, &at, found);
    sizes(settings.root_size, settings.data_size, &at, found);
    iops(settings, &at, found);
    tags(&settings.tags, &at, found);
    balancer(settings, cluster, found);
    dns(settings, cluster, found);
    if settings.spot {
        found.error(
            at("spot"),
            "AWS takes spot instances away with two minutes' notice, several at a time: the quorum would be lost",
            "remove it: members are on-demand instances, which reserved instances and savings plans make cheaper",
        );
    }
    if settings.boot_patience < LEAST_PATIENCE {
        found.error(
            at("boot_patience"),
            format!("no instance starts and boots within {}", settings.boot_patience),
            format!("give it at least {LEAST_PATIENCE}; 10m is the default"),
        );
    }
    if let Some(admin) = &settings.admin {
        admin.check(&at("admin"), found);
        if admin.console_password_hash.is_some() {
            found.error(
                at("admin.console_password_hash"),
                "every process on an instance can read its user data, and with it this hash",
                "leave it out: use `ssh_keys`",
            );
        }
    }
    for (at, member) in cluster.spec.entries() {
        self::member(settings, cluster, (&at, member), found);
    }
}

fn network(settings: &AwsSettings, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let named = [("vpc", !settings.vpc.iter().all(|id| is_id("vpc", id)), settings.vpc.clone().unwrap_or_default())];
    let subnets = settings.subnets.iter().enumerate();
    let subnets = subnets.map(|(n, id)| (format!("subnets[{n}]"), !is_id("subnet", id), id.clone()));
    let named = named.into_iter().map(|(field, is_wrong, id)| (field.to_owned(), is_wrong, id));
    for (field, _, id) in named.chain(subnets).filter(|(_, is_wrong, _)| *is_wrong) {
        let kind = if field == "vpc" { "vpc" } else { "subnet" };
        not_an_id(kind, &id, at(&field), found);
    }
    let by_ids = !settings.subnets.is_empty();
    if settings.vpc.is_none() && !by_ids && settings.subnet_tags.is_empty() && settings.vpc_cidr.is_none() {
        found.error(
            at("subnets"),
            "no subnets are named for the instances",
            "give `subnets`, a list of ids, or `vpc`, or `subnet_tags`, or both of these, or `vpc_cidr` for a new VPC",
        );
    }
    let others = [("vpc", settings.vpc.is_some()), ("subnet_tags", !settings.subnet_tags.is_empty())];
    for (field, _) in others.into_iter().filter(|(_, given)| by_ids && *given) {
        found.error(
            at(field),
            format!("`subnets` names the subnets already, and `{field}` would choose among others"),
            "leave out one of them",
        );
    }
    for (n, zone) in settings.zones.iter().enumerate() {
        let field = at(&format!("zones[{n}]"));
        self::zone(settings, zone, field.clone(), found);
        if settings.zones[..n].contains(zone) {
            found.error(field, format!("{zone} is listed twice"), "name each zone once");
        }
    }
}

/// A VPC that quorate creates: nothing else says where machines are, and its parts have room for them.
fn own_vpc(settings: &AwsSettings, cluster: &Cluster, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.aws.{field}"));
    let Some(range) = &settings.vpc_cidr else {
        if settings.internet != Internet::default() {
            let message = "`internet` is about a VPC that quorate creates, and there is no `vpc_cidr`";
            found.error(at("internet"), message, "leave it out: the routes of an existing VPC are yours");
        }
        return;
    };
    let others = [
        ("vpc", settings.vpc.is_some()),
        ("subnets", !settings.subnets.is_empty()),
        ("subnet_tags", !settings.subnet_tags.is_empty()),
    ];
    for (field, _) in others.into_iter().filter(|(_, given)| *given) {
        found.error(
            at(field),
            format!("`vpc_cidr` asks for a new VPC, and `{field}` names an existing one"),
            "leave out one of them",
        );
    }
    let Some(layout) = Layout::of(range) else {
        found.error(
            at("vpc_cidr"),
            format!("quorate creates no VPC of {range}: AWS takes IPv4 from /{LARGEST_VPC} on, and its eight parts must be subnets"),
            format!("use a range from /{LARGEST_VPC} to /{LONGEST}, such as 10.99.0.0/16"),
        );
        return;
    };
    if range.address.is_loopback() || range.address.is_multicast() || range.address.is_unspecified() {
        found.error(
            at("vpc_cidr"),
            format!("{range} is not a range for machines"),
            "use a private one, such as 10.99.0.0/16",
        );
    }
    for (n, zone) in settings.zones.iter().enumerate() {
        let part = layout.subnet(zone);
        let same = settings.zones[..n].iter().find(|other| *other != zone && layout.subnet(other) == part);
        match (part, same) {
            (None, _) => no_letter(zone, at(&format!("zones[{n}]")), found),
            (Some(part), Some(other)) => found.error(
                at(&format!("zones[{n}]")),
                format!("{zone} would have the same part of `vpc_cidr` as {other}, {part}"),
                "use zones with different letters, or an existing VPC",
            ),
            _ => {}
        }
    }
    let zones = if settings.zones.is_empty() { USED_ZONES } else { settings.zones.len() };
    let machines = cluster.spec.machines().count();
    // A member that is replaced has two machines for a while.
    let needed = 2 * machines.div_ceil(zones);
    if needed > layout.room() as usize {
        found.error(
            at("vpc_cidr"),
            format!(
                "each zone gets an eighth of {range}, which has {} addresses besides the {KEPT} that AWS reserves; {machines} machines in \
                 {} can need {needed} in one",
                layout.room(),
                if zones == 1 { String::from("one zone") } else { format!("{zones} zones") },
            ),
            "use a larger range, such as a /16, or more zones",
        );
    }
    if settings.internet == Internet::Public && settings.security_groups.is_none() {
        let limits = cluster.spec.host.as_ref().and_then(|host| host.firewall.clients_from.as_ref());
        if settings.access == Access::Firewall && limits.is_none() {
            found.warning(
                at("vpc_cidr"),
                "machines have public addresses, and the security group lets clients in from anywhere: only \
                 certificates or passwords protect them",
                "limit `host.firewall.clients_from`, or use `access: groups` or `internet: nat`",
            );
        }
    }
}

fn no_letter(zone: &str, at: String, found: &mut Findings) {
    found.error(
        at,
        format!("{zone} does not end with one of the letters {} to {}", LETTERS[0], LETTERS[LETTERS.len() - 1]),
        "the letter decides which part of `vpc_cidr` a zone has; use other zones, or an existing VPC",
    );
}

/// The address and the zone of a member in a VPC that quorate creates.
fn own_place(settings: &AwsSettings, member: &MemberSpec, within: impl Fn(&str) -> String, found: &mut Findings) {
    let layout = settings.vpc_cidr.as_ref().and_then(|range| Some((range, Layout::of(range)?)));
    let Some((range, layout)) = layout else { return };
    let zone = section(member).zone.as_ref().filter(|_| settings.zones.is_empty());
    if let Some(zone) = zone.filter(|zone| layout.subnet(zone).is_none()) {
        no_letter(zone, within("aws.zone"), found);
    }
    let Some(address) = member.address else { return };
    let at = within("address");
    let zone_of = |letter: char| settings.zones.iter().find(|zone| zone.ends_with(letter));
    match (layout.letter(address), &section(member).zone) {
        (_, Some(zone)) if layout.subnet(zone).is_some_and(|subnet| !subnet.contains(address)) => {
            let subnet = layout.subnet(zone).map(|subnet| subnet.to_string()).unwrap_or_default();
            found.error(at, format!("{address} is not in the subnet of {zone}"), format!("that one has {subnet}"));
        }
        (None, _) => found.error(
            at,
            format!("{address} is not in a subnet for machines of the VPC {range}"),
            "its first seven eighths are those of the zones a to g",
        ),
        (Some(letter), None) if !settings.zones.is_empty() && zone_of(letter).is_none() => found.error(
            at,
            format!("{address} is in the part of a zone with the letter {letter}, and `zones` has none"),
            format!("use an address of {}, or add the zone", settings.zones.join(", ")),
        ),
        (Some(letter), _) => {
            let subnet = layout.subnet(&letter.to_string());
            if let Some(subnet) = subnet.filter(|subnet| is_reserved(subnet, address)) {
                let message = format!("AWS reserves {address}");
                found.error(at, message, format!("AWS reserves the first four addresses and the last one of {subnet}"));
            }
        }
    }
}

fn zone(settings: &AwsSettings, zone: &str, at: String, found: &mut Findings) {
    let is_zone = zone.len() > 2 && zone.ends_with(|last: char| last.is_ascii_lowercase()) && is_word(zone, "-");
    let is_elsewhere = settings.region.as_ref().filter(|region| !zone.starts_with(region.as_str()));
    match is_elsewhere {
        _ if !is_zone => found.error(
            at,
            format!("{zone:?} is not an availability zone"),
            "use its name, such as eu-west-2a; `aws ec2 describe-availability-zones` lists them",
        ),
        Some(region) => found.error(
            at,
            format!("the zone {zone} is not in the region {region}"),
            "all members of a cluster are in one region",
        ),
        None => {}
    }
}

fn types(types: &[String], at: &str, found: &mut Findings) {
    if types.is_empty() {
        found.error(at, "no type of instance is named", "name at least one, such as m7i.large");
    }
    for (n, name) in types.iter().enumerate() {
        let is_type = name.split_once('.').is_some_and(|(family, size)| is_word(family, "-") && is_word(size, "-"));
        if !is_type {
            found.error(
                format!("{at}[{n}]"),
                format!("{name:?} is not a type of instance"),
                "use one such as m7i.large; `aws ec2 describe-instance-types` lists them",
            );
        }
    }
}

fn image(image: &Image, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let given = [image.id.is_some(), image.newest.is_some(), image.parameter.is_some()];
    if given.iter().filter(|given| **given).count() != 1 {
        found.error(
            at("image"),
            "an image is named in one of three ways",
            "give `id`, or `newest` with `owner` and `name`, or `parameter`",
        );
    }
    if let Some(id) = image.id.as_ref().filter(|id| !is_id("ami", id)) {
        not_an_id("ami", id, at("image.id"), found);
    }
    if let Some(newest) = &image.newest {
        let is_account = newest.owner.len() == 12 && newest.owner.bytes().all(|byte| byte.is_ascii_digit());
        if !is_account && !["self", "amazon", "aws-marketplace"].contains(&newest.owner.as_str()) {
            found.error(
                at("image.newest.owner"),
                format!("{:?} is not an account of AWS", newest.owner),
                "use its 12 digits in quotes, or self, amazon or aws-marketplace",
            );
        }
    }
    if let Some(path) = image.parameter.as_ref().filter(|path| !path.starts_with('/') || !is_path(path)) {
        found.error(
            at("image.parameter"),
            format!("{path:?} is not the path of a parameter"),
            "use one such as /aws/service/debian/release/12/latest/amd64",
        );
    }
}

fn groups(settings: &AwsSettings, at: &impl Fn(&str) -> String, found: &mut Findings) {
    for (n, id) in settings.security_groups.iter().flatten().enumerate() {
        if !is_id("sg", id) {
            not_an_id("sg", id, at(&format!("security_groups[{n}]")), found);
        }
    }
    if settings.security_groups.as_ref().is_some_and(Vec::is_empty) {
        found.error(
            at("security_groups"),
            "every instance of AWS has a security group, and this list has none",
            "name one by id, or leave it out: then quorate creates one",
        );
    }
    if settings.access == Access::Groups && settings.security_groups.is_some() {
        found.error(
            at("access"),
            "`access` is about security groups that quorate creates, and `security_groups` names yours",
            "leave out one of them",
        );
    }
}

fn sizes(root: Option<Size>, data: Option<Size>, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let sized = [("root_size", root), ("data_size", data)];
    for (field, size) in sized.into_iter().filter_map(|(field, size)| Some((field, size?))) {
        if size.0 % GIB != 0 {
            found.error(
                at(field),
                format!("{size} is not the size of a volume; a bare number counts bytes"),
                "AWS creates volumes of whole GiB, such as 20GiB",
            );
        } else if size.0 > LARGEST {
            found.error(at(field), format!("no volume of AWS has {size}"), "the largest has 65536GiB");
        }
    }
}

fn iops(settings: &AwsSettings, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let name = settings.volume_type.name();
    match (settings.volume_type, settings.iops) {
        (VolumeType::Io2, None) => {
            found.error(at("volume_type"), format!("{name} volumes have no default for `iops`"), "add `iops`");
        }
        (VolumeType::Gp2, Some(_)) => {
            found.error(at("iops"), format!("the I/O operations of {name} follow from its size"), "use gp3 or io2");
        }
        (VolumeType::Gp3, Some(iops)) if iops < 3000 => {
            found.error(at("iops"), format!("{name} has at least 3000"), "leave it out, or ask for more");
        }
        _ => {}
    }
}

/// A load balancer needs subnets that are reachable from where its clients are.
fn balancer(settings: &AwsSettings, cluster: &Cluster, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.aws.load_balancer{field}"));
    let Some(balancer) = &settings.load_balancer else { return };
    if cluster.spec.kind == Kind::Postgres {
        found.error(
            at(""),
            "the load balancer sends clients to all members of an etcd cluster, but only one member of PostgreSQL \
             accepts writes",
            "remove it: with `postgres.haproxy` each member forwards clients to the primary",
        );
    }
    for (n, id) in balancer.subnets.iter().enumerate() {
        let field = at(&format!(".subnets[{n}]"));
        if !is_id("subnet", id) {
            not_an_id("subnet", id, field.clone(), found);
        }
        if balancer.subnets[..n].contains(id) {
            found.error(field, format!("{id} is listed twice"), "name each subnet once");
        }
    }
    if settings.vpc_cidr.is_some() && !balancer.subnets.is_empty() {
        found.error(
            at(".subnets"),
            "the subnets of a VPC that quorate creates do not exist before it",
            "leave it out: the load balancer is in the subnets of the members",
        );
    }
    if balancer.scheme == Scheme::InternetFacing {
        if settings.vpc_cidr.is_some() && settings.internet == Internet::Nat {
            found.error(
                at(".scheme"),
                "with `internet: nat` no subnet of the VPC has a route to an internet gateway, which a public load balancer needs",
                "use `internet: public` or `scheme: internal`",
            );
        }
        let limits = cluster.spec.host.as_ref().and_then(|host| host.firewall.clients_from.as_ref());
        if settings.security_groups.is_none() && settings.access == Access::Firewall && limits.is_none() {
            found.warning(
                at(".scheme"),
                "the load balancer has public addresses and lets clients in from anywhere: only certificates or \
                 passwords protect them",
                "limit `host.firewall.clients_from`",
            );
        }
    }
    brought_certificates(cluster, at(""), "the name that AWS gives to the load balancer", found);
}

/// Clients verify the name that they connect to.
fn brought_certificates(cluster: &Cluster, at: String, name: &str, found: &mut Findings) {
    if cluster.spec.tls.given.is_some() {
        found.warning(
            at,
            format!("clients verify {name}, and quorate does not sign the members' certificates"),
            "make sure that the certificates in `tls.given` contain it, or that clients connect by another name",
        );
    }
}

fn dns(settings: &AwsSettings, cluster: &Cluster, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.aws.dns{field}"));
    let Some(dns) = &settings.dns else { return };
    if cluster.spec.kind == Kind::Postgres {
        found.error(
            at(""),
            "the names point to all members of an etcd cluster, but only one member of PostgreSQL accepts writes",
            "remove it, and create your own records for the machines of `postgres.haproxy`",
        );
    }
    let zone = dns.zone();
    if !zone.contains('.') || !is_domain(&zone) {
        found.error(
            at(".zone"),
            format!("{:?} is not the name of a hosted zone", dns.zone),
            "use one such as example.com; `aws route53 list-hosted-zones` lists them, and an id goes into `zone_id`",
        );
    }
    if let Some(id) = dns.zone_id.as_ref().filter(|id| !is_zone_id(id)) {
        found.error(
            at(".zone_id"),
            format!("{id:?} is not the id of a hosted zone"),
            "ids begin with Z, as `aws route53 list-hosted-zones` shows them after /hostedzone/",
        );
    }
    if let Some(name) = &dns.name {
        let within = format!(".{zone}");
        if name.to_lowercase().trim_end_matches('.').ends_with(&within) {
            let short = &name[..name.trim_end_matches('.').len() - within.len()];
            let message = format!("{name} has the zone in it, and would become {name}.{zone}");
            found.error(at(".name"), message, format!("write only what is in front of it: {short}"));
        } else if !is_domain(&name.to_lowercase()) {
            found.error(
                at(".name"),
                format!("{name:?} is not a name in a zone"),
                "use letters, digits and hyphens, such as orders, or orders.eu with a dot in between",
            );
        }
    }
    let longest = cluster.spec.members.iter().map(|member| member.name.as_str().len()).max().unwrap_or_default();
    let length = dns.full_name(cluster.spec).len() + 1 + longest.max("_etcd-client-ssl._tcp".len());
    if length > LONGEST_NAME {
        found.error(
            at(".name"),
            format!("names below it would have {length} characters, and DNS allows {LONGEST_NAME}"),
            "use a shorter one",
        );
    }
    if dns.ttl == 0 || dns.ttl > 86_400 {
        found.error(
            at(".ttl"),
            format!("resolvers should keep addresses for 1 to 86400 seconds, not {}", dns.ttl),
            "use 60, the default: a member that is replaced has another address",
        );
    }
    brought_certificates(cluster, at(""), &dns.full_name(cluster.spec), found);
}

/// Labels of DNS, in lower case.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && is_word(label, "-") && !label.starts_with('-') && !label.ends_with('-')
    };
    text.split('.').all(is_label)
}

fn is_zone_id(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit();
    text.starts_with('Z') && (2..=32).contains(&text.len()) && text.chars().all(fits)
}

fn tags(tags: &BTreeMap<String, String>, at: &impl Fn(&str) -> String, found: &mut Findings) {
    if tags.len() > MOST_TAGS {
        let message = format!("{} tags and quorate's own do not fit on a resource of AWS", tags.len());
        found.error(at("tags"), message, format!("use {MOST_TAGS} at most"));
    }
    for (key, value) in tags {
        let field = at(&format!("tags.{key}"));
        if key == "Name" || ["aws:", "quorate."].iter().any(|prefix| key.starts_with(prefix)) {
            found.error(
                field,
                format!("the tag `{key}` is reserved"),
                "AWS reserves names that begin with `aws:`; quorate sets `Name` and those that begin with `quorate.`",
            );
        } else if key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256 {
            found.error(
                field,
                "AWS does not accept this tag",
                "keys have 1 to 128 characters, values at most 256 of them",
            );
        }
    }
}

fn member(settings: &AwsSettings, cluster: &Cluster, (entry, member): (&str, &MemberSpec), found: &mut Findings) {
    let within = |field: &str| cluster.at(&format!("{entry}.{field}"));
    let at = |field: &str| within(&format!("aws.{field}"));
    let instance = section(member);
    sizes(instance.root_size, instance.data_size, &at, found);
    if !instance.instance_types.is_empty() {
        types(&instance.instance_types, &at("instance_types"), found);
    }
    if let Some(zone) = &instance.zone {
        self::zone(settings, zone, at("zone"), found);
        if !settings.zones.is_empty() && !settings.zones.contains(zone) {
            found.error(
                at("zone"),
                format!("{zone} is not among `zones`"),
                format!("use one of {}, or add it there", settings.zones.join(", ")),
            );
        }
    }
    match member.address {
        Some(address) if !address.is_ipv4() => found.error(
            within("address"),
            format!("{address} is an IPv6 address"),
            "interfaces that quorate creates on AWS have one IPv4 address",
        ),
        Some(address) if address.is_unspecified() || address.is_loopback() || address.is_multicast() => {
            let message = format!("{address} cannot be the address of a machine");
            found.error(within("address"), message, "use an address of its subnet");
        }
        _ => own_place(settings, member, within, found),
    }
}

fn not_an_id(kind: &str, id: &str, at: String, found: &mut Findings) {
    let what = match kind {
        "vpc" => "a VPC",
        "subnet" => "a subnet",
        "sg" => "a security group",
        _ => "an image",
    };
    let hint = format!("ids begin with `{kind}-`, as `aws ec2` shows them; names are not unique");
    found.error(at, format!("{id:?} is not the id of {what}"), hint);
}

/// Ids have 8 digits, or since 2016 17.
fn is_id(kind: &str, text: &str) -> bool {
    let digits = text.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
    matches!(digits.len(), 8 | 17) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_region(text: &str) -> bool {
    is_word(text, "-") && text.contains('-') && text.ends_with(|last: char| last.is_ascii_digit())
}

fn is_word(text: &str, others: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || others.contains(letter);
    !text.is_empty() && text.chars().all(fits)
}

fn is_path(text: &str) -> bool {
    text.len() <= 1011 && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter))
}
