//! Which full backup and which changes on top of it lead to what is wanted. Where the way there is damaged, it refuses, and says what is
//! damaged and what can still be had: to go back further than was asked for is the operator's to decide.

use jiff::Timestamp;

use crate::Error;
use crate::catalog::{self, Catalog, Full};
use crate::damage::Damage;
use crate::manifest::Manifest;
use crate::names::BackupId;
use crate::segment::SegmentManifest;
use crate::store::Store;

/// What is to be restored.
#[derive(Clone, PartialEq, Debug)]
pub enum Wish {
    /// The newest full backup with all changes on top of it.
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
            undamaged(catalog, full, &format!("backup {id}"))?;
            Ok(choice(full, Vec::new(), Stop::AtTheEnd))
        }
        Wish::Newest => newest(store, catalog).await,
        Wish::Revision(revision) => at_revision(store, catalog, *revision).await,
        Wish::At(at) => at_moment(store, catalog, *at).await,
    }
}

async fn newest(store: &Store, catalog: &Catalog) -> Result<Choice, Error> {
    // A damaged manifest may be that of a newer one.
    let lost = catalog.damage.iter().filter(|one| catalog.find(one.id()).is_none());
    let newest = &catalog.fulls[catalog.fulls.len() - 1];
    let lost: Vec<Damage> = lost.filter(|one| one.id() > newest.id()).cloned().collect();
    if !lost.is_empty() {
        return Err(refuse(catalog, "the newest backup is damaged", &lost));
    }
    undamaged(catalog, newest, "the newest backup")?;
    let chain = catalog::chain(store, newest).await?;
    if let Some(damage) = chain.damage {
        return Err(refuse(catalog, "the changes on top of the newest backup are damaged", &[damage]));
    }
    Ok(choice(newest, chain.segments, Stop::AtTheEnd))
}

async fn at_revision(store: &Store, catalog: &Catalog, revision: i64) -> Result<Choice, Error> {
    let what = format!("revision {revision}");
    let before = |full: &&Full| full.manifest.newest_revision() <= revision;
    let Some(full) = catalog.fulls.iter().rev().find(before) else {
        let oldest = catalog.fulls[0].manifest.newest_revision();
        let why = format!("{what} lies before the oldest backup, which begins at revision {oldest}");
        return Err(refuse(catalog, &why, &catalog.damage));
    };
    undamaged(catalog, full, &what)?;
    if full.manifest.newest_revision() == revision && full.manifest.revision == full.manifest.revision_at_most {
        return Ok(choice(full, Vec::new(), Stop::AfterRevision(revision)));
    }
    let chain = catalog::chain(store, full).await?;
    let mut segments = chain.segments;
    let reached = segments.last().map_or(full.manifest.newest_revision(), |last| last.span.to);
    if reached < revision {
        let damage: Vec<Damage> = chain.damage.into_iter().collect();
        let why = match damage.is_empty() {
            true => format!("{what} was not recorded: the changes lead to revision {reached}"),
            false => format!("{what} cannot be reached: the changes are good up to revision {reached}"),
        };
        return Err(refuse(catalog, &why, &damage));
    }
    segments.retain(|segment| segment.span.from <= revision);
    Ok(choice(full, segments, Stop::AfterRevision(revision)))
}

async fn at_moment(store: &Store, catalog: &Catalog, at: Timestamp) -> Result<Choice, Error> {
    let before = |full: &&Full| full.manifest.taken.opened <= at;
    let Some(full) = catalog.fulls.iter().rev().find(before) else {
        let oldest = catalog.fulls[0].manifest.taken.opened;
        return Err(refuse(catalog, &format!("{at} lies before the oldest backup, of {oldest}"), &catalog.damage));
    };
    undamaged(catalog, full, &at.to_string())?;
    let chain = catalog::chain(store, full).await?;
    let mut segments = chain.segments;
    let recorded_until = segments.last().map_or(full.manifest.taken.opened, |last| last.last_at);
    let mut notes = Vec::new();
    if recorded_until < at {
        if let Some(damage) = chain.damage {
            return Err(refuse(catalog, &format!("{at} cannot be reached"), &[damage]));
        }
        notes.push(format!(
            "the last change that was recorded came at {recorded_until}; if any came between that and {at}, it is not in here"
        ));
    }
    segments.retain(|segment| segment.first_at <= at);
    Ok(Choice { notes, ..choice(full, segments, Stop::At(at)) })
}

fn choice(full: &Full, segments: Vec<SegmentManifest>, stop: Stop) -> Choice {
    Choice { full: full.manifest.clone(), segments, stop, notes: Vec::new() }
}

fn undamaged(catalog: &Catalog, full: &Full, what: &str) -> Result<(), Error> {
    match full.damage.is_empty() {
        true => Ok(()),
        false => Err(refuse(catalog, &format!("{what} cannot be restored"), &full.damage)),
    }
}

fn refuse(catalog: &Catalog, why: &str, damage: &[Damage]) -> Error {
    let damaged: String = damage.iter().map(|one| format!("; {one}")).collect();
    Error::NothingToRestore(format!("{why}{damaged}; {}", catalog.still(damage)))
}
