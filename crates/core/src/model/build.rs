//! What a machine is made of: the settings that require a new machine when they change.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What happens to a member's data when its machine is removed, and what its next machine begins with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    #[default]
    Goes,
    Stays,
}

/// Each part under its name, in words.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Build(BTreeMap<String, String>);

/// The part whose content may outlive the machine.
pub const DATA_VOLUME: &str = "data volume";

/// The part that names the machine's host, if it differs from that of most members. Data stays behind when it changes.
pub const HYPERVISOR: &str = "hypervisor";

/// The same, if the spec may leave the choice of a host to the provider.
pub const TARGET: &str = "target";

/// The part that names the machine's zone, if the spec does. Volumes do not leave their zone.
pub const ZONE: &str = "zone";

impl Build {
    pub fn new<const N: usize>(parts: [(&str, Option<String>); N]) -> Self {
        Build(parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }

    /// What this part is.
    pub fn part(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The place of the data that outlives the machine.
    pub fn data(&self) -> Option<String> {
        let volume = self.0.get(DATA_VOLUME)?;
        let places = [HYPERVISOR, TARGET, ZONE];
        Some(match places.iter().find_map(|part| self.0.get(*part)) {
            Some(place) => format!("{volume} at {place}"),
            None => volume.clone(),
        })
    }

    /// The same, of a machine that was found there.
    pub fn found_at(mut self, place: Option<String>) -> Self {
        self.0.remove(HYPERVISOR);
        self.0.extend(place.map(|place| (HYPERVISOR.to_owned(), place)));
        self
    }

    /// The same, for a machine that was found on this host. If any host is allowed, the host does not matter.
    pub fn found_on(mut self, host: &str) -> Self {
        if let Some(target) = self.0.get_mut(TARGET) {
            host.clone_into(target);
        }
        self
    }

    /// The same, without this part.
    pub fn without(&self, part: &str) -> Self {
        let mut parts = self.0.clone();
        parts.remove(part);
        Build(parts)
    }

    /// The same, of a machine that was found with this part changed.
    pub fn with(&self, part: &str, found: &str) -> Self {
        let mut parts = self.0.clone();
        parts.insert(part.to_owned(), found.to_owned());
        Build(parts)
    }

    /// The differences between a machine and its desired state. Empty if there is none.
    pub fn difference(&self, wanted: &Build) -> Option<String> {
        let names: BTreeSet<&String> = self.0.keys().chain(wanted.0.keys()).collect();
        let other = names.into_iter().filter(|name| self.0.get(*name) != wanted.0.get(*name));
        let told = |build: &Build, name: &String| match build.0.get(name) {
            Some(value) => format!("{name} {value}"),
            None => format!("no {name}"),
        };
        let (has, should): (Vec<String>, Vec<String>) = other.map(|n| (told(self, n), told(wanted, n))).unzip();
        (!has.is_empty()).then(|| format!("has {}, and the spec says {}", has.join(", "), should.join(", ")))
    }
}
