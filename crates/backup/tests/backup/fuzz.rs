//! Damaged manifests and object names, as anyone with write access to the store can create them: they are refused or read, without a panic.

use std::fs;

use jiff::Timestamp;
use quorate_backup::catalog::Catalog;
use quorate_backup::manifest::Manifest;
use quorate_backup::segment::SegmentManifest;
use quorate_backup::settings::{Location, Patience};
use quorate_backup::{BackupId, Names, Span, Store, Trust};
use quorate_fuzz::{campaign, short_campaign};

use crate::common::{CLUSTER, CLUSTER_ID, trust};

const MANIFEST: &str = include_str!("fuzz/manifest.json");
const SEGMENT: &str = include_str!("fuzz/segment.json");

fn id() -> BackupId {
    BackupId::new(Timestamp::UNIX_EPOCH, "0123abcd")
}

#[test]
fn manifests() {
    assert!(Manifest::parse(MANIFEST.as_bytes()).is_ok(), "the sample is good");
    campaign(&[MANIFEST.into()], |input| {
        if let Ok(manifest) = Manifest::parse(input) {
            let _ = (manifest.is_verified(), manifest.newest_revision());
            assert_eq!(Manifest::parse(&manifest.to_json()).unwrap(), manifest);
        }
    });
}

#[test]
fn manifests_of_segments() {
    serde_json::from_str::<SegmentManifest>(SEGMENT).expect("the sample is good");
    campaign(&[SEGMENT.into()], |input| {
        if let Ok(manifest) = serde_json::from_slice::<SegmentManifest>(input) {
            let text = serde_json::to_vec(&manifest).unwrap();
            assert_eq!(serde_json::from_slice::<SegmentManifest>(&text).unwrap(), manifest);
        }
    });
}

#[test]
fn ids() {
    campaign(&[id().as_str().into()], |input| {
        let Ok(id) = std::str::from_utf8(input).unwrap_or_default().parse::<BackupId>() else { return };
        let _ = id.begun();
        assert_eq!(id.as_str().as_bytes(), input);
    });
}

/// A store with one object of a strange name and strange content next to a good one: it is listed, with or without damage.
#[test]
fn stores() {
    let names = Names::new(CLUSTER);
    let span = Span { from: 11, to: 20 };
    let objects: Vec<Vec<u8>> = [
        (names.manifest(&id()), MANIFEST),
        (names.segment_manifest(&id(), span), SEGMENT),
        (names.segment(&id(), span), "{}\nnothing"),
        (names.snapshot(&id()), "nothing"),
    ]
    .into_iter()
    .map(|(name, content)| format!("{name}\n{content}").into_bytes())
    .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    short_campaign(&objects, |input| {
        let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
        let Ok(name) = std::str::from_utf8(&input[..end]) else { return };
        let plain =
            |part: &str| !part.is_empty() && part.len() < 200 && part.bytes().all(|byte| byte.is_ascii_graphic());
        if !name.split('/').all(|part| plain(part) && part != "." && part != "..") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in [(names.manifest(&id()).as_str(), MANIFEST.as_bytes()), (name, &input[end..])] {
            let path = directory.path().join(name);
            if path.is_dir() || fs::create_dir_all(path.parent().unwrap()).is_err() {
                return;
            }
            fs::write(path, content).unwrap();
        }
        let place = Location::Directory(directory.path().to_owned());
        let store = Store::open(&place, None, Patience::default()).unwrap();
        for trust in [trust(), Trust::anything(Timestamp::now())] {
            let listed = runtime.block_on(Catalog::load(&store, CLUSTER, Some(CLUSTER_ID), &trust));
            let _ = listed.map(|catalog| catalog.highest_revision());
        }
    });
}
