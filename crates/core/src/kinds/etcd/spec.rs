//! The spec of etcd: its settings, users and roles.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::front::Front;
use super::pod::{RunAs, StaticPod};
use super::versions;
use crate::model::Version;
use crate::spec::{AddressRange, AuthName, Malformed, Millis, Retention, Sha256, Size};

/// Settings of etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdSettings {
    /// The etcd version.
    pub version: Version,
    /// Where the etcd program comes from. If absent: from `PATH` if its version matches, otherwise from etcd's release archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<Binary>,
    /// What runs etcd on its machine: `service` (a unit of systemd) or `static_pod` (the machine's kubelet).
    pub run_as: RunAs,
    /// How etcd runs as a static pod, with `run_as: static_pod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_pod: Option<StaticPod>,
    /// Automatic compaction of old revisions.
    pub auto_compaction: AutoCompaction,
    /// Space quota of the database.
    pub quota: Size,
    /// Whether etcd also serves its API as JSON over HTTP (the gRPC gateway).
    pub grpc_gateway: bool,
    /// How clients authenticate.
    pub client_auth: ClientAuth,
    /// Heartbeat interval of the leader.
    pub heartbeat: Millis,
    /// Election timeout: at least five heartbeats, at most 50s.
    pub election: Millis,
    /// A separate port for metrics. If absent, metrics are on the client port only, for clients that may connect there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// One address in front of the cluster, on its members or on separate machines. If absent, there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub front: Option<Front>,
    /// Other etcd flags, without the leading dashes, such as `max-txn-ops: 256`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, FlagValue>,
}

impl Default for EtcdSettings {
    fn default() -> Self {
        Self {
            version: versions::DEFAULT,
            binary: None,
            run_as: RunAs::default(),
            static_pod: None,
            auto_compaction: AutoCompaction::default(),
            quota: Size::gibibytes(8),
            grpc_gateway: false,
            client_auth: ClientAuth::Certificate,
            heartbeat: Millis(100),
            election: Millis(1000),
            metrics: None,
            front: None,
            flags: BTreeMap::new(),
        }
    }
}

/// A port for etcd's metrics and health, without TLS and without authentication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// The port, on the member's address.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Source ranges allowed to scrape it; enforced by the firewall.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scrape_from: Vec<AddressRange>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { port: 2381, scrape_from: Vec::new() }
    }
}

/// The value of an etcd flag, as on its command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagValue(pub String);

impl JsonSchema for FlagValue {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FlagValue".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "number", "boolean"] })
    }
}

/// Where the etcd program comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BinaryFields", into = "BinaryFields")]
pub enum Binary {
    Path(PathBuf),
    Package(Package),
    Archive { url: String, sha256: Sha256 },
    Mirror(String),
}

impl JsonSchema for Binary {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Binary".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        BinaryFields::json_schema(generator)
    }
}

/// Where the etcd program comes from: one of `path`, `package`, `archive` with its `sha256`, or `mirror`.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [
    {"required": ["path"]}, {"required": ["package"]}, {"required": ["archive", "sha256"]}, {"required": ["mirror"]}
]))]
struct BinaryFields {
    /// Path of an etcd program on the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    path: Option<PathBuf>,
    /// A distribution whose etcd package is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    package: Option<Package>,
    /// URL of a release archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(url)]
    archive: Option<String>,
    /// SHA-256 of that archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<Sha256>,
    /// URL of a mirror that has etcd's release archives as `v<version>/<archive>`. quorate knows their checksums.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(url)]
    mirror: Option<String>,
}

impl TryFrom<BinaryFields> for Binary {
    type Error = Malformed;
    fn try_from(fields: BinaryFields) -> Result<Self, Malformed> {
        match fields {
            BinaryFields { path: Some(path), package: None, archive: None, sha256: None, mirror: None } => {
                Ok(Self::Path(path))
            }
            BinaryFields { path: None, package: Some(package), archive: None, sha256: None, mirror: None } => {
                Ok(Self::Package(package))
            }
            BinaryFields { path: None, package: None, archive: Some(url), sha256: Some(sha256), mirror: None } => {
                Ok(Self::Archive { url, sha256 })
            }
            BinaryFields { path: None, package: None, archive: None, sha256: None, mirror: Some(url) } => {
                Ok(Self::Mirror(url))
            }
            _ => Err(Malformed("a binary is one of path, package, archive with sha256, or mirror".to_owned())),
        }
    }
}

impl From<Binary> for BinaryFields {
    fn from(binary: Binary) -> Self {
        let none = Self::default();
        match binary {
            Binary::Path(path) => Self { path: Some(path), ..none },
            Binary::Package(package) => Self { package: Some(package), ..none },
            Binary::Archive { url, sha256 } => Self { archive: Some(url), sha256: Some(sha256), ..none },
            Binary::Mirror(url) => Self { mirror: Some(url), ..none },
        }
    }
}

