//! Authentication: creates root, turns authentication on, and keeps roles and users equal to the spec.
//!
//! Removes only what the ledger says quorate created; users and roles of other tools are left alone.

use std::collections::BTreeSet;

use crate::kinds::etcd::safety;
use crate::kinds::etcd::{AuthLook, AuthWish, EtcdStatus, Formation};
use crate::kinds::etcd::{AuthOp, AuthSeen, Permission};
use crate::model::MemberName;
use crate::planner::{Action, Decision, UnsafeBecause, View, WaitingFor};

const ROOT: &str = "root";

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let (Some(wish), Formation::Formed { .. }) = (&desired.etcd.auth, &desired.etcd.formation) else { return };
    let Some((through, look)) = spokesman(view, decision) else { return };
    if decision.steps.iter().any(|s| s.action.member() == Some(through)) {
        return;
    }
    match look {
        AuthLook::NotAsked => decision.wait(WaitingFor::AuthSight),
        AuthLook::Failed { why } => {
            decision.block(UnsafeBecause::AuthUnseen { member: through.clone(), why: why.clone() })
        }
        AuthLook::Seen(found) => {
            if root_password_differs(wish) {
                decision.block(UnsafeBecause::RootPasswordDiffers);
            }
            for (op, why) in changes(wish, found) {
                decision.step(Action::Auth { member: through.clone(), op }, why);
            }
        }
    }
}

/// The healthy voter through which users and roles are read and changed: one that reported them, preferably the leader.
/// A member that is not known to belong to this cluster is never used.
fn spokesman<'a>(view: &View<'a>, decision: &Decision) -> Option<(&'a MemberName, &'a AuthLook)> {
    let View { desired, seen, .. } = *view;
    let trusted = desired.members.keys().filter(|member| !decision.bars_orders(member));
    let healthy = trusted.filter_map(|member| {
        let facts = seen.facts(member).filter(|f| safety::is_healthy_voter(f))?;
        Some((member, facts.etcd.status.as_ref()?))
    });
    let rank = |(_, s): &(&MemberName, &EtcdStatus)| (s.auth == AuthLook::NotAsked, s.leader != s.member_id);
    healthy.min_by_key(rank).map(|(member, status)| (member, &status.auth))
}

/// Every agent logs in with its current password, so a new one cannot simply be set.
fn root_password_differs(wish: &AuthWish) -> bool {
    let set = wish.owned.users.get(ROOT).and_then(|owned| owned.password.as_ref());
    matches!((set, &wish.root_password), (Some(set), Some(brought)) if set != brought)
}

/// The changes that make `found` equal to the spec, in an order that can be interrupted and continued anywhere.
fn changes(wish: &AuthWish, found: &AuthSeen) -> Vec<(AuthOp, String)> {
    let mut ops = Vec::new();
    root(found, &mut ops);
    roles(wish, found, &mut ops);
    users(wish, found, &mut ops);
    removals(wish, found, &mut ops);
    ops
}

fn root(found: &AuthSeen, ops: &mut Vec<(AuthOp, String)>) {
    let root = || ROOT.to_owned();
    if !found.users.contains_key(ROOT) {
        ops.push((AuthOp::AddUser { user: root() }, String::from("authentication needs a user root")));
    }
    if !found.roles.contains_key(ROOT) {
        ops.push((AuthOp::AddRole { role: root() }, String::from("the user root needs a role root")));
    }
    if !found.users.get(ROOT).is_some_and(|roles| roles.contains(ROOT)) {
        let op = AuthOp::GrantRole { user: root(), role: root() };
        ops.push((op, String::from("the user root must be allowed everything")));
    }
    if !found.enabled {
        ops.push((AuthOp::Enable, String::from("until then anyone who reaches the cluster may do everything")));
    }
}

fn roles(wish: &AuthWish, found: &AuthSeen, ops: &mut Vec<(AuthOp, String)>) {
    let none = BTreeSet::new();
    for (role, wanted) in &wish.roles {
        if !found.roles.contains_key(role) {
            ops.push((AuthOp::AddRole { role: role.clone() }, format!("the spec declares role {role}")));
        }
        let has = found.roles.get(role).unwrap_or(&none);
        for permission in has.difference(wanted).filter(|p| !same_place(wanted, p)) {
            let op = AuthOp::RevokePermission { role: role.clone(), permission: permission.clone() };
            ops.push((op, format!("the spec does not give that to role {role}")));
        }
        for permission in wanted.difference(has) {
            let op = AuthOp::GrantPermission { role: role.clone(), permission: permission.clone() };
            ops.push((op, format!("the spec gives that to role {role}")));
        }
    }
}

/// Whether a permission for the same keys is wanted: granting that one replaces this one.
fn same_place(wanted: &BTreeSet<Permission>, permission: &Permission) -> bool {
    wanted.iter().any(|w| w.place() == permission.place())
}

fn users(wish: &AuthWish, found: &AuthSeen, ops: &mut Vec<(AuthOp, String)>) {
    let none = BTreeSet::new();
    for (user, wanted) in &wish.users {
        let owned = wish.owned.users.get(user);
        if !found.users.contains_key(user) {
            ops.push((AuthOp::AddUser { user: user.clone() }, format!("the spec declares user {user}")));
        } else if owned.is_some_and(|o| o.password.is_none()) && wanted.password.is_some() {
            let why = format!("it is unknown whether user {user} has the declared password");
            ops.push((AuthOp::SetPassword { user: user.clone() }, why));
        } else if owned.is_some_and(|o| o.password != wanted.password) {
            ops.push((AuthOp::SetPassword { user: user.clone() }, format!("the password of user {user} has changed")));
        } else if owned.is_none() && wanted.password.is_some() {
            let why =
                format!("another tool created user {user}, so it is unknown whether it has the declared password");
            ops.push((AuthOp::SetPassword { user: user.clone() }, why));
        }
        let has = found.users.get(user).unwrap_or(&none);
        for role in wanted.roles.difference(has) {
            let op = AuthOp::GrantRole { user: user.clone(), role: role.clone() };
            ops.push((op, format!("the spec gives user {user} that role")));
        }
        for role in has.difference(&wanted.roles) {
            let op = AuthOp::RevokeRole { user: user.clone(), role: role.clone() };
            ops.push((op, format!("the spec does not give user {user} that role")));
        }
    }
}

fn removals(wish: &AuthWish, found: &AuthSeen, ops: &mut Vec<(AuthOp, String)>) {
    let made = wish.owned.users.iter().filter(|(_, owned)| !owned.adopted).map(|(user, _)| user);
    for user in made.filter(|u| *u != ROOT && !wish.users.contains_key(*u)) {
        if found.users.contains_key(user) {
            let why = format!("quorate created user {user}, and the spec no longer names it");
            ops.push((AuthOp::DeleteUser { user: user.clone() }, why));
        }
    }
    for role in wish.owned.roles.iter().filter(|r| *r != ROOT && !wish.roles.contains_key(*r)) {
        if found.roles.contains_key(role) {
            let why = format!("quorate created role {role}, and the spec no longer names it");
            ops.push((AuthOp::DeleteRole { role: role.clone() }, why));
        }
    }
}
