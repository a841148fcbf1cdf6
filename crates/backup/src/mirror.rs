//! The second destination: everything that the first one has of this cluster is copied there, each backup's manifest last, so it never
//! shows an incomplete backup. Copying also repairs it after an outage. Only objects that the cluster signed are copied, each is compared
//! with its digest on the way, and nothing intact in the second destination is replaced or deleted, whatever is in the first: someone who
//! can write to the first one must not reach the second one through quorate.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use quorate_pki::SigningKey;

use crate::Error;
use crate::damage::Damage;
use crate::manifest::{Beside, Manifest};
use crate::names::{BackupId, Named, Names, Span};
use crate::segment::{self, SegmentManifest};
use crate::signed::{self, Kind, Standing, Trust};
use crate::small;
use crate::store::{PART, Store, Tag, sha256_hex};

/// Objects up to here are copied whole.
const SMALL: u64 = PART as u64;

/// Copies missing objects, and returns their number. Objects that are only in the second destination stay: each destination is pruned
/// separately. What is damaged or not this cluster's is left out, and reported at the end. Backups from before there were signatures are
/// skipped: they were copied when they were made.
pub async fn copy(
    from: &Store,
    to: &Store,
    cluster: &str,
    trust: &Trust,
    signing: &SigningKey,
) -> Result<usize, Error> {
    let names = Names::new(cluster);
    let there = to.list(names.root()).await?.into_iter().map(|object| (object.path, object.bytes)).collect();
    let mut mirror = Mirror { from, to, names: &names, trust, signing, there, copied: 0, damage: Vec::new() };
    let (mut segments, mut fulls) = (Vec::new(), BTreeMap::new());
    for object in from.list(names.root()).await? {
        match names.parse(&object.path) {
            Some(Named::SegmentManifest(id, span)) => segments.push((id, span)),
            Some(Named::Manifest(id)) => drop(fulls.insert(id.clone(), mirror.look_at(&id).await?)),
            // What has no manifest does not exist.
            _ => {}
        }
    }
    for (id, span) in segments {
        // While a backup is being taken, changes are recorded on top of it already.
        if fulls.get(&id).is_none_or(Option::is_some) {
            mirror.segment(&id, span).await?;
        }
    }
    for (id, manifest) in fulls {
        if let Some(manifest) = manifest {
            mirror.full(&id, manifest).await?;
        }
    }
    match mirror.damage.is_empty() {
        true => Ok(mirror.copied),
        false => Err(Error::NotCopied { damage: mirror.damage }),
    }
}

struct Mirror<'a> {
    from: &'a Store,
    to: &'a Store,
    names: &'a Names,
    trust: &'a Trust,
    signing: &'a SigningKey,
    /// The objects of the second destination, with their sizes.
    there: BTreeMap<String, u64>,
    copied: usize,
    damage: Vec<Damage>,
}

/// The expected size and digest of an object.
struct Expected<'a> {
    id: &'a BackupId,
    path: String,
    bytes: u64,
    sha256: &'a str,
}

/// A small object that belongs to a backup.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Ledger,
}

impl Part {
    fn path(self, names: &Names, id: &BackupId) -> String {
        match self {
            Part::Key => names.key(id),
            Part::Ledger => names.ledger(id),
        }
    }

    fn fits(self, beside: &Beside, sha256: &str) -> bool {
        match self {
            Part::Key => beside.is_key(sha256),
            Part::Ledger => beside.is_ledger(sha256),
        }
    }

    fn limit(self, manifest: &Manifest) -> u64 {
        match self {
            Part::Key => crate::store::SMALL,
            Part::Ledger => manifest.beside.ledger_limit(),
        }
    }

    fn expected(self, beside: &Beside) -> Option<&String> {
        match self {
            Part::Key => beside.key.as_ref(),
            Part::Ledger => beside.ledger.as_ref(),
        }
    }
}

