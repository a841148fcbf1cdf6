//! etcd's users and roles: reads all of them, and makes single changes, each of which can be repeated safely.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_core::Secret;
use quorate_core::kinds;
use quorate_core::kinds::etcd::{AuthOp, AuthSeen};
use quorate_etcd::{Client, Error, KeyRange, Permission, PermissionKind, Thing};
use tokio::task::JoinSet;

/// For the whole look.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// How many questions are under way at once.
const AT_ONCE: usize = 8;

pub(super) async fn look(client: &Client) -> Result<AuthSeen, Error> {
    let (enabled, users, roles) = tokio::join!(is_enabled(client), client.user_list(), client.role_list());
    let users = ask_each(client, users?, |client, user| async move { client.user_get(&user).await });
    let roles = ask_each(client, roles?, |client, role| async move { client.role_get(&role).await });
    let (users, roles) = tokio::join!(users, roles);
    Ok(AuthSeen {
        enabled: enabled?,
        users: users?.into_iter().map(|(user, roles)| (user, BTreeSet::from_iter(roles))).collect(),
        roles: roles?.into_iter().map(|(role, may)| (role, may.into_iter().map(in_our_words).collect())).collect(),
    })
}

/// etcd 3.4 does not report it; there a login that must fail shows it, at the price of a warning in etcd's log.
async fn is_enabled(client: &Client) -> Result<bool, Error> {
    match client.auth_status().await {
        Err(Error::Unimplemented) => client.auth_enabled().await,
        status => status.map(|status| status.enabled),
    }
}

/// Asks about each name, a few at a time.
async fn ask_each<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
    client: &Client,
    names: Vec<String>,
    ask: impl Fn(Client, String) -> F,
) -> Result<BTreeMap<String, T>, Error> {
    let mut answers = BTreeMap::new();
    let mut under_way = JoinSet::new();
    let mut names = names.into_iter();
    loop {
        while under_way.len() < AT_ONCE
            && let Some(name) = names.next()
        {
            let answer = ask(client.clone(), name.clone());
            under_way.spawn(async move { answer.await.map(|answer| (name, answer)) });
        }
        match under_way.join_next().await {
            Some(answer) => answers.extend([answer.expect("it neither panics nor is aborted")?]),
            None => return Ok(answers),
        }
    }
}

pub(crate) async fn change(client: &Client, op: &AuthOp, password: Option<&Secret>) -> Result<(), Error> {
    let done = match op {
        AuthOp::AddUser { user } => client.user_add(user, password.map(Secret::expose)).await,
        AuthOp::SetPassword { user } => {
            let password = password.map(Secret::expose).unwrap_or_default();
            client.user_change_password(user, password).await
        }
        AuthOp::GrantRole { user, role } => client.user_grant_role(user, role).await,
        AuthOp::RevokeRole { user, role } => client.user_revoke_role(user, role).await,
        AuthOp::DeleteUser { user } => client.user_delete(user).await,
        AuthOp::AddRole { role } => client.role_add(role).await,
        AuthOp::GrantPermission { role, permission } => {
            client.role_grant_permission(role, in_etcds_words(permission)).await
        }
        AuthOp::RevokePermission { role, permission } => {
            let (key, range_end) = permission.place();
            let range = KeyRange { key: key.to_vec(), range_end: range_end.to_vec() };
            client.role_revoke_permission(role, range).await
        }
        AuthOp::DeleteRole { role } => client.role_delete(role).await,
        AuthOp::Enable => client.auth_enable().await,
    };
    match (op, done) {
        (AuthOp::AddUser { .. }, Err(Error::AlreadyExists(Thing::User)))
        | (AuthOp::AddRole { .. }, Err(Error::AlreadyExists(Thing::Role)))
        | (AuthOp::DeleteUser { .. }, Err(Error::NotFound(Thing::User)))
        | (AuthOp::DeleteRole { .. }, Err(Error::NotFound(Thing::Role)))
        | (AuthOp::RevokeRole { .. }, Err(Error::NotFound(Thing::RoleGrant | Thing::User)))
        | (AuthOp::RevokePermission { .. }, Err(Error::NotFound(Thing::PermissionGrant | Thing::Role))) => Ok(()),
        (_, done) => done,
    }
}

fn in_our_words(permission: Permission) -> kinds::etcd::Permission {
    let Permission { key, range_end, kind } = permission;
    let access = match kind {
        PermissionKind::Read => kinds::etcd::Access::Read,
        PermissionKind::Write => kinds::etcd::Access::Write,
        PermissionKind::ReadWrite => kinds::etcd::Access::ReadWrite,
    };
    kinds::etcd::Permission { key, range_end, access }
}

fn in_etcds_words(permission: &kinds::etcd::Permission) -> Permission {
    let kinds::etcd::Permission { key, range_end, access } = permission.clone();
    let kind = match access {
        kinds::etcd::Access::Read => PermissionKind::Read,
        kinds::etcd::Access::Write => PermissionKind::Write,
        kinds::etcd::Access::ReadWrite => PermissionKind::ReadWrite,
    };
    Permission { key, range_end, kind }
}
