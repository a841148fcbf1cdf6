//! The required final state of an etcd cluster after a fault: one bootstrap, exactly the members of the spec, nothing left behind, the
//! same data everywhere, and a controller that finds nothing to do.

use std::collections::BTreeSet;

use quorate_core::kinds::etcd::Formation;
use quorate_etcd::{Client, Error};

use super::{lookup, workload::Access};
use crate::Site;
use crate::settle::{self, Check};

/// Looks once.
pub(super) async fn checks(site: &Site, access: &Access) -> Vec<Check> {
    let clients = clients(site, access);
    vec![
        Check::of("one bootstrap", one_formation(site, &clients).await),
        Check::of("members as in the spec", members(site, &clients).await),
        Check::of("no machine left over", settle::no_machine_left(site).await),
        Check::of("no alarm", alarms(&clients).await),
        Check::of("equal hashes", hashes(&clients).await),
        Check::of("nothing left to do", settle::nothing_to_do(site).await),
    ]
}

fn clients(site: &Site, access: &Access) -> Vec<(String, Client)> {
    let members = lookup::of_spec(site).into_iter();
    members.filter_map(|(name, url)| Some((name, access.client(&url).ok()?))).collect()
}

/// Every member answers as one of this bootstrap, and data on this host has its stamp.
async fn one_formation(site: &Site, clients: &[(String, Client)]) -> Result<String, String> {
    let ledger = site.ledger().map_err(|e| e.to_string())?;
    let Formation::Formed { token, etcd_cluster_id, .. } = &ledger.etcd.formation else {
        return Err(String::from("it is not bootstrapped"));
    };
    for (member, client) in clients {
        let found = client.status().await.map_err(|e| format!("{member}: {e}"))?.cluster_id;
        if found != *etcd_cluster_id {
            return Err(format!("{member} is of etcd's cluster {found:x}, not {etcd_cluster_id:x}"));
        }
    }
    settle::one_formation(site, &ledger.cluster_id, token)
}

/// etcd's own list is that of the spec, and all are voters.
async fn members(site: &Site, clients: &[(String, Client)]) -> Result<String, String> {
    let ledger = site.ledger().map_err(|e| e.to_string())?;
    let wanted: BTreeSet<String> = ledger.spec.members.iter().map(|m| m.name.to_string()).collect();
    let listed = first_answer(clients, async |client| client.members(true).await).await?;
    let learners: Vec<&str> = listed.iter().filter(|m| m.is_learner).map(|m| m.name.as_str()).collect();
    if !learners.is_empty() {
        return Err(format!("a learner is left: {}", learners.join(", ")));
    }
    let found: BTreeSet<String> = listed.iter().map(|m| m.name.clone()).collect();
    if found != wanted || listed.len() != wanted.len() {
        let (found, wanted) = (text(&found), text(&wanted));
        return Err(format!("etcd has {} members, {found}; the spec has {wanted}", listed.len()));
    }
    Ok(format!("{}, all voters", text(&found)))
}

fn text(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

async fn alarms(clients: &[(String, Client)]) -> Result<String, String> {
    let alarms = first_answer(clients, async |client| client.alarms().await).await?;
    match alarms.first() {
        None => Ok(String::from("none")),
        Some(alarm) => Err(format!("{:?} of member {:x}", alarm.kind, alarm.member_id)),
    }
}

async fn first_answer<T>(
    clients: &[(String, Client)],
    ask: impl AsyncFn(&Client) -> Result<T, Error>,
) -> Result<T, String> {
    let mut last = String::from("there is no member");
    for (member, client) in clients {
        match ask(client).await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = format!("{member}: {error}"),
        }
    }
    Err(last)
}

/// Hashes can be compared only at the same revision, and when all have compacted to the same.
async fn hashes(clients: &[(String, Client)]) -> Result<String, String> {
    let mut revisions = Vec::new();
    for (member, client) in clients {
        revisions.push(client.status().await.map_err(|e| format!("{member}: {e}"))?.revision);
    }
    let Some(revision) = revisions.into_iter().min() else { return Err(String::from("there is no member")) };
    let mut hashes = Vec::new();
    for (member, client) in clients {
        let hash = client.hash_kv(revision).await.map_err(|e| format!("{member}: {e}"))?;
        hashes.push((member.as_str(), hash));
    }
    let (_, first) = hashes[0];
    match hashes.iter().find(|(_, hash)| (hash.hash, hash.compact_revision) != (first.hash, first.compact_revision)) {
        None => Ok(format!("{:08x} at revision {revision} on all {}", first.hash, hashes.len())),
        Some((member, hash)) => Err(format!(
            "{member} has {:08x} at revision {revision} (compacted at {}), {} has {:08x} (compacted at {})",
            hash.hash, hash.compact_revision, hashes[0].0, first.hash, first.compact_revision
        )),
    }
}
