//! A provider is one room in `core` and one in `providers`. This holds the promise of ARCHITECTURE.md, "To add a provider":
//! no source outside the rooms names a provider's types.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::providers::TEMPLATES;

/// Where a provider may be named. A drill damages machines of the provider `local` from outside, so it must know them.
const ROOMS: [&str; 3] = ["core/src/providers", "providers/src", "drill/src"];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
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
