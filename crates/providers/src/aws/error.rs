//! Errors of AWS, each with what to do about it. None of them contains a secret.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::words::{known, list, shown};

/// Why AWS terminates an instance that it has accepted.
pub(super) const NO_CAPACITY: &str = "Server.InsufficientInstanceCapacity";

#[derive(Debug, thiserror::Error)]
pub enum AwsError {
    #[error("no region is named: set `provider.aws.region` or AWS_REGION, or `region` in the profile")]
    NoRegion,
    #[error(
        "no credentials for AWS were found (looked at {}): run `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY",
        looked.join(", ")
    )]
    NoCredentials { looked: Vec<String> },
    #[error("there is no profile `{name}` in {}{}", list(&shown(looked)), known("; there are ", names, ""))]
    NoProfile { name: String, looked: Vec<PathBuf>, names: Vec<String> },
    #[error("{} cannot be read: {why}", path.display())]
    Config { path: PathBuf, why: String },
    #[error("the credentials of {from} cannot be used: {why}")]
    Credentials { from: String, why: String },
    #[error("`{setting}` is {url}, which cannot be used: {why}")]
    Endpoint { setting: &'static str, url: String, why: String },
    #[error("AWS cannot be reached at {url} ({doing}): {why}")]
    Unreachable { doing: String, url: String, why: String },
    #[error("AWS refused to {doing} ({code}): {said}")]
    Refused { doing: String, code: String, said: String },
    #[error("AWS failed to {doing} ({code}): {said}")]
    Failed { doing: String, code: String, said: String },
    #[error("unexpected answer from AWS ({doing}): {why}")]
    Unreadable { doing: String, why: String },
    #[error("AWS has no {what} {name}{}", known("; it has ", names, ""))]
    Missing { what: &'static str, name: String, names: Vec<String> },
    #[error("the image {image} is {state}: it cannot be used")]
    ImageUnusable { image: String, state: String },
    #[error(
        "instances of type {name} are not built on Nitro, so a data volume has no name there by which it is found: use another type, or \
         leave out `data_size`"
    )]
    NotNitro { name: String },
    #[error(
        "there is no subnet{} for {member}: `provider.aws` chooses {}",
        wanted.as_ref().map(|wanted| format!(" {wanted}")).unwrap_or_default(),
        list(there)
    )]
    NoSubnet { member: String, wanted: Option<String>, there: Vec<String> },
    #[error("the subnets are in several VPCs ({}): all machines of a cluster are in one", list(vpcs))]
    SeveralVpcs { vpcs: Vec<String> },
    #[error(
        "the data of {member} is on the volume {volume} in the zone {zone}, and volumes do not leave their zone, while {wanted}: put that \
         back, or use `quorate replace CLUSTER {member} --new-data`, which has the others send it the data"
    )]
    ZoneBound { member: String, volume: String, zone: String, wanted: String },
    #[error(
        "AWS has no capacity for {} in {} now: add types to `instance_types` or zones to `zones`, or try again later ({said})",
        types.join(" or "),
        list(zones)
    )]
    NoCapacity { types: Vec<String>, zones: Vec<String>, said: String },
    #[error(
        "no address is free for {member} in {}: add subnets to `provider.aws`, or delete unused network interfaces \
         ({said})",
        list(subnets)
    )]
    NoAddresses { member: String, subnets: Vec<String>, said: String },
    #[error(
        "the user data of {member} has {bytes} bytes, and AWS takes {most}: shorten `admin.ssh_keys` or the address of `program`"
    )]
    UserDataTooLong { member: String, bytes: usize, most: usize },
    #[error("AWS does not assign {address} in {range}: it reserves the first four addresses and the last one")]
    Reserved { address: IpAddr, range: String },
    #[error(
        "other machines use the security groups {}: take them off (`aws ec2 modify-network-interface-attribute`), then run this \
         again",
        list(groups)
    )]
    GroupsInUse { groups: Vec<String> },
    #[error(
        "others use {}: remove what they have there, such as instances, endpoints, peerings and security groups, then run this again",
        list(vpcs)
    )]
    VpcInUse { vpcs: Vec<String> },
    #[error("{what} was still {state} after {seconds} s{}", remedy.as_ref().map(|remedy| format!(": {remedy}")).unwrap_or_default())]
    TooSlow { what: String, state: String, seconds: u64, remedy: Option<String> },
    #[error("the instance {id} was terminated: {why}")]
    Gone { id: String, why: String },
    #[error("the volume {id} is in the state {state}; `aws ec2 describe-volumes --volume-ids {id}` may say why")]
    VolumeBroken { id: String, state: String },
    #[error("{what} has no mark of this cluster, so it is not changed")]
    NotOurs { what: String },
    #[error("there are several hosted zones {name} ({}): name one in `dns.zone_id`", list(ids))]
    SeveralZones { name: String, ids: Vec<String> },
    #[error("the hosted zone {id} is that of {found}, not of {wanted}: correct `dns.zone` or `dns.zone_id`")]
    OtherZone { id: String, found: String, wanted: String },
    #[error(
        "the records of {name} were not changed: someone else changed them at the same time, or owns one of them ({said})"
    )]
    RecordsTaken { name: String, said: String },
    #[error("the spec has no member {member}")]
    NotInSpec { member: String },
}

impl AwsError {
    /// Whether what it was about does not exist, or not yet.
    pub(super) fn is_absent(&self) -> bool {
        let absent = |code: &str| code.ends_with(".NotFound") || code.ends_with(".Unknown");
        matches!(self, AwsError::Refused { code, .. } if absent(code))
    }

    pub(super) fn has_code(&self, codes: &[&str]) -> bool {
        matches!(self, AwsError::Refused { code, .. } if codes.contains(&code.as_str()))
    }

    /// Whether another type or zone may have room.
    pub(super) fn is_capacity(&self) -> bool {
        self.has_code(&[
            NO_CAPACITY,
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientCapacity",
            "InsufficientVolumeCapacity",
            "Unsupported",
        ])
    }

    /// Whether another subnet may have room.
    pub(super) fn is_full_subnet(&self) -> bool {
        self.has_code(&["InsufficientFreeAddressesInSubnet"])
    }

    /// What AWS said, without what quorate was doing.
    pub(super) fn said(&self) -> String {
        match self {
            AwsError::Refused { said, .. } => said.clone(),
            other => other.to_string(),
        }
    }
}
