//! Checks whether kube-apiserver can use a cluster as its spec declares it: the user, its permissions, and compaction.

use quorate_core::kinds::etcd::spec::{Access, ClientAuth, CompactionMode, Keys, Permission};
use quorate_core::model::{Ledger, Version};
use quorate_core::spec::{ClusterSpec, Retention};

use super::{Clusters, KubernetesError, Wish, refused};
use crate::clients::ClientError;

/// Refuses settings that cannot work or are unsafe. Returns recommendations.
pub(super) fn check(clusters: Clusters<'_>, wish: &Wish) -> Result<Vec<String>, KubernetesError> {
    words(wish)?;
    same_authority(clusters)?;
    let mut notes = Vec::new();
    for ledger in clusters.all() {
        login(ledger)?;
        users(ledger, wish)?;
        notes.extend(compaction(&ledger.spec)?);
        notes.extend(too_much(&ledger.spec, wish));
        notes.extend(status(&ledger.spec));
    }
    Ok(notes)
}

/// Paths and prefixes become flags, YAML and parts of a shell script.
fn words(wish: &Wish) -> Result<(), KubernetesError> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if !wish.on_hosts.starts_with('/') || !is_plain(&wish.on_hosts) {
        let what = format!("`{}` cannot be the directory on control plane hosts", wish.on_hosts);
        return refused(what, "use an absolute path of letters, digits and `/._-`, such as /etc/kubernetes");
    }
    if !wish.prefix.starts_with('/') || wish.prefix.len() < 3 || !is_plain(&wish.prefix) || wish.prefix.contains("//") {
        let what = format!("`{}` cannot be the prefix of Kubernetes' keys", wish.prefix);
        return refused(what, "use a prefix such as /registry/, of letters, digits and `/._-`");
    }
    Ok(())
}

/// kube-apiserver has one certificate and one file of CAs for all its etcd clusters.
fn same_authority(clusters: Clusters<'_>) -> Result<(), KubernetesError> {
    let Some(events) = clusters.events else { return Ok(()) };
    let (main, events_name) = (&clusters.main.spec.name, &events.spec.name);
    if main == events_name {
        let what = format!("events would be in the same cluster {main} as everything else");
        return refused(what, "leave out --events, or name another cluster");
    }
    let key = |ledger: &Ledger| ledger.authorities.client.as_ref().map(|ca| ca.key_id.clone());
    if let Some(ledger) = clusters.all().find(|ledger| ledger.authorities.client.is_none()) {
        return Err(ClientError::NotThere(ledger.spec.name.to_string()).into());
    }
    if key(clusters.main) == key(events) {
        return Ok(());
    }
    refused(
        format!(
            "{main} and {events_name} have different CAs, and kube-apiserver uses one client certificate for all its etcd clusters"
        ),
        "create both clusters with the same CA: `tls: {ca: {certificate: ca.crt, key: ca.key}}` in their spec. The CA of an existing \
         cluster cannot be changed",
    )
}

/// Whether certificates authenticate users, with limited permissions.
fn login(ledger: &Ledger) -> Result<(), KubernetesError> {
    let spec = &ledger.spec;
    if !spec.auth.bootstrap {
        let what = format!(
            "authentication is off in cluster {}: any client with a certificate could do everything",
            spec.name
        );
        return refused(what, "set `auth: {bootstrap: true}` in the spec and run `quorate apply`");
    }
    if spec.etcd.client_auth != ClientAuth::Certificate {
        let what = format!(
            "clients of cluster {} log in with a password (`client_auth: {}`), and kube-apiserver can only log in with a certificate",
            spec.name,
            spec.etcd.client_auth.name()
        );
        return refused(what, "use a cluster with `etcd: {client_auth: certificate}`");
    }
    match &ledger.authorities.client {
        None => Err(ClientError::NotThere(spec.name.to_string()).into()),
        Some(ca) if ca.key.is_none() => refused(
            format!("the certificates of cluster {} are user-provided and its CA's key is not here", spec.name),
            "quorate cannot issue certificates for this cluster. Let your CA sign client certificates whose common names are the \
             declared users",
        ),
        Some(_) => Ok(()),
    }
}

