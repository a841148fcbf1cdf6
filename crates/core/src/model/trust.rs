//! CAs: which sign, and which are trusted. There are three kinds, and each signs only for its own purpose: clients and
//! etcd's server certificates; peers; agents and their controller.
//!
//! etcd reads CAs only when it starts, so the CA of a running cluster changes in steps: every member trusts the old and
//! the new CA, then the new one signs the leaf certificates, then the old one is dropped.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Issued;
use crate::Secret;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Authorities {
    /// Signs etcd's server certificates and the certificates of clients. If `peer` is absent, those of peers too.
    pub client: Option<AuthorityRecord>,
    /// Trusted by agents alone.
    pub control: Option<AuthorityRecord>,
    /// Trusted by peers only. Absent in a cluster that was created before peers had a separate CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Plane>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AuthorityRecord {
    pub epoch: u64,
    pub certificate: String,
    /// Absent if certificates are user-provided.
    pub key: Option<Secret>,
    pub key_id: String,
    pub not_after: Timestamp,
}

/// The CAs of one purpose, by ascending epoch. All of them are trusted; one of them signs.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Plane {
    /// The epoch of the CA that signs.
    pub signs: u64,
    pub trusted: Vec<AuthorityRecord>,
}

impl Plane {
    pub fn new(authority: AuthorityRecord) -> Self {
        Plane { signs: authority.epoch, trusted: vec![authority] }
    }

    /// Trusts one more CA, which does not sign yet.
    pub fn and_trusts(mut self, authority: AuthorityRecord) -> Self {
        let newest = self.trusted.iter().map(|known| known.epoch).max().unwrap_or(0);
        self.trusted.push(AuthorityRecord { epoch: newest.saturating_add(1), ..authority });
        self
    }

    pub fn signing(&self) -> Option<&AuthorityRecord> {
        self.trusted.iter().find(|authority| authority.epoch == self.signs)
    }

    /// The lists of refused certificates, in PEM: of every CA that is trusted, or none.
    pub fn lists(&self, issued: &Issued) -> Option<String> {
        self.trusted.iter().map(|authority| issued.peer_lists.get(&authority.key_id).map(String::as_str)).collect()
    }

    /// The bundle for etcd: the certificates of all trusted CAs.
    pub fn bundle(&self) -> String {
        // A file that an operator provides may lack the last line's end.
        self.trusted.iter().map(|authority| format!("{}\n", authority.certificate.trim_end())).collect()
    }
}

/// The purpose of a bundle of CAs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrustPlane {
    Peer,
    Client,
}

/// The CAs that an etcd trusts, by their key identifiers.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct TrustSeen {
    /// Those on disk, which etcd trusts after its next start.
    pub on_disk: BTreeSet<String>,
    /// Those that the running etcd was started with. Empty if none runs, or if the agent does not know.
    pub running: BTreeSet<String>,
}
