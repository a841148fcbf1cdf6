//! Chooses the full backup, and the changes on top of it, that lead to the requested moment or as far as possible. That need not be the
//! latest backup: changes may have been recorded on top of an earlier one beyond it. If the path is damaged and there is no other one, it
//! refuses, and names the damage and what can still be restored: going back further than requested is the operator's decision. It reports
//! what it passed over.

use jiff::Timestamp;

use crate::Error;
use crate::catalog::{self, Catalog, Chain, Full};
use crate::damage::Damage;
use crate::manifest::Manifest;
use crate::names::BackupId;
use crate::segment::SegmentManifest;
use crate::store::Store;

/// The requested state.
#[derive(Clone, PartialEq, Debug)]
pub enum Wish {
    /// Whatever leads furthest: mostly the newest full backup with all changes on top of it.
    Newest,
    /// One full backup, without the changes on top of it.
    Backup(BackupId),
    Revision(i64),
    At(Timestamp),
}

/// Where replaying ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Stop {
    AfterRevision(i64),
    /// After the last revision that was received by then.
    At(Timestamp),
    AtTheEnd,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    pub full: Manifest,
    /// In order; none where the full backup alone is wanted.
    pub segments: Vec<SegmentManifest>,
    pub stop: Stop,
    /// For the operator to know.
    pub notes: Vec<String>,
}

impl Choice {
    /// In words.
    pub fn describe(&self) -> String {
        let full = format!("backup {} of {}", self.full.id, self.full.taken.opened.strftime("%Y-%m-%d %H:%M:%S UTC"));
        match (self.segments.last(), self.stop) {
            (None, _) => full,
            (Some(_), Stop::AfterRevision(revision)) => format!("{full} and changes up to revision {revision}"),
            (Some(_), Stop::At(at)) => format!("{full} and changes up to {at}"),
            (Some(last), Stop::AtTheEnd) => format!("{full} and changes up to revision {}", last.span.to),
        }
    }
}

pub async fn choose(store: &Store, catalog: &Catalog, wish: &Wish) -> Result<Choice, Error> {
    if catalog.fulls.is_empty() {
        return Err(refuse(catalog, "there is no backup", &catalog.damage));
    }
    match wish {
        Wish::Backup(id) => {
            let full = catalog.find(id).ok_or_else(|| {
                let of_it: Vec<Damage> = catalog.damage.iter().filter(|one| one.id() == id).cloned().collect();
                refuse(catalog, &format!("there is no backup {id}"), &of_it)
            })?;
            if !full.damage.is_empty() {
                return Err(refuse(catalog, &format!("backup {id} cannot be restored"), &full.damage));
            }
            Ok(choice(full, Vec::new(), Stop::AtTheEnd))
        }
        Wish::Newest => newest(store, catalog).await,
        Wish::Revision(revision) => at_revision(store, catalog, *revision).await,
        Wish::At(at) => at_moment(store, catalog, *at).await,
    }
}

/// A full backup that is whole, with the changes on top of it as far as they are.
struct Usable<'a> {
    full: &'a Full,
    chain: Chain,
}

impl<'a> Usable<'a> {
    async fn of(store: &Store, full: &'a Full) -> Result<Self, Error> {
        Ok(Usable { full, chain: catalog::chain(store, full).await? })
    }

    fn reached(&self) -> i64 {
        reached(self.full, &self.chain.segments)
    }

    /// How far it leads; where two lead equally far, how far for certain; then the later one, which has fewer changes to replay.
    fn rank(&self) -> (i64, i64, &BackupId) {
        let certain = self.chain.segments.last().map_or(self.full.manifest.revision, |last| last.span.to);
        (self.reached(), certain.max(self.full.manifest.revision), self.full.id())
    }

    fn recorded_until(&self) -> Timestamp {
        self.chain.segments.last().map_or(self.full.manifest.taken.opened, |last| last.last_at)
    }
}

fn reached(full: &Full, segments: &[SegmentManifest]) -> i64 {
    let alone = full.manifest.newest_revision();
    segments.last().map_or(alone, |last| last.span.to.max(alone))
}

