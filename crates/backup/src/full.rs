//! A full backup: etcd's snapshot is compressed, encrypted and streamed into the store, then its key and the ledger, and last the
//! manifest. Until the manifest exists, the backup does not. Memory does not grow with the database, and nothing touches the disk. It
//! makes one attempt: if the member or the store fails for long, everything is removed and the caller starts again.

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use quorate_pki::SigningKey;

use crate::Error;
use crate::damage::Damage;
use crate::keys::{BackupKey, Identities, KeyError, Recipients};
use crate::manifest::{Beside, FORMAT, Hash, Manifest, Taken};
use crate::names::{BackupId, Names};
use crate::pipe::{self, Ending, Sealed, Sealing, SnapshotCheck, SnapshotFile, Unsealing};
use crate::settings::Settings;
use crate::signed::{self, Kind, Trust};
use crate::small;
use crate::source::{About, Source, count_at, hash_at, newest_revision};
use crate::store::{Object, SMALL, Store, sha256_hex};

/// A full backup that is going to be: changes can be recorded on top of it already.
#[derive(Clone)]
pub struct Draft {
    id: BackupId,
    key: Option<(BackupKey, Recipients)>,
    signing: SigningKey,
}

impl Draft {
    pub fn new(settings: &Settings, signing: &SigningKey, now: Timestamp) -> Result<Self, Error> {
        let recipients = Recipients::parse(&settings.recipients).map_err(Error::key("the spec's recipients"))?;
        Ok(Draft {
            id: BackupId::new(now, &quorate_pki::random_hex(4)),
            key: recipients.map(|recipients| (BackupKey::generate(), recipients)),
            signing: signing.clone(),
        })
    }

    pub fn id(&self) -> &BackupId {
        &self.id
    }

    /// Opens it, as long as this draft is at hand: a backup can be verified right after it was taken without the operator's key.
    pub fn key(&self) -> Option<BackupKey> {
        self.key.as_ref().map(|(key, _)| key.clone())
    }

    /// The public half of its key, if it will be encrypted.
    pub fn recipient(&self) -> Option<String> {
        self.key.as_ref().map(|(key, _)| key.recipient())
    }
}

