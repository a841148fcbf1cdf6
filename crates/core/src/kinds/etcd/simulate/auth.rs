//! Users and roles of the simulated world.

use std::collections::BTreeSet;

use crate::kinds::etcd::AuthWish;
use crate::kinds::etcd::{AuthOp, AuthSeen};

pub(crate) fn change(auth: &mut AuthSeen, op: &AuthOp) {
    match op.clone() {
        AuthOp::AddUser { user } => {
            auth.users.entry(user).or_default();
        }
        AuthOp::SetPassword { .. } => {}
        AuthOp::GrantRole { user, role } => {
            auth.users.entry(user).or_default().insert(role);
        }
        AuthOp::RevokeRole { user, role } => {
            auth.users.entry(user).or_default().remove(&role);
        }
        AuthOp::DeleteUser { user } => {
            auth.users.remove(&user);
        }
        AuthOp::AddRole { role } => {
            auth.roles.entry(role).or_default();
        }
        AuthOp::GrantPermission { role, permission } => {
            let permissions = auth.roles.entry(role).or_default();
            permissions.retain(|p| p.place() != permission.place());
            permissions.insert(permission);
        }
        AuthOp::RevokePermission { role, permission } => {
            auth.roles.entry(role).or_default().retain(|p| p.place() != permission.place());
        }
        AuthOp::DeleteRole { role } => {
            auth.roles.remove(&role);
            for roles in auth.users.values_mut() {
                roles.remove(&role);
            }
        }
        AuthOp::Enable => auth.enabled = true,
    }
}

pub(crate) fn as_wished(wish: &AuthWish) -> AuthSeen {
    let root = || String::from("root");
    let mut auth = AuthSeen { enabled: true, ..AuthSeen::default() };
    auth.users.insert(root(), BTreeSet::from([root()]));
    auth.roles.insert(root(), BTreeSet::new());
    auth.users.extend(wish.users.iter().map(|(name, user)| (name.clone(), user.roles.clone())));
    auth.roles.extend(wish.roles.clone());
    auth
}
