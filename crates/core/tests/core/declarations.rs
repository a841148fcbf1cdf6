//! The type declarations in the sources, for tests that fail when what is stored or sent changes without a new version number.
//!
//! Sample messages would show a new field, but not a new variant. So the digest covers the declarations: every type reachable from a given
//! one, without comments, layout, and attributes that serde ignores.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::text::hex;
use sha2::{Digest, Sha256};

use crate::rooms::sources;

struct Declared {
    file: PathBuf,
    text: String,
    /// Names that may be types.
    mentions: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Types {
    by_name: BTreeMap<String, Vec<Declared>>,
    /// `Order as EtcdOrder`
    aliases: BTreeMap<String, String>,
}

impl Types {
    pub(crate) fn read() -> Types {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the directory of all crates");
        let (mut files, mut types) = (Vec::new(), Types::default());
        for name in ["core", "agent", "pki"] {
            sources(&crates.join(name).join("src"), &mut files);
        }
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            types.add(&file, &text);
        }
        types
    }

    fn add(&mut self, file: &Path, source: &str) {
        let (mut attributes, mut lines) = (String::new(), source.lines());
        while let Some(line) = lines.next() {
            if line.starts_with("#[") || (!attributes.ends_with(']') && !attributes.is_empty()) {
                attributes.push_str(line);
            } else if let Some(name) = declared(line) {
                let mut text = format!("{line}\n");
                while !text.ends_with(";\n") && !text.ends_with("\n}\n") && !text.ends_with("{}\n") {
                    text += &format!("{}\n", lines.next().expect("a declaration ends"));
                }
                if attributes.contains("ialize") {
                    let serde = attributes.split_inclusive("#[").filter(|part| part.starts_with("serde"));
                    let serde = serde.collect::<String>();
                    let (bare, mut mentions) = bare(&text);
                    // What stands for the type in a file, as in `try_from = "Fields"`.
                    mentions.extend(words(&serde).map(str::to_owned));
                    let text = serde + &bare;
                    self.by_name.entry(name).or_default().push(Declared { file: file.to_owned(), text, mentions });
                }
                attributes.clear();
            } else if !line.starts_with("//") {
                attributes.clear();
            }
            for (before, after) in line.match_indices(" as ").map(|(at, word)| (&line[..at], &line[at + word.len()..]))
            {
                if let (Some(name), Some(alias)) = (words(before).last(), words(after).next()) {
                    self.aliases.insert(alias.to_owned(), name.to_owned());
                }
            }
        }
    }

    /// Of several with one name it is the one in the same file; without one there, all of them.
    fn find(&self, name: &str, file: Option<&Path>) -> Vec<&Declared> {
        let named = |name: &str| self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        let (found, alias) = (named(name), self.aliases.get(name).map(String::as_str));
        let near: Vec<&Declared> = found.iter().filter(|declared| Some(declared.file.as_path()) == file).collect();
        match (near.is_empty(), found.is_empty(), alias) {
            (false, ..) => near,
            (true, true, Some(alias)) => named(alias).iter().collect(),
            (true, ..) => found.iter().collect(),
        }
    }

    /// The declarations of these types and of all that they mention.
    pub(crate) fn reached(&self, roots: &[&str]) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Declared> = Vec::new();
        for root in roots {
            let found = self.find(root, None);
            assert!(!found.is_empty(), "there is no type {root}");
            next.extend(found);
        }
        while let Some(declared) = next.pop() {
            if reached.insert(declared.text.as_str()) {
                next.extend(declared.mentions.iter().flat_map(|name| self.find(name, Some(&declared.file))));
            }
        }
        reached
    }
}

/// Whether a part of a declaration is among them. Spaces do not count.
pub(crate) fn has(reached: &BTreeSet<&str>, part: &str) -> bool {
    let part = part.replace(' ', "");
    reached.iter().any(|text| text.replace(' ', "").contains(&part))
}

pub(crate) fn digest(reached: &BTreeSet<&str>) -> String {
    let all: Vec<&str> = reached.iter().copied().collect();
    hex(&Sha256::digest(all.join("\n"))[..8])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The name of the type that is declared in this line.
fn declared(line: &str) -> Option<String> {
    let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
    let rest = line.strip_prefix("struct ").or_else(|| line.strip_prefix("enum "))?;
    words(rest).next().map(str::to_owned)
}

/// A declaration without comments, layout, visibility, and attributes of others than serde. And the names in it, but not that which a line
/// begins with: it is of a variant or a field.
fn bare(declaration: &str) -> (String, Vec<String>) {
    let (mut bare, mut mentions, mut in_attribute) = (String::new(), Vec::new(), false);
    for line in declaration.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if in_attribute || (line.starts_with("#[") && !line.starts_with("#[serde")) {
            in_attribute = !line.ends_with(']');
            continue;
        }
        let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
        bare += &line.split_whitespace().collect::<Vec<_>>().join(" ");
        bare += " ";
        mentions.extend(words(line).skip(1).map(str::to_owned));
    }
    for (from, to) in
        [(" ]", "]"), (" }", "}"), (" )", ")"), ("{ ", "{"), ("( ", "("), ("[ ", "["), (",}", "}"), (",)", ")")]
    {
        bare = bare.replace(from, to);
    }
    (bare, mentions)
}
