//! Imports nodes of another etcd, from the listing of its v2 API.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use quorate_etcd::{Client, Compare, Condition, Error, Op, Ordering, RangeQuery, Txn};
use serde::Deserialize;

use crate::node::{Action, Head, Node};
use crate::path::{Layout, MAX_DEPTH, MAX_LENGTH, Path, Stored};
use crate::request::MAX_TTL;
use crate::store::grant;
use crate::sweep::sweep_nodes;

/// What one transaction takes: etcd allows 128 operations and 1.5 MiB.
const BATCH_NODES: usize = 50;
const BATCH_BYTES: usize = 1 << 20;
/// How many of the nodes in the way an error names.
const NAMED: usize = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub written: usize,
    /// They existed already, and are equal.
    pub skipped: usize,
    /// Values that were not UTF-8, which the v2 API cannot show: the bytes in question were replaced by the other etcd.
    pub replaced: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("document {number} is not an answer of /v2/keys: {why}")]
    Document { number: usize, why: String },
    #[error("{count} of the nodes exist already and differ: {names}; nothing was written")]
    Exists { count: usize, names: String },
    #[error("another client wrote below {near} at the same time; {written} nodes were written; run the import again")]
    Raced { near: String, written: usize },
    #[error(transparent)]
    Etcd(#[from] Error),
}

#[derive(Deserialize)]
struct Document {
    node: Listed,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    key: String,
    #[serde(default)]
    dir: bool,
    #[serde(default)]
    value: String,
    #[serde(default)]
    ttl: Option<i64>,
    expiration: Option<Timestamp>,
    #[serde(default)]
    nodes: Vec<Listed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    dir: bool,
    value: Vec<u8>,
    ttl: Option<u64>,
    expires: Option<Timestamp>,
}

const DIRECTORY: Wanted = Wanted { dir: true, value: Vec::new(), ttl: None, expires: None };

/// Directories come before what is in them.
fn read(documents: &[Bytes]) -> Result<BTreeMap<Path, Wanted>, ImportError> {
    let mut nodes = BTreeMap::new();
    for (at, bytes) in documents.iter().enumerate() {
        let wrong = |why: String| ImportError::Document { number: at + 1, why };
        let document: Document = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        flatten(document.node, &mut nodes).map_err(wrong)?;
    }
    for path in nodes.keys().flat_map(Path::ancestors).collect::<Vec<_>>() {
        nodes.entry(path).or_insert(DIRECTORY);
    }
    Ok(nodes)
}

fn flatten(listed: Listed, nodes: &mut BTreeMap<Path, Wanted>) -> Result<(), String> {
    let path = Path::parse(listed.key.as_bytes());
    if path.depth() > MAX_DEPTH || path.length() > MAX_LENGTH {
        return Err(format!("{} has more than {MAX_DEPTH} levels or {MAX_LENGTH} bytes", listed.key));
    }
    let expires = listed.expiration;
    // One that is about to expire has no TTL left.
    let ttl = expires.map(|_| u64::try_from(listed.ttl.unwrap_or(1)).unwrap_or(1).clamp(1, MAX_TTL));
    if !path.is_root() {
        nodes.insert(path, Wanted { dir: listed.dir, value: listed.value.into_bytes(), ttl, expires });
    }
    listed.nodes.into_iter().try_for_each(|node| flatten(node, nodes))
}

pub async fn import(client: &Client, layout: &Layout, documents: &[Bytes]) -> Result<Imported, ImportError> {
    let wanted = read(documents)?;
    sweep_nodes(client, layout).await?;
    let existing = existing(client, layout).await?;
    differing(&wanted, &existing)?;
    let missing: Vec<(&Path, &Wanted)> = wanted.iter().filter(|(path, _)| !existing.contains_key(*path)).collect();
    let replaced = wanted.values().filter(|node| is_replaced(&node.value)).count();
    let mut imported = Imported { written: 0, skipped: wanted.len() - missing.len(), replaced };
    for batch in batches(&missing) {
        write(client, layout, batch, imported.written).await?;
        imported.written += batch.len();
    }
    Ok(imported)
}

fn is_replaced(value: &[u8]) -> bool {
    String::from_utf8_lossy(value).contains('\u{fffd}')
}

async fn existing(client: &Client, layout: &Layout) -> Result<BTreeMap<Path, Node>, Error> {
    let all = client.range(RangeQuery::new(layout.below(&Path::root()))).await?;
    let node = |pair: quorate_etcd::KeyValue| match layout.read(&pair.key)? {
        Stored::Node(path) => Some((path, Node::read(pair))),
        Stored::Log(_) => None,
    };
    Ok(all.pairs.into_iter().filter_map(node).collect())
}

fn differing(wanted: &BTreeMap<Path, Wanted>, existing: &BTreeMap<Path, Node>) -> Result<(), ImportError> {
    let differs = |(path, wanted): &(&Path, &Wanted)| {
        existing.get(path).is_some_and(|node| node.is_dir() != wanted.dir || node.value != wanted.value)
    };
    let names: Vec<String> = wanted.iter().filter(differs).map(|(path, _)| shown(path)).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(ImportError::Exists { count: names.len(), names: names[..names.len().min(NAMED)].join(", ") })
}