/// A distribution whose etcd package is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Package {
    Debian,
}

/// Automatic compaction of old revisions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AutoCompaction {
    /// Whether `retention` is a number of revisions or a time.
    pub mode: CompactionMode,
    /// How much history is kept: a number of revisions (default 1000); with `periodic`, a number of hours or a duration such as `30m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

impl AutoCompaction {
    /// What is kept; 1000 by default.
    pub fn retention(&self) -> Retention {
        self.retention.unwrap_or(Retention::Number(1000))
    }
}

/// What `retention` counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionMode {
    #[default]
    Revision,
    Periodic,
}

/// How clients authenticate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// With a client certificate. Its common name is the user.
    #[default]
    Certificate,
    /// With user and password over TLS, without a client certificate.
    Password,
    /// With both: a client certificate to connect, which names no user, and user and password to log in.
    CertificateAndPassword,
}

impl ClientAuth {
    /// As it is written in a spec.
    pub fn name(self) -> &'static str {
        match self {
            ClientAuth::Certificate => "certificate",
            ClientAuth::Password => "password",
            ClientAuth::CertificateAndPassword => "certificate_and_password",
        }
    }

    /// Whether etcd serves only clients that show a certificate. The agents then log in as root by theirs.
    pub fn asks_for_certificates(self) -> bool {
        self != ClientAuth::Password
    }

    /// Whether declared users log in with a password.
    pub fn asks_users_for_passwords(self) -> bool {
        self != ClientAuth::Certificate
    }
}

/// Authentication: users, roles and tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuthSettings {
    /// Whether quorate creates the user and role root and turns authentication on.
    pub bootstrap: bool,
    /// Type of etcd's login tokens. If absent, a cluster keeps the type it was created with; a new one gets `jwt` with
    /// `client_auth: password`, and `simple` otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenKind>,
    /// File with root's password, with `client_auth: password`. If absent, quorate generates one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub root_password_file: Option<PathBuf>,
    /// Roles to create. quorate keeps them as declared and leaves others alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleSpec>,
    /// Users to create. quorate keeps them as declared and leaves others alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserSpec>,
}

impl Default for AuthSettings {
    fn default() -> Self {
        Self { bootstrap: true, token: None, root_password_file: None, roles: Vec::new(), users: Vec::new() }
    }
}

/// Type of etcd's login tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// Kept in the memory of one member, and lost when it restarts. After a restore, clients with such a token hang until they log in again.
    Simple,
    /// Signed, and valid on every member; quorate creates and keeps the keys.
    Jwt,
}

/// A role and its permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleSpec {
    /// Name of the role.
    pub name: AuthName,
    /// Its permissions.
    #[serde(default)]
    pub permissions: Vec<Permission>,
}

/// Access to a key, or to all keys with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PermissionFields", into = "PermissionFields")]
pub struct Permission {
    pub keys: Keys,
    pub access: Access,
}

/// Which keys a permission is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keys {
    Key(String),
    /// All keys that begin so; the empty prefix means all keys.
    Prefix(String),
}

impl JsonSchema for Permission {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Permission".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        PermissionFields::json_schema(generator)
    }
}

/// Access to one `key`, or to all keys with a `prefix`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["key"]}, {"required": ["prefix"]}]))]
struct PermissionFields {
    /// A single key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    key: Option<String>,
    /// All keys with this prefix; `""` means all keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// The permitted access.
    access: Access,
}

impl TryFrom<PermissionFields> for Permission {
    type Error = Malformed;
    fn try_from(fields: PermissionFields) -> Result<Self, Malformed> {
        let keys = match (fields.key, fields.prefix) {
            (Some(key), None) => Keys::Key(key),
            (None, Some(prefix)) => Keys::Prefix(prefix),
            _ => return Err(Malformed("a permission has either key or prefix".to_owned())),
        };
        Ok(Self { keys, access: fields.access })
    }
}

impl From<Permission> for PermissionFields {
    fn from(Permission { keys, access }: Permission) -> Self {
        let (key, prefix) = match keys {
            Keys::Key(key) => (Some(key), None),
            Keys::Prefix(prefix) => (None, Some(prefix)),
        };
        Self { key, prefix, access }
    }
}

/// Permitted access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Read,
    Write,
    #[serde(rename = "readwrite")]
    ReadWrite,
}

/// A user and its roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserSpec {
    /// Name of the user; with `client_auth: certificate`, the common name of its certificate.
    pub name: AuthName,
    /// Its roles.
    #[serde(default)]
    pub roles: Vec<AuthName>,
    /// File with its password, with `client_auth: password` or `certificate_and_password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub password_file: Option<PathBuf>,
}
