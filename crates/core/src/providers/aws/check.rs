//! Checks of instances that AWS makes: ids, zones, sizes and tags. What only AWS knows, such as whether an image exists, is found when
//! instances are made.

use std::collections::BTreeMap;

use super::{Access, AwsSettings, Image, MemberSpec, SeedFormat, VolumeType, section};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{Millis, Size};

/// No instance starts and boots faster.
const LEAST_PATIENCE: Millis = Millis(10_000);
const GIB: u64 = 1 << 30;
/// Of gp3 and io2, which have the same.
const LARGEST: u64 = 64 << 40;
/// AWS allows 50 tags on a resource. The rest are quorate's.
const MOST_TAGS: usize = 20;

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
    types(&settings.instance_types, &at("instance_types"), found);
    image(&settings.image, &at, found);
    if settings.seed == SeedFormat::Ignition && settings.program.is_none() {
        found.error(
            at("seed"),
            "images with Ignition have no agent, and `program` does not say where to get it",
            "add `program: {url: …, sha256: …}`",
        );
    }
    groups(settings, &at, found);
    sizes(settings.root_size, settings.data_size, &at, found);
    iops(settings, &at, found);
    tags(&settings.tags, &at, found);
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
    if settings.vpc.is_none() && !by_ids && settings.subnet_tags.is_empty() {
        found.error(
            at("subnets"),
            "nothing says in which subnets instances are to be",
            "give `subnets`, a list of ids, or `vpc`, or `subnet_tags`, or both of these",
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
            found.error(field, format!("{zone} is there twice"), "name each zone once");
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
            "name one by id, or leave it out: then quorate makes one",
        );
    }
    if settings.access == Access::Groups && settings.security_groups.is_some() {
        found.error(
            at("access"),
            "`access` is about security groups that quorate makes, and `security_groups` names yours",
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
                "AWS makes volumes of whole GiB, such as 20GiB",
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
            found.error(
                at("volume_type"),
                format!("{name} volumes have as many I/O operations as you buy"),
                "add `iops`",
            );
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
                format!("the tag `{key}` is not yours to give"),
                "AWS has those that begin with `aws:`, quorate `Name` and those that begin with `quorate.`",
            );
        } else if key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256 {
            found.error(
                field,
                "AWS does not take this tag",
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
            format!("{address} is an address of IPv6"),
            "interfaces that quorate makes on AWS have one address, of IPv4",
        ),
        Some(address) if address.is_unspecified() || address.is_loopback() || address.is_multicast() => {
            let message = format!("{address} is not an address of a machine on a network");
            found.error(within("address"), message, "use one of its subnet");
        }
        _ => {}
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
