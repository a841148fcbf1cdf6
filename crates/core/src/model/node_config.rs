//! The configuration of one machine: everything that it must hold and run. It names no path or address of a particular
//! machine: in a flag, `{root}` stands for the agent's root directory and `{address}` for the machine's address.

use crate::text::hex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HostConfig;
use crate::Secret;
use crate::spec::CertificateLayout;

/// Replaced by the agent with its own root directory.
pub const ROOT: &str = "{root}";
/// Replaced by the agent with its machine's address.
pub const ADDRESS: &str = "{address}";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    pub files: Vec<ConfigFile>,
    /// The services that the agent keeps running, by name.
    pub services: Vec<ServiceConfig>,
    /// Services of the host; absent if quorate does not manage the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Box<HostConfig>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Below the root, without a leading slash.
    pub path: String,
    pub mode: u32,
    pub content: Secret,
    /// Whether the content is hexadecimal, for binary files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hex: bool,
}

impl ConfigFile {
    pub fn text(path: &str, mode: u32, content: Secret) -> Self {
        ConfigFile { path: path.to_owned(), mode, content, hex: false }
    }

    /// The content of the file; none if it is not valid hexadecimal.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let text = self.content.expose();
        if !self.hex {
            return Some(text.as_bytes().to_vec());
        }
        let digits = |at| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        (0..text.len()).step_by(2).map(digits).collect()
    }
}

/// A service of a machine. No two of a config have the same name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceConfig {
    /// Lower-case letters, digits and `-`: its log and its unit are called so.
    pub name: String,
    /// The user it runs as on a machine; it owns the files in `inputs`.
    pub user: String,
    pub runs: Runs,
    /// Files of this config that it reads only when it starts.
    pub inputs: BTreeSet<String>,
}

/// What a service runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runs {
    /// Started, restarted and stopped by orders of its kind, which check its data first.
    Etcd(EtcdService),
    Patroni(PatroniService),
    /// Kept running whenever the configuration has it.
    Haproxy(HaproxyService),
    /// The same.
    Pgbouncer(PgbouncerService),
    /// The same.
    Front(FrontService),
    /// A program of the machine that only needs to be kept running.
    Program(ProgramService),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EtcdService {
    pub version: String,
    pub binary: BinarySource,
    /// Flags without their dashes. Those that matter only at the first start are not here.
    pub flags: BTreeMap<String, String>,
    /// The directory of its certificates; the flags name the same paths.
    #[serde(default, skip_serializing_if = "CertificateLayout::is_standard")]
    pub layout: CertificateLayout,
    /// Set where the machine's kubelet runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// A static pod of the kubelet on the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pod {
    pub image: String,
    /// The kubelet's directory of manifests, below the agent's root.
    pub manifests: String,
}

/// Patroni, and the PostgreSQL that it keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PatroniService {
    /// The major version of PostgreSQL.
    pub version: u16,
    /// The directory of PostgreSQL's programs. If absent, where Debian's package puts them.
    pub programs: Option<String>,
    /// Patroni's program. If absent, from the search path.
    pub patroni: Option<String>,
    /// Of data that is created here.
    pub locale: String,
    /// Patroni's configuration, in JSON. Patroni can reload it, so a changed one needs no restart.
    pub config: Secret,
    /// pgBackRest's configuration; absent without backups. Each of its runs reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<Secret>,
    /// Set while the cluster has another version than its spec wants. The running version is not affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextVersion>,
}

/// The major version of PostgreSQL that a cluster is to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NextVersion {
    pub version: u16,
    /// The directory of its programs. If absent, where Debian's package puts them.
    pub programs: Option<String>,
}

/// HAProxy in front of PostgreSQL. A reload, which ends no connection, applies every change except another program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HaproxyService {
    /// If absent, from the search path.
    pub program: Option<String>,
    pub primary_port: u16,
    pub replica_port: u16,
    pub max_connections: u32,
    pub check_every_ms: u64,
    /// The members with data, and their addresses.
    pub servers: BTreeMap<String, IpAddr>,
}

/// PgBouncer in front of HAProxy's port that leads to the primary. Other users, passwords, certificates and sizes are taken up by a reload, which
/// ends no connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PgbouncerService {
    /// If absent, from the search path.
    pub program: Option<String>,
    pub port: u16,
    /// As PgBouncer calls it.
    pub pool_mode: String,
    pub default_pool_size: u32,
    pub max_client_conn: u32,
    /// HAProxy's port on the same machine.
    pub primary_port: u16,
    /// Password verifiers by user.
    pub users: BTreeMap<String, Secret>,
}

