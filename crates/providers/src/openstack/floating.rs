//! Floating IPs: those that quorate creates belong to a member, not to a server, so a replaced member keeps its own. Their description is
//! their mark. Existing ones of the operator are only assigned to the member's port.

use std::net::IpAddr;

use quorate_core::providers::openstack::{Floating, section};
use quorate_core::spec::MemberSpec;
use reqwest::Method;
use serde_json::{Value, json};

use super::catalogue::Service::Network;
use super::error::OpenstackError;
use super::network::Port;
use super::session::Call;
use super::{Openstack, one_of, text};
use crate::NewMachine;
use crate::marks::{Mark, State};
use crate::web::escaped;

const DRAFT: &str = "draft";

/// A floating IP of this cluster.
#[derive(Clone, Debug)]
struct Own {
    id: String,
    address: String,
    /// The external network, by id.
    network: String,
    member: String,
    /// The fencing number under which it was made, until its member has a server.
    draft: Option<u64>,
    /// Where it leads to.
    port: Option<String>,
    made: String,
}

/// What it leads to.
struct End<'a> {
    port: &'a str,
    address: IpAddr,
}

impl Openstack {
    fn floating_mark(&self, member: &str, draft: Option<u64>) -> String {
        let draft = draft.map(|fence| format!(" {DRAFT} {fence}")).unwrap_or_default();
        format!("{} floating {member}{draft}", self.port_mark())
    }

    fn read_own(&self, value: &Value) -> Option<Own> {
        let description = text(value, "description")?;
        let mut words = description.strip_prefix(&self.port_mark())?.split_whitespace();
        let (kind, member) = (words.next()?, words.next()?.to_owned());
        let draft = match (words.next(), words.next()) {
            (None, _) => None,
            (Some(DRAFT), Some(fence)) => Some(fence.parse().ok()?),
            _ => return None,
        };
        (kind == "floating").then_some(())?;
        Some(Own {
            id: text(value, "id")?,
            address: text(value, "floating_ip_address").unwrap_or_default(),
            network: text(value, "floating_network_id").unwrap_or_default(),
            member,
            draft,
            port: text(value, "port_id"),
            made: text(value, "created_at").unwrap_or_default(),
        })
    }

    /// Those that were made for this cluster, in one list. Of several for one member, the one that is in use comes first.
    async fn own_floating(&self) -> Result<Vec<Own>, OpenstackError> {
        let session = self.session()?;
        let project = session.project().await?;
        let path = format!("/floatingips?project_id={}", escaped(&project));
        let all = match session.list("list floating IPs", Network, &path, "floatingips", None).await {
            // A network service without routers does not know them.
            Err(error) if error.is_absent() => Vec::new(),
            all => all?,
        };
        let is_ours = |value: &&Value| text(value, "project_id").is_none_or(|of| of == project);
        let mut own: Vec<Own> = all.iter().filter(is_ours).filter_map(|value| self.read_own(value)).collect();
        own.sort_by(|a, b| {
            let order =
                |own: &Own| (own.member.clone(), own.port.is_none(), own.draft, own.made.clone(), own.id.clone());
            order(a).cmp(&order(b))
        });
        Ok(own)
    }

    /// The id of an external network.
    async fn external(&self, name: &str) -> Result<String, OpenstackError> {
        let mut known = self.externals.lock().await;
        if let Some(id) = known.get(name) {
            return Ok(id.clone());
        }
        let path = "/networks?router:external=true&fields=id&fields=name";
        let all = self.session()?.list("list external networks", Network, path, "networks", None).await?;
        let id = text(one_of("external network", name, &all)?, "id").unwrap_or_default();
        known.insert(name.to_owned(), id.clone());
        Ok(id)
    }

    async fn make_floating(&self, network: &str, member: &str, draft: Option<u64>) -> Result<Own, OpenstackError> {
        let mark = self.floating_mark(member, draft);
        let floating = json!({ "floating_network_id": network, "description": mark });
        let find = async || {
            let path = format!("/floatingips?description={}", escaped(&mark));
            let all = self.session()?.list("list floating IPs", Network, &path, "floatingips", None).await?;
            Ok(all.into_iter().next().map(|found| json!({ "floatingip": found })))
        };
        let call = Call::new(format!("create a floating IP for {member}"), Network, Method::POST, "/floatingips");
        let made = self.session()?.create(call.json(json!({ "floatingip": floating })), find).await?;
        let doing = String::from("create a floating IP");
        let unreadable = || OpenstackError::Unreadable { doing, why: String::from("it has no id") };
        made.get("floatingip").and_then(|made| self.read_own(made)).ok_or_else(unreadable)
    }

    async fn change_floating(&self, id: &str, doing: String, change: Value) -> Result<(), OpenstackError> {
        let call = Call::new(doing, Network, Method::PUT, format!("/floatingips/{id}"));
        self.session()?.change(call.json(json!({ "floatingip": change }))).await.map(drop)
    }

    async fn lead(&self, id: &str, end: End<'_>) -> Result<(), OpenstackError> {
        let doing = format!("assign the floating IP {id} to {}", end.address);
        self.change_floating(id, doing, json!({ "port_id": end.port, "fixed_ip_address": end.address })).await
    }

    async fn delete_floating(&self, own: &Own) -> Result<(), OpenstackError> {
        let doing = format!("delete the floating IP {}", own.address);
        self.session()?.delete(&doing, Network, &format!("/floatingips/{}", own.id)).await
    }