fn shown(path: &Path) -> String {
    String::from_utf8_lossy(&path.shown()).into_owned()
}

fn batches<'a, 'b>(nodes: &'b [(&'a Path, &'a Wanted)]) -> Vec<&'b [(&'a Path, &'a Wanted)]> {
    let (mut batches, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (at, (path, node)) in nodes.iter().enumerate() {
        let size = node.value.len() + 2 * path.length();
        if at > from && (at - from == BATCH_NODES || bytes + size > BATCH_BYTES) {
            batches.push(&nodes[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += size;
    }
    if from < nodes.len() {
        batches.push(&nodes[from..]);
    }
    batches
}

async fn write(
    client: &Client,
    layout: &Layout,
    batch: &[(&Path, &Wanted)],
    written: usize,
) -> Result<(), ImportError> {
    let mut txn = Txn { conditions: conditions(layout, batch), ..Txn::default() };
    let mut leases = Vec::new();
    for (path, node) in batch {
        let lease = match node.ttl {
            Some(ttl) => grant(client, ttl).await?,
            None => 0,
        };
        leases.extend(Some(lease).filter(|lease| *lease != 0));
        txn.then.push(Op::Put { key: layout.node(path), value: stored(node), lease });
    }
    if client.txn(txn).await?.succeeded {
        return Ok(());
    }
    for lease in leases {
        // If this fails the lease expires without any keys.
        let _ = client.lease_revoke(lease).await;
    }
    Err(ImportError::Raced { near: batch.first().map(|(path, _)| shown(path)).unwrap_or_default(), written })
}

/// None of the nodes exists, and the directories that are not in the batch still do.
fn conditions(layout: &Layout, batch: &[(&Path, &Wanted)]) -> Vec<Condition> {
    let mut parents: Vec<Path> = batch.iter().map(|(path, _)| path.parent()).collect();
    parents.dedup();
    parents.retain(|parent| !parent.is_root() && !batch.iter().any(|(path, _)| *path == parent));
    let exists = |parent: Path| Condition {
        ordering: Ordering::Greater,
        compare: Compare::CreateRevision(0),
        ..Condition::absent(layout.node(&parent))
    };
    batch.iter().map(|(path, _)| Condition::absent(layout.node(path))).chain(parents.into_iter().map(exists)).collect()
}

fn stored(node: &Wanted) -> Vec<u8> {
    let left = node.ttl.and_then(|ttl| i64::try_from(ttl).ok()).map(SignedDuration::from_secs);
    // The clocks of the two may differ; what is left counts.
    let expires = left.and_then(|left| Timestamp::now().checked_add(left).ok()).or(node.expires);
    let head = Head { action: Some(Action::Set), dir: node.dir, new: true, expires, ..Head::default() };
    head.encode(&node.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"{"action":"get","node":{"dir":true,"nodes":[
        {"key":"/d","dir":true,"nodes":[{"key":"/d/a","value":"1","modifiedIndex":4,"createdIndex":4}],"modifiedIndex":4},
        {"key":"/t","value":"x","expiration":"2026-01-01T00:00:00Z","ttl":7,"modifiedIndex":5,"createdIndex":5}]}}"#;

    fn path(text: &str) -> Path {
        Path::parse(text.as_bytes())
    }

    #[test]
    fn a_listing_is_read_with_directories_first() {
        let nodes = read(&[Bytes::from(LISTING)]).unwrap();
        assert_eq!(nodes.keys().cloned().collect::<Vec<_>>(), [path("/d"), path("/d/a"), path("/t")]);
        assert_eq!((nodes[&path("/t")].ttl, nodes[&path("/d")].dir), (Some(7), true));
        let deep = r#"{"node":{"key":"/_h/x/y","value":"1"}}"#;
        assert_eq!(read(&[Bytes::from(deep)]).unwrap().len(), 3, "the directories on the way");
    }

    #[test]
    fn a_document_that_is_not_a_listing_is_named() {
        let error = read(&[Bytes::from(LISTING), Bytes::from("{\"errorCode\":100}")]).unwrap_err().to_string();
        assert!(error.starts_with("document 2 is not an answer of /v2/keys"), "{error}");
    }

    #[test]
    fn batches_are_bounded_and_complete() {
        let big = Wanted { value: vec![0; BATCH_BYTES / 2], ..DIRECTORY };
        let paths: Vec<Path> = (0..130).map(|at| path(&format!("/{at}"))).collect();
        let directory = DIRECTORY;
        let small: Vec<(&Path, &Wanted)> = paths.iter().map(|path| (path, &directory)).collect();
        assert_eq!(batches(&small).iter().map(|batch| batch.len()).collect::<Vec<_>>(), [50, 50, 30]);
        let large: Vec<(&Path, &Wanted)> = paths[..3].iter().map(|path| (path, &big)).collect();
        assert_eq!(batches(&large).len(), 3);
        assert!(batches(&[]).is_empty());
    }
}
