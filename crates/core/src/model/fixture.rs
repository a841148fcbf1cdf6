//! What a cluster has besides machines, such as a load balancer: the desired, the recorded and the observed state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::MemberName;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixtureKind {
    /// One address that forwards clients to members.
    LoadBalancer,
    /// Names that point to the load balancer, or to members.
    Records,
}

/// One fixture of a cluster: its kind, and its place at the provider. A cluster has one of each kind, except while it moves to another
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
    /// Fixed settings: to change one, the fixture is created again.
    pub fixed: BTreeMap<String, String>,
    /// Whether it points to the load balancer instead of members.
    pub to_balancer: bool,
}

/// What must survive a run: recorded before it is created, so it is found after any interruption.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FixtureRecord {
    /// The names that the provider assigned, by which clients connect.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<String>,
}

/// All fixtures in the ledger, as a list, because the keys are not text.
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
    /// The obstacle, and the remedy.
    #[serde(default)]
    pub obstacle: Option<Obstacle>,
    #[serde(default)]
    pub fixed: BTreeMap<String, String>,
    /// The members that it points to, by name if known.
    pub leads_to: BTreeMap<IpAddr, Option<MemberName>>,
    pub to_balancer: bool,
    /// Names that its provider gave it.
    #[serde(default)]
    pub names: BTreeSet<String>,
    /// Differences from how it was created, in words: they are corrected.
    #[serde(default)]
    pub fault: Option<String>,
    /// Why it does not serve yet, or not with all members.
    #[serde(default)]
    pub pending: Option<String>,
}
