//! The contents of a store for one cluster, as far as names, sizes and manifests show: full backups, how far the changes on top of each
//! reach, and visible damage. [`verify`](crate::verify) finds what only reading everything can find. A backup without a manifest does
//! not exist; its objects are leftovers.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, TryStreamExt, stream};
use quorate_core::spec::Signer;

use crate::Error;
use crate::damage::Damage;
use crate::manifest::Manifest;
use crate::names::{BackupId, Named, Names, Span};
use crate::segment::{self, SegmentManifest};
use crate::signed::{self, Kind, Standing, Trust};
use crate::small;
use crate::store::{Listed, Store};

/// Small objects that are read at once.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug)]
pub struct Catalog {
    pub cluster: String,
    /// Oldest first. Those whose manifest is damaged, foreign or forged are not among them.
    pub fulls: Vec<Full>,
    /// Those that nobody signed, oldest first: an older quorate made them, or somebody who says so. They count for nothing.
    pub unsigned: Vec<Full>,
    /// All that was found, in full backups and next to them.
    pub damage: Vec<Damage>,
    /// Ids of which there are objects, but no manifest.
    pub leftovers: BTreeSet<BackupId>,
    /// Of those whose manifest is damaged: the last revision that their segments' names speak of, and that signed ones do.
    lost: BTreeMap<BackupId, (i64, i64)>,
}

#[derive(Clone, Debug)]
pub struct Full {
    pub manifest: Manifest,
    /// The segments on top of it, without a hole.
    pub spans: Vec<Span>,
    /// Everything of it in the store, the segments included.
    pub stored_bytes: u64,
    /// The segments alone.
    pub changes_bytes: u64,
    /// The damage of the snapshot or its key: this backup cannot be restored.
    pub damage: Vec<Damage>,
    /// The damage that ends the chain of segments early.
    pub chain_damage: Option<Damage>,
    /// Objects among the segments that are none: not signed for the revisions in their name. They do not end the chain.
    pub strays: Vec<Damage>,
    /// How many bytes each segment has in the store.
    pub segment_bytes: BTreeMap<Span, u64>,
    /// The last revision that it or any of its segments speaks of, whether or not the chain up to it is complete, and no matter who says so.
    pub claims: i64,
    /// The same, as far as it is signed where it must be.
    pub proven_claims: i64,
    /// The key that signed it, if that was checked. Its segments are signed by the same.
    pub signed_by: Option<Signer>,
}

impl Full {
    pub fn id(&self) -> &BackupId {
        &self.manifest.id
    }

    /// The last revision that it and its segments lead to.
    pub fn up_to(&self) -> i64 {
        self.spans.last().map_or(self.manifest.newest_revision(), |span| span.to.max(self.manifest.newest_revision()))
    }
}

/// The segments on top of a full backup, as their manifests say.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Each follows the one before.
    pub segments: Vec<SegmentManifest>,
    /// What ends it early.
    pub damage: Option<Damage>,
}

#[derive(Default)]
struct Objects {
    manifest: bool,
    snapshot: Option<u64>,
    key: bool,
    segments: BTreeMap<Span, u64>,
    segment_manifests: BTreeSet<Span>,
    bytes: u64,
}

impl Objects {
    /// A segment without a manifest does not exist.
    fn last_manifest(&self) -> i64 {
        self.segment_manifests.iter().map(|span| span.to).max().unwrap_or(0)
    }

    fn last_segment(&self) -> i64 {
        self.segments.keys().chain(&self.segment_manifests).map(|span| span.to).max().unwrap_or(0)
    }
}

