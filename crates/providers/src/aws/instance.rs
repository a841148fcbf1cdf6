//! A machine as AWS knows it: an instance. Its tags are quorate's mark.

use quorate_core::model::{Build, PowerState, ZONE};
use quorate_core::providers::aws::{AwsSettings, INSTANCE_TYPE, section};
use quorate_core::spec::MemberSpec;

use super::error::{AwsError, NO_CAPACITY};
use super::xml::Xml;
use crate::marks::Mark;

/// States of instances that exist. One that was terminated stays in lists for an hour.
pub(super) const ALIVE: [&str; 5] = ["pending", "running", "stopping", "stopped", "shutting-down"];

/// An instance as it was found.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) state: String,
    /// Why it is in this state, if AWS has done that: in words, and as a code.
    reason: Option<String>,
    code: Option<String>,
    pub(super) kind: String,
    pub(super) zone: String,
    pub(super) mark: Option<Mark>,
}

impl Instance {
    pub(super) fn read(value: &Xml) -> Option<Self> {
        let tags = value.tags();
        Some(Instance {
            id: value.text("instanceId")?,
            name: tags.get("Name").cloned().unwrap_or_default(),
            state: value.text("instanceState/name")?,
            reason: value.text("stateReason/message").or_else(|| value.text("reason")),
            code: value.text("stateReason/code"),
            kind: value.text("instanceType").unwrap_or_default(),
            zone: value.text("placement/availabilityZone").unwrap_or_default(),
            mark: Mark::read(&tags),
        })
    }

    /// The instances of an answer, which has them in reservations.
    pub(super) fn all(reservations: &[Xml]) -> Vec<Self> {
        reservations.iter().flat_map(|reservation| reservation.items("instancesSet")).filter_map(Self::read).collect()
    }

    pub(super) fn is_alive(&self) -> bool {
        ALIVE.contains(&self.state.as_str())
    }

    pub(super) fn power(&self) -> PowerState {
        match self.state.as_str() {
            "pending" => PowerState::Starting,
            "running" => PowerState::On,
            "stopping" | "shutting-down" => PowerState::Stopping,
            "stopped" => PowerState::Off,
            _ => PowerState::Unknown,
        }
    }

    /// For people, if there is something to say: why it is not running.
    pub(super) fn remark(&self) -> Option<String> {
        (self.state != "running").then(|| format!("the instance {} is {}", self.id, self.state_and_reason()))
    }

    pub(super) fn state_and_reason(&self) -> String {
        match self.reason.as_ref().filter(|_| self.state != "running") {
            Some(reason) => format!("{} ({reason})", self.state),
            None => self.state.clone(),
        }
    }

    /// That it has ended. AWS finds out only after it has accepted some instances that it lacks the capacity for them.
    pub(super) fn ending(&self, doing: &str) -> AwsError {
        let said = || self.reason.clone().unwrap_or_else(|| String::from("AWS does not say why"));
        match self.code.as_deref() {
            Some(NO_CAPACITY) => {
                AwsError::Refused { doing: doing.to_owned(), code: NO_CAPACITY.to_owned(), said: said() }
            }
            _ => AwsError::Gone { id: self.id.clone(), why: said() },
        }
    }

