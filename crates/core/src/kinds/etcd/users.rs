//! etcd's own users and roles, and the single changes that can be made to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// What a role may do, on one key or a range of keys. An empty `range_end` means the one key; a single zero byte means
/// "all from here", as in etcd's own API.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Permission {
    pub key: Vec<u8>,
    pub range_end: Vec<u8>,
    pub access: Access,
}

impl Permission {
    pub fn on_key(key: &str, access: Access) -> Self {
        Permission { key: key.into(), range_end: Vec::new(), access }
    }

    /// Every key that begins with `prefix`; with an empty prefix, every key.
    pub fn on_prefix(prefix: &str, access: Access) -> Self {
        if prefix.is_empty() {
            return Permission { key: vec![0], range_end: vec![0], access };
        }
        Permission { key: prefix.into(), range_end: prefix_end(prefix.as_bytes()), access }
    }

    /// The place a permission is for. etcd keeps one access per place.
    pub fn place(&self) -> (&[u8], &[u8]) {
        (&self.key, &self.range_end)
    }
}

/// The first key after all that begin with `prefix`.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "read and write",
        };
        let key = String::from_utf8_lossy(&self.key);
        if self.range_end.is_empty() {
            write!(f, "{access} {key}")
        } else if self.key == [0] && self.range_end == [0] {
            write!(f, "{access} every key")
        } else if self.range_end == prefix_end(&self.key) {
            write!(f, "{access} {key}*")
        } else {
            write!(f, "{access} [{key}, {})", String::from_utf8_lossy(&self.range_end))
        }
    }
}

/// Users and roles as etcd has them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct AuthSeen {
    pub enabled: bool,
    pub users: BTreeMap<String, BTreeSet<String>>,
    pub roles: BTreeMap<String, BTreeSet<Permission>>,
}

/// One change to users, roles or authentication itself. Each may be repeated without harm.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthOp {
    AddUser { user: String },
    SetPassword { user: String },
    GrantRole { user: String, role: String },
    RevokeRole { user: String, role: String },
    DeleteUser { user: String },
    AddRole { role: String },
    GrantPermission { role: String, permission: Permission },
    RevokePermission { role: String, permission: Permission },
    DeleteRole { role: String },
    Enable,
}

impl fmt::Display for AuthOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthOp::AddUser { user } => write!(f, "add user {user}"),
            AuthOp::SetPassword { user } => write!(f, "set the password of user {user}"),
            AuthOp::GrantRole { user, role } => write!(f, "grant role {role} to user {user}"),
            AuthOp::RevokeRole { user, role } => write!(f, "revoke role {role} from user {user}"),
            AuthOp::DeleteUser { user } => write!(f, "delete user {user}"),
            AuthOp::AddRole { role } => write!(f, "add role {role}"),
            AuthOp::GrantPermission { role, permission } => write!(f, "allow role {role} to {permission}"),
            AuthOp::RevokePermission { role, permission } => write!(f, "no longer allow role {role} to {permission}"),
            AuthOp::DeleteRole { role } => write!(f, "delete role {role}"),
            AuthOp::Enable => write!(f, "turn authentication on"),
        }
    }
}
