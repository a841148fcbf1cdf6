//! Errors of OpenStack, each with what to do about it. None of them contains a token or a password.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::words::{known, list, shown};

#[derive(Debug, thiserror::Error)]
pub enum OpenstackError {
    #[error(
        "no OpenStack cloud is named: set `provider.openstack.cloud` or OS_CLOUD to one of clouds.yaml{}, or set OS_AUTH_URL and \
         the other variables",
        known(" (it has ", names, ")")
    )]
    NoCloudNamed { names: Vec<String> },
    #[error("there is no cloud `{name}` in clouds.yaml; looked for in {}{}", list(&shown(looked)), known("; there are ", names, ""))]
    NoCloud { name: String, looked: Vec<PathBuf>, names: Vec<String> },
    #[error("{} cannot be read: {why}", path.display())]
    Config { path: PathBuf, why: String },
    #[error("the credentials of {cloud} lack {what}")]
    Incomplete { cloud: String, what: &'static str },
    #[error("the credentials of {cloud}: {why}")]
    Unsupported { cloud: String, why: String },
    #[error("{cloud} does not accept the credentials: {said}")]
    NotAccepted { cloud: String, said: String },
    #[error("{cloud} has no {service} service{}: its catalogue has {}", region.as_ref().map(|r| format!(" in the region {r}")).unwrap_or_default(), list(known))]
    NoService { cloud: String, service: &'static str, region: Option<String>, known: Vec<String> },
    #[error(
        "the compute service knows API versions up to {found}, and quorate needs {needed}: OpenStack Rocky or later"
    )]
    TooOld { found: String, needed: &'static str },
    #[error(
        "the compute service knows API versions from {found}, and quorate needs {needed}: it is too new for this version \
         of quorate"
    )]
    TooNew { found: String, needed: &'static str },
    #[error("OpenStack cannot be reached at {url} ({doing}): {why}")]
    Unreachable { doing: String, url: String, why: String, sent: bool },
    #[error("OpenStack refused to {doing} ({code}): {said}")]
    Refused { doing: String, code: u16, said: String },
    #[error("OpenStack failed to {doing} ({code}): {said}")]
    Failed { doing: String, code: u16, said: String },
    #[error("unexpected answer from OpenStack ({doing}): {why}")]
    Unreadable { doing: String, why: String },
    #[error("OpenStack has no {what} `{name}`{}", known("; it has ", names, ""))]
    Missing { what: &'static str, name: String, names: Vec<String> },
    #[error("OpenStack has {} named `{name}`: use the id of one: {}", several(what), list(ids))]
    Ambiguous { what: &'static str, name: String, ids: Vec<String> },
    #[error("the image `{image}` is {status}: it cannot be used")]
    ImageUnusable { image: String, status: String },
    #[error("{} is not a qcow2 disk as `quorate image build` creates it", file.display())]
    NotADisk { file: PathBuf },
    #[error("the image {image} arrived with other bytes than were sent, so it was deleted: run this again")]
    OtherContent { image: String },
    #[error("OpenStack does not say which checksum the image {image} has: whether it is right cannot be known")]
    NoChecksum { image: String },
    #[error(
        "the network {network} has several subnets that would do: set `provider.openstack.subnet` to one of {}",
        list(subnets)
    )]
    ManySubnets { network: String, subnets: Vec<String> },
    #[error("the network {network} has no subnet{}", address.map(|a| format!(" with the address {a}")).unwrap_or_default())]
    NoSubnet { network: String, address: Option<IpAddr> },
    #[error(
        "the subnet {subnet} has no DHCP, which a server without a config drive needs: switch it on (`openstack subnet set --dhcp \
         {subnet}`), or set `provider.openstack.seed: config_drive`"
    )]
    NoDhcp { subnet: String },
    #[error(
        "the subnet {subnet} has no IPv4, and a server without a config drive gets its seed from 169.254.169.254: set \
         `provider.openstack.seed: config_drive`, or name another subnet in `provider.openstack.subnet`"
    )]
    NoMetadata { subnet: String },
    #[error("the port {port} has the addresses {}, and {member} must have {address}", list(found))]
    PortAddress { port: String, member: String, address: IpAddr, found: Vec<String> },
    #[error(
        "OpenStack lets only the project that owns the network {network} choose addresses such as {address} ({said}): use a network of \
         your project, have the ports created and name them in `members[].openstack.port`, or leave out `address`"
    )]
    NotOwner { network: String, address: IpAddr, said: String },
    #[error(
        "the network {network} has no port security ({said}): say `security_groups: []` and leave out `allowed_addresses`, because \
         nothing would enforce them"
    )]
    NoPortSecurity { network: String, said: String },
    #[error(
        "ports of other machines have the security groups {}: take them off (`openstack port unset --security-group`), then run \
         this again",
        list(groups)
    )]
    GroupsInUse { groups: Vec<String> },
    #[error("the port {port} is in use by the server {by}")]
    PortInUse { port: String, by: String },
    #[error(
        "the floating IP {id} belongs to the port {by}: take it off (`openstack floating ip unset --port {id}`), then run this again"
    )]
    FloatingInUse { id: String, by: String },
    #[error(
        "the quota of {what} has {left} left, and {member} needs {needed}: ask for a larger quota, or delete what is not needed"
    )]
    NoRoom { what: &'static str, left: String, member: String, needed: String },
    #[error("the server {name} is in the state ERROR: {fault}; `quorate replace` gives its member another one")]
    Broken { name: String, fault: String },
    #[error("the server {name} is {state}: {remedy}, then run this again")]
    SetAside { name: String, state: &'static str, remedy: String },
    #[error("the server {name} is locked: `openstack server unlock {id}`, then run this again")]
    Locked { name: String, id: String },
    #[error("{what} was still {state} after {seconds} s")]
    TooSlow { what: String, state: String, seconds: u64 },
    #[error(
        "the server {server} has the port {port} of this cluster, and its metadata does not say which member it is: put the `quorate.…` \
         metadata back, or delete the server (`openstack server delete {server}`), then run this again"
    )]
    Unmarked { port: String, server: String },
    #[error(
        "the port {port} is in use by the server {server}, which the compute service does not know: check the region and \
         `compute_endpoint_override`. If there is no such server any more, delete the port (`openstack port delete {port}`), then run this again"
    )]
    UnknownServer { port: String, server: String },
    #[error("OpenStack has not deleted everything that this cluster no longer needs: {}. The next run tries again", what.join("; "))]
    Stuck { what: Vec<String> },
    #[error("the volume {name} is in the state {status}; `openstack volume show {id}` may say why")]
    VolumeBroken { name: String, id: String, status: String },
    #[error(
        "the volume {name} was created in the zone {zone} and not in {wanted}: set `volume_zone` to one of `openstack \
         availability zone list --volume`"
    )]
    OtherZone { name: String, zone: String, wanted: String },
    #[error(
        "the user data of {member} has {bytes} bytes in base64, and Nova takes {most}: shorten `provider.openstack.admin.ssh_keys` or \
         `provider.openstack.program.url`"
    )]
    UserDataTooLong { member: String, bytes: usize, most: usize },
    #[error("the spec has no member {member}")]
    NotInSpec { member: String },
}

