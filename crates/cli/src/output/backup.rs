//! Backups, for people and for scripts: the list, the result of a verification, and what a prune would remove.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use quorate_backup::catalog::{Catalog, Full};
use quorate_backup::manifest::{Manifest, Outcome, Verification};
use quorate_backup::prune::PrunePlan;
use quorate_backup::retention::Reason;
use quorate_backup::{BackupId, Damage};
use quorate_core::spec::Signer;
use quorate_core::text::plural;
use serde::Serialize;

use super::page::{Look, Page, Style};
use super::{size, table};

/// Everything known about a cluster's backups.
#[derive(Debug, Serialize)]
pub struct Listing {
    pub cluster: String,
    /// The stores that were read.
    pub places: Vec<String>,
    /// Oldest first.
    pub backups: Vec<Listed>,
    /// The key that signs them; none: their origin is unknown.
    pub signed_by: Option<Signer>,
    /// Damage outside of usable backups.
    pub damage: BTreeSet<String>,
    /// Backups of an earlier cluster with this name.
    pub of_others: BTreeSet<BackupId>,
    /// Ids with only leftovers.
    pub unfinished: BTreeSet<BackupId>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Listed {
    pub id: BackupId,
    pub kind: &'static str,
    /// When the snapshot was opened; of changes, of the full backup that they are on top of.
    pub at: Timestamp,
    pub first_revision: i64,
    pub last_revision: i64,
    /// Null for changes.
    pub keys: Option<i64>,
    pub stored_bytes: u64,
    pub etcd_version: String,
    pub from_member: String,
    pub encrypted: bool,
    /// Whether the cluster's key has signed it.
    pub signed: bool,
    /// When all of it was last verified.
    pub verified_at: Option<Timestamp>,
    /// Why the last verification failed.
    pub verify_failed: Option<String>,
    pub places: Vec<String>,
    pub damage: Vec<String>,
}

impl Listing {
    pub fn new(cluster: &str, catalogs: &[(String, Catalog)]) -> Self {
        let mut rows: BTreeMap<(BackupId, &'static str), Listed> = BTreeMap::new();
        for (place, catalog) in catalogs {
            for listed in catalog.fulls.iter().chain(&catalog.unsigned).flat_map(listed) {
                let row = rows.entry((listed.id.clone(), listed.kind)).or_insert(listed);
                row.places.push(place.clone());
            }
        }
        fn merged<T: Ord>(catalogs: &[(String, Catalog)], of: impl Fn(&Catalog) -> BTreeSet<T>) -> BTreeSet<T> {
            catalogs.iter().flat_map(|(_, catalog)| of(catalog)).collect()
        }
        Listing {
            cluster: cluster.to_owned(),
            places: catalogs.iter().map(|(place, _)| place.clone()).collect(),
            backups: rows.into_values().collect(),
            signed_by: None,
            damage: merged(catalogs, |catalog| loose(catalog).iter().map(ToString::to_string).collect()),
            of_others: merged(catalogs, |catalog| of_others(catalog).cloned().collect()),
            unfinished: merged(catalogs, |catalog| catalog.leftovers.clone()),
        }
    }
}

/// A name may have been used before: anything older than all of this cluster's backups is from then.
fn is_of_others(catalog: &Catalog, damage: &Damage) -> bool {
    let ours = catalog.fulls.first().is_none_or(|first| damage.id() < first.id());
    matches!(damage, Damage::Foreign { .. }) && ours
}

fn of_others(catalog: &Catalog) -> impl Iterator<Item = &BackupId> {
    catalog.damage.iter().filter(|damage| is_of_others(catalog, damage)).map(Damage::id)
}

/// Damage to what is not in any backup that can be used.
pub fn loose(catalog: &Catalog) -> Vec<&Damage> {
    let loose = catalog.damage.iter().filter(|damage| catalog.find(damage.id()).is_none());
    loose.filter(|damage| !is_of_others(catalog, damage)).collect()
}

/// The full backup, and the changes on top of it.
fn listed(full: &Full) -> Vec<Listed> {
    let manifest = &full.manifest;
    let proven = manifest.proven();
    let failed = match manifest.verified.last().map(|last| &last.outcome) {
        Some(Outcome::Failed { why, .. }) => Some(why.clone()),
        _ => None,
    };
    let row = Listed {
        id: manifest.id.clone(),
        kind: "full",
        at: manifest.taken.opened,
        first_revision: manifest.newest_revision(),
        last_revision: manifest.newest_revision(),
        keys: Some(manifest.keys),
        stored_bytes: manifest.stored_bytes,
        etcd_version: manifest.etcd_version.clone(),
        from_member: manifest.from_member.clone(),
        encrypted: manifest.recipient.is_some(),
        signed: full.signed_by.is_some(),
        verified_at: proven.map(|(at, _)| at),
        verify_failed: failed,
        places: Vec::new(),
        damage: full.damage.iter().map(ToString::to_string).collect(),
    };
    let (Some(first), Some(last)) = (full.spans.first(), full.spans.last()) else { return vec![row] };
    let changes = Listed {
        kind: "incremental",
        first_revision: first.from,
        last_revision: last.to,
        keys: None,
        stored_bytes: full.changes_bytes,
        verified_at: proven.filter(|(_, proven)| proven.up_to >= last.to).map(|(at, _)| at),
        damage: full.chain_damage.iter().chain(&full.strays).map(ToString::to_string).collect(),
        ..row.clone()
    };
    vec![row, changes]
}

/// Columns that a narrow terminal omits, the least important first. An ID begins with the time, and the stores are
/// named below the table.
const DROPPED: [usize; 5] = [8, 3, 1, 6, 4];

pub fn list(listing: &Listing, look: Look) -> Page {
    let head = ["ID", "WHEN", "REVISIONS", "KEYS", "SIZE", "KIND", "SIGNED", "VERIFIED", "WHERE"];
    let mut rows = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
    rows.extend(listing.backups.iter().map(row));
    let mut page = table::page(&rows, &DROPPED, look);
    page.plain(2, &format!("stored in {}", listing.places.join(" and ")));
    match &listing.signed_by {
        Some(signer) => page.plain(2, &format!("signed by {signer}")),
        None => page.line(2, [(Style::Yellow, UNCHECKED)]),
    }
    if listing.signed_by.is_some() && listing.backups.iter().any(|one| !one.signed) {
        page.line(2, [(Style::Yellow, UNSIGNED)]);
    }
    let of_backups = listing.backups.iter().flat_map(|one| &one.damage);
    for damage in of_backups.chain(&listing.damage) {
        page.line(2, [(Style::Red, "damaged: "), (Style::Plain, damage)]);
    }
    if !listing.of_others.is_empty() {
        let others = plural(listing.of_others.len(), "backup");
        let text =
            format!("also {others} of another cluster that had this name; `quorate backup export` can export them");
        page.plain(2, &text);
    }
    if !listing.unfinished.is_empty() {
        let remains = plural(listing.unfinished.len(), "unfinished backup");
        page.plain(2, &format!("remains of {remains}, deleted after a day"));
    }
    page
}

fn row(one: &Listed) -> Vec<table::Cell> {
    let plain = |text: String| (Style::Plain, text);
    let revisions = match one.first_revision == one.last_revision {
        true => one.last_revision.to_string(),
        false => format!("{}-{}", one.first_revision, one.last_revision),
    };
    let signed = if one.signed { (Style::Plain, "yes") } else { (Style::Yellow, "NO") };
    vec![
        (Style::Bold, one.id.to_string()),
        plain(shown(one.at)),
        plain(revisions),
        plain(one.keys.map_or_else(|| String::from("-"), |keys| keys.to_string())),
        plain(size(one.stored_bytes)),
        plain(one.kind.to_owned()),
        (signed.0, signed.1.to_owned()),
        verified(one),
        plain(one.places.join(", ")),
    ]
}

const UNCHECKED: &str =
    "the key that signs these backups is not known here: anyone who can write to the store could have made them";
const UNSIGNED: &str = "\
backups without a signature were made by an older quorate, or by anyone else who can write to the store: they do not \
count as backups, and are restored only with `--unsigned`";

fn verified(one: &Listed) -> table::Cell {
    let (style, text) = match (&one.verified_at, &one.verify_failed) {
        _ if !one.damage.is_empty() => (Style::Red, String::from("damaged")),
        _ if !one.signed => (Style::Yellow, String::from("no")),
        (Some(at), _) => (Style::Green, shown(*at)),
        (None, Some(_)) => (Style::Red, String::from("failed")),
        (None, None) => (Style::Yellow, String::from("no")),
    };
    (style, text)
}

pub fn shown(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// The result of a verification.
#[derive(Debug, Serialize)]
pub struct Verified {
    pub id: BackupId,
    pub at: Timestamp,
    pub etcd_version: String,
    pub ok: bool,
    pub why: Option<String>,
    pub revision: Option<i64>,
    /// The last that the changes on top of it lead to.
    pub up_to: Option<i64>,
    pub keys: Option<i64>,
    /// Etcd's HashKV at the backup's revision.
    pub hash: Option<u32>,
    pub compared_with_living: bool,
    /// The members that hold the same.
    pub compared_with: Vec<String>,
    /// The member that it was read from, whose report alone proves little.
    #[serde(skip)]
    from_member: String,
}

impl Verified {
    pub fn new(manifest: &Manifest, verification: &Verification) -> Self {
        let Manifest { id, from_member, .. } = manifest;
        let Verification { at, etcd_version, outcome } = verification;
        let (why, proven) = match outcome {
            Outcome::Ok(proven) => (None, Some(proven)),
            Outcome::Failed { why, .. } => (Some(why.clone()), None),
        };
        Verified {
            id: id.clone(),
            at: *at,
            etcd_version: etcd_version.clone(),
            ok: proven.is_some(),
            why,
            revision: proven.map(|proven| proven.revision),
            up_to: proven.map(|proven| proven.up_to),
            keys: proven.map(|proven| proven.keys),
            hash: proven.map(|proven| proven.hash.hash),
            compared_with_living: proven.is_some_and(|proven| proven.compared_with_living),
            compared_with: proven.map(|proven| proven.compared_with.clone()).unwrap_or_default(),
            from_member: from_member.clone(),
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let Verified { id, etcd_version, why, revision, up_to, keys, hash, .. } = self;
        if let Some(why) = why {
            return format!("{id} is NOT good: {why}\n");
        }
        let (Some(revision), Some(up_to), Some(keys), Some(hash)) = (revision, up_to, keys, hash) else {
            return format!("{id} is good\n");
        };
        let changes = match up_to > revision {
            true => format!(", with its changes revision {up_to}"),
            false => String::new(),
        };
        let living = self.living();
        format!(
            "{id} is good: etcd {etcd_version} restored revision {revision}, {}, hash {hash:08x}{changes}{living}\n",
            plural(*keys, "key")
        )
    }

    fn living(&self) -> String {
        let names = self.compared_with.join(", ");
        match self.compared_with.as_slice() {
            [] => String::from("; not compared with the live cluster"),
            [alone] if *alone == self.from_member => {
                format!("; {names}, which it was read from, agrees; not compared with another member")
            }
            _ => format!("; the live members agree ({names})"),
        }
    }
}

/// What was made.
pub fn created(manifest: &Manifest, places: &[&str]) -> String {
    let Manifest { id, keys, stored_bytes, db_bytes, from_member, etcd_version, .. } = manifest;
    let sealed = if manifest.recipient.is_some() { "encrypted" } else { "NOT encrypted" };
    format!(
        "backup {id}: revision {}, {}, {} stored of {}, from {from_member} (etcd {etcd_version}), {sealed}, in {}\n",
        manifest.newest_revision(),
        plural(*keys, "key"),
        size(*stored_bytes),
        size(*db_bytes),
        places.join(" and "),
    )
}

#[derive(Debug, Serialize)]
pub struct Pruning {
    pub cluster: String,
    /// All that are deleted, from any place.
    pub remove: BTreeSet<BackupId>,
    pub places: Vec<PruningPlace>,
}

#[derive(Debug, Serialize)]
pub struct PruningPlace {
    pub place: String,
    pub keep: Vec<Kept>,
    pub remove: Vec<BackupId>,
    /// Leftovers of unfinished backups.
    pub unfinished: Vec<BackupId>,
}

#[derive(Debug, Serialize)]
pub struct Kept {
    pub id: BackupId,
    pub because: Vec<&'static str>,
}

impl PruningPlace {
    pub fn new(place: &str, plan: &PrunePlan) -> Self {
        let because = |reasons: &Vec<Reason>| reasons.iter().map(|reason| why(*reason)).collect();
        PruningPlace {
            place: place.to_owned(),
            keep: plan.keep.iter().map(|(id, why)| Kept { id: id.clone(), because: because(why) }).collect(),
            remove: plan.remove.clone(),
            unfinished: plan.leftovers.clone(),
        }
    }
}

fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Newest => "newest",
        Reason::NewestVerified => "newest_verified",
        Reason::Furthest => "furthest",
        Reason::Last => "last",
        Reason::Hourly => "hourly",
        Reason::Daily => "daily",
        Reason::Weekly => "weekly",
        Reason::Monthly => "monthly",
    }
}

pub fn pruning(pruning: &Pruning) -> Page {
    let mut page = Page::new();
    for place in &pruning.places {
        page.plain(2, &format!("{}:", place.place));
        let mut rows: BTreeMap<&BackupId, (Style, &str, String)> = BTreeMap::new();
        for Kept { id, because } in &place.keep {
            rows.insert(id, (Style::Plain, "kept   ", because.join(", ").replace('_', " ")));
        }
        rows.extend(place.remove.iter().map(|id| (id, (Style::Red, "deleted", String::new()))));
        rows.extend(place.unfinished.iter().map(|id| (id, (Style::Red, "deleted", String::from("never finished")))));
        for (id, (style, fate, why)) in rows {
            let (id, why) = (format!("  {id}  "), if why.is_empty() { why } else { format!("  {why}") });
            let hang = id.chars().count() + fate.len() + 2;
            page.line(hang, [(Style::Plain, id.as_str()), (style, fate), (Style::Plain, why.as_str())]);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_output_fits_80_columns() {
        let id = |text: &str| -> BackupId { serde_json::from_value(text.into()).unwrap() };
        let kept = id("20261115T092222Z-95f4be6e");
        let because = ["newest", "newest_verified", "furthest", "last", "hourly", "daily"].to_vec();
        let place = PruningPlace {
            place: String::from("file:///backups"),
            keep: vec![Kept { id: kept, because }],
            remove: vec![id("20261014T092222Z-95f4be6e")],
            unfinished: vec![id("20261013T092222Z-95f4be6e")],
        };
        let pruning = Pruning { cluster: String::from("demo"), remove: BTreeSet::new(), places: vec![place] };
        let expected = "\
file:///backups:
  20261013T092222Z-95f4be6e  deleted  never finished
  20261014T092222Z-95f4be6e  deleted
  20261115T092222Z-95f4be6e  kept     newest, newest verified, furthest, last,
                                      hourly, daily
";
        assert_eq!(super::pruning(&pruning).render(Look { width: Some(80), colour: false }), expected);
    }
}
