//! Marks on the cloud resources that quorate created: metadata of a server, or tags. Each part of a mark has a separate key, because
//! values are short. Every user of the project or the account can read them, so they contain no secret.

use std::collections::BTreeMap;
use std::net::IpAddr;

use quorate_core::model::{Build, MachineId, MemberName};
use serde_json::{Map, Value};

const PREFIX: &str = "quorate.";
const BUILD: &str = "quorate.build.";

/// The mark of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) cluster: String,
    pub(crate) cluster_id: String,
    pub(crate) member: MemberName,
    pub(crate) incarnation: u64,
    pub(crate) address: IpAddr,
    /// Of the controller that creates it.
    pub(crate) fence: u64,
    pub(crate) state: State,
    /// The port or interface that was made for it, by id. None: it is the operator's.
    pub(crate) port: Option<String>,
    /// The data volume, by id. Of a draft, and of a machine that is being removed: only one that goes with it.
    pub(crate) data: Option<String>,
    /// What it was created from.
    pub(crate) build: Option<Build>,
    /// The name of its flavor; the build has what the spec calls it.
    pub(crate) flavor: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It is being built. It does not count as a machine yet.
    Draft,
    Whole,
    /// It is being removed.
    Going,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Draft => "draft",
            State::Whole => "whole",
            State::Going => "going",
        }
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        [State::Draft, State::Whole, State::Going].into_iter().find(|state| state.name() == text)
    }
}

pub(crate) fn key(part: &str) -> String {
    format!("{PREFIX}{part}")
}

impl Mark {
    /// By key.
    pub(crate) fn parts(&self) -> BTreeMap<String, String> {
        let some = |text: &Option<String>| text.clone().unwrap_or_default();
        let parts = [
            ("cluster", self.cluster.clone()),
            ("cluster_id", self.cluster_id.clone()),
            ("member", self.member.to_string()),
            ("incarnation", self.incarnation.to_string()),
            ("address", self.address.to_string()),
            ("fence", self.fence.to_string()),
            ("state", self.state.name().to_owned()),
            ("port", some(&self.port)),
            ("data", some(&self.data)),
            ("flavor", some(&self.flavor)),
        ];
        let parts = parts.into_iter().map(|(part, value)| (key(part), value));
        let build = serde_json::to_value(&self.build).ok();
        let build = build.as_ref().and_then(Value::as_object).into_iter().flatten();
        let build = build.filter_map(|(part, value)| Some((format!("{BUILD}{part}"), value.as_str()?.to_owned())));
        parts.chain(build).collect()
    }

    pub(crate) fn read(parts: &BTreeMap<String, String>) -> Option<Self> {
        let part = |name: &str| parts.get(&key(name)).map(String::as_str);
        let some = |name: &str| part(name).filter(|value| !value.is_empty()).map(str::to_owned);
        let built = |(name, value): (&String, &String)| {
            Some((name.strip_prefix(BUILD)?.to_owned(), Value::String(value.clone())))
        };
        let build: Map<String, Value> = parts.iter().filter_map(built).collect();
        Some(Mark {
            cluster: part("cluster")?.to_owned(),
            cluster_id: part("cluster_id")?.to_owned(),
            member: part("member")?.into(),
            incarnation: part("incarnation")?.parse().ok()?,
            address: part("address")?.parse().ok()?,
            fence: part("fence")?.parse().ok()?,
            state: State::read(part("state")?)?,
            port: some("port"),
            data: some("data"),
            flavor: some("flavor"),
            build: serde_json::from_value(Value::Object(build)).ok().filter(|build| *build != Build::default()),
        })
    }

    pub(crate) fn is_of(&self, machine: &MachineId) -> bool {
        self.member == machine.member && self.incarnation == machine.incarnation
    }
}

/// The parts of a mark on something else than a machine.
pub(crate) fn parts_of(cluster_id: &str, machine: &MachineId, fence: u64) -> BTreeMap<String, String> {
    let parts = [
        ("cluster_id", cluster_id.to_owned()),
        ("member", machine.member.to_string()),
        ("incarnation", machine.incarnation.to_string()),
        ("fence", fence.to_string()),
    ];
    parts.into_iter().map(|(part, value)| (key(part), value)).collect()
}
