//! Users and roles on real clusters: they can do what the spec says and nothing else, they change with the spec, and what
//! other tools created is left alone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{OLDEST, Run, Sandbox, newest, spec};

const READER_AND_WRITER: &str = "\
auth:
  roles:
    - {name: reader, permissions: [{prefix: /a/, access: read}, {key: /one, access: readwrite}]}
    - {name: writer, permissions: [{key: /b, access: write}]}
  users:
    - {name: app, roles: [reader, writer]}
";

fn apply(sandbox: &Sandbox, text: &str) -> Run {
    sandbox.file("c.yaml", text);
    sandbox.quorate(&["apply", "c.yaml", "--yes"])
}

/// The environment of a user who has a certificate in this directory.
fn by_certificate(sandbox: &Sandbox, certificate: &Path, key: &Path) -> BTreeMap<String, String> {
    let mut environment = sandbox.environment("c");
    environment.insert("ETCDCTL_CERT".into(), certificate.display().to_string());
    environment.insert("ETCDCTL_KEY".into(), key.display().to_string());
    environment
}

fn by_password(sandbox: &Sandbox, user: &str, password: &str) -> BTreeMap<String, String> {
    let mut environment = sandbox.environment("c");
    environment.insert("ETCDCTL_USER".into(), format!("{user}:{password}"));
    environment
}

/// What the user of `READER_AND_WRITER` may do and what not, as etcdctl of the oldest and the newest version reports.
#[track_caller]
fn may_do_what_its_roles_say(sandbox: &Sandbox, user: &BTreeMap<String, String>) {
    for key in ["/a/1", "/b", "/one", "/secret"] {
        sandbox.etcdctl(&newest(), "c", &["put", key, "by root"]).ok();
    }
    for client in [OLDEST, &newest()] {
        let try_to = |arguments: &[&str]| sandbox.etcdctl_with(client, user, arguments);
        assert!(try_to(&["get", "/a/", "--prefix"]).ok().stdout.contains("by root"));
        try_to(&["put", "/b", "by app"]).ok();
        try_to(&["put", "/one", "by app"]).ok();
        assert!(try_to(&["get", "/one"]).ok().stdout.contains("by app"));
        for refused in [
            &["put", "/a/1", "x"][..],
            &["get", "/b"],
            &["get", "/secret"],
            &["put", "/secret", "x"],
            &["get", "/one", "/onf"],
            &["get", "", "--prefix"],
            &["del", "/a/1"],
            &["user", "list"],
            &["auth", "disable"],
        ] {
            let told = try_to(refused).fails().stderr;
            assert!(told.contains("permission denied"), "{refused:?}: {told}");
        }
    }
}

#[test]
fn a_declared_user_by_certificate() {
    for version in [OLDEST, &newest()] {
        let sandbox = Sandbox::new(version);
        apply(&sandbox, &spec(1, version, "", READER_AND_WRITER)).ok();

        // The key is made here.
        let told = sandbox.quorate(&["cert", "issue", "c", "--user", "app"]).ok().stdout;
        let clients = sandbox.home().join("clients/c");
        let (certificate, key) = (clients.join("app.crt"), clients.join("app.key"));
        assert!(told.contains(&certificate.display().to_string()) && told.contains("valid until"), "{told}");
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        may_do_what_its_roles_say(&sandbox, &by_certificate(&sandbox, &certificate, &key));

        // The key is made elsewhere, and only a request comes here; what it asks to be called does not matter.
        sandbox.request("mine", "rsa:2048", "root");
        let out = sandbox.path().join("out");
        let arguments = ["cert", "issue", "c", "--user", "app", "--csr", "mine.csr", "--out", "out"];
        sandbox.quorate(&arguments).ok();
        let mut written: Vec<_> =
            fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        written.sort();
        assert_eq!(written, ["app.crt", "ca.crt"], "no key is written");
        let shown = sandbox.openssl(&["x509", "-in", "out/app.crt", "-noout", "-text"]);
        assert!(shown.contains("CN = app") && shown.contains("TLS Web Client Authentication"), "{shown}");
        assert!(!shown.contains("TLS Web Server Authentication") && !shown.contains("CN = root"), "{shown}");
        let mine = sandbox.path().join("mine.key");
        may_do_what_its_roles_say(&sandbox, &by_certificate(&sandbox, &out.join("app.crt"), &mine));

        // Its environment, with the certificate that is there; and one for some days only.
        let env = sandbox.quorate(&["env", "c", "--user", "app"]).ok().stdout;
        assert!(env.contains("/app.crt") && env.contains("/app.key") && !env.contains("root"), "{env}");
        let told =
            sandbox.quorate(&["cert", "issue", "c", "--user", "app", "--days", "2", "--out", "short"]).ok().stdout;
        let day_after_tomorrow = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(48);
        assert!(told.contains(&day_after_tomorrow.strftime("%Y-%m-%d").to_string()), "{told}");
        let told = sandbox.quorate(&["cert", "issue", "c", "--user", "app", "--days", "9999"]).expect(1).stderr;
        assert!(told.contains("before the certificate would"), "{told}");
        let told = sandbox.quorate(&["cert", "issue", "c", "--user", "root", "--days", "2"]).expect(1).stderr;
        assert!(told.contains("cannot be revoked"), "{told}");
        let told = sandbox.quorate(&["cert", "issue", "c", "--user", "nobody"]).expect(1).stderr;
        assert!(told.contains("user nobody is not declared") && told.contains("root, app"), "{told}");
        sandbox.file("bad.csr", "not a request");
        let told = sandbox.quorate(&["cert", "issue", "c", "--user", "app", "--csr", "bad.csr"]).expect(1).stderr;
        assert!(told.contains("the signing request cannot be"), "{told}");
    }
}

