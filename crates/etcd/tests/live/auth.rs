//! Logging in by certificate and by password, users and roles.

use std::time::Duration;

use quorate_etcd::{
    Client, ConnectOptions, Error, KeyRange, Login, LoginRefusal, Permission, PermissionKind, RangeQuery, Thing,
};

use crate::lab::{Authority, Etcd, Setup, enable_auth, on_every_version};

async fn let_app_use_its_prefix(root: &Client, password: Option<&str>) {
    root.user_add("app", password).await.expect("user app");
    root.role_add("app").await.expect("role app");
    let permission = Permission::new(PermissionKind::ReadWrite, KeyRange::prefix("app/"));
    root.role_grant_permission("app", permission).await.expect("a permission");
    root.user_grant_role("app", "app").await.expect("a grant");
}

async fn assert_app_stays_in_its_prefix(app: &Client) {
    app.put("app/key", "value").await.expect("app writes to its prefix");
    app.range(RangeQuery::new(KeyRange::prefix("app/"))).await.expect("app reads its prefix");
    assert!(matches!(app.put("other", "value").await, Err(Error::PermissionDenied)));
    assert!(matches!(app.get("other").await, Err(Error::PermissionDenied)));
    assert!(matches!(app.user_list().await, Err(Error::PermissionDenied)));
    assert!(matches!(app.watch(KeyRange::key("other"), 0, false).await, Err(Error::PermissionDenied)));
    app.watch(KeyRange::prefix("app/"), 0, false).await.expect("app watches its prefix");
    match app.snapshot().await {
        Err(Error::PermissionDenied) => {}
        Ok(mut snapshot) => assert!(matches!(snapshot.next().await, Err(Error::PermissionDenied))),
        other => panic!("expected a denial, got {other:?}"),
    }
    app.linearizable_read_ok().await.expect("a denial is an answer");
}

#[test]
fn a_certificate_is_a_login() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::certificate());
        let root = etcd.client_as(authority.client("root"));
        etcd.ready(&root).await;

        assert!(!root.auth_enabled().await.expect("an answer"));
        enable_auth(&root, None).await;
        assert!(root.auth_enabled().await.expect("an answer"));
        root.auth_enable().await.expect("enabling twice is no error");
        assert_eq!(root.user_list().await.expect("root lists users"), ["root"]);

        let_app_use_its_prefix(&root, None).await;
        let app = etcd.client_as(authority.client("app"));
        assert_app_stays_in_its_prefix(&app).await;
        assert!(app.auth_enabled().await.expect("anybody may ask"));

        let unknown = etcd.client_as(authority.client("unknown"));
        assert!(matches!(unknown.get("app/key").await, Err(Error::PermissionDenied)));

        root.auth_disable().await.expect("root turns it off");
        assert!(!app.auth_enabled().await.expect("an answer"));
        app.put("other", "value").await.expect("nobody is refused any more");
    });
}

#[test]
fn auth_status_is_unknown_to_3_4_and_correct_later() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::certificate());
        let root = etcd.client_as(authority.client("root"));
        etcd.ready(&root).await;
        if !version.at_least(5) {
            assert!(matches!(root.auth_status().await, Err(Error::Unimplemented)));
            return;
        }
        let before = root.auth_status().await.expect("a status");
        enable_auth(&root, None).await;
        let after = root.auth_status().await.expect("a status");
        assert!(!before.enabled && after.enabled && after.revision > before.revision, "{before:?} {after:?}");
    });
}

#[test]
fn a_password_is_a_login() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::password());
        let root = etcd.client_with("root", "first");
        etcd.ready(&root).await;
        enable_auth(&root, Some("first")).await;
        assert_eq!(root.user_list().await.expect("the client logs in by itself"), ["root"]);

        let_app_use_its_prefix(&root, Some("secret")).await;
        assert_app_stays_in_its_prefix(&etcd.client_with("app", "secret")).await;

        let wrong = etcd.client_with("root", "wrong").user_list().await;
        assert!(matches!(wrong, Err(Error::Unauthenticated(LoginRefusal::WrongPassword))), "{wrong:?}");
        let unknown = etcd.client_with("unknown", "first").user_list().await;
        assert!(matches!(unknown, Err(Error::Unauthenticated(LoginRefusal::WrongPassword))), "{unknown:?}");
        let nobody = Client::connect(etcd.options()).expect("good options");
        let refused = nobody.get("app/key").await;
        assert!(matches!(refused, Err(Error::Unauthenticated(LoginRefusal::NoLogin))), "{refused:?}");
        assert!(nobody.auth_enabled().await.expect("anybody may ask"));

        root.user_change_password("root", "second").await.expect("root changes its password");
        let outdated = root.user_list().await;
        assert!(matches!(outdated, Err(Error::Unauthenticated(LoginRefusal::WrongPassword))), "{outdated:?}");
        etcd.client_with("root", "second").user_list().await.expect("the new password works");
    });
}

/// Returns another client, which has logged in since.
async fn restart_and_forget_logins(etcd: &mut Etcd, root: &Client) -> Client {
    // Writes the database out: etcd would carry out the rest of its log again at its start, logins included.
    root.defragment().await.expect("defragmented");
    etcd.restart();
    let other = etcd.client_with("root", "secret");
    etcd.ready(&other).await;
    other
}

