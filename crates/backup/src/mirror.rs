//! The second destination: whatever the first holds is copied there, each backup's manifest last, so that it too never shows a backup
//! that is not whole. Copying is what heals it as well, after it was away. Everything is compared with its digest on the way: what is
//! damaged in the first never takes the place of what is good in the second.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::damage::{Damage, exchanged};
use crate::manifest::Manifest;
use crate::names::{BackupId, Named, Names, Span};
use crate::segment::{self, SegmentManifest};
use crate::store::{PART, Store, hex, sha256_hex};

/// Objects up to here are copied whole.
const SMALL: u64 = PART as u64;

/// Copies what is missing or has changed, and returns how many objects that were. What is only in the second stays: pruning is asked
/// of each for itself. What is damaged is left out, and told at the end.
pub async fn copy(from: &Store, to: &Store, cluster: &str) -> Result<usize, Error> {
    let names = Names::new(cluster);
    let there = to.list(names.root()).await?.into_iter().map(|object| (object.path, object.bytes)).collect();
    let mut mirror = Mirror { from, to, names: &names, there, copied: 0, damage: Vec::new() };
    let (mut segments, mut fulls) = (Vec::new(), Vec::new());
    for object in from.list(names.root()).await? {
        match names.parse(&object.path) {
            Some(Named::SegmentManifest(id, span)) => segments.push((id, span)),
            Some(Named::Manifest(id)) => fulls.push(id),
            // What has no manifest does not exist.
            _ => {}
        }
    }
    for (id, span) in segments {
        mirror.segment(&id, span).await?;
    }
    for id in fulls {
        mirror.full(&id).await?;
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
    /// What the second has, and of which size.
    there: BTreeMap<String, u64>,
    copied: usize,
    damage: Vec<Damage>,
}

/// What an object must be.
struct Expected<'a> {
    id: &'a BackupId,
    path: String,
    bytes: u64,
    sha256: &'a str,
}

impl Mirror<'_> {
    /// Segments and their manifests never change: what is there stays.
    async fn segment(&mut self, id: &BackupId, span: Span) -> Result<(), Error> {
        let (path, about) = (self.names.segment(id, span), self.names.segment_manifest(id, span));
        if self.there.contains_key(&about) && self.there.contains_key(&path) {
            return Ok(());
        }
        let manifest = match segment::read_manifest(self.from, self.names, id, span).await {
            Ok(manifest) if manifest.full == *id && manifest.span == span => manifest,
            Ok(other) => {
                let damage = exchanged(id, about, &other.cluster_id, other.full.as_str(), other.span);
                return self.note(damage.into());
            }
            Err(error) => return self.note(error),
        };
        let SegmentManifest { stored_bytes: bytes, stored_sha256: sha256, .. } = &manifest;
        if self.data(Expected { id, path, bytes: *bytes, sha256 }).await? && !self.there.contains_key(&about) {
            self.put(&about, manifest.to_json().into()).await?;
        }
        Ok(())
    }

    /// The snapshot, then the small objects beside it, then the manifest. Those may change: the first has them as they are now.
    async fn full(&mut self, id: &BackupId) -> Result<(), Error> {
        let path = self.names.manifest(id);
        let json = match self.from.get(&path).await {
            // Pruned meanwhile.
            Err(error) if error.is_not_found() => return Ok(()),
            json => json?.bytes,
        };
        let manifest = match Manifest::parse(&json) {
            Ok(manifest) if manifest.id == *id => manifest,
            Ok(manifest) => {
                let why = format!("it is the manifest of {}", manifest.id);
                return self.note(Damage::Manifest { id: id.clone(), path, why }.into());
            }
            Err(why) => return self.note(Damage::Manifest { id: id.clone(), path, why }.into()),
        };
        let (bytes, sha256) = (manifest.stored_bytes, manifest.stored_sha256.as_str());
        if !self.data(Expected { id, path: self.names.snapshot(id), bytes, sha256 }).await? {
            return Ok(());
        }
        let (key, ledger) = (self.names.key(id), self.names.ledger(id));
        let is_whole = self.beside(id, key, manifest.beside.key.as_deref(), manifest.recipient.is_some()).await?
            & self.beside(id, ledger, manifest.beside.ledger.as_deref(), manifest.beside.ledger.is_some()).await?;
        // A manifest without its key would be that of a backup which nobody can open.
        if is_whole { self.put(&path, json).await } else { Ok(()) }
    }

    /// One that has no digest, since an older quorate stored it, is only copied where the second has none. Says whether the second has it
    /// as it should be.
    async fn beside(&mut self, id: &BackupId, path: String, sha256: Option<&str>, needed: bool) -> Result<bool, Error> {
        let has = self.there.contains_key(&path);
        if sha256.is_none() && has {
            return Ok(true);
        }
        let bytes = match self.from.get(&path).await {
            Err(error) if error.is_not_found() => {
                if needed && !has {
                    self.damage.push(Damage::Missing { id: id.clone(), path });
                }
                return Ok(has || !needed);
            }
            object => object?.bytes,
        };
        let found = sha256_hex(&bytes);
        if let Some(expected) = sha256.filter(|expected| *expected != found) {
            self.damage.push(Damage::Content { id: id.clone(), path, expected: expected.to_owned(), found });
            return Ok(has);
        }
        self.put(&path, bytes).await.map(|()| true)
    }

    /// A snapshot or a segment. Says whether the second has it.
    async fn data(&mut self, object: Expected<'_>) -> Result<bool, Error> {
        let there = self.there.get(&object.path).copied();
        if there == Some(object.bytes) {
            return Ok(true);
        }
        // One that is there with another size was replaced by nobody: it is damaged, and makes way for one that is known to be whole.
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
        let bytes = match self.from.get(&path).await {
            Err(error) if error.is_not_found() => return Err(Damage::Missing { id, path }.into()),
            found => found?.bytes,
        };
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

    /// Something small, where it is missing or other.
    async fn put(&mut self, path: &str, bytes: Bytes) -> Result<(), Error> {
        match self.to.get(path).await {
            Ok(copy) if copy.bytes == bytes => return Ok(()),
            Ok(copy) => drop(self.to.replace(path, bytes, &copy.tag).await?),
            Err(error) if error.is_not_found() => drop(self.to.put_new(path, bytes).await?),
            Err(error) => return Err(error.into()),
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
