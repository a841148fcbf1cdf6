//! Markdown: lines of at most 100 columns, working links within the repository, and a README of one page. Tables, code
//! blocks, HTML and unbreakable words may be longer.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::read;
use crate::lab;
use crate::reference::slug;

const WIDTH: usize = 100;
/// The first page is read in full only if it is short.
const LINES_OF_README: usize = 100;

pub fn check() -> Result<()> {
    let root = lab::workspace()?;
    let mut pages = BTreeMap::new();
    for file in markdown_files(&root)? {
        pages.insert(file.strip_prefix(&root)?.to_owned(), read(&file)?);
    }
    let exists = |path: &Path| root.join(path).exists();
    let problems: Vec<String> = pages.keys().flat_map(|page| problems(page, &pages, &exists)).collect();
    if !problems.is_empty() {
        bail!("\n  {}", problems.join("\n  "));
    }
    Ok(())
}

/// Of the sources: what was built or is hidden is left out.
fn markdown_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files.extend(markdown_files(&path)?);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(files)
}

/// One line per problem: `FILE:LINE: what is wrong`.
fn problems(page: &Path, pages: &BTreeMap<PathBuf, String>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let lines = pages[page].lines().count();
    if page == Path::new("README.md") && lines > LINES_OF_README {
        found.push(format!("README.md: {lines} lines; at most {LINES_OF_README} belong on the first page"));
    }
    for (number, line) in prose(&pages[page]) {
        let columns = line.chars().count();
        if columns > WIDTH && can_be_wrapped(line) {
            found.push(format!("{}:{number}: {columns} columns; wrap it at {WIDTH}", page.display()));
        }
        for target in links(line) {
            if let Some(problem) = broken(page, target, pages, exists) {
                found.push(format!("{}:{number}: {problem}", page.display()));
            }
        }
    }
    found
}

/// The lines outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

fn can_be_wrapped(line: &str) -> bool {
    let text = line.trim_start();
    let is_prose = !text.starts_with(['|', '<']) && !text.starts_with("![");
    is_prose && text.chars().take(WIDTH).any(|c| c == ' ')
}

/// The targets of links such as `[text](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// Why a link leads nowhere. Only files of the repository are looked for.
fn broken(
    page: &Path,
    target: &str,
    pages: &BTreeMap<PathBuf, String>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if file.is_empty() { page.to_owned() } else { without_dots(&page.parent()?.join(file)) };
    if !exists(&file) {
        return Some(format!("the link to {target} leads nowhere: there is no {}", file.display()));
    }
    let has_anchor = |text: &String| prose(text).any(|(_, line)| line.starts_with('#') && anchor_of(line) == anchor);
    if !anchor.is_empty() && !pages.get(&file).is_some_and(has_anchor) {
        return Some(format!("the link to {target} leads nowhere: {} has no such heading", file.display()));
    }
    None
}

/// The path with each `..` applied.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

fn anchor_of(heading: &str) -> String {
    slug(heading.trim_start_matches('#').trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(text: &str) -> Vec<String> {
        let other = (PathBuf::from("docs/b.md"), String::from("# The `other` page\n"));
        let pages = BTreeMap::from([(PathBuf::from("docs/a.md"), text.to_owned()), other]);
        let exists = |path: &Path| pages.contains_key(path);
        problems(Path::new("docs/a.md"), &pages, &exists)
    }

    #[test]
    fn a_long_line_of_prose_is_reported_with_its_number() {
        let long = "word ".repeat(21);
        assert_eq!(problems_of(&format!("# A\n\n{}\n", long.trim())), ["docs/a.md:3: 104 columns; wrap it at 100"]);
        for fine in [format!("| {long} |"), format!("```\n{long}\n```"), "x".repeat(120), "é".repeat(100)] {
            assert_eq!(problems_of(&fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn the_readme_is_short() {
        let pages = |lines: usize| BTreeMap::from([(PathBuf::from("README.md"), "word\n".repeat(lines))]);
        assert_eq!(problems(Path::new("README.md"), &pages(100), &|_| true), [""; 0]);
        assert_eq!(problems(Path::new("README.md"), &pages(101), &|_| true).len(), 1);
    }

    #[test]
    fn a_link_needs_its_file_and_its_heading() {
        for fine in
            ["[b](b.md)", "[b](../docs/b.md#the-other-page)", "[x](https://example.org/#a)", "# A b\n[up](#a-b)"]
        {
            assert_eq!(problems_of(fine), [""; 0], "{fine}");
        }
        for wrong in ["[b](c.md)", "[b](b.md#nothing)", "[up](#nothing)"] {
            assert_eq!(problems_of(wrong).len(), 1, "{wrong}");
        }
        assert_eq!(problems_of("```\n[b](c.md)\n```"), [""; 0]);
    }
}