impl Catalog {
    /// `cluster_id` is the one expected; without one, whatever is there is taken, as far as it is trusted.
    pub async fn load(store: &Store, cluster: &str, cluster_id: Option<&str>, trust: &Trust) -> Result<Catalog, Error> {
        let names = Names::new(cluster);
        let listed = store.list(names.root()).await?;
        let mut objects = group(&names, &listed);
        // A backup that was killed while its snapshot was on its way has left nothing else.
        for named in store.unfinished(names.root()).await?.iter().filter_map(|path| names.parse(path)) {
            objects.entry(named.id().clone()).or_default();
        }
        let ids: Vec<BackupId> = objects.iter().filter(|(_, found)| found.manifest).map(|(id, _)| id.clone()).collect();
        let read = ids.into_iter().map(|id| read_manifest(store, &names, id, cluster_id, trust));
        let read: Vec<_> = stream::iter(read).buffered(AT_ONCE).try_collect().await?;
        let mut catalog = Catalog {
            cluster: cluster.to_owned(),
            fulls: Vec::new(),
            unsigned: Vec::new(),
            damage: absurd(&names, &listed),
            leftovers: objects.iter().filter(|(_, found)| !found.manifest).map(|(id, _)| id.clone()).collect(),
            lost: BTreeMap::new(),
        };
        for manifest in read {
            match manifest {
                Ok(Some((manifest, standing))) => {
                    let found = objects.entry(manifest.id.clone()).or_default();
                    let signed_by = trust.signer.clone().filter(|_| standing == Standing::Signed);
                    let claims = found.last_manifest().max(manifest.newest_revision());
                    let strays = match &signed_by {
                        Some(signer) => drop_strays(store, &names, &manifest, found, signer).await?,
                        None => Vec::new(),
                    };
                    let mut full = Full { signed_by, claims, ..assess(&names, manifest, found) };
                    // One beyond the last segment may have taken the place of the next.
                    let last = full.up_to();
                    let beyond = strays.iter().find(|(span, _)| span.to > last).map(|(_, damage)| damage.clone());
                    full.chain_damage = full.chain_damage.or(beyond);
                    let all = strays.into_iter().map(|(_, damage)| damage);
                    full.strays = all.filter(|one| full.chain_damage.as_ref() != Some(one)).collect();
                    catalog.damage.extend(full.strays.iter().cloned());
                    if trust.signer.is_some() && full.signed_by.is_none() && !trust.unsigned {
                        catalog.unsigned.push(full);
                        continue;
                    }
                    catalog.damage.extend(full.damage.iter().cloned().chain(full.chain_damage.clone()));
                    catalog.fulls.push(full);
                }
                // Deleted between the listing and now.
                Ok(None) => {}
                Err(damage) => {
                    // What is of another cluster says nothing of this one's revisions.
                    if let Damage::Manifest { id, .. } | Damage::Forged { id, .. } = &damage {
                        let found = objects.entry(id.clone()).or_default();
                        let named = found.last_segment();
                        let signed = match &trust.signer {
                            Some(signer) => {
                                drop_strays_at_the_end(store, &names, id, found, signer).await?;
                                found.last_manifest()
                            }
                            None => named,
                        };
                        catalog.lost.insert(id.clone(), (named, signed));
                    }
                    catalog.damage.push(damage);
                }
            }
        }
        Ok(catalog)
    }

    /// The ids of full backups after this one, by names alone: cheap, and no word on whether they can be used, or are ours.
    pub async fn ids_after(store: &Store, cluster: &str, after: &BackupId) -> Result<BTreeSet<BackupId>, Error> {
        let names = Names::new(cluster);
        let listed = store.list(&names.fulls_directory()).await?;
        let manifests = listed.iter().filter_map(|object| match names.parse(&object.path)? {
            Named::Manifest(id) => Some(id),
            _ => None,
        });
        Ok(manifests.filter(|id| id > after).collect())
    }

    /// Damage to manifests of which it is not known what they were. What is of another cluster and older than all that is ours was
    /// made when the name was used before, and is none.
    pub fn lost(&self) -> impl Iterator<Item = &Damage> {
        let former = |one: &Damage| {
            matches!(one, Damage::Foreign { .. }) && self.fulls.first().is_some_and(|first| one.id() < first.id())
        };
        let ahead = |one: &Damage| matches!(one, Damage::Future { .. });
        self.damage.iter().filter(move |one| self.find(one.id()).is_none() && !former(one) && !ahead(one))
    }

    /// The last revision that the segments of one speak of whose manifest is damaged.
    pub(crate) fn claimed_by_lost(&self, id: &BackupId) -> i64 {
        self.lost.get(id).map_or(0, |(named, _)| *named)
    }

    /// The highest revision that anything here speaks of, damaged or not: clients may have seen it. What is not signed does not count, as
    /// far as that is known: a restore continues above this number, which may come from nobody else.
    pub fn highest_revision(&self) -> i64 {
        let of_fulls = self.fulls.iter().map(|full| full.proven_claims.max(full.manifest.revision_at_most));
        of_fulls.chain(self.lost.values().map(|(_, signed)| *signed)).max().unwrap_or(0)
    }

    pub fn find(&self, id: &BackupId) -> Option<&Full> {
        self.fulls.iter().find(|full| full.id() == id)
    }

    /// Says in words what can be restored besides what is damaged, for a message.
    pub fn still(&self, damage: &[Damage]) -> String {
        let hit = |full: &&Full| !damage.iter().any(|one| one.id() == full.id() && !is_of_chain(one));
        let good = self.fulls.iter().filter(|full| full.damage.is_empty()).filter(hit);
        let told: Vec<String> = good
            .map(|full| {
                let first = full.manifest.newest_revision();
                let last = damage.iter().filter(|one| one.id() == full.id()).filter_map(|one| last_good(self, one));
                let last = last.min().unwrap_or(full.up_to()).max(first);
                match first == last {
                    true => format!("{} (revision {first})", full.id()),
                    false => format!("{} (revisions {first} to {last})", full.id()),
                }
            })
            .collect();
        match told.is_empty() {
            true => String::from("nothing here can still be restored"),
            false => format!("still good, as far as checked: {}", told.join(", ")),
        }
    }
}

