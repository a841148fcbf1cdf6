//! What a cluster has besides machines, such as a load balancer: the desired, the recorded and the observed state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::MemberName;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixtureKind {
    /// One address that leads clients to members.
    LoadBalancer,
    /// Names that lead clients to the load balancer, or to members.
    Records,
}

/// One fixture of a cluster: of which kind, and where its provider has it. A cluster has one of a kind, except while that moves to another
/// place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct FixtureId {
    pub kind: FixtureKind,
    /// In words that the provider understands, also when the spec no longer has them. Records are at their name.
    pub place: String,
}

impl fmt::Display for FixtureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FixtureKind::LoadBalancer => f.write_str("the load balancer"),
            FixtureKind::Records => f.write_str(self.name()),
        }
    }
}

impl FixtureId {
    /// The place of records is `ZONE/NAME`: the name alone.
    pub fn name(&self) -> &str {
        self.place.rsplit('/').next().unwrap_or(&self.place)
    }
}

/// A fixture as the spec has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FixtureWish {
    pub id: FixtureId,
    /// Settings that it has from the beginning: to change one, it is made again.
    pub fixed: BTreeMap<String, String>,
    /// Whether it leads to the load balancer, not to members.
    pub to_balancer: bool,
}

/// What must outlive a run: recorded before it is made, so that it is found wherever that is interrupted.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FixtureRecord {
    /// Under which names clients come, as far as these are the provider's choice.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<String>,
}

/// Everything that the ledger knows of, as a list, because the keys are no texts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<(FixtureId, FixtureRecord)>", into = "Vec<(FixtureId, FixtureRecord)>")]
pub struct Fixtures(pub BTreeMap<FixtureId, FixtureRecord>);

impl From<Vec<(FixtureId, FixtureRecord)>> for Fixtures {
    fn from(list: Vec<(FixtureId, FixtureRecord)>) -> Self {
        Fixtures(list.into_iter().collect())
    }
}

impl From<Fixtures> for Vec<(FixtureId, FixtureRecord)> {
    fn from(fixtures: Fixtures) -> Self {
        fixtures.0.into_iter().collect()
    }
}

impl Fixtures {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Why a fixture cannot be where the spec wants it: another tool has something there, or there is no such place.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Obstacle {
    pub what: String,
    pub remedy: String,
}

/// A fixture, or what is in its place, as the provider sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FixtureSeen {
    pub id: FixtureId,
    /// Whether it has this cluster's mark.
    pub is_ours: bool,
    /// What is in its way, and how it gets out of it.
    #[serde(default)]
    pub obstacle: Option<Obstacle>,
    #[serde(default)]
    pub fixed: BTreeMap<String, String>,
    /// The members that it leads to, by name where it has their names.
    pub leads_to: BTreeMap<IpAddr, Option<MemberName>>,
    pub to_balancer: bool,
    /// Names that its provider gave it.
    #[serde(default)]
    pub names: BTreeSet<String>,
    /// What is not as it was made, in words: it is put right.
    #[serde(default)]
    pub fault: Option<String>,
    /// Why it does not serve yet, or not with all members.
    #[serde(default)]
    pub pending: Option<String>,
}
