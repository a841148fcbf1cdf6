//! The passwords of PostgreSQL's users: generated once or taken from the operator's files, kept in the ledger.

use std::collections::BTreeMap;

use quorate_core::Secret;
use quorate_core::kinds::postgres::{Passwords, REPLICATOR, REWINDER, SUPERUSER};
use quorate_core::model::Ledger;
use quorate_core::spec::ClusterSpec;

use crate::brought::BroughtFiles;

/// Creates those that the ledger lacks. Existing ones stay.
pub(crate) fn make(ledger: &mut Ledger, spec: &ClusterSpec, brought: &BroughtFiles) {
    let fresh = || Passwords {
        superuser: new(brought, SUPERUSER),
        replicator: new(brought, REPLICATOR),
        rewinder: new(brought, REWINDER),
        users: BTreeMap::new(),
        repository: None,
    };
    let passwords = ledger.postgres.passwords.get_or_insert_with(fresh);
    if spec.backup.as_ref().is_some_and(|backup| !backup.recipients.is_empty()) {
        passwords.repository.get_or_insert_with(quorate_pki::random_token);
    }
    for user in spec.postgres.iter().flat_map(|postgres| &postgres.users) {
        passwords.users.entry(user.name.to_string()).or_insert_with(|| new(brought, user.name.as_str()));
    }
}

/// From the operator's file, or generated.
pub(crate) fn new(brought: &BroughtFiles, user: &str) -> Secret {
    brought.passwords.get(user).cloned().unwrap_or_else(quorate_pki::random_token)
}

/// Users whose file has a different password than the one in force.
pub(crate) fn changed_files(ledger: &Ledger, brought: &BroughtFiles) -> Vec<String> {
    let known = ledger.postgres.passwords.iter().filter(|_| ledger.postgres.rotation.is_none());
    let differs = |(user, password): &(&String, &Secret)| {
        known.clone().any(|known| known.of(user).is_some_and(|in_force| in_force != *password))
    };
    brought.passwords.iter().filter(differs).map(|(user, _)| user.clone()).collect()
}

/// The same for pending ones, with the passwords.
pub(crate) fn next_verifiers(ledger: &Ledger) -> BTreeMap<String, (Secret, Secret)> {
    let next = ledger.postgres.rotation.iter().flat_map(|rotation| &rotation.next);
    let verifier = |user: &str, password: &Secret| quorate_pki::scram_verifier(&ledger.cluster_id, user, password);
    next.map(|(user, password)| (user.clone(), (password.clone(), verifier(user, password)))).collect()
}

/// The verifiers of declared users' passwords.
pub(crate) fn verifiers(ledger: &Ledger) -> BTreeMap<String, Secret> {
    let declared = ledger.spec.postgres.iter().flat_map(|postgres| &postgres.users);
    let known = ledger.postgres.passwords.as_ref().map(|passwords| &passwords.users);
    let verifier = |user: &str| {
        let password = known?.get(user)?;
        Some((user.to_owned(), quorate_pki::scram_verifier(&ledger.cluster_id, user, password)))
    };
    declared.filter_map(|user| verifier(user.name.as_str())).collect()
}
