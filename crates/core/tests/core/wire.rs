//! What controllers and agents say to each other moves only together with the number of their protocol. Without that, an agent of an
//! earlier build counts as current, is not upgraded, and gets orders that it cannot read.
//!
//! Sample messages would show a new field, but not a new variant. So the digest is over the declarations: every type that can be reached from
//! the requests and answers below, without comments, layout, and attributes that serde does not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::model::PROTOCOL;
use quorate_core::text::hex;
use sha2::{Digest, Sha256};

use crate::rooms::sources;

/// The protocol, and the digest of its messages.
const MESSAGES: (u32, &str) = (4, "561c3edffa3004d3");

/// The requests and answers of an agent's port: `agent/src/api.rs` has their paths. What stands in a seed, too.
const ROOTS: [&str; 14] = [
    "FactsRequest",
    "AgentSeen",
    "Envelope",
    "Refusal",
    "LogRequest",
    "LogAnswer",
    "JobRequest",
    "JobAnswer",
    "EnrolRequest",
    "EnrolAnswer",
    "EnrolCertificate",
    "ReadEnd",
    "NodeConfig",
    "Seed",
];

const WHAT_TO_DO: &str = "\n
what controllers and agents say to each other has changed. In core/src/model/program.rs raise `PROTOCOL` and the number in `MARK`,
and `OLDEST_PROTOCOL` too if agents of the last protocol cannot read the new orders. Raise the version of the workspace, and add both to
`FIRST_VERSION_OF` and CHANGELOG.md. The number may stay if no program with it is in use anywhere, because it was raised only just now.
Then set `MESSAGES` in this test to";

struct Declared {
    file: PathBuf,
    text: String,
    /// Names that may be types.
    mentions: Vec<String>,
}

#[derive(Default)]
struct Types {
    by_name: BTreeMap<String, Vec<Declared>>,
    /// `Order as EtcdOrder`
    aliases: BTreeMap<String, String>,
}

impl Types {
    fn read() -> Types {
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
                    let (bare, mentions) = bare(&text);
                    let text = serde.collect::<String>() + &bare;
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

    fn reached(&self) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Declared> = Vec::new();
        for root in ROOTS {
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

#[test]
fn what_controllers_and_agents_say_moves_only_with_the_number_of_their_protocol() {
    let types = Types::read();
    let reached = types.reached();
    // The search went from an order to a service, to facts and to what only one kind has.
    for part in ["TakeRaftSnapshot", "PgbouncerService{", "struct PostgresFacts", "upgrade_packages:bool"] {
        let without_spaces = |text: &&str| text.replace(' ', "").contains(&part.replace(' ', ""));
        assert!(reached.iter().any(without_spaces), "{part} was not found");
    }
    let all: Vec<&str> = reached.into_iter().collect();
    let digest = hex(&Sha256::digest(all.join("\n"))[..8]);
    assert_eq!(MESSAGES, (PROTOCOL, digest.as_str()), "{WHAT_TO_DO} ({PROTOCOL}, \"{digest}\")");
}