#[test]
fn a_login_that_died_with_a_restart_is_renewed_once_for_all_callers() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let mut etcd = Etcd::start(version, &authority, Setup::password());
        let root = etcd.client_with("root", "secret");
        etcd.ready(&root).await;
        enable_auth(&root, Some("secret")).await;
        root.put("key", "value").await.expect("logged in");

        restart_and_forget_logins(&mut etcd, &root).await;
        let before = etcd.calls_answered("Authenticate");
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let root = root.clone();
                tokio::spawn(async move { root.get("key").await })
            })
            .collect();
        for caller in callers {
            let pair = caller.await.expect("no panic").expect("logged in again").expect("the key");
            assert_eq!(pair.value, b"value");
        }
        assert_eq!(etcd.calls_answered("Authenticate") - before, 1);
    });
}

/// Checking the password takes etcd longer than any call waits: the login continues all the same, and the first call after it has its token.
#[test]
fn a_login_continues_when_its_caller_gives_up() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::password().flag("--bcrypt-cost=12"));
        let root = etcd.client_with("root", "secret");
        etcd.ready(&root).await;
        enable_auth(&root, Some("secret")).await;

        let login = Login { user: String::from("root"), password: String::from("secret") };
        let request_timeout = Duration::from_millis(80);
        let hasty = ConnectOptions { login: Some(login), request_timeout, ..etcd.options() };
        let hasty = Client::connect(hasty).expect("good options");
        let before = etcd.calls_answered("Authenticate");
        let first = hasty.get("key").await;
        assert!(matches!(first, Err(Error::Timeout)), "{first:?}");
        etcd.eventually(async || hasty.get("key").await).await;
        // A login has a time limit too, which a busy machine may reach once.
        let logins = etcd.calls_answered("Authenticate") - before;
        assert!((1..=2).contains(&logins), "{logins} logins");
    });
}

#[test]
fn streams_are_opened_with_a_new_login_where_the_old_one_died() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let mut etcd = Etcd::start(version, &authority, Setup::password());
        let (watcher, keeper) = (etcd.client_with("root", "secret"), etcd.client_with("root", "secret"));
        etcd.ready(&watcher).await;
        enable_auth(&watcher, Some("secret")).await;
        watcher.put("key", "before").await.expect("logged in");
        let lease = keeper.lease_grant(Duration::from_secs(60)).await.expect("a lease");
        keeper.put_with_lease("leased", "value", lease.id).await.expect("logged in");

        let other = restart_and_forget_logins(&mut etcd, &watcher).await;
        let before = etcd.calls_answered("Authenticate");
        let mut watch = watcher.watch(KeyRange::key("key"), 0, false).await.expect("a watch with a new login");
        assert_eq!(etcd.calls_answered("Authenticate") - before, 1);
        other.put("key", "after").await.expect("a write");
        assert_eq!(watch.next().await.expect("an update").events.len(), 1);
        let mut keeper = keeper.lease_keep_alive(lease.id).await.expect("a keeper with a new login");
        assert_eq!(keeper.renew().await.expect("a renewal"), Duration::from_secs(60));
    });
}

#[test]
fn users_and_roles_come_back_as_they_were_made() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::certificate());
        let root = etcd.client_as(authority.client("root"));
        etcd.ready(&root).await;

        root.user_add("app", Some("secret")).await.expect("a user");
        assert!(matches!(root.user_add("app", None).await, Err(Error::AlreadyExists(Thing::User))));
        root.role_add("reader").await.expect("a role");
        assert!(matches!(root.role_add("reader").await, Err(Error::AlreadyExists(Thing::Role))));
        assert_eq!(root.role_list().await.expect("roles"), ["reader"]);

        let one = Permission::new(PermissionKind::Write, KeyRange::key("one"));
        let many = Permission::new(PermissionKind::Read, KeyRange::prefix("many/"));
        root.role_grant_permission("reader", one.clone()).await.expect("a permission");
        root.role_grant_permission("reader", many.clone()).await.expect("a permission");
        let mut permissions = root.role_get("reader").await.expect("the role");
        permissions.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(permissions, [many.clone(), one]);
        root.role_revoke_permission("reader", KeyRange::key("one")).await.expect("revoked");
        assert_eq!(root.role_get("reader").await.expect("the role"), [many]);
        let again = root.role_revoke_permission("reader", KeyRange::key("one")).await;
        assert!(matches!(again, Err(Error::NotFound(Thing::PermissionGrant))), "{again:?}");

        root.user_grant_role("app", "reader").await.expect("a grant");
        root.user_grant_role("app", "reader").await.expect("granting twice is no error");
        assert_eq!(root.user_get("app").await.expect("the user"), ["reader"]);
        root.user_revoke_role("app", "reader").await.expect("revoked");
        let again = root.user_revoke_role("app", "reader").await;
        assert!(matches!(again, Err(Error::NotFound(Thing::RoleGrant))), "{again:?}");
        assert!(root.user_get("app").await.expect("the user").is_empty());

        root.role_delete("reader").await.expect("deleted");
        assert!(matches!(root.role_get("reader").await, Err(Error::NotFound(Thing::Role))));
        root.user_delete("app").await.expect("deleted");
        assert!(matches!(root.user_delete("app").await, Err(Error::NotFound(Thing::User))));
        assert!(matches!(root.user_get("app").await, Err(Error::NotFound(Thing::User))));

        assert!(matches!(root.auth_enable().await, Err(Error::NotFound(Thing::RootUser))));
        root.user_add("root", None).await.expect("a user");
        assert!(matches!(root.auth_enable().await, Err(Error::NotFound(Thing::RootRole))));
    });
}
