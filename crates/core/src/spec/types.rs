//! The spec as types: the only source of its fields, defaults and descriptions. The JSON schema, the shape check and
//! the parser are derived from them. Plain data; `check` has the rules that involve several fields.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backup::BackupSettings;
use super::host::HostSettings;
use super::units::{Millis, Name, San, Validity};
use crate::kinds::etcd::spec::{AuthSettings, EtcdSettings};
use crate::kinds::postgres::spec::PostgresSettings;
use crate::providers::{self, MemberSpec, Provider};

/// A quorate spec: the clusters that should exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Format version of this file.
    #[schemars(range(min = 1, max = 1))]
    pub quorate: u32,
    /// The clusters of this file.
    pub clusters: Vec<ClusterSpec>,
}

/// One cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Name of the cluster: lower case letters, digits and hyphens.
    pub name: Name,
    /// What the cluster runs. It may be left out: a cluster with a `postgres` section runs PostgreSQL.
    #[serde(default)]
    pub kind: Kind,
    /// If set, machines are named `<member>-<namespace>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
    /// Prefix of etcd's `initial-cluster-token`; quorate adds a random suffix.
    #[serde(default = "default_initial_token")]
    #[schemars(length(min = 1))]
    pub initial_token: String,
    /// Where machines are created.
    #[serde(default, deserialize_with = "providers::read")]
    pub provider: Provider,
    /// The members. Use an odd number: an even number tolerates no more failures than one member less.
    pub members: Vec<MemberSpec>,
    /// A machine that is unreachable for this long counts as dead and is replaced.
    #[serde(default = "default_replace_after")]
    pub replace_after: Millis,
    /// Settings of etcd.
    #[serde(default)]
    pub etcd: EtcdSettings,
    /// Settings of PostgreSQL. Present exactly in clusters of PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresSettings>,
    /// Certificates.
    #[serde(default)]
    pub tls: TlsSettings,
    /// Authentication: users, roles and tokens.
    #[serde(default)]
    pub auth: AuthSettings,
    /// Backups. If absent, there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupSettings>,
    /// Services next to etcd and the firewall, on virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostSettings>,
}

impl ClusterSpec {
    /// A section determines the kind, so `kind` is optional.
    pub(super) fn know_kind(&mut self) {
        if self.postgres.is_some() {
            self.kind = Kind::Postgres;
        }
    }

    /// The name of the machine that a member runs on. The incarnation distinguishes later ones, because both exist while a member
    /// moves.
    pub fn machine_name(&self, member: &str, incarnation: u64) -> String {
        let name = match &self.namespace {
            Some(namespace) => format!("{member}-{namespace}"),
            None => member.to_owned(),
        };
        if incarnation <= 1 { name } else { format!("{name}.{incarnation}") }
    }
}

pub(super) fn default_replace_after() -> Millis {
    Millis(5 * 60 * 1000)
}

pub(super) fn default_initial_token() -> String {
    "etcd-cluster".to_owned()
}

/// What a cluster runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Etcd,
    Postgres,
}

/// Certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSettings {
    /// A CA to sign with. If absent, quorate creates one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<KeyPairFiles>,
    /// Validity of a CA that quorate creates.
    pub ca_validity: Validity,
    /// Validity of the certificates of members and users.
    pub leaf_validity: Validity,
    /// How long before it expires a certificate is renewed. If absent, a third of `leaf_validity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<Validity>,
    /// Algorithm of the keys that quorate creates.
    pub key_algorithm: KeyAlgorithm,
    /// Organization (O) in the certificates' subjects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub organization: Option<String>,
    /// Additional DNS names and IP addresses in the certificates of members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_sans: Vec<San>,
    /// Names and paths of the certificates on members' machines: quorate's own below `/etc/etcd`, or kubeadm's.
    pub layout: CertificateLayout,
    /// User-provided certificates and keys, instead of a CA that signs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given: Option<GivenCertificates>,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            ca: None,
            ca_validity: Validity::years(10),
            leaf_validity: Validity::years(1),
            renew_before: None,
            key_algorithm: KeyAlgorithm::P256,
            organization: None,
            extra_sans: Vec::new(),
            layout: CertificateLayout::Standard,
            given: None,
        }
    }
}

impl TlsSettings {
    /// How long before its end a leaf is renewed; a third of its validity when the spec does not say.
    pub fn renew_before(&self) -> Validity {
        self.renew_before.unwrap_or(Validity::hours(self.leaf_validity.as_hours() / 3))
    }
}

/// A certificate or chain, and its private key, both in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyPairFiles {
    /// File with the certificate.
    #[schemars(length(min = 1))]
    pub certificate: PathBuf,
    /// File with the private key.
    #[schemars(length(min = 1))]
    pub key: PathBuf,
}

/// Algorithm of the keys that quorate creates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyAlgorithm {
    #[default]
    P256,
    Rsa,
    Ed25519,
}

/// Names and paths of the certificates on members' machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertificateLayout {
    /// In `/etc/etcd/pki`.
    #[default]
    Standard,
    /// In `/etc/kubernetes/pki/etcd`, with the names of `kubeadm init phase certs`.
    Kubeadm,
}

impl CertificateLayout {
    pub fn is_standard(&self) -> bool {
        *self == CertificateLayout::Standard
    }
}

/// User-provided certificates and keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GivenCertificates {
    /// File with the certificate of the CA that signed them.
    #[schemars(length(min = 1))]
    pub ca: PathBuf,
    /// Certificate and key of each member, by name.
    pub members: BTreeMap<String, KeyPairFiles>,
    /// Client certificate and key of the user root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<KeyPairFiles>,
}
