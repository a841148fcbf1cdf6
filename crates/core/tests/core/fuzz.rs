//! Damaged specs and ledgers are either refused or read, without a panic.

use std::fs;
use std::path::Path;

use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Ledger;
use quorate_core::spec::{Document, HostFacts, Spec, generated};
use quorate_fuzz::campaign;

use crate::scene::Scene;

/// Every spec of the cases, good and bad.
fn specs() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spec");
    let files = fs::read_dir(directory).expect("cases").map(|file| file.expect("a file").path());
    let mut specs: Vec<Vec<u8>> = files.map(|path| fs::read(path).expect("readable")).collect();
    let parts: Vec<Vec<u8>> = specs.iter().flat_map(|text| split(text)).collect();
    specs.extend(parts);
    // Each anchor twice the one before: read literally, this is a billion.
    let mut doubling = String::from("a0: &a0 [x, x]\n");
    (1..30).for_each(|n| doubling.push_str(&format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)));
    specs.push(doubling.into_bytes());
    specs
}

/// The cases of a file, between empty lines.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    String::from_utf8_lossy(text).split("\n\n").map(|part| part.as_bytes().to_vec()).collect()
}

#[test]
fn specs_of_any_kind_are_read_or_refused() {
    campaign(&specs(), |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        if let Ok(document) = Document::parse("fuzz.yaml", text) {
            let checked = document.spec(&HostFacts::default());
            assert!(checked.spec.is_some() || !checked.problems.is_empty(), "neither a spec nor a problem");
        }
    });
}

/// What passes all checks leads to a plan, and not to a panic in the planner.
#[test]
fn a_spec_that_is_accepted_can_be_planned() {
    let good = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).expect("a fine name");
    campaign(&[good.to_yaml().into_bytes()], |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(document) = Document::parse("fuzz.yaml", text) else { return };
        let Some(Spec { mut clusters, .. }) = document.spec(&HostFacts::default()).spec else { return };
        if let Some(cluster) = clusters.pop() {
            let _ = Scene::nothing(cluster).decide();
        }
    });
}

#[test]
fn ledgers_of_any_kind_are_read_or_refused() {
    let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).expect("a fine name").clusters;
    let mut scene = Scene::nothing(spec.remove(0));
    scene.settle();
    campaign(&[serde_json::to_vec(&scene.ledger).expect("JSON")], |input| {
        if let Ok(ledger) = serde_json::from_slice::<Ledger>(input) {
            let text = serde_json::to_vec(&ledger).expect("what was read can be written");
            assert_eq!(serde_json::from_slice::<Ledger>(&text).expect("and read again"), ledger);
        }
    });
}