impl Mirror<'_> {
    /// The first's manifest, if the cluster signed it.
    async fn look_at(&mut self, id: &BackupId) -> Result<Option<Manifest>, Error> {
        let path = self.names.manifest(id);
        if signed::is_of_the_future(self.trust, id) {
            self.damage.push(Damage::Future { id: id.clone(), path, now: self.trust.now });
            return Ok(None);
        }
        let json = match small::manifest(self.from, id, &path).await {
            Ok(Some(json)) => json.bytes,
            // Pruned meanwhile.
            Ok(None) => return Ok(None),
            Err(error) => return self.note(error).map(|()| None),
        };
        match self.judge(id, &path, &json) {
            Ok(manifest) => Ok(manifest),
            Err(damage) => {
                self.damage.push(*damage);
                Ok(None)
            }
        }
    }

    fn judge(&self, id: &BackupId, path: &str, json: &[u8]) -> Result<Option<Manifest>, Box<Damage>> {
        let unreadable = |why| Box::new(Damage::Manifest { id: id.clone(), path: path.to_owned(), why });
        let manifest = Manifest::parse(json).map_err(unreadable)?;
        if signed::judge(self.trust, Kind::Full, id, path, json)? != Standing::Signed {
            return Ok(None);
        }
        match manifest.id == *id && manifest.cluster == self.names.root() {
            true => Ok(Some(manifest)),
            false => Err(unreadable(format!("it is the manifest of {}", manifest.id))),
        }
    }

    /// Segments and their manifests never change: what is there stays.
    async fn segment(&mut self, id: &BackupId, span: Span) -> Result<(), Error> {
        let (path, about) = (self.names.segment(id, span), self.names.segment_manifest(id, span));
        if self.there.contains_key(&about) && self.there.contains_key(&path) {
            return Ok(());
        }
        let signer = self.signing.signer();
        let manifest = match segment::signed_manifest(self.from, self.names, id, span, Some(&signer)).await {
            Ok(manifest) => manifest,
            Err(error) => return self.note(error),
        };
        let SegmentManifest { stored_bytes: bytes, stored_sha256: sha256, .. } = &manifest;
        if self.data(Expected { id, path, bytes: *bytes, sha256 }).await? && !self.there.contains_key(&about) {
            self.to.put_new(&about, manifest.to_json().into()).await?;
            self.copied += 1;
        }
        Ok(())
    }

    /// The snapshot, then the small objects next to it, then the manifest.
    async fn full(&mut self, id: &BackupId, manifest: Manifest) -> Result<(), Error> {
        let path = self.names.manifest(id);
        let (known, tag) = match small::manifest(self.to, id, &path).await {
            Ok(None) => (None, None),
            // One that the cluster did not sign is not whole, as the first has one that it did.
            Ok(Some(there)) => (self.judge(id, &path, &there.bytes).ok().flatten(), Some(there.tag)),
            Err(Error::Damaged(_)) => {
                self.to.delete(&path).await?;
                (None, None)
            }
            Err(error) => return Err(error),
        };
        let (bytes, sha256) = (manifest.stored_bytes, manifest.stored_sha256.as_str());
        if !self.data(Expected { id, path: self.names.snapshot(id), bytes, sha256 }).await? {
            return Ok(());
        }
        let needs_key = manifest.recipient.is_some();
        let has_ledger = manifest.beside.ledger.is_some();
        let key = self.beside(Part::Key, &manifest, known.as_ref(), needs_key).await?;
        let ledger = self.beside(Part::Ledger, &manifest, known.as_ref(), has_ledger).await?;
        // A manifest without its key would be that of a backup which nobody can open.
        let (Some(key), Some(ledger)) = (key, ledger) else { return Ok(()) };
        let of_this = [known.as_ref(), Some(&manifest)].into_iter().flatten().find(|one| one.beside.ledger == ledger);
        let ledger_bytes = of_this.unwrap_or(&manifest).beside.ledger_bytes;
        let merged = self.merged(manifest, known.clone(), Beside { key, ledger, ledger_bytes, next: Vec::new() });
        if known.as_ref() == Some(&merged) {
            return Ok(());
        }
        self.put(&path, merged.to_json().into(), tag).await
    }

    /// What the second is to say: its own, with the verifications that came after.
    fn merged(&self, manifest: Manifest, known: Option<Manifest>, beside: Beside) -> Manifest {
        let Some(known) = known else {
            let same = manifest.beside == beside;
            return if same { manifest } else { Manifest { beside, ..manifest }.signed(self.signing) };
        };
        let continues = manifest.verified.starts_with(&known.verified);
        let verified = if continues { manifest.verified } else { known.verified.clone() };
        match verified == known.verified && beside == known.beside {
            true => known,
            false => Manifest { verified, beside, ..known }.signed(self.signing),
        }
    }

    /// Sees to it that the second has a small object, and returns its digest there. `None`: it lacks one that is needed.
    async fn beside(
        &mut self,
        part: Part,
        manifest: &Manifest,
        known: Option<&Manifest>,
        needed: bool,
    ) -> Result<Option<Option<String>>, Error> {
        let (id, path) = (&manifest.id, part.path(self.names, &manifest.id));
        if !needed {
            return Ok(Some(known.and_then(|known| part.expected(&known.beside).cloned())));
        }
        let there = match small::beside(self.to, id, &path, part.limit(known.unwrap_or(manifest))).await {
            Err(Error::Damaged(_)) => {
                self.to.delete(&path).await?;
                None
            }
            there => there?,
        };
        let whole = there.as_ref().map(|there| sha256_hex(&there.bytes));
        let whole = whole.filter(|found| part.fits(&known.unwrap_or(manifest).beside, found));
        let bytes = match small::beside(self.from, id, &path, part.limit(manifest)).await {
            Ok(Some(object)) => object.bytes,
            Ok(None) => {
                if whole.is_none() {
                    self.damage.push(Damage::Missing { id: id.clone(), path });
                }
                return Ok(whole.map(Some));
            }
            Err(error) => return self.note(error).map(|()| whole.map(Some)),
        };
        let found = sha256_hex(&bytes);
        if !part.fits(&manifest.beside, &found) {
            let expected = part.expected(&manifest.beside).cloned().unwrap_or_default();
            self.damage.push(Damage::Content { id: id.clone(), path, expected, found });
            return Ok(whole.map(Some));
        }
        if whole.is_some() {
            return Ok(whole.map(Some));
        }
        self.put(&path, bytes, there.map(|there| there.tag)).await?;
        Ok(Some(Some(found)))
    }

    /// A snapshot or a segment. Says whether the second has it.
    async fn data(&mut self, object: Expected<'_>) -> Result<bool, Error> {
        let there = self.there.get(&object.path).copied();
        if there == Some(object.bytes) {
            return Ok(true);
        }
        // One that is there with another size than the cluster signed for is damaged, and makes way for one that is known to be whole.
        if there.is_some() {
            if let Err(error) = self.read(&object, None).await {
                self.note(error)?;
                return Ok(false);
            }
            self.to.delete(&object.path).await?;
        }
        match self.copy(&object).await {
            Ok(()) => {
                self.copied += 1;
                Ok(true)
            }
            Err(error) => self.note(error).map(|()| false),
        }
    }

    async fn copy(&self, object: &Expected<'_>) -> Result<(), Error> {
        if object.bytes <= SMALL {
            return self.copy_whole(object).await;
        }
        let mut upload = self.to.upload(&object.path).await?;
        match self.read(object, Some(&mut upload)).await {
            Ok(()) => Ok(upload.finish().await?),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    async fn copy_whole(&self, object: &Expected<'_>) -> Result<(), Error> {
        let (id, path) = (object.id.clone(), object.path.clone());
        let Some(found) = small::beside(self.from, &id, &path, SMALL).await? else {
            return Err(Damage::Missing { id, path }.into());
        };
        let bytes = found.bytes;
        let found = sha256_hex(&bytes);
        if found != object.sha256 {
            return Err(Damage::Content { id, path, expected: object.sha256.to_owned(), found }.into());
        }
        Ok(self.to.put_new(&path, bytes).await.map(drop)?)
    }

    /// Reads an object of the first through, hands it on, and compares it with what it must be.
    async fn read(&self, object: &Expected<'_>, mut into: Option<&mut crate::store::Upload>) -> Result<(), Error> {
        let (id, path) = (object.id.clone(), object.path.clone());
        let (found, mut content) = match self.from.read(&path).await {
            Err(error) if error.is_not_found() => return Err(Damage::Missing { id, path }.into()),
            opened => opened?,
        };
        if found != object.bytes {
            return Err(Damage::Size { id, path, expected: object.bytes, found }.into());
        }
        let (mut sha256, mut filling) = (Sha256::new(), BytesMut::with_capacity(PART));
        while let Some(piece) = content.next().await {
            let mut piece: Bytes = piece?;
            sha256.update(&piece);
            let Some(upload) = &mut into else { continue };
            while !piece.is_empty() {
                let taken = piece.split_to(piece.len().min(PART - filling.len()));
                filling.extend_from_slice(&taken);
                if filling.len() == PART {
                    upload.write(std::mem::replace(&mut filling, BytesMut::with_capacity(PART)).freeze()).await?;
                }
            }
        }
        let found = hex(&sha256.finalize());
        if found != object.sha256 {
            return Err(Damage::Content { id, path, expected: object.sha256.to_owned(), found }.into());
        }
        match into {
            Some(upload) => Ok(upload.write(filling.freeze()).await?),
            None => Ok(()),
        }
    }

    /// Something small: new, or in place of what was not whole.
    async fn put(&mut self, path: &str, bytes: Bytes, was: Option<Tag>) -> Result<(), Error> {
        match was {
            Some(tag) => drop(self.to.replace(path, bytes, &tag).await?),
            None => drop(self.to.put_new(path, bytes).await?),
        }
        self.copied += 1;
        Ok(())
    }

    /// Damage does not keep the rest from being copied.
    fn note(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Damaged(damage) => {
                self.damage.push(*damage);
                Ok(())
            }
            error => Err(error),
        }
    }
}
