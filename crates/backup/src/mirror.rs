//! The second destination: whatever the first holds is copied there, each backup's manifest last, so that it too never shows a backup
//! that is not whole. Copying is what heals it as well, after it was away.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use crate::Error;
use crate::names::{Named, Names};
use crate::store::{Listed, PART, Store};

/// Objects up to here are copied whole.
const SMALL: u64 = PART as u64;

/// Copies what is missing or has changed, and returns how many objects that were. What is only in the second stays: pruning is asked
/// of each for itself.
pub async fn copy(from: &Store, to: &Store, cluster: &str) -> Result<usize, Error> {
    let names = Names::new(cluster);
    let there: BTreeMap<String, Listed> =
        to.list(names.root()).await?.into_iter().map(|object| (object.path.clone(), object)).collect();
    let mut objects: Vec<(u8, Listed)> = Vec::new();
    for object in from.list(names.root()).await? {
        if let Some(named) = names.parse(&object.path) {
            objects.push((order(&named), object));
        }
    }
    objects.sort_by(|(one, left), (other, right)| (one, &left.path).cmp(&(other, &right.path)));
    let mut copied = 0;
    for (order, object) in objects {
        let same_size = there.get(&object.path).is_some_and(|found| found.bytes == object.bytes);
        // Only keys and manifests of full backups ever change.
        if same_size && order != KEYS && order != MANIFESTS {
            continue;
        }
        copied += usize::from(copy_one(from, to, &object).await?);
    }
    Ok(copied)
}

const DATA: u8 = 0;
const SEGMENT_MANIFESTS: u8 = 1;
const KEYS: u8 = 2;
const MANIFESTS: u8 = 3;

fn order(named: &Named) -> u8 {
    match named {
        Named::Snapshot(_) | Named::Segment(..) => DATA,
        Named::SegmentManifest(..) => SEGMENT_MANIFESTS,
        Named::Beside(_) => KEYS,
        Named::Manifest(_) => MANIFESTS,
    }
}

async fn copy_one(from: &Store, to: &Store, object: &Listed) -> Result<bool, Error> {
    let path = object.path.as_str();
    if object.bytes > SMALL {
        return copy_large(from, to, path).await.map(|()| true);
    }
    let original = match from.get(path).await {
        // Pruned meanwhile.
        Err(error) if error.is_not_found() => return Ok(false),
        original => original?,
    };
    match to.get(path).await {
        Ok(copy) if copy.bytes == original.bytes => Ok(false),
        Ok(copy) => Ok(to.replace(path, original.bytes, &copy.tag).await.map(|_| true)?),
        Err(error) if error.is_not_found() => Ok(to.put_new(path, original.bytes).await.map(|_| true)?),
        Err(error) => Err(error.into()),
    }
}

/// One that is there with another size was replaced by nobody: it is damaged, and makes way.
async fn copy_large(from: &Store, to: &Store, path: &str) -> Result<(), Error> {
    let (_, mut content) = from.read(path).await?;
    to.delete(path).await?;
    let mut upload = to.upload(path).await?;
    let sent = async {
        let mut filling = BytesMut::with_capacity(PART);
        while let Some(piece) = content.next().await {
            let mut piece: Bytes = piece?;
            while !piece.is_empty() {
                let taken = piece.split_to(piece.len().min(PART - filling.len()));
                filling.extend_from_slice(&taken);
                if filling.len() == PART {
                    upload.write(std::mem::replace(&mut filling, BytesMut::with_capacity(PART)).freeze()).await?;
                }
            }
        }
        upload.write(filling.freeze()).await.map_err(Error::from)
    };
    match sent.await {
        Ok(()) => Ok(upload.finish().await?),
        Err(error) => {
            upload.abort().await;
            Err(error)
        }
    }
}
