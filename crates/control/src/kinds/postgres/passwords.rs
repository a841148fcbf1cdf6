//! The passwords of PostgreSQL's users: generated once, kept in the ledger.

use std::collections::BTreeMap;

use quorate_core::Secret;
use quorate_core::kinds::postgres::Passwords;
use quorate_core::model::Ledger;
use quorate_core::spec::ClusterSpec;

/// Makes those that the ledger lacks. Known ones stay.
pub(crate) fn make(ledger: &mut Ledger, spec: &ClusterSpec) {
    let fresh = || Passwords {
        superuser: quorate_pki::random_token(),
        replicator: quorate_pki::random_token(),
        rewinder: quorate_pki::random_token(),
        users: BTreeMap::new(),
        repository: None,
    };
    let passwords = ledger.postgres.passwords.get_or_insert_with(fresh);
    if spec.backup.as_ref().is_some_and(|backup| !backup.recipients.is_empty()) {
        passwords.repository.get_or_insert_with(quorate_pki::random_token);
    }
    for user in spec.postgres.iter().flat_map(|postgres| &postgres.users) {
        passwords.users.entry(user.name.to_string()).or_insert_with(quorate_pki::random_token);
    }
}

/// The same of those that are to come, with the passwords.
pub(crate) fn next_verifiers(ledger: &Ledger) -> BTreeMap<String, (Secret, Secret)> {
    let next = ledger.postgres.rotation.iter().flat_map(|rotation| &rotation.next);
    let verifier = |user: &str, password: &Secret| quorate_pki::scram_verifier(&ledger.cluster_id, user, password);
    next.map(|(user, password)| (user.clone(), (password.clone(), verifier(user, password)))).collect()
}

/// What PostgreSQL checks the passwords of declared users with.
pub(crate) fn verifiers(ledger: &Ledger) -> BTreeMap<String, Secret> {
    let declared = ledger.spec.postgres.iter().flat_map(|postgres| &postgres.users);
    let known = ledger.postgres.passwords.as_ref().map(|passwords| &passwords.users);
    let verifier = |user: &str| {
        let password = known?.get(user)?;
        Some((user.to_owned(), quorate_pki::scram_verifier(&ledger.cluster_id, user, password)))
    };
    declared.filter_map(|user| verifier(user.name.as_str())).collect()
}