fn is_of_chain(damage: &Damage) -> bool {
    segment_start(damage).is_some()
}

/// The first revision of the segment that has the damage.
fn segment_start(damage: &Damage) -> Option<i64> {
    match damage {
        Damage::Hole { after, .. } => Some(after + 1),
        Damage::Manifest { path, .. }
        | Damage::Foreign { path, .. }
        | Damage::Forged { path, .. }
        | Damage::Future { path, .. }
        | Damage::Missing { path, .. }
        | Damage::Size { path, .. }
        | Damage::Content { path, .. }
        | Damage::Unreadable { path, .. }
        | Damage::Checksum { path, .. }
        | Damage::Chain { path, .. }
        | Damage::Exchanged { path, .. }
        | Damage::Replaced { path, .. } => {
            let (cluster, _) = path.split_once('/')?;
            match Names::new(cluster).parse(path)? {
                Named::Segment(_, span) | Named::SegmentManifest(_, span) => Some(span.from),
                _ => None,
            }
        }
    }
}

fn last_good(catalog: &Catalog, damage: &Damage) -> Option<i64> {
    let floor = catalog.find(damage.id())?.manifest.newest_revision();
    segment_start(damage).map(|from| (from - 1).max(floor))
}

fn group(names: &Names, listed: &[Listed]) -> BTreeMap<BackupId, Objects> {
    let mut objects: BTreeMap<BackupId, Objects> = BTreeMap::new();
    for object in listed {
        let Some(named) = names.parse(&object.path) else { continue };
        let found = objects.entry(named.id().clone()).or_default();
        found.bytes += object.bytes;
        match named {
            Named::Manifest(_) => found.manifest = true,
            Named::Snapshot(_) => found.snapshot = Some(object.bytes),
            Named::Beside(id) => found.key |= object.path == names.key(&id),
            Named::Segment(_, span) => drop(found.segments.insert(span, object.bytes)),
            Named::SegmentManifest(_, span) => drop(found.segment_manifests.insert(span)),
        }
    }
    objects
}

/// `Ok(None)` where it is gone.
async fn read_manifest(
    store: &Store,
    names: &Names,
    id: BackupId,
    cluster_id: Option<&str>,
    trust: &Trust,
) -> Result<Result<Option<(Manifest, Standing)>, Damage>, Error> {
    let path = names.manifest(&id);
    if signed::is_of_the_future(trust, &id) {
        return Ok(Err(Damage::Future { id, path, now: trust.now }));
    }
    let found = match small::manifest(store, &id, &path).await {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Ok(None)),
        Err(Error::Damaged(damage)) => return Ok(Err(*damage)),
        Err(error) => return Err(error),
    };
    let manifest = match Manifest::parse(&found.bytes) {
        Ok(manifest) => manifest,
        Err(why) => return Ok(Err(Damage::Manifest { id, path, why })),
    };
    // What is of another cluster is signed by another key.
    let standing = signed::judge(trust, Kind::Full, &id, &path, &found.bytes);
    let expected = cluster_id.unwrap_or(&manifest.cluster_id).to_owned();
    if manifest.cluster_id != expected || manifest.cluster != names.root() {
        let (cluster, found) = (manifest.cluster, manifest.cluster_id);
        return Ok(Err(Damage::Foreign { id, path, expected, cluster, found }));
    }
    if manifest.id != id {
        let why = format!("it is the manifest of {}", manifest.id);
        return Ok(Err(Damage::Manifest { id, path, why }));
    }
    Ok(standing.map(|standing| Some((manifest, standing))).map_err(|damage| *damage))
}

fn assess(names: &Names, manifest: Manifest, found: &Objects) -> Full {
    let id = &manifest.id;
    let mut damage = Vec::new();
    match found.snapshot {
        None => damage.push(Damage::Missing { id: id.clone(), path: names.snapshot(id) }),
        Some(bytes) if bytes != manifest.stored_bytes => damage.push(Damage::Size {
            id: id.clone(),
            path: names.snapshot(id),
            expected: manifest.stored_bytes,
            found: bytes,
        }),
        Some(_) => {}
    }
    if manifest.recipient.is_some() && !found.key {
        damage.push(Damage::Missing { id: id.clone(), path: names.key(id) });
    }
    let (spans, chain_damage) = follow(names, &manifest, found);
    let changes_bytes = found.segments.values().sum();
    let claims = manifest.newest_revision().max(found.last_manifest());
    Full {
        manifest,
        spans,
        stored_bytes: found.bytes,
        changes_bytes,
        damage,
        chain_damage,
        strays: Vec::new(),
        segment_bytes: found.segments.clone(),
        claims,
        proven_claims: claims,
        signed_by: None,
    }
}

