//! Calls to the compute service: servers, their power, flavors, limits, and the server group of a cluster.

use std::time::{Duration, Instant};

use quorate_core::model::{MachineId, PowerState};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::catalogue::Service::Compute;
use super::error::{OpenstackError, check_room};
use super::server::{SOFT_DELETED, Server, marked, tag};
use super::session::{Call, Session};
use super::{LINGERING, Openstack, one_of, text};
use crate::marks::{Mark, State};
use crate::web::escaped;

/// Needed for the policy of server groups.
pub(super) const VERSION: &str = "2.64";
/// The last version that puts files on the config drive.
pub(super) const CREATING: &str = "2.56";
/// How many files a server gets: its seed and what is next to it.
const FILES: u64 = 2;
/// Nova waits a minute for a guest to shut down before it switches it off.
const STOPPING: Duration = Duration::from_secs(180);
const STARTING: Duration = Duration::from_secs(180);

impl Openstack {
    /// Servers with a mark of this cluster's name, in one list. Where a machine is missing, a second list has those that were deleted and
    /// that the cloud still keeps.
    pub(super) async fn marked(&self) -> Result<Vec<(Server, Mark)>, OpenstackError> {
        let tagged = format!("/servers/detail?tags={}", escaped(&tag(self.spec.name.as_str())));
        let all = self.session()?.list("list servers", Compute, &tagged, "servers", Some(VERSION)).await?;
        let mut found = self.of_this_name(all.iter().filter_map(marked));
        if self.lacks_a_machine(&found) {
            let deleted = self.session()?.soft_deleted(&format!("{tagged}&")).await?;
            found.extend(self.of_this_name(deleted));
        }
        Ok(found)
    }

    pub(super) fn of_this_name(&self, all: impl IntoIterator<Item = (Server, Mark)>) -> Vec<(Server, Mark)> {
        all.into_iter().filter(|(_, mark)| mark.cluster == self.spec.name.as_str()).collect()
    }

    /// Whether one of the spec's machines is not among these.
    pub(super) fn lacks_a_machine(&self, found: &[(Server, Mark)]) -> bool {
        let is_of = |mark: &Mark, seat: &str| {
            mark.state == State::Whole && mark.cluster_id == self.cluster_id && mark.member.seat() == seat
        };
        self.spec.machines().any(|member| !found.iter().any(|(_, mark)| is_of(mark, member.name.as_str())))
    }