async fn newest(store: &Store, catalog: &Catalog) -> Result<Choice, Error> {
    let mut fulls: Vec<&Full> = catalog.fulls.iter().collect();
    fulls.sort_by_key(|full| (std::cmp::Reverse(full.claims), std::cmp::Reverse(full.id().clone())));
    let furthest = fulls[0];
    let (mut best, mut damage) = (None::<Usable<'_>>, Vec::new());
    for full in fulls {
        if best.as_ref().is_some_and(|best| best.reached() > full.claims) {
            break;
        }
        if !full.damage.is_empty() {
            damage.extend(full.damage.iter().cloned());
            continue;
        }
        let way = Usable::of(store, full).await?;
        damage.extend(way.chain.damage.clone());
        if best.as_ref().is_none_or(|best| best.rank() < way.rank()) {
            best = Some(way);
        }
    }
    let Some(best) = best else { return Err(refuse(catalog, "the newest backup cannot be restored", &damage)) };
    // A damaged manifest may be that of a newer one.
    let latest = &catalog.fulls[catalog.fulls.len() - 1];
    let unknown = |one: &&Damage| one.id() > latest.id() || catalog.claimed_by_lost(one.id()) > best.reached();
    let lost: Vec<Damage> = catalog.lost().filter(unknown).cloned().collect();
    if !lost.is_empty() {
        return Err(refuse(catalog, "the newest backup is damaged", &lost));
    }
    if best.reached() < furthest.claims {
        let why = match furthest.damage.is_empty() {
            true if furthest.id() == latest.id() => String::from("the changes on top of the newest backup are damaged"),
            true => format!("the most recent changes, on top of backup {}, are damaged", furthest.id()),
            false => String::from("the newest backup cannot be restored"),
        };
        return Err(refuse(catalog, &why, &damage));
    }
    let mut notes = passed_over(&damage);
    if best.full.id() != latest.id() && latest.damage.is_empty() {
        let leads = latest.up_to();
        notes.push(match leads < best.reached() {
            true => format!("backup {} is later, but reaches only revision {leads}", latest.id()),
            false => format!("backup {} is later, but reaches no later revision", latest.id()),
        });
    }
    let Usable { full, chain } = best;
    Ok(Choice { notes, ..choice(full, chain.segments, Stop::AtTheEnd) })
}

async fn at_revision(store: &Store, catalog: &Catalog, revision: i64) -> Result<Choice, Error> {
    let what = format!("revision {revision}");
    let before: Vec<&Full> =
        catalog.fulls.iter().rev().filter(|full| full.manifest.newest_revision() <= revision).collect();
    if before.is_empty() {
        let oldest = catalog.fulls[0].manifest.newest_revision();
        let why = format!("{what} is older than the oldest backup, which begins at revision {oldest}");
        return Err(refuse(catalog, &why, &catalog.damage));
    }
    let (mut furthest, mut damage) = (0, Vec::new());
    for full in before {
        let manifest = &full.manifest;
        let alone = manifest.newest_revision() == revision && manifest.revision == manifest.revision_at_most;
        if full.claims < revision {
            furthest = furthest.max(if full.damage.is_empty() { full.up_to() } else { 0 });
        } else if !full.damage.is_empty() {
            damage.extend(full.damage.iter().cloned());
        } else if alone {
            let notes = passed_over(&damage);
            return Ok(Choice { notes, ..choice(full, Vec::new(), Stop::AfterRevision(revision)) });
        } else {
            let way = Usable::of(store, full).await?;
            if way.reached() >= revision {
                let mut segments = way.chain.segments;
                segments.retain(|segment| segment.span.from <= revision);
                let notes = passed_over(&damage);
                return Ok(Choice { notes, ..choice(full, segments, Stop::AfterRevision(revision)) });
            }
            furthest = furthest.max(way.reached());
            damage.extend(way.chain.damage);
        }
    }
    damage.extend(catalog.lost().cloned());
    let why = match (damage.is_empty(), furthest) {
        (true, _) => format!("{what} was not recorded: the changes end at revision {furthest}"),
        (false, 0) => format!("{what} cannot be restored"),
        (false, _) => format!("{what} cannot be reached: the changes are good up to revision {furthest}"),
    };
    Err(refuse(catalog, &why, &damage))
}

async fn at_moment(store: &Store, catalog: &Catalog, at: Timestamp) -> Result<Choice, Error> {
    let before: Vec<&Full> = catalog.fulls.iter().rev().filter(|full| full.manifest.taken.opened <= at).collect();
    if before.is_empty() {
        let oldest = catalog.fulls[0].manifest.taken.opened;
        return Err(refuse(catalog, &format!("{at} is before the oldest backup, of {oldest}"), &catalog.damage));
    }
    let (mut best, mut damage) = (None::<(i64, Usable<'_>)>, Vec::new());
    for full in before {
        // What cannot lead further than what is found already is not looked at.
        if best.as_ref().is_some_and(|(furthest, _)| full.claims <= *furthest) {
            continue;
        }
        if !full.damage.is_empty() {
            damage.extend(full.damage.iter().cloned());
            continue;
        }
        let way = Usable::of(store, full).await?;
        let leads_to = reached(full, until(&way.chain.segments, at));
        if best.as_ref().is_none_or(|(furthest, _)| leads_to > *furthest) {
            best = Some((leads_to, way));
        }
    }
    let Some((_, way)) = best else {
        damage.extend(catalog.lost().cloned());
        return Err(refuse(catalog, &format!("{at} cannot be restored"), &damage));
    };
    damage.extend(catalog.lost().filter(|one| one.id().begun() <= at).cloned());
    // What is older than the way that was found can add nothing to it.
    damage.retain(|one| one.id() > way.full.id());
    let recorded_until = way.recorded_until();
    let mut notes = Vec::new();
    if recorded_until < at {
        damage.extend(way.chain.damage.clone());
        if !damage.is_empty() {
            return Err(refuse(catalog, &format!("{at} cannot be reached"), &damage));
        }
        notes.push(format!(
            "the last change that was recorded came at {recorded_until}; if any came between that and {at}, it is not in here"
        ));
    }
    notes.extend(passed_over(&damage));
    let segments = until(&way.chain.segments, at).to_vec();
    Ok(Choice { notes, ..choice(way.full, segments, Stop::At(at)) })
}

/// Those that hold anything that was received by then.
fn until(segments: &[SegmentManifest], at: Timestamp) -> &[SegmentManifest] {
    let end = segments.iter().rposition(|segment| segment.first_at <= at).map_or(0, |last| last + 1);
    &segments[..end]
}

/// Nothing is missing without it, yet it is worth knowing.
fn passed_over(damage: &[Damage]) -> Vec<String> {
    damage.iter().map(|one| format!("skipped, because another backup reaches it too: {one}")).collect()
}

fn choice(full: &Full, segments: Vec<SegmentManifest>, stop: Stop) -> Choice {
    Choice { full: full.manifest.clone(), segments, stop, notes: Vec::new() }
}

fn refuse(catalog: &Catalog, why: &str, damage: &[Damage]) -> Error {
    let damaged: String = damage.iter().map(|one| format!("; {one}")).collect();
    Error::NothingToRestore(format!("{why}{damaged}; {}", catalog.still(damage)))
}