/// One address in front of an etcd cluster. It reads everything else from a file, again when that has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrontService {
    pub port: u16,
    /// `spread` or `leader`.
    pub prefer: String,
    pub max_connections: u32,
    /// If absent, half.
    pub max_per_address: Option<u32>,
    pub drain_ms: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramService {
    pub path: String,
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// The source of a machine's etcd.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinarySource {
    /// The `etcd` on the agent's PATH; otherwise this archive.
    Search {
        otherwise: Option<Archive>,
    },
    /// A program, or a directory that holds it.
    Path(String),
    /// Debian's package, unpacked next to the agent and not installed.
    DebianPackage,
    Archive(Archive),
}

/// A release archive and its checksum.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Archive {
    pub url: String,
    pub sha256: String,
}

impl NodeConfig {
    /// Distinguishes two node configs.
    pub fn digest(&self) -> String {
        digest_of(self)
    }

    pub fn service(&self, name: &str) -> Option<&ServiceConfig> {
        self.services.iter().find(|service| service.name == name)
    }

    pub fn etcd(&self) -> Option<&EtcdService> {
        self.services.iter().find_map(|service| match &service.runs {
            Runs::Etcd(etcd) => Some(etcd),
            Runs::Patroni(_) | Runs::Haproxy(_) | Runs::Pgbouncer(_) | Runs::Front(_) | Runs::Program(_) => None,
        })
    }

    pub fn etcd_mut(&mut self) -> Option<&mut EtcdService> {
        self.services.iter_mut().find_map(|service| match &mut service.runs {
            Runs::Etcd(etcd) => Some(etcd),
            Runs::Patroni(_) | Runs::Haproxy(_) | Runs::Pgbouncer(_) | Runs::Front(_) | Runs::Program(_) => None,
        })
    }

    pub fn patroni(&self) -> Option<&PatroniService> {
        self.services.iter().find_map(|service| match &service.runs {
            Runs::Patroni(patroni) => Some(patroni),
            Runs::Etcd(_) | Runs::Haproxy(_) | Runs::Pgbouncer(_) | Runs::Front(_) | Runs::Program(_) => None,
        })
    }

    pub fn haproxy(&self) -> Option<&HaproxyService> {
        self.services.iter().find_map(|service| match &service.runs {
            Runs::Haproxy(haproxy) => Some(haproxy),
            Runs::Etcd(_) | Runs::Patroni(_) | Runs::Pgbouncer(_) | Runs::Front(_) | Runs::Program(_) => None,
        })
    }

    pub fn pgbouncer(&self) -> Option<&PgbouncerService> {
        self.services.iter().find_map(|service| match &service.runs {
            Runs::Pgbouncer(pgbouncer) => Some(pgbouncer),
            Runs::Etcd(_) | Runs::Patroni(_) | Runs::Haproxy(_) | Runs::Front(_) | Runs::Program(_) => None,
        })
    }

    pub fn front(&self) -> Option<&FrontService> {
        self.services.iter().find_map(|service| match &service.runs {
            Runs::Front(front) => Some(front),
            Runs::Etcd(_) | Runs::Patroni(_) | Runs::Haproxy(_) | Runs::Pgbouncer(_) | Runs::Program(_) => None,
        })
    }

    /// By name: changes exactly when that service must be restarted for this config to take effect. Where etcd's program comes from
    /// does not matter to a running process, only its version.
    pub fn service_digests(&self) -> BTreeMap<String, String> {
        let digest = |service: &ServiceConfig| {
            let inputs: Vec<&ConfigFile> = self.files.iter().filter(|f| service.inputs.contains(&f.path)).collect();
            match &service.runs {
                // Without a pod the digest is unchanged: a newer quorate restarts no etcd.
                Runs::Etcd(EtcdService { version, binary: _, flags, layout: _, pod: None }) => {
                    digest_of(&(version, flags, inputs))
                }
                Runs::Etcd(EtcdService { version, binary: _, flags, layout, pod: Some(pod) }) => {
                    digest_of(&(version, flags, inputs, layout, pod))
                }
                // It reloads its configuration and its CAs.
                Runs::Patroni(PatroniService {
                    version,
                    programs,
                    patroni,
                    locale: _,
                    config: _,
                    backup: _,
                    next: _,
                }) => digest_of(&(version, programs, patroni)),
                Runs::Haproxy(HaproxyService { program, .. }) => digest_of(program),
                // A changed port needs a restart.
                Runs::Pgbouncer(PgbouncerService { program, port, .. }) => digest_of(&(program, port)),
                Runs::Front(front) => digest_of(&(front, &service.user)),
                Runs::Program(program) => digest_of(&(program, &service.user, inputs)),
            }
        };
        self.services.iter().map(|service| (service.name.clone(), digest(service))).collect()
    }
}

fn digest_of(value: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(value).expect("plain data serializes");
    hex(&Sha256::digest(bytes)[..16])
}
