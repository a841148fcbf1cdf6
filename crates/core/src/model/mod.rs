//! The terms of the design as types: what is desired, what is recorded, what was observed.
//!
//! Plain data, no decisions. The planner reads these types; the agent and the controller fill them in.

mod build;
mod desired;
mod endpoint;
mod facts;
mod fixture;
mod host;
mod issued;
mod ledger;
mod name;
mod node_config;
mod opening;
mod program;
mod seen;
mod trust;
mod version;

pub use build::{Build, DATA_VOLUME, Data, HYPERVISOR, TARGET, ZONE};
pub use desired::{Brought, CertificateWish, Desired, DesiredMember, Destruction, PlaneWish, Revocable};
pub use endpoint::{address_in, https_url};
pub use facts::{
    AgentSeen, BinarySeen, Busy, CertificateSeen, CertificateUse, ConfigAttempt, DataSeen, Distrust, EDITED, Exit,
    Facts, Host, LONGEST_PACKAGE_UPGRADE, Number, PackagesSeen, RebootSeen, ServiceState, Stamp,
};
pub use fixture::{FixtureId, FixtureKind, FixtureRecord, FixtureSeen, FixtureWish, Fixtures, Obstacle};
pub use host::{
    FirewallConfig, ForwardConfig, ForwardSecrets, HostConfig, LogForwardingConfig, LogSecrets, LogSourceConfig,
    ServiceLog, SourceLogin, SourceSecrets,
};
pub use issued::{Issued, IssuedCertificate, MachineCertificate};
pub use ledger::{
    BackupNote, BackupRecord, BackupSigning, Consent, Enrolment, FormedWith, History, LEDGER_FORMAT, Ledger, Lock,
    MemberRecord, Power, ProxyRecord, Reboot, RebootOrder, SecretKind, migrate_ledger,
};
pub use name::{MachineId, MemberName};
pub use node_config::{
    ADDRESS, Archive, BinarySource, ConfigFile, EtcdService, FrontService, HaproxyService, NextVersion, NodeConfig,
    PatroniService, PgbouncerService, Pod, ProgramService, ROOT, Runs, ServiceConfig,
};
pub use opening::{Audience, Opening};
pub use program::{FIRST_UPGRADABLE, FailedUpgrade, OLDEST_PROTOCOL, PROTOCOL, Program, ProgramSeen};
pub use seen::{MachineSeen, Observation, PowerState, Seen};
pub use trust::{Authorities, AuthorityRecord, Plane, TrustPlane, TrustSeen};
pub use version::{NotAVersion, Version};

/// The port on which every agent answers its controller.
pub const AGENT_PORT: u16 = 2390;
/// The port of the agent's plain health page, for load balancers.
pub const HEALTH_PORT: u16 = 2391;
/// Where etcd serves clients.
pub const CLIENT_PORT: u16 = 2379;
/// Where the node exporter answers.
pub const NODE_EXPORTER_PORT: u16 = 9100;
/// Where etcd serves its peers.
pub const PEER_PORT: u16 = 2380;
