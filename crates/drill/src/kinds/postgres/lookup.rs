//! Where clients can connect now, and as which user: members and proxies change, and so do passwords.

use std::net::SocketAddr;

use quorate_agent::dial::Dial;
use quorate_control::kinds::postgres::clients::{self, Session, Way};
use quorate_core::kinds::postgres::{CLIENT_PORT, desire};
use quorate_core::model::Ledger;

use super::session::{self, Access, Certificate, Host};
use crate::machine::Machine;
use crate::{DrillError, Site};

pub(super) struct Lookup(pub(super) Site);

impl Lookup {
    /// The addresses of all machines, including those of members that join or leave.
    pub(super) fn hosts(&self) -> Vec<Host> {
        self.0.every_machine().iter().map(host).collect()
    }

    /// Of the members that are wished for.
    pub(super) fn wished(&self) -> Vec<Host> {
        self.0.wished_machines().unwrap_or_default().iter().map(host).collect()
    }

    /// The ports of HAProxy that lead to the primary, on members or on separate machines.
    pub(super) fn proxies(&self) -> Vec<SocketAddr> {
        let Ok(ledger) = self.0.ledger() else { return Vec::new() };
        let Some(haproxy) = ledger.spec.postgres.and_then(|postgres| postgres.haproxy) else { return Vec::new() };
        let on_members = self.0.machines().into_iter().filter(|machine| haproxy.runs_on(machine.member.as_str()));
        let proxies = on_members.chain(self.0.proxies());
        proxies.map(|machine| SocketAddr::new(machine.address, haproxy.primary_port)).collect()
    }

    /// The superuser's password as it is now.
    pub(super) fn password(&self) -> Option<String> {
        Some(self.0.ledger().ok()?.postgres.passwords?.superuser.expose().to_owned())
    }
}

/// What `quorate env` sets for libpq.
pub(super) async fn access(site: &Site, ledger: &Ledger) -> Result<Access, DrillError> {
    let variables = clients::environment(&site.home, ledger, None, Way::Members(Session::ReadWrite)).await?;
    let text = |name: &str| variables.get(name).cloned().unwrap_or_default();
    let file = |name: &str| crate::read(text(name).as_ref());
    let (chain, key) = (file("PGSSLCERT")?, file("PGSSLKEY")?);
    let tls = session::tls(&file("PGSSLROOTCERT")?, Some(Certificate { chain: &chain, key: &key }));
    let tls = tls.map_err(|why| DrillError::Certificates { why })?;
    let dial = variables.get("QUORATE_NETNS").map_or(Dial::Address, |namespace| Dial::Namespace(namespace.clone()));
    Ok(Access { user: text("PGUSER"), password: text("PGPASSWORD"), database: text("PGDATABASE"), tls, dial })
}

fn host(machine: &Machine) -> Host {
    Host {
        name: desire::patroni_name(machine.member.as_str(), machine.incarnation),
        address: SocketAddr::new(machine.address, CLIENT_PORT),
    }
}
