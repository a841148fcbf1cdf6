//! Authentication: whether it is on, users, roles and what they may do. Names and passwords are taken as given.

use crate::connect::{Client, Login};
use crate::error::{Error, LoginRefusal};
use crate::generated::authpb::{self, UserAddOptions, permission};
use crate::generated::etcdserverpb::auth_client::AuthClient;
use crate::generated::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGetRequest,
    AuthRoleGrantPermissionRequest, AuthRoleListRequest, AuthRoleRevokePermissionRequest, AuthStatusRequest,
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest,
};
use crate::kv::KeyRange;
use crate::room::Channel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStatus {
    pub enabled: bool,
    /// Rises with every change of users, roles and permissions.
    pub revision: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    pub key: Vec<u8>,
    /// As in [`KeyRange`].
    pub range_end: Vec<u8>,
    pub kind: PermissionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionKind {
    Read,
    Write,
    ReadWrite,
}

impl Permission {
    pub fn new(kind: PermissionKind, keys: KeyRange) -> Self {
        let KeyRange { key, range_end } = keys;
        Self { key, range_end, kind }
    }
}

fn auth(channel: Channel) -> AuthClient<Channel> {
    AuthClient::new(channel)
}

impl Client {
    /// `Unimplemented` on 3.4. Writes an entry to the raft log each time, and where authentication is on, is root's alone.
    pub async fn auth_status(&self) -> Result<AuthStatus, Error> {
        let request = AuthStatusRequest {};
        let answer =
            self.call(request, |channel, request| async move { auth(channel).auth_status(request).await }).await?;
        Ok(AuthStatus { enabled: answer.enabled, revision: answer.auth_revision })
    }

    /// Whether authentication is on, for any caller and any version, and without a write: nobody tries to log in, and etcd either refuses
    /// nobody or says that no login is needed.
    pub async fn auth_enabled(&self) -> Result<bool, Error> {
        let nobody = Login { user: String::new(), password: String::new() };
        match self.in_time(self.authenticate(&nobody)).await {
            Err(Error::AuthNotEnabled) => Ok(false),
            Ok(_) | Err(Error::Unauthenticated(LoginRefusal::WrongPassword | LoginRefusal::NoLogin)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Needs the user root with the role root. Enabling what is enabled is no error.
    pub async fn auth_enable(&self) -> Result<(), Error> {
        let request = AuthEnableRequest {};
        self.call(request, |channel, request| async move { auth(channel).auth_enable(request).await }).await?;
        Ok(())
    }

    pub async fn auth_disable(&self) -> Result<(), Error> {
        let request = AuthDisableRequest {};
        self.call(request, |channel, request| async move { auth(channel).auth_disable(request).await }).await?;
        Ok(())
    }

    /// Without a password the user can log in by certificate only.
    pub async fn user_add(&self, name: &str, password: Option<&str>) -> Result<(), Error> {
        let request = AuthUserAddRequest {
            name: name.to_owned(),
            password: password.unwrap_or_default().to_owned(),
            options: Some(UserAddOptions { no_password: password.is_none() }),
            ..Default::default()
        };
        self.call(request, |channel, request| async move { auth(channel).user_add(request).await }).await?;
        Ok(())
    }

    pub async fn user_delete(&self, name: &str) -> Result<(), Error> {
        let request = AuthUserDeleteRequest { name: name.to_owned() };
        self.call(request, |channel, request| async move { auth(channel).user_delete(request).await }).await?;
        Ok(())
    }

    pub async fn user_list(&self) -> Result<Vec<String>, Error> {
        let request = AuthUserListRequest {};
        Ok(self.call(request, |channel, request| async move { auth(channel).user_list(request).await }).await?.users)
    }

    /// The roles of a user.
    pub async fn user_get(&self, name: &str) -> Result<Vec<String>, Error> {
        let request = AuthUserGetRequest { name: name.to_owned() };
        Ok(self.call(request, |channel, request| async move { auth(channel).user_get(request).await }).await?.roles)
    }

    /// Ends the user's logins, too.
    pub async fn user_change_password(&self, name: &str, password: &str) -> Result<(), Error> {
        let request = AuthUserChangePasswordRequest {
            name: name.to_owned(),
            password: password.to_owned(),
            ..Default::default()
        };
        self.call(request, |channel, request| async move { auth(channel).user_change_password(request).await }).await?;
        Ok(())
    }

    /// Granting what is granted is no error.
    pub async fn user_grant_role(&self, user: &str, role: &str) -> Result<(), Error> {
        let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        self.call(request, |channel, request| async move { auth(channel).user_grant_role(request).await }).await?;
        Ok(())
    }

    pub async fn user_revoke_role(&self, user: &str, role: &str) -> Result<(), Error> {
        let request = AuthUserRevokeRoleRequest { name: user.to_owned(), role: role.to_owned() };
        self.call(request, |channel, request| async move { auth(channel).user_revoke_role(request).await }).await?;
        Ok(())
    }

    pub async fn role_add(&self, name: &str) -> Result<(), Error> {
        let request = AuthRoleAddRequest { name: name.to_owned() };
        self.call(request, |channel, request| async move { auth(channel).role_add(request).await }).await?;
        Ok(())
    }

    pub async fn role_delete(&self, name: &str) -> Result<(), Error> {
        let request = AuthRoleDeleteRequest { role: name.to_owned() };
        self.call(request, |channel, request| async move { auth(channel).role_delete(request).await }).await?;
        Ok(())
    }

    pub async fn role_list(&self) -> Result<Vec<String>, Error> {
        let request = AuthRoleListRequest {};
        Ok(self.call(request, |channel, request| async move { auth(channel).role_list(request).await }).await?.roles)
    }

    /// The permissions of a role.
    pub async fn role_get(&self, name: &str) -> Result<Vec<Permission>, Error> {
        let request = AuthRoleGetRequest { role: name.to_owned() };
        let answer =
            self.call(request, |channel, request| async move { auth(channel).role_get(request).await }).await?;
        Ok(answer.perm.into_iter().map(Permission::from).collect())
    }

    /// Replaces the permission for exactly the same range, if there is one.
    pub async fn role_grant_permission(&self, role: &str, permission: Permission) -> Result<(), Error> {
        let request = AuthRoleGrantPermissionRequest { name: role.to_owned(), perm: Some(permission.into()) };
        self.call(request, |channel, request| async move { auth(channel).role_grant_permission(request).await })
            .await?;
        Ok(())
    }

    /// Takes back the permission for exactly this range, of whatever kind it is.
    pub async fn role_revoke_permission(&self, role: &str, keys: KeyRange) -> Result<(), Error> {
        let KeyRange { key, range_end } = keys;
        let request = AuthRoleRevokePermissionRequest { role: role.to_owned(), key, range_end };
        self.call(request, |channel, request| async move { auth(channel).role_revoke_permission(request).await })
            .await?;
        Ok(())
    }
}

impl From<authpb::Permission> for Permission {
    fn from(permission: authpb::Permission) -> Self {
        let kind = match permission.perm_type() {
            permission::Type::Read => PermissionKind::Read,
            permission::Type::Write => PermissionKind::Write,
            permission::Type::Readwrite => PermissionKind::ReadWrite,
        };
        Self { key: permission.key, range_end: permission.range_end, kind }
    }
}

impl From<Permission> for authpb::Permission {
    fn from(Permission { key, range_end, kind }: Permission) -> Self {
        let kind = match kind {
            PermissionKind::Read => permission::Type::Read,
            PermissionKind::Write => permission::Type::Write,
            PermissionKind::ReadWrite => permission::Type::Readwrite,
        };
        Self { perm_type: kind.into(), key, range_end }
    }
}
