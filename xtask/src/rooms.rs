//! `cargo xtask rooms PROVIDER`: lists the lines of code outside a provider's folders that name it. ARCHITECTURE.md says how many there
//! are, and a test compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::lab;

/// Where a provider's code is, below `crates`.
const ROOMS: [&str; 2] = ["core/src/providers", "providers/src"];

pub fn run(provider: &str) -> Result<()> {
    let root = lab::workspace()?;
    if !root.join("crates").join(ROOMS[0]).join(provider).is_dir() {
        bail!("there is no provider `{provider}` in crates/{}", ROOMS[0]);
    }
    let found = lines_outside(&root, provider)?;
    for (file, lines) in &found {
        lines.iter().for_each(|(number, line)| println!("{file}:{number}: {}", line.trim()));
    }
    println!("{}", row(provider, &found));
    Ok(())
}

/// By file, below `crates`: lines with their numbers.
type Found = BTreeMap<String, Vec<(usize, String)>>;

/// As the table in ARCHITECTURE.md has it.
fn row(provider: &str, found: &Found) -> String {
    let count = |lines: &Vec<(usize, String)>| lines.len();
    let files: Vec<String> = found.iter().map(|(file, lines)| format!("`{file}` {}", count(lines))).collect();
    format!("| `{provider}` | {} | {} |", found.values().map(count).sum::<usize>(), files.join(", "))
}

fn lines_outside(root: &Path, provider: &str) -> Result<Found> {
    let crates = root.join("crates");
    let rooms = ROOMS.map(|room| crates.join(room).join(provider));
    let mut found = Found::new();
    for entry in fs::read_dir(&crates).with_context(|| format!("cannot read {}", crates.display()))?.flatten() {
        for file in sources(&entry.path().join("src")) {
            if rooms.iter().any(|room| file.starts_with(room)) {
                continue;
            }
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let lines = naming(&text, provider);
            if !lines.is_empty() {
                found.insert(file.strip_prefix(&crates).unwrap_or(&file).display().to_string(), lines);
            }
        }
    }
    Ok(found)
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let below = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    below.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// Lines of code that have the name in them, in whatever case. Comments and tests may name it.
fn naming(text: &str, provider: &str) -> Vec<(usize, String)> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let names = |line: &str| !line.trim_start().starts_with("//") && line.to_lowercase().contains(provider);
    let lines = code.lines().enumerate().filter(|(_, line)| names(line));
    lines.map(|(index, line)| (index + 1, line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_counts() {
        let text = "mod incus;\n// Incus\nlet a = Incus::new(); // yes\nlibvirt\n#[cfg(test)]\nincus\n";
        let numbers: Vec<usize> = naming(text, "incus").into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [1, 3]);
    }

    #[test]
    fn the_architecture_says_how_many_lines_name_a_provider() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
        // `local` is a common word, and `aws` is in the names of variables for S3.
        for provider in ["incus", "openstack"] {
            let row = row(provider, &lines_outside(root, provider).expect("sources"));
            assert!(page.contains(&row), "put this row into ARCHITECTURE.md, \"To add a provider\":\n{row}");
        }
    }
}