/// Takes the backup. `ledger` is the ledger's export, encrypted already. `progress` is called with how many bytes of the database have come.
pub async fn create(
    store: &Store,
    source: &dyn Source,
    draft: &Draft,
    settings: &Settings,
    ledger: Option<Bytes>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Manifest, Error> {
    let about = source.about().await?;
    let names = Names::new(&about.cluster);
    let manifest = match stored(store, source, &names, draft, settings, about, progress).await {
        Ok(manifest) => manifest,
        Err(error) => {
            // The first error says more; what stays has no manifest, and is cleared by a later prune.
            let _ = store.delete(&names.snapshot(&draft.id)).await;
            return Err(error);
        }
    };
    let mut beside = Beside::default();
    if let Some((key, recipients)) = &draft.key {
        let wrapped = key.wrap(recipients).map_err(Error::key("the backup's key"))?;
        beside.key = Some(sha256_hex(&wrapped));
        store.put_new(&names.key(&draft.id), wrapped.into()).await?;
    }
    if let Some(ledger) = ledger {
        beside.ledger = Some(sha256_hex(&ledger));
        beside.ledger_bytes = Some(ledger.len() as u64);
        store.put_new(&names.ledger(&draft.id), ledger).await?;
    }
    let manifest = Manifest { taken: Taken { ended: Timestamp::now(), ..manifest.taken }, beside, ..manifest };
    let manifest = manifest.signed(&draft.signing);
    store.put_new(&names.manifest(&draft.id), manifest.to_json().into()).await?;
    Ok(manifest)
}

/// Everything but the last objects.
async fn stored(
    store: &Store,
    source: &dyn Source,
    names: &Names,
    draft: &Draft,
    settings: &Settings,
    about: About,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Manifest, Error> {
    let began = Timestamp::now();
    let revision = newest_revision(source).await?;
    let mut snapshot = source.snapshot().await?.peekable();
    // etcd opens its transaction before the first piece.
    std::pin::Pin::new(&mut snapshot).peek().await;
    let revision_at_most = newest_revision(source).await?;
    let opened = Timestamp::now();
    let measured = async {
        // At once: the revision may be compacted by the time that all is stored.
        let keys = source.range(count_at(revision)).await?.count;
        Ok((Hash::from(hash_at(source, revision).await?), keys))
    };
    let path = names.snapshot(&draft.id);
    let sealing = pipe::seal(settings.compression, draft.recipient());
    let uploaded = upload(store, &path, snapshot, sealing, &about.from_member, progress, measured);
    let (checked, sealed, (hash, keys)) = uploaded.await?;
    Ok(Manifest {
        format: FORMAT,
        id: draft.id.clone(),
        cluster: about.cluster,
        cluster_id: about.cluster_id,
        etcd_version: about.etcd_version,
        taken: Taken { began, opened, ended: opened },
        from_member: about.from_member,
        members: about.members,
        revision,
        revision_at_most,
        hash,
        keys,
        db_bytes: checked.db_bytes(),
        snapshot_sha256: checked.sha256,
        stored_bytes: sealed.bytes,
        stored_sha256: sealed.sha256,
        recipient: draft.recipient(),
        beside: Beside::default(),
        sealed_for: settings.recipients.clone(),
        verified: Vec::new(),
        signature: None,
    })
}

type Pieces = futures_util::stream::Peekable<crate::source::SnapshotStream>;

/// Where it fails, or what is measured meanwhile does, nothing of it stays in the store.
async fn upload<T>(
    store: &Store,
    path: &str,
    snapshot: Pieces,
    Sealing { input, mut output, done }: Sealing,
    member: &str,
    progress: &(dyn Fn(u64) + Sync),
    meanwhile: impl Future<Output = Result<T, Error>>,
) -> Result<(SnapshotFile, Sealed, T), Error> {
    let mut upload = store.upload(path).await?;
    let drain = async {
        while let Some(part) = output.recv().await {
            upload.write(part).await?;
        }
        Ok::<(), Error>(())
    };
    let fed = feed(snapshot, input, member, progress);
    let through = async {
        let (checked, (), measured) = tokio::try_join!(fed, drain, meanwhile)?;
        let sealed = done.await?.map_err(Error::key("the snapshot"))?;
        // A pipe that ended early without an error does not exist.
        let checked = checked.ok_or_else(|| Error::SnapshotCorrupt { member: member.to_owned(), bytes: 0 })?;
        Ok((checked, sealed, measured))
    };
    match through.await {
        Ok(stored) => upload.finish().await.map(|()| stored).map_err(Error::from),
        Err(error) => {
            upload.abort().await;
            Err(error)
        }
    }
}

/// Hands the snapshot on, and compares it with its checksum at the end. `None` where the other side ended early; it knows why.
async fn feed(
    mut snapshot: Pieces,
    input: tokio::sync::mpsc::Sender<Bytes>,
    member: &str,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Option<SnapshotFile>, Error> {
    let (mut check, mut bytes) = (SnapshotCheck::new(), 0);
    while let Some(piece) = snapshot.next().await {
        let piece = piece?;
        check.update(&piece);
        bytes += piece.len() as u64;
        if input.send(piece).await.is_err() {
            return Ok(None);
        }
        progress(bytes);
    }
    let corrupt = || Error::SnapshotCorrupt { member: member.to_owned(), bytes };
    check.finish().map(Some).ok_or_else(corrupt)
}

/// The key of a backup, opened with the operator's identities; none where it is not encrypted.
pub async fn key_of(
    store: &Store,
    manifest: &Manifest,
    identities: Option<&Identities>,
) -> Result<Option<BackupKey>, Error> {
    let Some(recipient) = &manifest.recipient else { return Ok(None) };
    let path = Names::new(&manifest.cluster).key(&manifest.id);
    let what = format!("the key {path}");
    let Some(identities) = identities else { return Err(Error::key(what)(KeyError::NoIdentity)) };
    let Some(sealed) = small::beside(store, &manifest.id, &path, SMALL).await? else {
        return Err(Damage::Missing { id: manifest.id.clone(), path }.into());
    };
    BackupKey::unwrap(&sealed.bytes, identities, recipient).map(Some).map_err(Error::key(what))
}

/// Writes a backup's snapshot, as etcd made it, into the file `at`. What was stored is compared with its size and its SHA-256: then it holds
/// what was checked against etcd's checksum when it was stored, and only that checksum itself is compared again. Where the file cannot be written, that is no damage of the backup. The file is not synced to disk.
pub async fn fetch(
    store: &Store,
    manifest: &Manifest,
    key: Option<BackupKey>,
    into: File,
    at: &Path,
) -> Result<SnapshotFile, Error> {
    let (id, path) = (manifest.id.clone(), Names::new(&manifest.cluster).snapshot(&manifest.id));
    let (found, mut content) = match store.read(&path).await {
        Err(error) if error.is_not_found() => return Err(Damage::Missing { id, path }.into()),
        opened => opened?,
    };
    if found != manifest.stored_bytes {
        return Err(Damage::Size { id, path, expected: manifest.stored_bytes, found }.into());
    }
    let output = Ending::new(into);
    // The database, and etcd's checksum of it.
    let Unsealing { input, done } = pipe::unseal(key, output, manifest.db_bytes.saturating_add(pipe::SUM as u64));
    let mut sha256 = Sha256::new();
    while let Some(piece) = content.next().await {
        let piece = piece?;
        sha256.update(&piece);
        // One that gave up says why below; what is stored is compared whole nevertheless, which says more.
        let _ = input.send(piece).await;
    }
    drop(input);
    let opened = done.await?;
    let found = hex(&sha256.finalize());
    if found != manifest.stored_sha256 {
        return Err(Damage::Content { id, path, expected: manifest.stored_sha256.clone(), found }.into());
    }
    let written = opened.map_err(|error| match error {
        KeyError::Output(source) => Error::file("write", at)(source),
        error => Damage::unreadable(&id, &path, &error).into(),
    })?;
    let snapshot = written.snapshot();
    if (snapshot.db_bytes(), &snapshot.sha256) != (manifest.db_bytes, &manifest.snapshot_sha256) {
        return Err(Damage::Checksum { id, path }.into());
    }
    Ok(snapshot)
}

/// The result of rekeying.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rekeyed {
    pub changed: Vec<BackupId>,
    /// None of the identities opens these: they may have been changed already, by one that was interrupted.
    pub unopened: Vec<BackupId>,
}

/// Encrypts the key of each backup, and the ledger next to it, to the current recipients. The data stays as it is. What the identities do
/// not open is left, and the others are changed nevertheless: so it can be done again after a kill. What a signed manifest does not know
/// is never signed for: it would come back as ours.
pub async fn rekey(
    store: &Store,
    manifests: &[Manifest],
    identities: &Identities,
    recipients: &[String],
    signing: Option<&SigningKey>,
) -> Result<Rekeyed, Error> {
    let parsed = Recipients::parse(recipients).map_err(Error::key("the spec's recipients"))?;
    let mut done = Rekeyed::default();
    let Some(parsed) = parsed else { return Ok(done) };
    for manifest in manifests.iter().filter(|manifest| manifest.recipient.is_some()) {
        let sealing = async {
            let key = sealed_key(store, manifest, identities, &parsed).await?;
            Ok((key, sealed_ledger(store, manifest, identities, &parsed).await?))
        };
        let Some((key, ledger)) = unless_unopened(sealing.await)? else {
            done.unopened.push(manifest.id.clone());
            continue;
        };
        replace_beside(store, manifest, key, ledger, recipients, signing).await?;
        done.changed.push(manifest.id.clone());
    }
    Ok(done)
}

fn unless_unopened<T>(done: Result<T, Error>) -> Result<Option<T>, Error> {
    match done {
        Err(Error::Key { source: KeyError::WrongIdentity, .. }) => Ok(None),
        done => done.map(Some),
    }
}

/// An object as it is to be from now on.
struct Resealed {
    path: String,
    sealed: Vec<u8>,
    was: crate::store::Tag,
}

/// The manifest knows of both while the objects are replaced.
async fn replace_beside(
    store: &Store,
    manifest: &Manifest,
    key: Resealed,
    ledger: Option<Resealed>,
    recipients: &[String],
    signing: Option<&SigningKey>,
) -> Result<(), Error> {
    let key_sha256 = sha256_hex(&key.sealed);
    let ledger_sha256 = ledger.as_ref().map(|ledger| sha256_hex(&ledger.sealed));
    let ledger_bytes = ledger.as_ref().map(|ledger| ledger.sealed.len() as u64);
    let announce = |manifest: &mut Manifest| {
        // Either of the two can be read.
        manifest.beside.ledger_bytes = manifest.beside.ledger_bytes.max(ledger_bytes);
        // What an earlier one announced may be in place, if it was killed.
        manifest.beside.next.extend([Some(key_sha256.clone()), ledger_sha256.clone()].into_iter().flatten());
    };
    update_manifest(store, manifest, signing, announce).await?;
    for Resealed { path, sealed, was } in [Some(key), ledger].into_iter().flatten() {
        store.replace(&path, sealed.into(), &was).await?;
    }
    let settle = |manifest: &mut Manifest| {
        let ledger = ledger_sha256.clone().or_else(|| manifest.beside.ledger.take());
        let ledger_bytes = ledger_bytes.or(manifest.beside.ledger_bytes);
        manifest.beside = Beside { key: Some(key_sha256.clone()), ledger, ledger_bytes, next: Vec::new() };
        manifest.sealed_for = recipients.to_vec();
    };
    update_manifest(store, manifest, signing, settle).await?;
    Ok(())
}

async fn sealed_key(
    store: &Store,
    manifest: &Manifest,
    identities: &Identities,
    recipients: &Recipients,
) -> Result<Resealed, Error> {
    let path = Names::new(&manifest.cluster).key(&manifest.id);
    let what = || format!("the key {path}");
    let Some(sealed) = small::beside(store, &manifest.id, &path, SMALL).await? else {
        return Err(Damage::Missing { id: manifest.id.clone(), path }.into());
    };
    // The public half, which the manifest has, tells whether it is the right one.
    let public = manifest.recipient.as_deref().unwrap_or_default();
    let key = BackupKey::unwrap(&sealed.bytes, identities, public).map_err(Error::key(what()))?;
    let resealed = key.wrap(recipients).map_err(Error::key(what()))?;
    Ok(Resealed { path, sealed: resealed, was: sealed.tag })
}

/// `None` where there is none.
async fn sealed_ledger(
    store: &Store,
    manifest: &Manifest,
    identities: &Identities,
    recipients: &Recipients,
) -> Result<Option<Resealed>, Error> {
    let path = Names::new(&manifest.cluster).ledger(&manifest.id);
    let what = || format!("the ledger {path}");
    let Some(sealed) = ledger_of(store, manifest).await? else { return Ok(None) };
    let plain = identities.open(&sealed.bytes).map_err(Error::key(what()))?;
    let resealed = recipients.seal(&plain).map_err(Error::key(what()))?;
    Ok(Some(Resealed { path, sealed: resealed, was: sealed.tag }))
}

/// The ledger next to a backup, encrypted as it is stored; `None` where there is none. It is the one that the manifest speaks of, and no
/// other that somebody put in its place. Before there were signatures, the oldest manifests had no digest of it.
pub async fn ledger_of(store: &Store, manifest: &Manifest) -> Result<Option<Object>, Error> {
    let (id, path) = (&manifest.id, Names::new(&manifest.cluster).ledger(&manifest.id));
    let Some(sealed) = small::beside(store, id, &path, manifest.beside.ledger_limit()).await? else { return Ok(None) };
    let found = sha256_hex(&sealed.bytes);
    let is_known = manifest.signature.is_some() || manifest.beside.ledger.is_some();
    if !is_known || manifest.beside.is_ledger(&found) {
        return Ok(Some(sealed));
    }
    let expected = manifest.beside.ledger.clone().unwrap_or_else(|| String::from("that there is none"));
    Err(Damage::Content { id: id.clone(), path, expected, found }.into())
}

/// Reads a manifest, lets it be changed, signs it, and writes it back if nobody else did meanwhile; else does so again. One that is signed
/// is only changed by who can sign it again. `known` is the one that was looked at before: where that of another backup is there now,
/// somebody exchanged them, and what is known of the one must not be signed into the other.
pub async fn update_manifest(
    store: &Store,
    known: &Manifest,
    signing: Option<&SigningKey>,
    change: impl Fn(&mut Manifest),
) -> Result<Manifest, Error> {
    let (id, path) = (&known.id, Names::new(&known.cluster).manifest(&known.id));
    loop {
        let Some(found) = small::manifest(store, id, &path).await? else {
            return Err(Damage::Missing { id: id.clone(), path }.into());
        };
        let unreadable = |why| Damage::Manifest { id: id.clone(), path: path.clone(), why };
        let mut manifest = Manifest::parse(&found.bytes).map_err(unreadable)?;
        if !manifest.is_of_same_backup(known) {
            return Err(Damage::Replaced { id: id.clone(), path, found: manifest.id.to_string() }.into());
        }
        let signing = match (&manifest.signature, signing) {
            (None, _) => None,
            (Some(_), None) => return Err(Error::CannotSign { path }),
            (Some(_), Some(signing)) => {
                // What was exchanged since it was looked at must not be signed.
                let trust = Trust::only(signing.signer(), Timestamp::now());
                signed::judge(&trust, Kind::Full, id, &path, &found.bytes)?;
                Some(signing)
            }
        };
        change(&mut manifest);
        if let Some(signing) = signing {
            manifest = manifest.signed(signing);
        }
        match store.replace(&path, manifest.to_json().into(), &found.tag).await {
            Ok(_) => return Ok(manifest),
            Err(error) if error.trouble == crate::store::Trouble::Changed => {}
            Err(error) => return Err(error.into()),
        }
    }
}
