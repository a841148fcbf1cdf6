//! Checks of the `auth` settings: users refer to existing roles, and passwords are set where `client_auth` requires them.

use crate::kinds::etcd::spec::{ClientAuth, Keys, UserSpec};
use crate::kinds::etcd::versions;
use crate::spec::check::{Cluster, Findings};
use crate::spec::nearest;

pub(crate) fn check(cluster: &Cluster, found: &mut Findings) {
    if cluster.spec.auth.bootstrap {
        names(cluster, found);
        passwords(cluster, found);
        authorization_holes(cluster, found);
        open_without_login(cluster, found);
    } else {
        without_bootstrap(cluster, found);
    }
    for (index, user) in cluster.spec.auth.users.iter().enumerate() {
        roles_of(cluster, index, user, found);
    }
    for index in 0..cluster.spec.auth.roles.len() {
        permissions_of(cluster, index, found);
    }
}

fn without_bootstrap(cluster: &Cluster, found: &mut Findings) {
    let auth = &cluster.spec.auth;
    let declared = [
        ("users", !auth.users.is_empty()),
        ("roles", !auth.roles.is_empty()),
        ("root_password_file", auth.root_password_file.is_some()),
    ];
    for (field, _) in declared.into_iter().filter(|(_, there)| *there) {
        found.error(
            cluster.at(&format!("auth.{field}")),
            format!("`{field}` needs authentication, and `bootstrap: false` leaves it off"),
            "remove one of the two",
        );
    }
    if cluster.spec.etcd.client_auth == ClientAuth::Password {
        found.warning(
            cluster.at("auth.bootstrap"),
            "with `client_auth: password` and no authentication, anyone who reaches the port can read and write everything",
            "leave `bootstrap` on, or use `client_auth: certificate`",
        );
    }
}

fn names(cluster: &Cluster, found: &mut Findings) {
    let auth = &cluster.spec.auth;
    let user_at = |index| cluster.at(&format!("auth.users[{index}].name"));
    let role_at = |index| cluster.at(&format!("auth.roles[{index}].name"));
    found.repeated(auth.users.iter().map(|user| &user.name), user_at, |name| format!("the user `{name}`"));
    found.repeated(auth.roles.iter().map(|role| &role.name), role_at, |name| format!("the role `{name}`"));
    let users = auth.users.iter().enumerate().filter(|(_, user)| user.name == "root").map(|(index, _)| user_at(index));
    let roles = auth.roles.iter().enumerate().filter(|(_, role)| role.name == "root").map(|(index, _)| role_at(index));
    for path in users.chain(roles) {
        found.error(path, "quorate creates `root` itself, with all permissions", "choose another name");
    }
    if cluster.spec.etcd.client_auth.asks_for_certificates() {
        let is_member = |name: &str| cluster.spec.members.iter().any(|member| member.name.as_str() == name);
        for (index, user) in auth.users.iter().enumerate().filter(|(_, user)| is_member(user.name.as_str())) {
            let message =
                format!("anyone with the certificate of the member {0} could log in as the user `{0}`", user.name);
            found.error(user_at(index), message, "choose another name");
        }
    }
}

fn passwords(cluster: &Cluster, found: &mut Findings) {
    let auth = &cluster.spec.auth;
    let login = cluster.spec.etcd.client_auth;
    let (name, by_password) = (login.name(), login.asks_users_for_passwords());
    let remove = "remove it, or use `client_auth: password`";
    if auth.root_password_file.is_some() && login.asks_for_certificates() {
        let message = format!("under `client_auth: {name}` root has no password");
        found.error(cluster.at("auth.root_password_file"), message, remove);
    }
    for (index, user) in auth.users.iter().enumerate() {
        let at = |field: &str| cluster.at(&format!("auth.users[{index}]{field}"));
        match (&user.password_file, by_password) {
            (Some(_), false) => {
                let message = format!("under `client_auth: {name}` the user `{}` has no password", user.name);
                found.error(at(".password_file"), message, remove);
            }
            (None, true) => {
                let message = format!("under `client_auth: {name}` the user `{}` needs a password", user.name);
                found.error(at(".name"), message, "add `password_file: PATH`");
            }
            _ => {}
        }
    }
}

fn authorization_holes(cluster: &Cluster, found: &mut Findings) {
    let auth = &cluster.spec.auth;
    let Some(holes) = versions::authorization_holes(cluster.spec.etcd.version) else { return };
    let field = match (auth.users.is_empty(), auth.roles.is_empty()) {
        (false, _) => "auth.users",
        (true, false) => "auth.roles",
        (true, true) => return,
    };
    found.warning(
        cluster.at(field),
        format!("in etcd {}, {}", cluster.spec.etcd.version, holes.what),
        format!("use etcd {} or later", holes.fixed_in),
    );
}

/// Applies without declared users, because it concerns clients without a login.
fn open_without_login(cluster: &Cluster, found: &mut Findings) {
    let etcd = &cluster.spec.etcd;
    if etcd.client_auth != ClientAuth::Password {
        return;
    }
    if let Some(fixed_in) = versions::open_without_login(etcd.version) {
        found.warning(
            cluster.at("etcd.client_auth"),
            format!("in etcd {}, with `client_auth: password`, {}", etcd.version, versions::OPEN_WITHOUT_LOGIN),
            format!("use etcd {fixed_in} or later, or `client_auth: certificate`; or let only trusted machines reach the port"),
        );
    }
}

fn roles_of(cluster: &Cluster, index: usize, user: &UserSpec, found: &mut Findings) {
    let declared = || cluster.spec.auth.roles.iter().map(|role| role.name.as_str());
    for (position, role) in user.roles.iter().enumerate() {
        // The role root always exists, and makes every user who has it an administrator.
        if *role == "root" || declared().any(|name| name == role.as_str()) {
            continue;
        }
        let hint = match nearest(role.as_str(), declared()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "declare it under `roles`".to_owned(),
        };
        let path = cluster.at(&format!("auth.users[{index}].roles[{position}]"));
        found.error(path, format!("the user `{}` has the role `{role}`, which is not declared", user.name), hint);
    }
}

/// etcd keeps one permission for the same keys, so a second one would replace the first.
fn permissions_of(cluster: &Cluster, index: usize, found: &mut Findings) {
    let role = &cluster.spec.auth.roles[index];
    let path = |position| cluster.at(&format!("auth.roles[{index}].permissions[{position}]"));
    found.repeated(role.permissions.iter().map(|permission| &permission.keys), path, |keys| match keys {
        Keys::Key(key) => format!("the key `{key}`"),
        Keys::Prefix(prefix) => format!("the prefix `{prefix}`"),
    });
}
