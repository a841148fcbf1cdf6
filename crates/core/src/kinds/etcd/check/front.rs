//! Checks of `etcd.front`: its port, where it runs, and whether the cluster provides what it needs.

use super::TAKEN;
use crate::kinds::etcd::front::Front;
use crate::model::AGENT_PORT;
use crate::spec::check::{Cluster, Findings};
use crate::spec::{MemberSpec, Millis};

const FEWEST_CONNECTIONS: u32 = 8;
const MOST_CONNECTIONS: u32 = 100_000;
const LONGEST_DRAIN: Millis = Millis(300_000);
const OF_MACHINES: [u16; 3] = [22, AGENT_PORT, 9100];

pub(super) fn check(cluster: &Cluster, front: &Front, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("etcd.front.{field}"));
    port(cluster, front, found);
    if !(FEWEST_CONNECTIONS..=MOST_CONNECTIONS).contains(&front.max_connections) {
        let message = format!("`max_connections` is {}", front.max_connections);
        let hint = format!("set a number from {FEWEST_CONNECTIONS} to {MOST_CONNECTIONS}");
        found.error(at("max_connections"), message, hint);
    }
    if front.max_per_address == Some(0) {
        found.error(at("max_per_address"), "the front would accept no connections", "set at least 1, or leave it out");
    }
    if front.drain_time.0 > LONGEST_DRAIN.0 {
        let message = format!("`drain_time` is {}, and a restart of the front waits for as long", front.drain_time);
        found.error(at("drain_time"), message, format!("set at most {LONGEST_DRAIN}"));
    }
    needs(cluster, found);
    if let Some(machines) = &front.machines {
        on_machines(cluster, front, machines, found);
    }
    let Some(members) = &front.members else { return };
    if members.is_empty() {
        found.error(at("members"), "the front would run on no member", "name one, or leave out `front`");
    }
    found.repeated(members.iter(), |index| at(&format!("members[{index}]")), |name| format!("the member `{name}`"));
    for (index, name) in members.iter().enumerate() {
        if !cluster.spec.members.iter().any(|member| member.name == *name) {
            let message = format!("the cluster has no member `{name}`");
            found.error(at(&format!("members[{index}]")), message, "name members of this cluster");
        }
    }
}

fn port(cluster: &Cluster, front: &Front, found: &mut Findings) {
    let port = front.port();
    let on_members = front.machines.is_none();
    let is_metrics = on_members && cluster.spec.etcd.metrics.as_ref().is_some_and(|metrics| metrics.port == port);
    let taken: &[u16] = if on_members { &TAKEN } else { &OF_MACHINES };
    let place = cluster.at("etcd.front.port");
    if taken.contains(&port) || is_metrics {
        let machine = if on_members { "member" } else { "machine" };
        found.error(place, format!("port {port} is taken on every {machine}"), "choose another port");
    } else if port < 1024 {
        let message = format!("port {port} is reserved for root, and the front does not run as root");
        found.error(place, message, "choose a port above 1023");
    }
}

/// The front's certificate names no user. Without authentication it would give full access, and if quorate does not sign certificates there
/// is none.
fn needs(cluster: &Cluster, found: &mut Findings) {
    let at = || cluster.at("etcd.front");
    if !cluster.spec.auth.bootstrap {
        let message = "with `auth.bootstrap: false` every certificate of the cluster's CA gives access to all data, including \
             that of a front";
        found.error(
            at(),
            message,
            "leave out `auth.bootstrap`; or leave out `front`, and run `quorate front` next to the ledger",
        );
    }
    if cluster.spec.tls.given.is_some() {
        let message = "certificates are user-provided (`tls.given`), so quorate cannot sign one for a front";
        found.error(at(), message, "leave out `front`; `quorate front` passes gRPC through without a certificate");
    }
}

/// Separate machines. Their names and addresses are checked together with those of members.
fn on_machines(cluster: &Cluster, front: &Front, machines: &[MemberSpec], found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("etcd.front.{field}"));
    if machines.is_empty() {
        found.error(at("machines"), "the front would run on no machine", "name one, or leave out `front`");
    }
    if front.members.is_some() {
        let message = "the front runs either on members or on separate machines, not on both";
        found.error(at("machines"), message, "leave out `members` or `machines`");
    }
    for (index, machine) in machines.iter().enumerate() {
        let within = |field: &str| at(&format!("machines[{index}].{field}"));
        if machine.tags.is_some() {
            found.error(within("tags"), "tags are for members of PostgreSQL clusters", "leave them out");
        }
        for field in machine.data_settings() {
            found.error(within(field), "a machine that only runs a front has no data", "leave it out");
        }
    }
}