#[test]
fn a_declared_user_by_certificate_and_password() {
    for version in [OLDEST, &newest()] {
        let sandbox = Sandbox::new(version);
        sandbox.file("app.password", "s3cret\n");
        let auth = READER_AND_WRITER.replace("name: app,", "name: app, password_file: app.password,");
        let text = spec(1, version, "client_auth: certificate_and_password, grpc_gateway: true", &auth);
        apply(&sandbox, &text).ok();
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();

        sandbox.quorate(&["cert", "issue", "c", "--user", "app"]).ok();
        let clients = sandbox.home().join("clients/c");
        let (certificate, key) = (clients.join("app.crt"), clients.join("app.key"));
        let shown = sandbox.openssl(&[
            "x509",
            "-in",
            &certificate.to_string_lossy(),
            "-noout",
            "-subject",
            "-nameopt",
            "RFC2253",
        ]);
        assert_eq!(shown.trim(), "subject=O=clients of c", "it names nobody");
        let mut both = by_certificate(&sandbox, &certificate, &key);
        let alone = sandbox.etcdctl_with(&newest(), &both, &["get", "/a/1"]).fails().stderr;
        let refused = ["user name is empty", "permission denied"].iter().any(|words| alone.contains(words));
        assert!(refused, "a certificate alone is not enough: {alone}");
        both.insert("ETCDCTL_USER".into(), "app:s3cret".into());
        may_do_what_its_roles_say(&sandbox, &both);
        let mut password = both.clone();
        password.retain(|name, _| name != "ETCDCTL_CERT" && name != "ETCDCTL_KEY");
        sandbox.etcdctl_with(&newest(), &password, &["get", "/a/1"]).fails();
    }
}

#[test]
fn a_declared_user_by_password() {
    for version in [OLDEST, &newest()] {
        let sandbox = Sandbox::new(version);
        sandbox.file("app.password", "s3cret: with 'quotes' and spaces\n");
        let auth = READER_AND_WRITER.replace("name: app,", "name: app, password_file: app.password,");
        let text = spec(1, version, "client_auth: password", &auth);
        apply(&sandbox, &text).ok();
        let app = by_password(&sandbox, "app", "s3cret: with 'quotes' and spaces");
        may_do_what_its_roles_say(&sandbox, &app);
        let get =
            |password: &str| sandbox.etcdctl_with(&newest(), &by_password(&sandbox, "app", password), &["get", "/a/1"]);
        assert!(get("wrong").fails().stderr.contains("authentication failed"));

        // Another password in the file is another password in etcd.
        sandbox.file("app.password", "new\n");
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).expect(4);
        apply(&sandbox, &text).ok();
        get("new").ok();
        assert!(get("s3cret: with 'quotes' and spaces").fails().stderr.contains("authentication failed"));
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();

        let told = sandbox.quorate(&["cert", "issue", "c", "--user", "app"]).expect(1).stderr;
        assert!(told.contains("log in with a password"), "{told}");
        sandbox.file("app.password", "\n");
        let told = sandbox.quorate(&["plan", "c.yaml"]).expect(1).stderr;
        assert!(told.contains("app.password is empty") && told.contains("c.yaml:11:"), "{told}");
    }
}

#[test]
fn roots_password_can_be_user_provided() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("root.password", "it's mine\n");
    apply(&sandbox, &spec(1, &newest(), "client_auth: password", "auth: {root_password_file: root.password}")).ok();
    assert_eq!(sandbox.environment("c")["ETCDCTL_USER"], "root:it's mine");
    sandbox.etcdctl(OLDEST, "c", &["user", "list"]).ok();
    // A new one is refused as long as it cannot be carried through.
    sandbox.file("root.password", "another\n");
    let told = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(3).text();
    assert!(told.contains("root's password"), "{told}");
    sandbox.file("root.password", "it's mine\n");
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
    sandbox.etcdctl(OLDEST, "c", &["user", "list"]).ok();
}

