//! Translates etcd's steps into orders for agents.

use quorate_agent::api::{Bootstrap, EtcdOrder, Order};
use quorate_core::kinds::etcd::{Formation, Membership};
use quorate_core::model::{CLIENT_PORT, DataSeen, Ledger, MemberName, Stamp, https_url};
use quorate_core::planner::Precondition;

pub(crate) fn start(ledger: &Ledger, member: &MemberName, expects: &Precondition, bootstrap: Option<&Stamp>) -> Order {
    let expects = match expects {
        Precondition::Data(data) => data.clone(),
        Precondition::Nothing | Precondition::Membership(_) | Precondition::Replica => DataSeen::Empty,
    };
    let members = ledger.etcd.formation.members().cloned();
    let others = members.iter().flatten().filter(|(other, _)| *other != member);
    let peers = others.filter_map(|(_, known)| Some(https_url(known.address()?, CLIENT_PORT))).collect();
    let initial_cluster = members.into_iter().flatten().map(|(name, m)| (name, m.peer_url)).collect();
    let bootstrap = bootstrap.map(|stamp| Bootstrap { stamp: stamp.clone(), initial_cluster, existing: false });
    Order::Etcd(EtcdOrder::Start { expects, bootstrap, peers })
}

/// If a restore has begun, members on other data are stopped at once: clients wait, and a graceful stop gains nothing.
pub(crate) fn stop(formation: &Formation) -> Order {
    match formation {
        Formation::Restoring { .. } => Order::Etcd(EtcdOrder::Halt),
        _ => Order::Etcd(EtcdOrder::Stop),
    }
}

pub(crate) fn membership(expects: &Precondition) -> Membership {
    match expects {
        Precondition::Membership(membership) => membership.clone(),
        Precondition::Nothing | Precondition::Data(_) | Precondition::Replica => Membership::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_what_gives_its_data_up_is_stopped_in_a_hurry() {
        let restoring = Formation::Restoring {
            was: None,
            token: String::from("t"),
            members: BTreeMap::new(),
            sha256: String::from("abc"),
            bump_revision: 1,
        };
        assert_eq!(stop(&restoring), Order::Etcd(EtcdOrder::Halt));
        assert_eq!(stop(&Formation::Unformed), Order::Etcd(EtcdOrder::Stop));
    }
}