fn users(ledger: &Ledger, wish: &Wish) -> Result<(), KubernetesError> {
    let spec = &ledger.spec;
    let is_declared = |name: &str| spec.auth.users.iter().any(|user| user.name == *name);
    let missing: Vec<&str> =
        [&wish.user, &wish.health_user].into_iter().map(String::as_str).filter(|name| !is_declared(name)).collect();
    if !missing.is_empty() {
        let (users, are) = if missing.len() == 1 { ("user", "is") } else { ("users", "are") };
        let what = format!("{users} {} {are} not declared in the spec of cluster {}", missing.join(" and "), spec.name);
        return refused(what, how_to_declare(ledger, wish));
    }
    let lacks =
        |needs: fn(Access) -> bool| !allowed(spec, &wish.user).any(|permission| covers(permission, wish, needs));
    let lacking = match (is_root(spec, &wish.user), lacks(reads), lacks(writes)) {
        (true, ..) | (_, false, false) => return Ok(()),
        (_, true, true) => "read or write",
        (_, true, false) => "read",
        (_, false, true) => "write",
    };
    refused(
        format!(
            "user {} of cluster {} may not {lacking} all keys with the prefix {}",
            wish.user, spec.name, wish.prefix
        ),
        how_to_declare(ledger, wish),
    )
}

/// The lines to add, and the command that applies them.
fn how_to_declare(ledger: &Ledger, wish: &Wish) -> String {
    let file = ledger.spec_file.as_deref().filter(|file| *file != "-");
    let apply = file.map_or_else(
        || {
            format!(
                "`quorate spec {} > FILE` prints the spec; after the change, run `quorate apply FILE`",
                ledger.spec.name
            )
        },
        |file| format!("then run `quorate apply {file}`"),
    );
    let health = if wish.health_user == wish.user {
        String::new()
    } else {
        format!("\n        - {{name: {}}}", wish.health_user)
    };
    format!(
        "declare in the spec of cluster {}:\n    auth:\n      roles:\n        - {{name: {user}, permissions: [{{prefix: {}, access: \
         readwrite}}]}}\n      users:\n        - {{name: {user}, roles: [{user}]}}{health}\n  {apply}",
        ledger.spec.name,
        wish.prefix,
        user = wish.user,
    )
}

fn roles<'a>(spec: &'a ClusterSpec, user: &str) -> impl Iterator<Item = &'a str> {
    let users = spec.auth.users.iter().filter(move |declared| declared.name == *user);
    users.flat_map(|user| user.roles.iter().map(|role| role.as_str())).collect::<Vec<_>>().into_iter()
}

fn is_root(spec: &ClusterSpec, user: &str) -> bool {
    roles(spec, user).any(|role| role == "root")
}

fn allowed<'a>(spec: &'a ClusterSpec, user: &str) -> impl Iterator<Item = &'a Permission> {
    let of = roles(spec, user).collect::<Vec<_>>();
    spec.auth.roles.iter().filter(move |role| of.contains(&role.name.as_str())).flat_map(|role| &role.permissions)
}

fn covers(permission: &Permission, wish: &Wish, needs: fn(Access) -> bool) -> bool {
    let everything = matches!(&permission.keys, Keys::Prefix(prefix) if wish.prefix.starts_with(prefix.as_str()));
    everything && needs(permission.access)
}

fn reads(access: Access) -> bool {
    access != Access::Write
}

fn writes(access: Access) -> bool {
    access != Access::Read
}

/// A note if kube-apiserver could do more than it needs.
fn too_much(spec: &ClusterSpec, wish: &Wish) -> Option<String> {
    let within = |permission: &Permission| match &permission.keys {
        Keys::Key(key) | Keys::Prefix(key) => key.starts_with(&wish.prefix),
    };
    let too_much = is_root(spec, &wish.user) || !allowed(spec, &wish.user).all(within);
    too_much.then(|| {
        format!(
            "user {} of cluster {} may use keys outside {}; kube-apiserver needs no more than {{prefix: {}, access: readwrite}}",
            wish.user, spec.name, wish.prefix, wish.prefix
        )
    })
}

