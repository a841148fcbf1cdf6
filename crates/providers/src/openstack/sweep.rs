//! Deletes a server with everything that was created for it, and leftovers of interrupted runs. A port is deleted only if no server has it,
//! whatever lists of servers show: without its port a member is cut off, and Neutron allows deleting the port of a running server.

use std::collections::BTreeSet;

use quorate_core::model::MachineId;
use reqwest::Method;
use serde_json::json;

use super::Openstack;
use super::catalogue::Service::Compute;
use super::compute::VERSION;
use super::error::OpenstackError;
use super::network::OwnPort;
use super::server::{Server, marked, tag};
use super::session::Call;
use crate::marks::{Mark, State, key};
use crate::web::escaped;
use crate::{Data, ProviderError};

/// The result of a sweep.
pub(super) struct Swept {
    /// Ports that stay. None: nothing that needs a group is left.
    pub(super) ports: Option<Vec<OwnPort>>,
    /// What OpenStack does not delete, and why.
    stuck: Vec<String>,
}

impl Swept {
    pub(super) fn completed(self) -> Result<(), OpenstackError> {
        if self.stuck.is_empty() { Ok(()) } else { Err(OpenstackError::Stuck { what: self.stuck }) }
    }
}

impl Openstack {
    /// Deletes a server with everything that was created for it.
    pub(super) async fn clear(&self, server: &Server, mark: &Mark, data: Data) -> Result<(), OpenstackError> {
        let doomed = mark.data.clone().filter(|_| data == Data::Goes);
        if mark.state == State::Whole {
            // From now on it no longer counts as a machine, wherever this may be interrupted.
            let going = json!({
                key("state"): State::Going.name(),
                key("data"): doomed.as_deref().unwrap_or_default(),
            });
            match self.set_metadata(server, &going).await {
                // Its data is not given up before that is marked, and a gateway may say of anything that it is absent.
                Err(error) if error.is_absent() && self.look_at(server).await?.is_none() => {}
                // Nova changes nothing of a server that is broken, shelved, rescued, resized or deleted. It is deleted as it is; if this is
                // interrupted before, it still counts as a machine and is deleted again.
                Err(error) if error.is_conflict() => {}
                changed => changed?,
            }
        }
        // Once the server is gone, only their own marks say that its volumes go too.
        self.doom_volumes(mark, doomed.as_deref()).await?;
        self.delete_server(server).await?;
        let ports = self.ports().await?.into_iter().filter(|port| port.is_of(mark)).map(|port| port.id);
        let mut ports: BTreeSet<String> = ports.collect();
        ports.extend(mark.port.clone());
        for port in ports {
            self.delete_port(&port).await?;
        }
        Ok(())
    }

    /// Deletes what is half deleted, and drafts, ports and volumes that are `doomed`: made under such a fencing number, for such a machine.
    /// What OpenStack does not finish deleting stays, with what belongs to it, and stops nothing else.
    pub(super) async fn sweep(&self, doomed: impl Fn(u64, Option<&MachineId>) -> bool) -> Result<Swept, ProviderError> {
        let (mut kept, mut stuck, mut servers) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut ours = self.ours().await?;
        let mut ports = self.ports().await?;
        let suspects: Vec<&OwnPort> = ports.iter().filter(|port| doomed(port.fence, port.machine.as_ref())).collect();
        let unlisted = self.unlisted(&ours, &suspects).await?;
        ours.extend(unlisted);
        let is_left =
            |mark: &Mark| mark.state == State::Going || mark.state == State::Draft && doomed(mark.fence, None);
        let cleared = ours.iter().any(|(_, mark)| is_left(mark));
        for (server, mark) in ours {
            // Data that is to stay is not in such a mark.
            if is_left(&mark) {
                match stuck_by(self.clear(&server, &mark, Data::Goes).await)? {
                    Some(why) => stuck.push(why),
                    None => continue,
                }
            }
            servers.insert(server.id);
            kept.push(mark);
        }
        if cleared {
            ports = self.ports().await?;
        }
        let is_used = |port: &&OwnPort| {
            port.device.as_ref().is_some_and(|id| servers.contains(id)) || kept.iter().any(|mark| port.is_of(mark))
        };
        let (used, unused): (Vec<&OwnPort>, Vec<&OwnPort>) = ports.iter().partition(is_used);
        let (gone, left): (Vec<_>, Vec<_>) =
            unused.into_iter().partition(|port| doomed(port.fence, port.machine.as_ref()));
        for port in gone {
            self.delete_port(&port.id).await?;
        }
        self.keep_floating(&kept, |fence| doomed(fence, None)).await?;
        stuck.extend(self.sweep_volumes(&kept, doomed).await?);
        if !kept.is_empty() || !used.is_empty() || !left.is_empty() {
            return Ok(Swept { ports: Some(used.into_iter().chain(left).cloned().collect()), stuck });
        }
        if self.settings.spread.policy().is_some() {
            self.delete_groups().await?;
        }
        // Those that the operator's machines have stay until the cluster is forgotten.
        self.drop_groups(&[]).await?;
        Ok(Swept { ports: None, stuck })
    }

    /// Servers that have one of these ports and are missing from `ours`, the list by tag: somebody took their tag off, or they were not
    /// there yet. Machines get their tag back.
    pub(super) async fn unlisted(
        &self,
        ours: &[(Server, Mark)],
        ports: &[&OwnPort],
    ) -> Result<Vec<(Server, Mark)>, OpenstackError> {
        let mut found: Vec<(Server, Mark)> = Vec::new();
        for port in ports {
            let is_known = |id: &String| ours.iter().chain(&found).any(|(server, _)| server.id == *id);
            let Some(id) = port.device.as_ref().filter(|id| !is_known(id)) else { continue };
            let Some((server, mark)) = self.server_of(port, id).await? else { continue };
            if mark.state == State::Whole {
                self.put_tag(&server).await?;
            }
            found.push((server, mark));
        }
        Ok(found)
    }

    /// The server that has a port of this cluster. One that is not a machine of the cluster is an error.
    async fn server_of(&self, port: &OwnPort, id: &str) -> Result<Option<(Server, Mark)>, OpenstackError> {
        let found = self.find_server("look for the server of a port", id).await?;
        let (port_name, server) = (port.name.clone(), id.to_owned());
        match found {
            None if port.is_up => Err(OpenstackError::UnknownServer { port: port_name, server }),
            None => Ok(None),
            Some(found) => {
                let is_ours = |(_, mark): &(Server, Mark)| {
                    mark.cluster == self.spec.name.as_str() && mark.cluster_id == self.cluster_id
                };
                let found = marked(&found).filter(is_ours);
                found.map(Some).ok_or(OpenstackError::Unmarked { port: port_name, server })
            }
        }
    }

    async fn put_tag(&self, server: &Server) -> Result<(), OpenstackError> {
        let path = format!("{}/tags/{}", server.path(), escaped(&tag(self.spec.name.as_str())));
        let call = Call::new(format!("tag {}", server.name), Compute, Method::PUT, path);
        self.session()?.change(call.at(VERSION)).await.map(drop)
    }
}

/// Why something is not deleted, if that is no reason to stop.
pub(super) fn stuck_by(outcome: Result<(), OpenstackError>) -> Result<Option<String>, OpenstackError> {
    match outcome {
        Ok(()) => Ok(None),
        Err(error @ (OpenstackError::TooSlow { .. } | OpenstackError::Locked { .. })) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
