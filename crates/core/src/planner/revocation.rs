//! Revocation of the certificates of removed users and machines. It comes last, when nothing else is left to do, because it
//! cannot be undone: a serial number never leaves the list.
//!
//! `config` brings the new list to every machine. etcd reads it at each connection.

use super::{Action, Decision, View, safety};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    if !decision.steps.is_empty() {
        return;
    }
    // A name may be misspelt in the spec: a run that is refused, or waits for something, revokes no certificates.
    let is_calm = decision.waiting.is_empty() && decision.blocked.is_empty();
    for (user, number) in desired.revocable.users.iter().filter(|_| is_calm) {
        let why = format!(
            "user {user} is no longer declared: {} refused, also if the name is declared again; this cannot be undone",
            certificates(*number)
        );
        decision.step(Action::RevokeUser { user: user.clone() }, why);
    }
    for ((member, incarnation), number) in &desired.revocable.machines {
        if safety::is_gone(view, member, *incarnation) {
            let why =
                format!("the machine is no longer part of the cluster: {} refused from now on", certificates(*number));
            decision.step(Action::RevokeMachine { member: member.clone(), incarnation: *incarnation }, why);
        }
    }
}

fn certificates(number: usize) -> String {
    match number {
        1 => String::from("1 certificate is"),
        _ => format!("{number} certificates are"),
    }
}
