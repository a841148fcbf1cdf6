//! Client certificates of control planes: kept while they are valid, renewed with the same key, or issued with a new one.

use std::path::Path;

use jiff::Timestamp;
use quorate_core::Secret;
use quorate_core::model::{IssuedCertificate, Ledger};
use quorate_pki::{CertificateFacts, KeyPair};

use super::{Clusters, KubernetesError, Wish, files, renew_before};
use crate::home::Home;
use crate::kinds::etcd::clients;

/// A certificate and its key, as kubeadm names them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) certificate: &'static str,
    pub(super) key: &'static str,
}

pub(super) const CA: &str = "pki/etcd/ca.crt";
pub(super) const APISERVER: Pair =
    Pair { certificate: "pki/apiserver-etcd-client.crt", key: "pki/apiserver-etcd-client.key" };
pub(super) const HEALTH: Pair =
    Pair { certificate: "pki/etcd/healthcheck-client.crt", key: "pki/etcd/healthcheck-client.key" };

/// A certificate with its key, as it should be in the directory.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) certificate: String,
    pub(super) key: Secret,
    pub(super) not_after: Timestamp,
    /// The certificate that it replaces, if that has another key and is still accepted.
    pub(super) previous: Option<Previous>,
}

/// A certificate that is no longer in the directory, and that etcd still accepts.
#[derive(Debug)]
pub(super) struct Previous {
    pub(super) user: String,
    pub(super) not_after: Timestamp,
}

/// What to do with what is in the directory.
enum Verdict {
    Keep(Stored),
    /// The key is good.
    Renew(Secret),
    Issue,
}

pub(super) fn obtain(
    home: &Home,
    clusters: Clusters<'_>,
    wish: &Wish,
    pair: Pair,
    user: &str,
) -> Result<Stored, KubernetesError> {
    let now = Timestamp::now();
    let key = match judge(clusters, wish, pair, user, now) {
        Verdict::Keep(held) => return Ok(held),
        Verdict::Renew(key) => Some(key),
        Verdict::Issue => None,
    };
    // A certificate that cannot be written would stay recorded for nothing.
    files::refuse_if_not_writable(&wish.out.join(pair.certificate))?;
    let previous = if key.is_none() { previous(clusters, wish, pair, now) } else { None };
    let request = key.as_ref().map(|key| KeyPair::from_pem(key)?.csr(user)).transpose()?;
    let mut issued = clients::issue(home, clusters.main, user, request.as_deref(), None)?;
    if let Some(events) = clusters.events {
        clients::note(home, events, user, &issued)?;
    }
    let key = key.or_else(|| issued.key.take()).expect("issued without a request, so with a key");
    Ok(Stored { certificate: issued.certificate, key, not_after: issued.not_after, previous })
}

/// The certificate in the directory, if etcd accepts it: anyone who has its key can still log in.
fn previous(clusters: Clusters<'_>, wish: &Wish, pair: Pair, now: Timestamp) -> Option<Previous> {
    let facts = quorate_pki::inspect(&read(wish, pair.certificate)).ok()?;
    let is_refused = |ledger| record(ledger, &facts).is_some_and(|known| known.revoked);
    let accepted = is_from(clusters.main, &facts) && facts.not_after > now && !clusters.all().all(is_refused);
    let user = facts.subject_common_name.filter(|_| accepted)?;
    Some(Previous { user, not_after: facts.not_after })
}

fn read(wish: &Wish, name: &str) -> String {
    std::fs::read_to_string(Path::new(&wish.out).join(name)).unwrap_or_default()
}

fn is_from(ledger: &Ledger, facts: &CertificateFacts) -> bool {
    facts.authority_key_id.as_deref() == ledger.authorities.client.as_ref().map(|ca| ca.key_id.as_str())
}

fn judge(clusters: Clusters<'_>, wish: &Wish, pair: Pair, user: &str, now: Timestamp) -> Verdict {
    let (certificate, key) = (read(wish, pair.certificate), Secret::new(read(wish, pair.key)));
    let Ok(facts) = quorate_pki::inspect(&certificate) else { return Verdict::Issue };
    let is_ours = is_from(clusters.main, &facts) && facts.subject_common_name.as_deref() == Some(user);
    if wish.new_keys || !is_ours || quorate_pki::key_fits(&certificate, &key).is_err() {
        return Verdict::Issue;
    }
    let records: Vec<_> = clusters.all().map(|ledger| record(ledger, &facts)).collect();
    if records.iter().flatten().any(|record| record.revoked) {
        return Verdict::Issue;
    }
    if records.iter().any(Option::is_none) || is_due(clusters.main, &facts, now) {
        return Verdict::Renew(key);
    }
    Verdict::Keep(Stored { certificate, key, not_after: facts.not_after, previous: None })
}

fn record<'a>(ledger: &'a Ledger, facts: &CertificateFacts) -> Option<&'a IssuedCertificate> {
    ledger.issued.users.iter().find(|known| known.serial == facts.serial)
}

fn is_due(ledger: &Ledger, facts: &CertificateFacts, now: Timestamp) -> bool {
    let left = facts.not_after.duration_since(now);
    // If the CA itself expires, a new certificate would not last longer than this one.
    let gains = ledger.authorities.client.as_ref().is_none_or(|ca| facts.not_after < ca.not_after);
    (gains && left <= renew_before(ledger)) || facts.not_before > now
}
