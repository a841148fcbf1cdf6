//! Errors of Incus, each with what to do about it.

use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum IncusError {
    #[error("Incus cannot be reached at {}: {why}; is it installed and running?", path.display())]
    NoSocket { path: PathBuf, why: String },
    #[error(
        "permission denied by Incus at {}: be root, or a member of the group `incus-admin` (log in again after you \
         were added to it)",
        path.display()
    )]
    NoPermission { path: PathBuf },
    #[error("the Incus server {name} at {address} cannot be reached: {why}")]
    Unreachable { name: String, address: String, why: String },
    #[error(
        "the Incus server {name} at {address} shows another certificate than the one that was accepted; if it was \
         renewed on purpose, accept the new one: `incus remote remove {name}`, then `incus remote add {name} {address}`"
    )]
    OtherCertificate { name: String, address: String },
    #[error(
        "the Incus server {name} does not trust this client: add its certificate there (`incus config trust add`), or \
         use `incus remote add {name} TOKEN`"
    )]
    Untrusted { name: String },
    #[error("there is no Incus remote `{name}`; {} has {}", path.display(), list(known))]
    NoRemote { name: String, path: PathBuf, known: Vec<String> },
    #[error("the remote `{name}` serves images only ({protocol}): instances need an Incus server")]
    ImagesOnly { name: String, protocol: String },
    #[error("{} cannot be read: {why}", path.display())]
    Config { path: PathBuf, why: String },
    #[error("the Incus server lacks `{extension}`, which {needs}: upgrade it to 6.0 or later")]
    TooOld { extension: &'static str, needs: &'static str },
    #[error("Incus has no {what} `{name}`{}", if known.is_empty() { String::new() } else { format!("; it has {}", list(known)) })]
    Missing { what: &'static str, name: String, known: Vec<String> },
    #[error(
        "this client may not use the project `{name}` of Incus, but {}: name one of these in `provider.incus.project`, or let \
         the client use it (`incus config trust edit`)",
        list(known)
    )]
    NotAllowed { name: String, known: Vec<String> },
    #[error("Incus refused to {doing}: {said}")]
    Refused { doing: String, code: u16, said: String },
    #[error("Incus did not finish within {seconds} s: {doing}")]
    TooSlow { doing: String, seconds: u64 },
    #[error("unexpected answer from Incus ({doing}): {why}")]
    Unreadable { doing: String, why: String },
    #[error(
        "Incus has an instance `{name}` that quorate did not make: rename or remove it, or give the member another name"
    )]
    NameTaken { name: String },
    #[error("the storage pool {pool} has {left} left, and {} {needed}", need(machines))]
    NoSpace { pool: String, machines: Vec<String>, needed: String, left: String },
    #[error(
        "the project `{project}` allows {limit}, and {} {needed}: raise it (`incus project set {project} limits.{what}=…`)",
        need(machines)
    )]
    ProjectLimit { project: String, what: &'static str, limit: String, needed: String, machines: Vec<String> },
    #[error("{address} is not in the network {network}, which has {subnet}")]
    OutsideNetwork { address: IpAddr, network: String, subnet: String },
    #[error(
        "Incus does not manage the network {network}, so its prefix is unknown: set `provider.incus.prefix`, and give each member an `address`"
    )]
    NotManaged { network: String },
    #[error("the network {network} has no {family} addresses, and {member} has {address}")]
    NoFamily { network: String, family: &'static str, member: String, address: IpAddr },
    #[error("`target: {target}` needs an Incus cluster, and this server is in none")]
    NotClustered { target: String },
    #[error("the host {target} of the Incus cluster is {status}: no instance can be created there")]
    TargetDown { target: String, status: String },
    #[error(
        "the Incus server cannot run virtual machines (its driver is `{driver}`): install QEMU there and restart it, `incus warning list` \
         says what it lacks; or use `type: container`"
    )]
    NoVirtualMachines { driver: String },
    #[error("no host of the Incus cluster is online: no instance can be created")]
    NoHost,
    #[error(
        "the instance {name} is on the host {host} of the Incus cluster, which does not answer: bring the host back, or \
         remove it permanently with `incus cluster remove --force {host}`, and run this again"
    )]
    Hidden { name: String, host: String },
    #[error("the spec has no member {member}")]
    NotInSpec { member: String },
}

impl IncusError {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, IncusError::Refused { code: 404, .. })
    }

    /// It was changed since it was read.
    pub(super) fn is_outdated(&self) -> bool {
        matches!(self, IncusError::Refused { code: 412, .. })
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { String::from("none") } else { names.join(", ") }
}

/// Whose machines need something.
fn need(members: &[String]) -> String {
    match members {
        [one] => format!("{one} needs"),
        several => format!("{} need", several.join(", ")),
    }
}