    /// What it was created from, with the type that somebody has given it since. A type that the spec allows is as good as the others,
    /// and where it says no zone, each is.
    pub(super) fn build(&self, mark: &Mark, settings: &AwsSettings, member: Option<&MemberSpec>) -> Option<Build> {
        let build = mark.build.as_ref()?;
        let types = member.map(|member| settings.types_of(member)).unwrap_or_default();
        let kind = if types.contains(&self.kind) { types.join(" or ") } else { self.kind.clone() };
        let build = build.with(INSTANCE_TYPE, &kind);
        Some(match member.is_some_and(|member| section(member).zone.is_some()) {
            true => build.with(ZONE, &self.zone),
            false => build.without(ZONE),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_core::providers::Settings;
    use serde_json::json;

    use super::*;
    use crate::marks::State;

    fn settings(types: &[&str]) -> AwsSettings {
        let settings = json!({ "instance_types": types, "image": { "id": "ami-1" }, "data_size": "1GiB" });
        serde_json::from_value(settings).unwrap()
    }

    fn member(zone: Option<&str>) -> MemberSpec {
        let mut member = MemberSpec::named("etcd-1".parse().unwrap());
        member.aws = serde_json::from_value(json!({ "zone": zone })).unwrap();
        member
    }

    fn mark(build: Option<Build>) -> Mark {
        Mark {
            cluster: String::from("demo"),
            cluster_id: String::from("c"),
            member: "etcd-1".into(),
            incarnation: 2,
            address: "10.0.0.11".parse().unwrap(),
            fence: 7,
            state: State::Whole,
            port: Some(String::from("eni-1")),
            data: None,
            flavor: None,
            build,
        }
    }

    fn instance(state: &str, kind: &str, tags: &BTreeMap<String, String>) -> Instance {
        let tags: String =
            tags.iter().map(|(key, value)| format!("<item><key>{key}</key><value>{value}</value></item>")).collect();
        let text = format!(
            "<item><instanceId>i-1</instanceId><instanceState><name>{state}</name></instanceState>\
             <instanceType>{kind}</instanceType><placement><availabilityZone>eu-west-2a</availabilityZone></placement>\
             <stateReason><message>Server.ScheduledStop</message></stateReason><tagSet>{tags}</tagSet></item>"
        );
        Instance::read(&Xml::read(&text).unwrap()).unwrap()
    }

    #[test]
    fn an_instance_is_read_with_its_mark() {
        let (settings, member) = (settings(&["m7i.large", "m6i.large"]), member(None));
        let mark = mark(settings.build(&member));
        let found = instance("running", "m6i.large", &mark.parts());
        assert_eq!(found.mark.as_ref(), Some(&mark));
        for (key, value) in mark.parts() {
            assert!(key.len() <= 128 && value.len() <= 256, "{key}");
        }
        assert_eq!(instance("running", "x", &BTreeMap::new()).mark, None);
    }

    #[test]
    fn only_what_is_stopped_is_off() {
        let power = |state: &str| instance(state, "m7i.large", &BTreeMap::new()).power();
        let expected = [
            ("pending", PowerState::Starting),
            ("running", PowerState::On),
            ("stopping", PowerState::Stopping),
            ("stopped", PowerState::Off),
            ("shutting-down", PowerState::Stopping),
        ];
        for (state, wanted) in expected {
            assert_eq!(power(state), wanted, "{state}");
        }
        assert!(!instance("terminated", "x", &BTreeMap::new()).is_alive());
        let said = instance("stopped", "x", &BTreeMap::new()).remark().unwrap();
        assert_eq!(said, "the instance i-1 is stopped (Server.ScheduledStop)");
    }

    #[test]
    fn each_type_of_the_list_and_each_zone_is_as_good_unless_the_spec_names_one() {
        let (settings, anywhere) = (settings(&["m7i.large", "m6i.large"]), member(None));
        let wanted = settings.build(&anywhere).unwrap();
        let mark = mark(Some(wanted.clone()));
        let seen = |kind: &str, member: &MemberSpec| {
            instance("running", kind, &mark.parts()).build(&mark, &settings, Some(member)).unwrap()
        };
        assert_eq!(seen("m6i.large", &anywhere).difference(&wanted), None);
        assert!(seen("t3.micro", &anywhere).difference(&wanted).unwrap().contains("has instance type t3.micro"));
        for (zone, stays) in [("eu-west-2a", true), ("eu-west-2b", false)] {
            let there = member(Some(zone));
            let (now, wanted) = (seen("m6i.large", &there), settings.build(&there).unwrap());
            assert_eq!((now.difference(&wanted).is_none(), now.data() == wanted.data()), (stays, stays), "{zone}");
        }
    }
}
