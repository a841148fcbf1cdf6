//! What the agent remembers about etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use quorate_core::kinds::etcd::OlderData;
use quorate_core::model::{BinarySeen, Stamp, TrustPlane};
use quorate_core::spec::CertificateLayout;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EtcdState {
    pub(crate) binary: Binary,
    /// Whether etcd is meant to run.
    pub(crate) wanted_running: bool,
    pub(crate) last_started: Option<Stamp>,
    /// The client URLs of the other members, which are queried before etcd starts.
    #[serde(default)]
    pub(crate) peers: BTreeSet<String>,
    /// Found at the last attempt to start etcd.
    #[serde(default)]
    pub(crate) older: Option<OlderData>,
    /// With which CAs etcd was started last, and before that: one of the two runs.
    #[serde(default)]
    pub(crate) launched: Vec<Launched>,
}

impl EtcdState {
    /// Drops everything about the bootstrap that etcd took part in here.
    pub(crate) fn forget_formation(&mut self) {
        (self.last_started, self.older) = (None, None);
        self.peers.clear();
    }
}

/// etcd's start parameters that a running etcd does not report.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Launched {
    /// Of all inputs: by it a running etcd is known.
    pub(crate) digest: String,
    /// Key identifiers of CAs.
    pub(crate) trust: BTreeMap<TrustPlane, BTreeSet<String>>,
    /// The directory of its certificates.
    #[serde(default)]
    pub(crate) layout: CertificateLayout,
}

/// The etcd program as it was found for the node config in place.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Binary {
    pub(crate) path: Option<PathBuf>,
    pub(crate) seen: BinarySeen,
    /// Where it was found, if that is elsewhere: etcd's other programs are there.
    #[serde(default)]
    pub(crate) home: Option<PathBuf>,
}

impl Default for Binary {
    fn default() -> Self {
        Binary { path: None, seen: BinarySeen::Unasked, home: None }
    }
}