/// Names that claim what cannot be.
fn absurd(names: &Names, listed: &[Listed]) -> Vec<Damage> {
    let claims = listed.iter().filter_map(|object| Some((names.absurd(&object.path)?, object.path.clone())));
    let why = || String::from("its name speaks of revisions that no cluster can have");
    claims.map(|(id, path)| Damage::Forged { id, path, why: why() }).collect()
}

/// Names alone can claim anything: those that claim the latest revisions are looked at until one is signed. The others are none.
async fn drop_strays_at_the_end(
    store: &Store,
    names: &Names,
    id: &BackupId,
    found: &mut Objects,
    signer: &Signer,
) -> Result<Vec<(Span, Damage)>, Error> {
    let mut strays = Vec::new();
    while let Some(last) = found.segment_manifests.iter().max_by_key(|span| (span.to, span.from)).copied() {
        match segment::signed_manifest(store, names, id, last, Some(signer)).await {
            Ok(_) => break,
            Err(Error::Damaged(damage)) => {
                found.segment_manifests.remove(&last);
                // What is gone by now is no news.
                if !matches!(*damage, Damage::Missing { .. }) {
                    strays.push((last, *damage));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(strays)
}

/// Where one that was put between the others breaks their chain, all are looked at: whatever is not signed for that very span is no
/// segment, whether it is forged, junk, or a genuine one under another name.
async fn drop_strays(
    store: &Store,
    names: &Names,
    manifest: &Manifest,
    found: &mut Objects,
    signer: &Signer,
) -> Result<Vec<(Span, Damage)>, Error> {
    let id = &manifest.id;
    let mut strays = drop_strays_at_the_end(store, names, id, found, signer).await?;
    if follow(names, manifest, found).1.is_none() {
        return Ok(strays);
    }
    let all: Vec<Span> = found.segment_manifests.iter().copied().collect();
    let read =
        all.into_iter().map(async |span| (span, segment::signed_manifest(store, names, id, span, Some(signer)).await));
    let mut read = stream::iter(read).buffered(AT_ONCE);
    while let Some((span, manifest)) = read.next().await {
        match manifest {
            Err(Error::Damaged(damage)) if !matches!(*damage, Damage::Missing { .. }) => {
                found.segment_manifests.remove(&span);
                strays.push((span, *damage));
            }
            Err(Error::Damaged(_)) | Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(strays)
}

/// From the full backup on, as far as one segment joins the other.
fn follow(names: &Names, manifest: &Manifest, found: &Objects) -> (Vec<Span>, Option<Damage>) {
    let (id, mut spans) = (&manifest.id, Vec::<Span>::new());
    for span in &found.segment_manifests {
        // The first may begin before the snapshot's own revision: recording began before it was opened.
        let (after, joins) = match spans.last() {
            None => (manifest.revision, span.from <= manifest.revision + 1),
            Some(last) => (last.to, span.from == last.to + 1),
        };
        if !joins {
            return (spans, Some(Damage::Hole { id: id.clone(), after, next: span.from }));
        }
        if !found.segments.contains_key(span) {
            return (spans, Some(Damage::Missing { id: id.clone(), path: names.segment(id, *span) }));
        }
        spans.push(*span);
    }
    (spans, None)
}

/// Reads the manifests of the segments on top of a full backup, and follows their chain.
pub async fn chain(store: &Store, full: &Full) -> Result<Chain, Error> {
    let Manifest { id, cluster, cluster_id, .. } = &full.manifest;
    let names = Names::new(cluster);
    let signer = full.signed_by.as_ref();
    let read = full.spans.iter().map(|span| segment::manifest(store, &names, id, *span, cluster_id, signer));
    let mut read = stream::iter(read).buffered(AT_ONCE);
    let mut chain = Chain { segments: Vec::new(), damage: full.chain_damage.clone() };
    let mut before = id.as_str().to_owned();
    while let Some(segment) = read.next().await {
        let segment = match segment {
            Err(Error::Damaged(damage)) => {
                chain.damage = Some(*damage);
                break;
            }
            segment => segment?,
        };
        if let Some(found) = full.segment_bytes.get(&segment.span).filter(|found| **found != segment.stored_bytes) {
            let (path, expected) = (names.segment(id, segment.span), segment.stored_bytes);
            chain.damage = Some(Damage::Size { id: id.clone(), path, expected, found: *found });
            break;
        }
        if segment.previous != before {
            let path = names.segment_manifest(id, segment.span);
            chain.damage = Some(Damage::Chain { id: id.clone(), path, before, found: segment.previous });
            break;
        }
        before.clone_from(&segment.stored_sha256);
        chain.segments.push(segment);
    }
    Ok(chain)
}