impl OpenstackError {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, OpenstackError::Refused { code: 404, .. })
    }

    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, OpenstackError::Refused { code: 409, .. })
    }

    /// Nova answers what it does not do to a locked server like any other conflict.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self, OpenstackError::Refused { code: 409, said, .. } if said.to_lowercase().contains("is locked"))
    }

    /// Too many requests.
    pub(super) fn is_throttled(&self) -> bool {
        matches!(self, OpenstackError::Refused { code: 429, .. })
    }

    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, OpenstackError::Refused { code: 403, .. })
    }

    /// Neutron answers a full quota like any other conflict.
    pub(super) fn is_quota(&self) -> bool {
        matches!(self, OpenstackError::Refused { said, .. } if said.to_lowercase().contains("quota"))
    }

    /// Why there is no room for another server: a quota, or hosts, of which anti-affinity may need one for each server.
    pub(crate) fn no_room(&self) -> Option<String> {
        let has_no_host = matches!(self, OpenstackError::Refused { said, .. } if said.contains("No valid host"));
        let is_full = matches!(self, OpenstackError::NoRoom { .. }) || self.is_quota() || has_no_host;
        is_full.then(|| self.to_string())
    }

    /// Whether the request may have been carried out although there is no good answer.
    pub(super) fn is_unsure(&self) -> bool {
        matches!(self, OpenstackError::Unreachable { sent: true, .. } | OpenstackError::Failed { .. })
    }
}

/// Whether a quota with this limit, of which so much is in use, has room for what is needed. A limit below 0 is none.
pub(super) fn check_room(
    what: &'static str,
    (most, used): (i64, i64),
    needed: u64,
    unit: &str,
    member: &str,
) -> Result<(), OpenstackError> {
    let left = u64::try_from(most - used).unwrap_or_default();
    if most < 0 || needed <= left {
        return Ok(());
    }
    let (left, needed, member) = (format!("{left}{unit}"), format!("{needed}{unit}"), member.to_owned());
    Err(OpenstackError::NoRoom { what, left, member, needed })
}

fn several(what: &str) -> String {
    format!("several {what}s")
}
