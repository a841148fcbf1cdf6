//! Members as the simulated etcd lists them.

use crate::kinds::etcd::MemberEntry;
use crate::model::MemberName;

/// A member as the simulated etcd lists it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimListed {
    pub id: u64,
    pub name: MemberName,
    pub peer_url: String,
    pub is_learner: bool,
}

impl SimListed {
    pub(crate) fn new(name: &MemberName, peer_url: &str) -> Self {
        let (name, peer_url) = (name.seat().into(), peer_url.to_owned());
        SimListed { id: number_for(&format!("{name} at {peer_url}")), name, peer_url, is_learner: false }
    }

    pub(super) fn told(entry: &MemberEntry) -> Self {
        let peer_url = entry.peer_urls.first().cloned().unwrap_or_default();
        SimListed { id: entry.id, name: entry.name.as_str().into(), peer_url, is_learner: entry.is_learner }
    }

    pub(super) fn entry(&self) -> MemberEntry {
        let (id, name) = (self.id, self.name.to_string());
        MemberEntry { id, name, peer_urls: vec![self.peer_url.clone()], is_learner: self.is_learner }
    }
}

/// A number that stands for a name; never zero, which etcd uses for "none".
pub(super) fn number_for(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)) | 1
}