    /// Before a server is created: creates the floating IP of its member if it is missing, and assigns it to the port, unless it is
    /// assigned to the member's last server, which still runs.
    pub(super) async fn put_floating(
        &self,
        new: &NewMachine<'_>,
        member: &MemberSpec,
        port: &Port,
    ) -> Result<(), OpenstackError> {
        let end = End { port: &port.id, address: port.interface.address };
        match self.settings.floating_of(member) {
            None => Ok(()),
            Some(Floating::Given(id)) => match self.given_floating(id).await? {
                None => self.lead(id, end).await,
                Some(there) if there == port.id || self.ports().await?.iter().any(|own| own.id == there) => Ok(()),
                Some(by) => Err(OpenstackError::FloatingInUse { id: id.to_owned(), by }),
            },
            Some(Floating::Of(network)) => {
                let (network, seat) = (self.external(network).await?, new.id.member.seat());
                let fits = |own: &Own| own.member == seat && own.network == network;
                let own = match self.own_floating().await?.into_iter().find(fits) {
                    Some(own) => own,
                    None => self.make_floating(&network, seat, Some(new.fence)).await?,
                };
                if own.port.is_none() { self.lead(&own.id, end).await } else { Ok(()) }
            }
        }
    }

    /// How many floating IPs must be made for a member.
    pub(super) async fn missing_floating(
        &self,
        new: &NewMachine<'_>,
        member: &MemberSpec,
    ) -> Result<usize, OpenstackError> {
        match self.settings.floating_of(member) {
            Some(Floating::Of(_)) => {
                let is_there = self.own_floating().await?.iter().any(|own| own.member == new.id.member.seat());
                Ok(usize::from(!is_there))
            }
            Some(Floating::Given(_)) | None => Ok(0),
        }
    }

    /// The target of the operator's floating IP.
    async fn given_floating(&self, id: &str) -> Result<Option<String>, OpenstackError> {
        let path = format!("/floatingips/{id}");
        let found = self.session()?.get("read the floating IP", Network, &path, None).await?;
        let found = found.as_ref().and_then(|found| found.get("floatingip"));
        let missing = || OpenstackError::Missing { what: "floating IP", name: id.to_owned(), names: Vec::new() };
        Ok(text(found.ok_or_else(missing)?, "port_id").filter(|port| !port.is_empty()))
    }

    /// Deletes floating IPs that no member wants, and drafts that are `doomed`; leads the others to their members' servers, of which there
    /// are these.
    pub(super) async fn keep_floating(
        &self,
        servers: &[Mark],
        doomed: impl Fn(u64) -> bool,
    ) -> Result<(), OpenstackError> {
        let mut kept: Vec<Own> = Vec::new();
        for own in self.own_floating().await? {
            let serves = servers.iter().any(|mark| mark.member.seat() == own.member);
            let is_wanted = match self.spec.machine(&own.member) {
                Some(member) => self.wants(&member, &own).await?,
                // Its server is about to be removed.
                None => serves,
            };
            let is_double = kept.iter().any(|other| other.member == own.member);
            let is_left = !serves && own.draft.is_some_and(&doomed);
            if !is_wanted || is_double || is_left {
                self.delete_floating(&own).await?;
            } else {
                kept.push(own);
            }
        }
        for member in self.spec.machines() {
            let seat = member.name.as_str();
            let whole = |mark: &&Mark| mark.state == State::Whole && mark.member.seat() == seat;
            let mut of_member: Vec<&Mark> = servers.iter().filter(whole).collect();
            of_member.sort_by_key(|mark| mark.incarnation);
            if !of_member.is_empty() {
                self.keep_floating_of(&member, &of_member, kept.iter().find(|own| own.member == seat)).await?;
            }
        }
        Ok(())
    }

    async fn wants(&self, member: &MemberSpec, own: &Own) -> Result<bool, OpenstackError> {
        match self.settings.floating_of(member) {
            Some(Floating::Of(network)) => Ok(self.external(network).await? == own.network),
            Some(Floating::Given(_)) | None => Ok(false),
        }
    }

    /// `servers`: the newest last.
    async fn keep_floating_of(
        &self,
        member: &MemberSpec,
        servers: &[&Mark],
        own: Option<&Own>,
    ) -> Result<(), OpenstackError> {
        let given = section(member).port.as_deref();
        let port = |mark: &'_ Mark| mark.port.clone().or_else(|| given.map(str::to_owned));
        let leads_here = |to: &str| servers.iter().any(|mark| port(mark).as_deref() == Some(to));
        let Some((newest, end)) = servers.last().and_then(|mark| Some((mark, port(mark)?))) else { return Ok(()) };
        let end = End { port: &end, address: newest.address };
        match self.settings.floating_of(member) {
            None => Ok(()),
            Some(Floating::Given(id)) => match self.given_floating(id).await? {
                None => self.lead(id, end).await,
                Some(there) if leads_here(&there) => Ok(()),
                // The spec gave it to another member before.
                Some(there) if self.ports().await?.iter().any(|own| own.id == there) => self.lead(id, end).await,
                // Its owner assigned it elsewhere.
                Some(_) => Ok(()),
            },
            Some(Floating::Of(network)) => {
                let own = match own {
                    Some(own) => own.clone(),
                    None => {
                        let network = self.external(network).await?;
                        self.make_floating(&network, member.name.as_str(), None).await?
                    }
                };
                if own.draft.is_some() {
                    let mark = self.floating_mark(&own.member, None);
                    let doing = format!("mark the floating IP {}", own.address);
                    self.change_floating(&own.id, doing, json!({ "description": mark })).await?;
                }
                if own.port.as_deref().is_some_and(leads_here) { Ok(()) } else { self.lead(&own.id, end).await }
            }
        }
    }

    /// The cluster has no machine any more.
    pub(super) async fn delete_all_floating(&self) -> Result<(), OpenstackError> {
        for own in self.own_floating().await? {
            self.delete_floating(&own).await?;
        }
        Ok(())
    }
}
