//! Checks of the `tls` settings: fields that belong together, and validity periods that must fit. Opens no file.

use super::{Cluster, Findings};
use crate::spec::{GivenCertificates, TlsSettings, Validity, nearest};

pub(super) fn check(cluster: &Cluster, found: &mut Findings) {
    let tls = &cluster.spec.tls;
    match &tls.given {
        Some(given) => given_certificates(cluster, given, found),
        None => validities(cluster, found),
    }
    settings_without_effect(cluster, found);
}

fn validities(cluster: &Cluster, found: &mut Findings) {
    let tls = &cluster.spec.tls;
    let leaf = tls.leaf_validity;
    match tls.renew_before {
        Some(window) if window >= leaf => found.error(
            cluster.at("tls.renew_before"),
            format!("renewal {window} before the end leaves nothing of a validity of {leaf}"),
            format!("it must be shorter than `leaf_validity`; left out, it is a third: {}", third(leaf)),
        ),
        None if leaf < Validity::hours(3) => found.error(
            cluster.at("tls.leaf_validity"),
            format!("a validity of {leaf} has no third in whole hours for the renewal"),
            "use at least 3h, or give `renew_before` too",
        ),
        _ => {}
    }
    if tls.ca.is_none() && leaf > tls.ca_validity {
        found.error(
            cluster.at("tls.leaf_validity"),
            format!("certificates of {leaf} would outlive their CA of {}", tls.ca_validity),
            "make `leaf_validity` shorter or `ca_validity` longer",
        );
    }
}

fn third(validity: Validity) -> Validity {
    TlsSettings { leaf_validity: validity, ..TlsSettings::default() }.renew_before()
}

fn given_certificates(cluster: &Cluster, given: &GivenCertificates, found: &mut Findings) {
    if cluster.spec.tls.ca.is_some() {
        found.error(
            cluster.at("tls.ca"),
            "`ca` signs certificates, and `given` provides existing ones: use only one of them",
            "remove one of them",
        );
    }
    let names = || cluster.spec.members.iter().map(|member| member.name.as_str());
    for name in names().filter(|name| !given.members.contains_key(*name)) {
        found.error(
            cluster.at("tls.given.members"),
            format!("no certificate is given for the member `{name}`"),
            format!("add `{name}: {{certificate: PATH, key: PATH}}`"),
        );
    }
    for name in given.members.keys().filter(|name| names().all(|member| member != name.as_str())) {
        let hint = match nearest(name, names()) {
            Some(member) => format!("did you mean `{member}`?"),
            None => "remove it, or add the member".to_owned(),
        };
        let path = cluster.at(&format!("tls.given.members.{name}"));
        found.error(path, format!("a certificate is given for `{name}`, which is not a member"), hint);
    }
    if cluster.spec.etcd.client_auth.asks_for_certificates() && given.root.is_none() {
        found.error(
            cluster.at("tls.given"),
            "the agents need a client certificate of the user root to speak to etcd, and quorate has no CA to make one",
            "add `root: {certificate: PATH, key: PATH}`, or use `client_auth: password`",
        );
    }
}

/// Settings that only matter for certificates that quorate creates, and that differ from their defaults.
fn settings_without_effect(cluster: &Cluster, found: &mut Findings) {
    let (tls, default) = (&cluster.spec.tls, TlsSettings::default());
    let given = tls.given.is_some();
    let why_given = "the certificates are given";
    let settings = [
        ("ca_validity", given, tls.ca_validity != default.ca_validity, why_given),
        ("ca_validity", !given && tls.ca.is_some(), tls.ca_validity != default.ca_validity, "the CA is given"),
        ("leaf_validity", given, tls.leaf_validity != default.leaf_validity, why_given),
        ("renew_before", given, tls.renew_before.is_some(), why_given),
        ("key_algorithm", given, tls.key_algorithm != default.key_algorithm, why_given),
        ("organization", given, tls.organization.is_some(), why_given),
        ("extra_sans", given, !tls.extra_sans.is_empty(), why_given),
    ];
    for (field, idle, set, why) in settings {
        if idle && set {
            let path = cluster.at(&format!("tls.{field}"));
            found.warning(path, format!("`{field}` has no effect, because {why}"), "remove it");
        }
    }
}