/// A note if etcd lets only root read its status: kube-apiserver reads the version and the size of the database there.
fn status(spec: &ClusterSpec) -> Option<String> {
    let version = spec.etcd.version;
    let fixed_in = match (version.minor, version.patch) {
        (5, 28..=30) => Version::new(3, 5, 31),
        (6, ..=11) => Version::new(3, 6, 12),
        _ => return None,
    };
    Some(format!(
        "etcd {version} in cluster {} lets only root read its status: kube-apiserver works, but logs `permission denied`, reports no \
         database size, and sends consistent lists to etcd instead of its cache. Upgrade to etcd {fixed_in} or later",
        spec.name
    ))
}

/// etcd lets only root compact, so etcd itself must.
fn compaction(spec: &ClusterSpec) -> Result<Option<String>, KubernetesError> {
    let setting = "`etcd: {auto_compaction: {mode: periodic, retention: 5m}}`";
    let compaction = &spec.etcd.auto_compaction;
    if compaction.retention() == Retention::Number(0) {
        let what = format!(
            "automatic compaction is off in cluster {}, and etcd lets only root compact: the database would grow to its quota of {} \
             and then refuse writes",
            spec.name, spec.etcd.quota
        );
        return refused(what, format!("set {setting} in the spec and run `quorate apply`"));
    }
    Ok((compaction.mode == CompactionMode::Revision).then(|| {
        format!(
            "cluster {} keeps only {} revisions of history, which can be seconds on a busy cluster: a client that was disconnected must \
             list everything again. Kubernetes' habit is 5 minutes: {setting}",
            spec.name,
            match compaction.retention() {
                Retention::Number(number) => number.to_string(),
                Retention::Time(time) => time.to_string(),
            }
        )
    }))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use quorate_core::Secret;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::model::AuthorityRecord;
    use quorate_core::spec::generated;

    use super::*;
    use crate::kinds::etcd::kubernetes::wish;

    const GOOD: &str = r#"{
        "roles": [{"name": "kubernetes", "permissions": [{"prefix": "/registry/", "access": "readwrite"}]}],
        "users": [{"name": "kubernetes", "roles": ["kubernetes"]}, {"name": "kubernetes-health"}]
    }"#;

    fn ledger(auth: &str) -> Ledger {
        let spec = generated("k8s", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("0123456789abcdef"), spec.clusters[0].clone());
        ledger.spec.auth = serde_json::from_str(auth).unwrap();
        ledger.spec.etcd.auto_compaction = serde_json::from_str(r#"{"mode": "periodic", "retention": "5m"}"#).unwrap();
        ledger.authorities.client = Some(AuthorityRecord {
            epoch: 1,
            certificate: String::new(),
            key: Some(Secret::new("key")),
            key_id: String::from("one"),
            not_after: Timestamp::MAX,
        });
        ledger
    }

    fn notes(ledger: &Ledger) -> Vec<String> {
        check(Clusters { main: ledger, events: None }, &wish()).unwrap()
    }

    #[track_caller]
    fn refusal(ledger: &Ledger, events: Option<&Ledger>) -> String {
        match check(Clusters { main: ledger, events }, &wish()).unwrap_err() {
            KubernetesError::Refused { what, hint } => format!("{what}\n{hint}"),
            other => other.to_string(),
        }
    }

    #[test]
    fn a_user_with_the_rights_it_needs_and_no_more_is_fine() {
        assert!(notes(&ledger(GOOD)).is_empty());
        let wide = notes(&ledger(&GOOD.replace("/registry/", "")));
        assert!(wide.len() == 1 && wide[0].contains("may use keys outside /registry/"), "{wide:?}");
        let root = notes(&ledger(&GOOD.replace(r#"["kubernetes"]"#, r#"["root"]"#)));
        assert!(root.len() == 1 && root[0].contains("may use keys outside"), "{root:?}");
    }

    #[test]
    fn users_that_are_missing_or_may_too_little_are_refused_with_the_lines_to_add() {
        let told = refusal(&ledger("{}"), None);
        assert!(
            told.starts_with("users kubernetes and kubernetes-health are not declared in the spec of cluster k8s\n"),
            "{told}"
        );
        let lines = "
    auth:
      roles:
        - {name: kubernetes, permissions: [{prefix: /registry/, access: readwrite}]}
      users:
        - {name: kubernetes, roles: [kubernetes]}
        - {name: kubernetes-health}
";
        assert!(told.contains(lines) && told.contains("`quorate spec k8s > FILE`"), "{told}");
        let told = refusal(&ledger(&GOOD.replace(r#", {"name": "kubernetes-health"}"#, "")), None);
        assert!(told.starts_with("user kubernetes-health is not declared"), "{told}");
        for (narrow, lacking) in [
            (GOOD.replace("readwrite", "read"), "may not write all keys with the prefix /registry/"),
            (GOOD.replace("readwrite", "write"), "may not read all"),
            (GOOD.replace("/registry/", "/registry/pods/"), "may not read or write all"),
            (GOOD.replace("prefix", "key"), "may not read or write all"),
            (GOOD.replace(r#""roles": ["kubernetes"]"#, r#""roles": []"#), "may not read or write all"),
        ] {
            let told = refusal(&ledger(&narrow), None);
            assert!(told.contains(lacking) && told.contains(lines), "{told}");
        }
    }

    #[test]
    fn clusters_that_kube_apiserver_cannot_use_are_refused() {
        let mut open = ledger(GOOD);
        open.spec.auth.bootstrap = false;
        assert!(refusal(&open, None).contains("authentication is off in cluster k8s"));
        let mut password = ledger(GOOD);
        password.spec.etcd.client_auth = ClientAuth::CertificateAndPassword;
        assert!(refusal(&password, None).contains("(`client_auth: certificate_and_password`)"));
        let mut external = ledger(GOOD);
        external.authorities.client.as_mut().unwrap().key = None;
        assert!(refusal(&external, None).contains("are user-provided and its CA's key is not here"));
        let mut planned = ledger(GOOD);
        planned.authorities.client = None;
        assert!(refusal(&planned, None).contains("cluster k8s does not exist yet"));
        let mut growing = ledger(GOOD);
        growing.spec.etcd.auto_compaction.retention = Some(Retention::Number(0));
        let told = refusal(&growing, None);
        assert!(told.contains("automatic compaction is off") && told.contains("its quota of 8GiB"), "{told}");
    }

    #[test]
    fn a_history_of_revisions_is_noted() {
        let mut revisions = ledger(GOOD);
        revisions.spec.etcd.auto_compaction = Default::default();
        let notes = notes(&revisions);
        assert!(notes.len() == 1 && notes[0].contains("keeps only 1000 revisions"), "{notes:?}");
    }

    #[test]
    fn a_version_that_hides_its_status_is_noted() {
        let told = |(minor, patch)| {
            let mut ledger = ledger(GOOD);
            ledger.spec.etcd.version = Version::new(3, minor, patch);
            notes(&ledger).join("")
        };
        assert!(told((5, 30)).contains("Upgrade to etcd 3.5.31 or later"));
        assert!(told((6, 11)).contains("Upgrade to etcd 3.6.12 or later"));
        assert!([(5, 27), (5, 31), (6, 12), (7, 0)].into_iter().all(|version| told(version).is_empty()));
    }

    #[test]
    fn events_need_another_cluster_with_the_same_ca() {
        let main = ledger(GOOD);
        assert!(refusal(&main, Some(&main)).contains("events would be in the same cluster k8s"));
        let mut events = ledger(GOOD);
        events.spec.name = "events".parse().unwrap();
        check(Clusters { main: &main, events: Some(&events) }, &wish()).unwrap();
        events.authorities.client.as_mut().unwrap().key_id = String::from("other");
        assert!(refusal(&main, Some(&events)).contains("k8s and events have different CAs"));
        events.authorities.client = main.authorities.client.clone();
        events.spec.auth = Default::default();
        assert!(refusal(&main, Some(&events)).contains("not declared in the spec of cluster events"));
    }

    #[test]
    fn words_that_would_need_quoting_are_refused() {
        let ledger = ledger(GOOD);
        let told = |wish: Wish| check(Clusters { main: &ledger, events: None }, &wish).unwrap_err().to_string();
        for bad in ["etc", "/etc/a b", "/etc/$x", "/etc/'", ""] {
            let told = told(Wish { on_hosts: bad.to_owned(), ..wish() });
            assert!(told.contains("cannot be the directory on control plane hosts"), "{told}");
        }
        for bad in ["/", "registry/", "/a b/", "//x/"] {
            let told = told(Wish { prefix: bad.to_owned(), ..wish() });
            assert!(told.contains("cannot be the prefix"), "{told}");
        }
    }
}
