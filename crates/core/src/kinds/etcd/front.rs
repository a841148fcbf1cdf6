//! Fronts: one address in front of a cluster, on members or on separate machines. The settings in the spec, and the configuration of each
//! front.
//!
//! A front has the addresses of members, the CA to trust and the certificates to refuse. It has no CA key, no password, and no certificate
//! with a user's name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SERVICE;
use super::spec::ClientAuth;
use crate::Secret;
use crate::model::{ConfigFile, FrontService, Ledger, MemberName, NodeConfig, Runs, ServiceConfig, ServiceLog};
use crate::spec::{ClusterSpec, LogForwarding, MemberSpec, Millis, Name};

/// The service of a machine that is a front.
pub const FRONT: &str = "front";
/// All that a front reads.
pub const DIRECTORY: &str = "etc/front";
/// A front's configuration. It reads the file again when it has changed.
pub const CONFIG_FILE: &str = "etc/front/front.json";
pub const CONFIG_NAME: &str = "front.json";
/// A link to the front's certificate and key, `front.crt` and `front.key`.
pub const PKI_DIRECTORY: &str = "etc/front/pki";
/// Members that get no new connections, with an end time. The agent writes it.
pub const DRAINED_FILE: &str = "etc/front/drained.json";
pub const DRAINED_NAME: &str = "drained.json";
const PORT_ON_MACHINES: u16 = 2379;
const PORT_ON_MEMBERS: u16 = 2378;

/// One address in front of the cluster: gRPC is passed through to members that serve, and REST is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Front {
    /// The port for clients. If absent, 2379 on separate machines, and 2378 on members, because etcd uses 2379 there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The members that it runs on. If absent, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Name>>,
    /// Separate machines for it. If absent, it runs on members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<Vec<MemberSpec>>,
    /// Where new connections go.
    pub prefer: Prefer,
    /// The maximum number of client connections of each front.
    pub max_connections: u32,
    /// How many of them may come from one address. If absent, half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_address: Option<u32>,
    /// How long open connections may last when a front stops.
    pub drain_time: Millis,
}

/// Where new connections go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Prefer {
    /// To all serving members in turn.
    #[default]
    Spread,
    /// To the leader, while it serves.
    Leader,
}

impl Prefer {
    pub fn name(self) -> &'static str {
        match self {
            Prefer::Spread => "spread",
            Prefer::Leader => "leader",
        }
    }
}

impl Default for Front {
    fn default() -> Self {
        Front {
            port: None,
            members: None,
            machines: None,
            prefer: Prefer::default(),
            max_connections: 16_384,
            max_per_address: None,
            drain_time: Millis(5_000),
        }
    }
}

impl Front {
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.machines.is_some() { PORT_ON_MACHINES } else { PORT_ON_MEMBERS })
    }

    /// Whether it runs on this member.
    pub fn runs_on(&self, member: &str) -> bool {
        let is_named = |members: &Vec<Name>| members.iter().any(|name| name.as_str() == member);
        self.machines.is_none() && self.members.as_ref().is_none_or(is_named)
    }
}

/// A front's configuration, without what it was started with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrontConfig {
    pub cluster: String,
    /// Names and addresses that clients use, besides that of its machine.
    pub names: BTreeSet<String>,
    /// Every member that may serve, including members that are leaving and former machines. The front finds out which ones do.
    pub members: BTreeMap<MemberName, IpAddr>,
    /// The CA of clients and of what members show to clients.
    pub ca: Option<String>,
    /// The list of client certificates that are refused, in DER and hexadecimal.
    pub crl: Option<String>,
    /// Their serial numbers.
    pub refused: BTreeSet<String>,
    pub client_auth: ClientAuth,
    /// Whether etcd authenticates clients.
    pub authenticates: bool,
}

/// The configuration of a front on a machine. `None`: there is none.
pub(crate) fn service(spec: &ClusterSpec) -> Option<ServiceConfig> {
    let front = spec.etcd.front.as_ref()?;
    let runs = Runs::Front(FrontService {
        port: front.port(),
        prefer: front.prefer.name().to_owned(),
        max_connections: front.max_connections,
        max_per_address: front.max_per_address,
        drain_ms: front.drain_time.0,
    });
    let inputs = BTreeSet::from([CONFIG_FILE.to_owned()]);
    Some(ServiceConfig { name: FRONT.to_owned(), user: SERVICE.to_owned(), runs, inputs })
}

