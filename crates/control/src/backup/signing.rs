//! The key that signs a cluster's backups is in the ledger, and so are the keys to trust. A store cannot vouch for itself. Without
//! a ledger, the operator names the public key, or consents to continue unchecked.

use jiff::Timestamp;
use quorate_backup::Trust;
use quorate_core::model::{AuthorityRecord, BackupSigning, Ledger};
use quorate_core::spec::{ClusterSpec, Signer};
use quorate_pki::SigningKey;

use super::BackupError;
use super::note::{PATIENCE, PAUSE};
use crate::home::Home;

/// The key that backups must be signed with: the given one, the ledger's, or the one in the spec, in this order.
pub fn trust_of(ledger: Option<&Ledger>, spec: &ClusterSpec, given: Option<&Signer>, unsigned: bool) -> Trust {
    let own = ledger.and_then(|ledger| ledger.backup_signing.as_ref());
    let named = || spec.backup.as_ref().and_then(|backup| backup.signed_by.clone());
    let signer = given.cloned().or_else(|| own.map(|own| own.public.clone())).or_else(named);
    let since = own.filter(|own| signer.as_ref() == Some(&own.public)).map(|own| own.since);
    Trust { signer, since, unsigned, now: Timestamp::now() }
}

/// The SHA-256 of a CA's certificate in hexadecimal, like openssl's output: it identifies a cluster for people.
pub fn fingerprint_of(authority: &AuthorityRecord) -> Option<String> {
    quorate_pki::inspect(&authority.certificate).ok().map(|facts| facts.fingerprint)
}

/// A new key.
pub(crate) fn record(now: Timestamp) -> BackupSigning {
    let key = SigningKey::generate();
    BackupSigning { key: key.secret().clone(), public: key.signer(), since: now }
}

/// The cluster's key.
pub fn key_of(ledger: &Ledger) -> Result<SigningKey, BackupError> {
    let signing = ledger.backup_signing.as_ref();
    let cluster = || ledger.spec.name.to_string();
    let signing = signing.ok_or_else(|| BackupError::NoSigningKey { cluster: cluster() })?;
    SigningKey::load(&signing.key).map_err(|source| BackupError::SigningKey { cluster: cluster(), source })
}

/// The ledger with a key in it: one that an older quorate wrote has none, and gets it with the first backup or the next `apply`.
pub async fn with_key(home: &Home, ledger: Ledger) -> Result<Ledger, BackupError> {
    if ledger.backup_signing.is_some() {
        return Ok(ledger);
    }
    let store = home.store(ledger.spec.name.as_str());
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let now = Timestamp::now();
        store.amend(now, |ledger| {
            ledger.backup_signing.get_or_insert_with(|| record(now));
        })?;
        match store.read()?.filter(|now| now.cluster_id == ledger.cluster_id) {
            None => return Err(BackupError::Gone { cluster: ledger.spec.name.to_string() }),
            Some(ledger) if ledger.backup_signing.is_some() => return Ok(ledger),
            Some(_) if tokio::time::Instant::now() > until => {
                return Err(BackupError::NoSigningKey { cluster: ledger.spec.name.to_string() });
            }
            Some(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::spec::generated;

    use super::*;

    #[tokio::test]
    async fn a_ledger_of_before_gets_its_key_once() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        let spec = generated("demo", 1, DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
        let old = Ledger::new(String::from("c"), spec);
        let store = home.store("demo");
        store.write(&mut old.clone()).unwrap();
        assert!(matches!(key_of(&old), Err(BackupError::NoSigningKey { .. })));
        let first = with_key(&home, old.clone()).await.unwrap();
        let second = with_key(&home, old.clone()).await.unwrap();
        assert_eq!(second.backup_signing, first.backup_signing, "the one that is there counts");
        assert_eq!(key_of(&first).unwrap().signer(), first.backup_signing.as_ref().unwrap().public);
        let trust = trust_of(Some(&first), &first.spec, None, false);
        assert_eq!(trust.signer, first.backup_signing.as_ref().map(|own| own.public.clone()));
        assert!(trust.since.is_some());
        let given = SigningKey::generate().signer();
        let trust = trust_of(Some(&first), &first.spec, Some(&given), false);
        assert_eq!((trust.signer, trust.since), (Some(given), None));
        assert_eq!(trust_of(None, &first.spec, None, false).signer, None);
    }
}