#[test]
fn users_and_roles_follow_the_spec_and_others_are_left_alone() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    apply(&sandbox, &spec(3, &version, "", READER_AND_WRITER)).ok();
    sandbox.quorate(&["cert", "issue", "c", "--user", "app"]).ok();
    let clients = sandbox.home().join("clients/c");
    let app = by_certificate(&sandbox, &clients.join("app.crt"), &clients.join("app.key"));
    let root = |arguments: &[&str]| sandbox.etcdctl(&version, "c", arguments).ok().stdout;
    let names = |what: &str| root(&[what, "list"]).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for by_hand in [
        &["role", "add", "by-hand"][..],
        &["role", "grant-permission", "by-hand", "read", "/by-hand"],
        &["user", "add", "hand", "--no-password"],
        &["user", "grant-role", "hand", "by-hand"],
    ] {
        root(by_hand);
    }
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();

    // A permission changed, a role gone, a user more.
    let changed = "\
auth:
  roles:
    - {name: reader, permissions: [{prefix: /x/, access: readwrite}, {key: /one, access: read}]}
  users:
    - {name: app, roles: [reader]}
    - {name: boss, roles: [root]}
";
    let pids = sandbox.processes();
    apply(&sandbox, &spec(3, &version, "", changed)).ok();
    assert_eq!(names("user"), ["app", "boss", "hand", "root"]);
    assert_eq!(names("role"), ["by-hand", "reader", "root"]);
    let try_to = |arguments: &[&str]| sandbox.etcdctl_with(&version, &app, arguments);
    try_to(&["put", "/x/1", "1"]).ok();
    try_to(&["get", "/one"]).ok();
    for refused in [&["get", "/a/1"][..], &["put", "/b", "1"], &["put", "/one", "1"]] {
        assert!(try_to(refused).fails().stderr.contains("permission denied"), "{refused:?}");
    }
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();

    // What somebody changed behind the spec's back is put right.
    root(&["role", "grant-permission", "reader", "read", "/secret"]);
    root(&["user", "revoke-role", "app", "reader"]);
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).expect(4);
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    try_to(&["get", "/x/1"]).ok();
    assert!(try_to(&["get", "/secret"]).fails().stderr.contains("permission denied"));

    // A user that was made manually and is declared now is adopted, and not removed when it is declared no more.
    let adopting = format!("{changed}    - {{name: hand, roles: [reader]}}\n");
    apply(&sandbox, &spec(3, &version, "", &adopting)).ok();
    assert!(root(&["user", "get", "hand"]).contains("reader"));

    // Nobody is declared any more.
    apply(&sandbox, &spec(3, &version, "", "")).ok();
    assert_eq!(names("user"), ["hand", "root"]);
    assert_eq!(names("role"), ["by-hand", "root"]);
    try_to(&["get", "/x/1"]).fails();
    assert!(root(&["role", "get", "by-hand"]).contains("/by-hand"));
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
    assert_eq!(sandbox.processes(), pids, "nothing of this restarts anything");
}

#[test]
fn authentication_is_left_off_when_wished() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    apply(&sandbox, &spec(1, &version, "", "auth: {bootstrap: false}")).ok();
    let status = sandbox.etcdctl(&version, "c", &["auth", "status"]).ok().stdout;
    assert!(status.contains("Authentication Status: false"), "{status}");
    assert_eq!(sandbox.etcdctl(OLDEST, "c", &["user", "list"]).ok().stdout, "");
    sandbox.etcdctl(OLDEST, "c", &["put", "foo", "bar"]).ok();
    sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
    // Turned on later, it is made up for.
    apply(&sandbox, &spec(1, &version, "", "")).ok();
    let status = sandbox.etcdctl(&version, "c", &["auth", "status"]).ok().stdout;
    assert!(status.contains("Authentication Status: true"), "{status}");
    assert_eq!(sandbox.etcdctl(&version, "c", &["user", "list"]).ok().stdout.trim(), "root");
}

#[test]
fn without_authentication_a_password_cluster_needs_no_login() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let told = apply(&sandbox, &spec(1, &version, "client_auth: password", "auth: {bootstrap: false}")).ok().stderr;
    assert!(told.contains("anyone who reaches the port can read and write everything"), "{told}");
    let environment = sandbox.environment("c");
    assert!(!environment.contains_key("ETCDCTL_USER") && !environment.contains_key("ETCDCTL_CERT"));
    for client in [OLDEST, &version] {
        sandbox.etcdctl(client, "c", &["put", "foo", "bar"]).ok();
    }
}
