//! A provider is one folder in `core` and one in `providers`; a kind is one in `core`, `agent` and `control`. These tests keep the
//! promises of ARCHITECTURE.md, "To add a provider" and "To add a kind": no source outside those folders names their types, except
//! those listed here.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::providers::TEMPLATES;

/// Where a provider may be named. A drill damages machines of the provider `local` from outside, so it must know them.
const ROOMS: [&str; 3] = ["core/src/providers", "providers/src", "drill/src"];

pub(crate) fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            found.push(entry);
        }
    }
}

#[test]
fn no_source_outside_the_rooms_names_a_provider() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the directory of all crates");
    let words: Vec<String> = TEMPLATES
        .iter()
        .flat_map(|(name, _)| {
            let capital = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
            [format!("providers::{name}"), format!("Provider::{capital}"), format!("{capital}Settings")]
        })
        .collect();
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).expect("crates").map(|entry| entry.expect("an entry").path()) {
        sources(&entry.join("src"), &mut files);
    }
    assert!(files.len() > 100, "the sources were found");
    let mut named = Vec::new();
    for file in files.iter().filter(|file| ROOMS.iter().all(|room| !file.starts_with(crates.join(room)))) {
        let text = fs::read_to_string(file).expect("a source");
        // Tests may choose a provider.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let found = words.iter().filter(|word| code.contains(word.as_str()));
        named.extend(found.map(|word| format!("{}: {word}", file.display())));
    }
    assert_eq!(named, Vec::<String>::new(), "ask `Settings` or `Provider` instead");
}

#[test]
fn every_provider_has_both_rooms() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the directory of all crates");
    for (name, _) in TEMPLATES {
        for room in ["core/src/providers", "providers/src"] {
            let room = crates.join(room).join(name);
            assert!(
                room.join("mod.rs").exists() || room.with_extension("rs").exists(),
                "{} is missing",
                room.display()
            );
        }
    }
}

/// Crates in which a kind has a room, `src/kinds/NAME`. Of the others, `etcd` and `backup` are etcd's alone, and `cli` and `drill` offer what
/// a kind has.
const CRATES_WITH_KINDS: [&str; 3] = ["core", "agent", "control"];

/// The shared sources that name a kind. Here a further kind finds what it must add its lines to, or what has to move to a room first. A source
/// that no longer names one leaves the list; none comes to it.
const NAME_A_KIND: [&str; 41] = [
    "agent/src/agent.rs",
    "agent/src/api.rs",
    "agent/src/certificates.rs",
    "agent/src/converge.rs",
    "agent/src/error.rs",
    "agent/src/lib.rs",
    "agent/src/plain_services.rs",
    "agent/src/state.rs",
    "control/src/brought.rs",
    "control/src/home.rs",
    "control/src/ledger/mod.rs",
    "control/src/requests.rs",
    "control/src/run/act.rs",
    "control/src/run/controller.rs",
    "control/src/run/observe.rs",
    "control/src/secrets.rs",
    "control/src/verbs/destroy.rs",
    "control/src/verbs/mod.rs",
    "control/src/verbs/passwords.rs",
    "control/src/verbs/recover.rs",
    "control/src/verbs/restore.rs",
    "control/src/verbs/switchover.rs",
    "core/src/desire.rs",
    "core/src/model/desired.rs",
    "core/src/model/facts.rs",
    "core/src/model/host.rs",
    "core/src/model/ledger.rs",
    "core/src/model/seen.rs",
    "core/src/planner/action.rs",
    "core/src/planner/blocked.rs",
    "core/src/planner/blocked/remedy.rs",
    "core/src/planner/simulate/effect.rs",
    "core/src/planner/simulate/machines.rs",
    "core/src/planner/simulate/world.rs",
    "core/src/planner/step.rs",
    "core/src/planner/view.rs",
    "core/src/providers/local/check.rs",
    "core/src/providers/mod.rs",
    "core/src/spec/check/mod.rs",
    "core/src/spec/types.rs",
    "core/src/spec/write.rs",
];

#[test]
fn no_other_source_outside_the_rooms_names_a_kind() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the directory of all crates");
    let rooms =
        fs::read_dir(crates.join("core/src/kinds")).expect("kinds").map(|entry| entry.expect("an entry").path());
    let mut kinds: Vec<String> = rooms
        .filter(|room| room.is_dir())
        .map(|room| format!("kinds::{}", room.file_name().expect("a name").to_string_lossy()))
        .collect();
    assert!(!kinds.is_empty(), "the kinds were found");
    // Several at once.
    kinds.push(String::from("kinds::{"));
    let mut named = Vec::new();
    for name in CRATES_WITH_KINDS {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        for file in files.iter().filter(|file| !file.starts_with(crates.join(name).join("src/kinds"))) {
            let text = fs::read_to_string(file).expect("a source");
            // Tests may choose a kind.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let of_tests = file.file_stem().is_some_and(|stem| stem == "tests");
            if !of_tests && kinds.iter().any(|kind| code.contains(kind)) {
                named.push(file.strip_prefix(crates).expect("below all crates").display().to_string());
            }
        }
    }
    let new: Vec<&String> = named.iter().filter(|file| !NAME_A_KIND.contains(&file.as_str())).collect();
    assert!(new.is_empty(), "move what is a kind's alone to its room: {new:?}");
    let over = |file: &&&str| file.starts_with("core/") && !named.iter().any(|named| named == **file);
    let over: Vec<&&str> = NAME_A_KIND.iter().filter(over).collect();
    assert!(over.is_empty(), "take these off the list: {over:?}");
}
