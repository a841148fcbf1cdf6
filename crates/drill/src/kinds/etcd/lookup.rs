//! Where clients can connect now. The ledger knows it, on whatever machines the members run.

use std::net::IpAddr;

use quorate_core::model::{CLIENT_PORT, https_url};

use super::workload::Endpoints;
use crate::Site;

/// At the end every member is asked what it has, whatever the clients connected to before.
pub(super) fn endpoints(site: &Site, through: &[String]) -> Endpoints {
    let (all, wished, through) = (site.clone(), site.clone(), through.to_owned());
    Endpoints {
        all: Box::new(move || if through.is_empty() { every(&all) } else { through.clone() }),
        wished: Box::new(move || of_spec(&wished).into_iter().map(|(_, url)| url).collect()),
    }
}

/// Of all members, including learners and former machines.
fn every(site: &Site) -> Vec<String> {
    addresses(site).into_iter().map(|(_, address)| https_url(address, CLIENT_PORT)).collect()
}

/// The names and URLs of the members that the spec has.
pub(super) fn of_spec(site: &Site) -> Vec<(String, String)> {
    let Ok(ledger) = site.ledger() else { return Vec::new() };
    let is_wished = |name: &str| ledger.spec.members.iter().any(|member| member.name.as_str() == name);
    let wished = addresses(site).into_iter().filter(|(name, _)| is_wished(name));
    wished.map(|(name, address)| (name, https_url(address, CLIENT_PORT))).collect()
}

fn addresses(site: &Site) -> Vec<(String, IpAddr)> {
    let Ok(ledger) = site.ledger() else { return Vec::new() };
    let members = ledger.etcd.formation.members().into_iter().flatten();
    members.filter_map(|(name, member)| Some((name.to_string(), member.address()?))).collect()
}
