//! Checks whether the storage pool and the project's limits have room for all machines that the cluster still lacks. They are counted
//! together, so the first one is refused instead of the last.

use std::borrow::Cow;

use quorate_core::spec::{MemberSpec, Size};
use serde_json::Value;

use super::error::IncusError;
use super::server::{Server, escaped};
use super::volumes::Volume;
use super::{Incus, Instance, Mark};

/// What machines need, in the words of a project's limits.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Needed {
    /// The members that they are for.
    members: Vec<String>,
    cpus: u64,
    memory: u64,
    disk: u64,
}

impl Incus {
    /// In an Incus cluster each host has its part of the pool, so there each machine is counted for itself.
    pub(super) async fn check_room(
        &self,
        server: &Server,
        member: &MemberSpec,
        host: Option<&str>,
    ) -> Result<(), IncusError> {
        // In this order: a machine that is made meanwhile is not counted twice.
        let left = self.left_in_pool(server, host).await?;
        let limits = project_limits(server).await?;
        let volumes = self.volumes(server).await?;
        let ours = self.ours(server).await?;
        let needed = self.needed(&self.lacking(member, &ours), &volumes);
        let on_disk = host.map_or_else(|| needed.clone(), |_| self.needed(std::slice::from_ref(member), &volumes));
        if on_disk.disk > left {
            return Err(IncusError::NoSpace {
                pool: self.settings.pool.clone(),
                machines: on_disk.members,
                needed: rounded(on_disk.disk),
                left: rounded(left),
            });
        }
        needed.within(&server.project, self.is_vm(), &limits)
    }

    /// Members without a machine, and the one that gets another now.
    fn lacking(&self, member: &MemberSpec, ours: &[(Instance, Mark)]) -> Vec<MemberSpec> {
        let is_there = |other: &MemberSpec| ours.iter().any(|(_, mark)| mark.member.seat() == other.name.as_str());
        let lacks = |other: &MemberSpec| other.name == member.name || !is_there(other);
        self.spec.machines().map(Cow::into_owned).filter(lacks).collect()
    }

    fn needed(&self, members: &[MemberSpec], volumes: &[Volume]) -> Needed {
        let bytes = |size: Option<Size>| size.map_or(0, |size| size.0);
        let mut needed = Needed::default();
        for member in members {
            let has_data = volumes.iter().any(|volume| self.is_made_for(volume, member.name.as_str()));
            let data = if has_data { 0 } else { bytes(self.settings.data_size_of(member)) };
            needed.members.push(member.name.to_string());
            needed.cpus += u64::from(self.settings.cpus_of(member).unwrap_or_default());
            needed.memory = needed.memory.saturating_add(bytes(self.settings.memory_of(member)));
            needed.disk = needed.disk.saturating_add(bytes(self.settings.root_size_of(member))).saturating_add(data);
        }
        needed
    }
}

impl Needed {
    fn within(&self, project: &str, is_vm: bool, limits: &Value) -> Result<(), IncusError> {
        let plain: fn(u64) -> String = |number| number.to_string();
        let machines = self.members.len() as u64;
        let kind = if is_vm { "virtual-machines" } else { "containers" };
        let all = [
            ("instances", machines, plain),
            (kind, machines, plain),
            ("cpu", self.cpus, plain),
            ("memory", self.memory, rounded),
            ("disk", self.disk, rounded),
        ];
        for (what, needed, shown) in all {
            let number = |field: &str| limits.get(what)?.get(field)?.as_i64();
            let limit = number("Limit").and_then(|limit| u64::try_from(limit).ok());
            let used = number("Usage").and_then(|used| u64::try_from(used).ok()).unwrap_or_default();
            if let Some(limit) = limit.filter(|limit| used.saturating_add(needed) > *limit) {
                return Err(IncusError::ProjectLimit {
                    project: project.to_owned(),
                    what,
                    limit: format!("{} {what}, {} in use", shown(limit), shown(used)),
                    needed: shown(needed),
                    machines: self.members.clone(),
                });
            }
        }
        Ok(())
    }
}

/// A client that may not read them is told by Incus when they are reached.
async fn project_limits(server: &Server) -> Result<Value, IncusError> {
    let path = format!("/1.0/projects/{}/state", escaped(&server.project));
    match server.get("read the limits of the project", &path).await {
        Ok(found) => Ok(found.and_then(|found| found.value.get("resources").cloned()).unwrap_or_default()),
        Err(IncusError::Refused { code: 403, .. }) => Ok(Value::Null),
        Err(error) => Err(error),
    }
}

/// In whole mebibytes.
fn rounded(bytes: u64) -> String {
    if bytes == 0 { String::from("nothing") } else { Size(((bytes >> 20).max(1)) << 20).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_limit_of_a_project_is_reported_with_its_numbers() {
        let needed = Needed { members: ["a", "b", "c"].map(String::from).into(), cpus: 6, memory: 3 << 30, disk: 0 };
        let limits = |instances: i64, memory: i64| {
            json!({
                "instances": {"Limit": instances, "Usage": 1}, "containers": {"Limit": -1, "Usage": 1},
                "memory": {"Limit": memory, "Usage": 1_i64 << 30},
            })
        };
        assert!(needed.within("lab", false, &limits(4, 4 << 30)).is_ok());
        assert!(needed.within("lab", false, &Value::Null).is_ok());
        let told = |limits| needed.within("lab", false, &limits).unwrap_err().to_string();
        assert_eq!(
            told(limits(3, -1)),
            "the project `lab` allows 3 instances, 1 in use, and a, b, c need 3: raise it \
             (`incus project set lab limits.instances=…`)"
        );
        assert!(told(limits(-1, 3 << 30)).starts_with("the project `lab` allows 3GiB memory, 1GiB in use"));
    }
}
