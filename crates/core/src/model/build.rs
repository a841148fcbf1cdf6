//! What a machine is made of, as far as a difference makes it another one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::spec::{ClusterSpec, MemberSpec, Provider};

/// What becomes of a member's data when its machine goes, and what its next machine begins with.
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

/// Where the data of a local machine lies that outlives it.
pub const LOCAL_DATA: &str = "kept";
const DATA_VOLUME: &str = "data volume";

impl Build {
    /// What the spec makes the machine of a member of; nothing where machines are processes.
    pub fn of(spec: &ClusterSpec, member: &MemberSpec) -> Option<Self> {
        let Provider::Libvirt(settings) = &spec.provider else { return None };
        let image = settings.image.as_ref().filter(|_| member.root_volume.is_none());
        let data = member.data_volume.as_ref().map(ToString::to_string);
        let parts = [
            ("image", image.map(|image| image.volume.to_string())),
            ("root size", image.and_then(|image| image.root_size).map(|size| size.to_string())),
            ("root volume", member.root_volume.as_ref().map(ToString::to_string)),
            ("vcpus", Some(settings.vcpus.to_string())),
            ("memory", Some(settings.memory.to_string())),
            (DATA_VOLUME, data.or_else(|| settings.data_size.map(|size| size.to_string()))),
        ];
        let parts = parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Some(Build(parts.collect()))
    }

    /// The data volume that outlives the machine.
    pub fn data(&self) -> Option<String> {
        self.0.get(DATA_VOLUME).cloned()
    }

    /// What a machine has, and what it should have instead. Nothing where it is as it should be.
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

/// Where a member's data lies that its next machine can have too, as the spec has it.
pub fn kept_data(spec: &ClusterSpec, member: &MemberSpec) -> Option<String> {
    match &spec.provider {
        Provider::Local => spec.keep_data.then(|| LOCAL_DATA.to_owned()),
        Provider::Libvirt(_) => Build::of(spec, member)?.data(),
    }
}