pub(crate) fn file(spec: &ClusterSpec, ledger: &Ledger) -> ConfigFile {
    let told = FrontConfig {
        cluster: spec.name.to_string(),
        names: spec.tls.extra_sans.iter().map(ToString::to_string).collect(),
        members: servers(ledger),
        ca: ledger.authorities.client.as_ref().map(|authority| authority.certificate.clone()),
        crl: ledger.issued.client_crl.clone(),
        refused: ledger.issued.refused_of_clients().map(str::to_owned).collect(),
        client_auth: spec.etcd.client_auth,
        authenticates: spec.auth.bootstrap,
    };
    let text = serde_json::to_string(&told).expect("plain data serializes");
    ConfigFile::text(CONFIG_FILE, 0o600, Secret::new(text))
}

/// A machine with a front and nothing else.
pub(crate) fn proxy_config(spec: &ClusterSpec, ledger: &Ledger) -> NodeConfig {
    let services: Vec<ServiceConfig> = service(spec).into_iter().collect();
    let files = services.iter().map(|_| file(spec, ledger)).collect();
    NodeConfig { files, services, host: None }
}

/// Adds a front to the configuration of a member that has one.
pub(crate) fn add_to(config: &mut NodeConfig, spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec) {
    let is_here = spec.etcd.front.as_ref().is_some_and(|front| front.runs_on(member.name.as_str()));
    if let Some(service) = service(spec).filter(|_| is_here) {
        config.services.push(service);
        config.files.push(file(spec, ledger));
    }
}

/// The addresses of members, from the ledger. Empty while the cluster is being created.
pub(crate) fn servers(ledger: &Ledger) -> BTreeMap<MemberName, IpAddr> {
    match ledger.spec.etcd.front.is_some() && ledger.etcd.formation.is_formed() {
        true => ledger.addresses(),
        false => BTreeMap::new(),
    }
}

/// A client that connects through a front uses the front's address, and sees the certificate of the member behind it.
pub(crate) fn proxied_addresses(spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<IpAddr> {
    let Some(front) = &spec.etcd.front else { return BTreeSet::new() };
    let members = ledger.addresses().into_iter().filter(|(name, _)| front.runs_on(name.seat()));
    members.map(|(_, address)| address).chain(ledger.proxy_addresses(spec)).collect()
}

/// The machines that get a certificate for their front, signed by the CA of clients. It names no user, so it has no permissions once etcd
/// authenticates clients; no front gets one before that. Nor while peers trust the same CA, because it would be accepted on their port.
pub(crate) fn with_certificates(spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<MemberName> {
    let Some(front) = &spec.etcd.front else { return BTreeSet::new() };
    let (client, peers) = (&ledger.authorities.client, &ledger.authorities.peer);
    let (Some(client), Some(peers)) = (client, peers) else { return BTreeSet::new() };
    let shares = peers.trusted.iter().any(|trusted| trusted.key_id == client.key_id);
    let authenticates = spec.auth.bootstrap && ledger.etcd.auth.users.contains_key("root");
    if shares || !authenticates || !ledger.etcd.formation.is_formed() {
        return BTreeSet::new();
    }
    let members = spec.members.iter().filter(|member| front.runs_on(member.name.as_str()));
    let proxies = spec.proxies().map(|proxy| proxy.name.as_str().into());
    members.map(|member| member.name.as_str().into()).chain(proxies).collect()
}

/// The additional logs that a machine with a front sends.
pub(crate) fn logs(settings: &LogForwarding, spec: &ClusterSpec, member: &MemberSpec) -> Vec<ServiceLog> {
    let Some(front) = &spec.etcd.front else { return Vec::new() };
    let log = |service: &str, tag: &String| ServiceLog {
        service: service.to_owned(),
        user: SERVICE.to_owned(),
        tag: tag.clone(),
    };
    let of_front = log(FRONT, &settings.front_tag);
    if spec.proxies().any(|proxy| proxy.name == member.name) {
        return vec![of_front];
    }
    match front.runs_on(member.name.as_str()) {
        true => vec![log(SERVICE, &settings.etcd_tag), of_front],
        false => Vec::new(),
    }
}