    /// Servers with a mark of this cluster's ID.
    pub(super) async fn ours(&self) -> Result<Vec<(Server, Mark)>, OpenstackError> {
        let marked = self.marked().await?;
        Ok(marked.into_iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id).collect())
    }

    /// None: it is gone.
    pub(super) async fn look_at(&self, server: &Server) -> Result<Option<Server>, OpenstackError> {
        let found = self.find_server(&format!("read {}", server.name), &server.id).await?;
        Ok(found.as_ref().and_then(Server::read))
    }

    /// The server with this id. It is gone when a list lacks it too: a gateway answers 404 for a service that is away.
    pub(super) async fn find_server(&self, doing: &str, id: &str) -> Result<Option<Value>, OpenstackError> {
        let session = self.session()?;
        let path = format!("/servers/{}", escaped(id));
        if let Some(mut found) = session.get(doing, Compute, &path, Some(VERSION)).await? {
            let (doing, why) = (doing.to_owned(), String::from("it has no server"));
            let server = found.get_mut("server").map(Value::take);
            return server.map(Some).ok_or(OpenstackError::Unreadable { doing, why });
        }
        // All servers of the project: someone may have removed the tag.
        let all = session.list("list servers", Compute, "/servers/detail", "servers", Some(VERSION)).await?;
        Ok(all.into_iter().find(|server| text(server, "id").as_deref() == Some(id)))
    }

    /// Adds to the metadata of a server, or changes it.
    pub(super) async fn set_metadata(&self, server: &Server, metadata: &Value) -> Result<(), OpenstackError> {
        let path = format!("{}/metadata", server.path());
        let call = Call::new(format!("mark {}", server.name), Compute, Method::POST, path).repeatable();
        let changed = self.session()?.change(call.json(json!({ "metadata": metadata })).at(VERSION)).await;
        changed.map(drop).map_err(|error| unless_locked(server, error))
    }

    async fn action(&self, server: &Server, doing: &str, action: Value) -> Result<(), OpenstackError> {
        let path = format!("{}/action", server.path());
        let call = Call::new(format!("{doing} {}", server.name), Compute, Method::POST, path).repeatable();
        let changed = self.session()?.change(call.json(action).at(VERSION)).await;
        changed.map(drop).map_err(|error| unless_locked(server, error))
    }

    /// Polls a server until it has the desired state. None: it is gone.
    pub(super) async fn wait(
        &self,
        server: &Server,
        within: Duration,
        is_done: impl Fn(&Server) -> bool,
    ) -> Result<Option<Server>, OpenstackError> {
        let begun = Instant::now();
        let mut pause = self.polling;
        loop {
            let Some(now) = self.look_at(server).await? else { return Ok(None) };
            if is_done(&now) {
                return Ok(Some(now));
            }
            if begun.elapsed() > within {
                let (what, state) = (format!("the server {}", now.name), now.state());
                return Err(OpenstackError::TooSlow { what, state, seconds: within.as_secs() });
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(Duration::from_secs(5));
        }
    }

    pub(super) async fn power_on(&self, server: &Server) -> Result<(), OpenstackError> {
        let Some(now) = self.wait(server, STARTING, |now| !now.is_busy()).await? else { return Err(gone(server)) };
        match now.return_with() {
            None if now.power() == PowerState::On => Ok(()),
            None => Err(now.hindrance().unwrap_or_else(|| OpenstackError::TooSlow {
                what: format!("the server {}", now.name),
                state: now.state(),
                seconds: 0,
            })),
            Some((doing, action)) => self.bring_back(&now, doing, action).await,
        }
    }

    async fn bring_back(&self, now: &Server, doing: &str, action: Value) -> Result<(), OpenstackError> {
        match self.action(now, doing, action).await {
            // Another process may have been first.
            Err(error) if error.is_conflict() => match self.look_at(now).await? {
                Some(now) if matches!(now.power(), PowerState::On | PowerState::Starting) => {}
                _ => return Err(error),
            },
            started => started?,
        }
        let is_on = |now: &Server| {
            let is_back = now.power() == PowerState::On && now.status != "VERIFY_RESIZE";
            // It was off when it was set aside.
            !now.is_busy() && (is_back || now.status == "SHUTOFF")
        };
        match self.wait(now, STARTING, is_on).await? {
            Some(now) if now.is_down() => Err(OpenstackError::Broken { name: now.name.clone(), fault: now.fault() }),
            Some(back) if back.status == "SHUTOFF" && now.status != "SHUTOFF" => Box::pin(self.power_on(&back)).await,
            Some(_) => Ok(()),
            None => Err(gone(now)),
        }
    }

    /// Confirms resizes, and reboots what is broken. A server that stays broken is left to the planner, which replaces it.
    pub(super) async fn set_right(&self, server: &Server) -> Result<(), OpenstackError> {
        if server.is_busy() || !(server.status == "VERIFY_RESIZE" || server.is_down()) {
            return Ok(());
        }
        match self.power_on(server).await {
            Err(
                OpenstackError::Broken { .. }
                | OpenstackError::Locked { .. }
                | OpenstackError::Refused { .. }
                | OpenstackError::Failed { .. }
                | OpenstackError::TooSlow { .. },
            ) => Ok(()),
            told => told,
        }
    }

    /// Shuts a server down; OpenStack switches it off after a while if it does not.
    pub(super) async fn shut_down(&self, server: &Server) -> Result<(), OpenstackError> {
        let Some(now) = self.wait(server, STOPPING, |now| !now.is_busy()).await? else { return Ok(()) };
        if (now.power() == PowerState::Off && !now.is_frozen()) || now.is_down() {
            return Ok(());
        }
        // Memory that is kept would go on later.
        if let Some((doing, action)) = now.return_with().filter(|_| now.is_frozen()) {
            self.bring_back(&now, doing, action).await?;
        }
        match self.action(&now, "stop", json!({ "os-stop": null })).await {
            Err(error) if error.is_conflict() || error.is_absent() => match self.look_at(server).await? {
                Some(now) if now.power() == PowerState::Off => return Ok(()),
                Some(now) => return Err(now.hindrance().unwrap_or(error)),
                None => return Ok(()),
            },
            stopped => stopped?,
        }
        let is_off = |now: &Server| !now.is_busy() && now.power() == PowerState::Off;
        self.wait(server, STOPPING, is_off).await.map(drop)
    }

    /// Returns when it is gone.
    pub(super) async fn delete_server(&self, server: &Server) -> Result<(), OpenstackError> {
        let doing = format!("delete {}", server.name);
        let asked = self.session()?.change(Call::new(doing, Compute, Method::DELETE, server.path())).await;
        match asked.map_err(|error| unless_locked(server, error)) {
            // It is being deleted already, or is gone.
            Err(error) if error.is_conflict() || error.is_absent() => match self.look_at(server).await? {
                Some(now) if now.power() == PowerState::Stopping => {}
                Some(_) => return Err(error),
                None => return Ok(()),
            },
            deleted => drop(deleted?),
        }
        let within = if server.power() == PowerState::Stopping { self.deleting.min(LINGERING) } else { self.deleting };
        let kept = self.wait(server, within, |now| now.is_soft_deleted() && !now.is_busy()).await?;
        if let Some(kept) = kept {
            // Until then it keeps its port and its volumes.
            self.action(&kept, "delete", json!({ "forceDelete": null })).await?;
            self.wait(server, within, |_| false).await?;
        }
        Ok(())
    }

    /// The end of what a server printed. A cloud may not offer it.
    pub(super) async fn console_output(&self, server: &Server, lines: usize) -> Result<String, OpenstackError> {
        let path = format!("{}/action", server.path());
        let call = Call::new(format!("read the console of {}", server.name), Compute, Method::POST, path).repeatable();
        let body = json!({ "os-getConsoleOutput": { "length": lines } });
        match self.session()?.change(call.json(body).at(VERSION)).await {
            Ok(answer) => Ok(answer.get("output").and_then(Value::as_str).unwrap_or_default().trim_end().to_owned()),
            Err(OpenstackError::Refused { .. } | OpenstackError::Failed { .. }) => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Checks that the service knows the microversions that quorate uses.
    pub(super) async fn check_version(&self) -> Result<(), OpenstackError> {
        let found = self.session()?.get("ask for the versions of the compute service", Compute, "/", None).await?;
        let told = |field: &str| {
            let told = found.as_ref().and_then(|found| found.get("version")?.get(field)?.as_str());
            // Without a version it is older than all of them.
            told.filter(|version| !version.is_empty()).unwrap_or("2.0").to_owned()
        };
        let number = |version: &str| {
            let (major, minor) = version.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        };
        let (oldest, newest) = (told("min_version"), told("version"));
        if number(&newest) < number(VERSION) {
            return Err(OpenstackError::TooOld { found: newest, needed: VERSION });
        }
        if number(&oldest) > number(CREATING) {
            return Err(OpenstackError::TooNew { found: oldest, needed: CREATING });
        }
        Ok(())
    }

    /// The id of a flavor.
    pub(super) async fn flavor(&self, name: &str) -> Result<Flavor, OpenstackError> {
        let all =
            self.session()?.list("list flavors", Compute, "/flavors/detail?is_public=None", "flavors", None).await;
        // Only administrators see those of all projects.
        let all = match all {
            Err(OpenstackError::Refused { .. }) => {
                self.session()?.list("list flavors", Compute, "/flavors/detail", "flavors", None).await?
            }
            all => all?,
        };
        let found = one_of("flavor", name, &all)?;
        let number = |field: &str| found.get(field).and_then(Value::as_u64).unwrap_or_default();
        let id = found.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = found.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Flavor { id, name, cores: number("vcpus"), memory: number("ram") })
    }

    pub(super) async fn check_key_pair(&self, name: &str) -> Result<(), OpenstackError> {
        let path = format!("/os-keypairs/{}", escaped(name));
        if self.session()?.get("find the key pair", Compute, &path, None).await?.is_some() {
            return Ok(());
        }
        let all = self.session()?.list("list key pairs", Compute, "/os-keypairs", "keypairs", None).await?;
        let names = all.iter().filter_map(|pair| pair.pointer("/keypair/name")?.as_str()).map(str::to_owned);
        Err(OpenstackError::Missing { what: "key pair", name: name.to_owned(), names: names.collect() })
    }

    /// Whether the quota has room for one more server, which gets files of at most this many bytes.
    pub(super) async fn check_compute_quota(
        &self,
        member: &str,
        flavor: &Flavor,
        file: Option<u64>,
    ) -> Result<(), OpenstackError> {
        let limits = self.session()?.get("ask for the quota", Compute, "/limits", None).await?.unwrap_or_default();
        let number = |field: &str| limits.pointer("/limits/absolute").and_then(|all| all.get(field)?.as_i64());
        let needs: [(&'static str, &str, &str, u64, &str); 5] = [
            ("instances", "maxTotalInstances", "totalInstancesUsed", 1, ""),
            ("cores", "maxTotalCores", "totalCoresUsed", flavor.cores, ""),
            ("memory", "maxTotalRAMSize", "totalRAMUsed", flavor.memory, " MiB"),
            ("injected files", "maxPersonality", "", file.map_or(0, |_| FILES), ""),
            ("bytes of an injected file", "maxPersonalitySize", "", file.unwrap_or_default(), ""),
        ];
        for (what, most, used, needed, unit) in needs {
            let used = if used.is_empty() { Some(0) } else { number(used) };
            let Some((most, used)) = number(most).zip(used) else { continue };
            check_room(what, (most, used), needed, unit, member)?;
        }
        let Some(policy) = self.settings.spread.policy() else { return Ok(()) };
        let group = self.groups().await?.into_iter().find(|group| text(group, "policy").as_deref() == Some(policy));
        let (what, most, used) = match group {
            None => ("server groups", number("maxServerGroups"), number("totalServerGroupsUsed")),
            Some(group) => {
                let members = group.get("members").and_then(Value::as_array).map(Vec::len);
                let members = members.and_then(|count| i64::try_from(count).ok());
                ("members of a server group", number("maxServerGroupMembers"), members)
            }
        };
        let Some(numbers) = most.zip(used) else { return Ok(()) };
        check_room(what, numbers, 1, "", member)
    }

    /// The name of the cluster's server group. A group has no metadata, so its name has the cluster's ID.
    fn group_name(&self) -> String {
        format!("quorate-{}", self.cluster_id)
    }

    async fn groups(&self) -> Result<Vec<Value>, OpenstackError> {
        let all =
            self.session()?.list("list server groups", Compute, "/os-server-groups", "server_groups", Some(VERSION));
        let name = self.group_name();
        Ok(all.await?.into_iter().filter(|group| group.get("name").and_then(Value::as_str) == Some(&name)).collect())
    }

    /// The server group of the cluster, by id. It is made with the first machine.
    pub(super) async fn group(&self) -> Result<Option<String>, OpenstackError> {
        let Some(policy) = self.settings.spread.policy() else { return Ok(None) };
        // Machines that are made together share it.
        let mut known = self.group.lock().await;
        if let Some(known) = known.as_ref() {
            return Ok(Some(known.clone()));
        }
        let id = |group: &Value| group.get("id").and_then(Value::as_str).map(str::to_owned);
        let fits = |group: &&Value| group.get("policy").and_then(Value::as_str) == Some(policy);
        let find = async || Ok(self.groups().await?.iter().find(fits).cloned());
        let found: Option<Value> = find().await?;
        let group = match found {
            Some(group) => group,
            None => {
                let body = json!({ "server_group": { "name": self.group_name(), "policy": policy } });
                let call = Call::new("create the server group", Compute, Method::POST, "/os-server-groups");
                let made = self.session()?.create(call.json(body).at(VERSION), find).await?;
                made.get("server_group").cloned().unwrap_or(made)
            }
        };
        *known = id(&group);
        Ok(known.clone())
    }

    /// Deletes the server groups of the cluster.
    pub(super) async fn delete_groups(&self) -> Result<(), OpenstackError> {
        let mut known = self.group.lock().await;
        for group in self.groups().await? {
            let id = group.get("id").and_then(Value::as_str).unwrap_or_default();
            let path = format!("/os-server-groups/{id}");
            self.session()?.delete("delete the server group", Compute, &path).await?;
        }
        *known = None;
        Ok(())
    }

    /// The server that a lost answer was about.
    pub(super) async fn find_draft(&self, machine: &MachineId, fence: u64) -> Result<Option<Value>, OpenstackError> {
        let ours = self.ours().await?;
        let found = ours.into_iter().find(|(_, mark)| mark.is_of(machine) && mark.fence == fence);
        Ok(found.map(|(server, _)| json!({ "server": { "id": server.id } })))
    }
}

impl Session {
    /// Servers that were deleted, and that the cloud keeps until nobody can want them back. No list shows them unless it is of this state and
    /// also of changes since a time. `path`: of a list, up to its next parameter.
    pub(super) async fn soft_deleted(&self, path: &str) -> Result<Vec<(Server, Mark)>, OpenstackError> {
        let path = format!("{path}status={SOFT_DELETED}&changes-since=1970-01-01T00:00:00Z");
        let all = self.list("list deleted servers", Compute, &path, "servers", Some(VERSION)).await?;
        Ok(all.iter().filter_map(marked).filter(|(server, _)| server.is_soft_deleted()).collect())
    }
}

/// What a flavor has.
#[derive(Clone, Debug)]
pub(super) struct Flavor {
    pub(super) id: String,
    pub(super) name: String,
    cores: u64,
    /// In MiB.
    memory: u64,
}

/// A conflict because somebody locked the server says how that ends.
fn unless_locked(server: &Server, error: OpenstackError) -> OpenstackError {
    if error.is_locked() { OpenstackError::Locked { name: server.name.clone(), id: server.id.clone() } } else { error }
}

pub(super) fn gone(server: &Server) -> OpenstackError {
    let doing = format!("read {}", server.name);
    OpenstackError::Refused { doing, code: 404, said: String::from("not found") }
}
