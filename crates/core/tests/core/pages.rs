//! Documents that list parts of the program: nothing is missing there, and nothing is listed that no longer exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use quorate_core::planner::UnsafeBecause;

/// The kinds in the table below "## Refusals": several may share a row.
fn listed(page: &str) -> BTreeSet<&str> {
    let (_, section) = page.split_once("\n## Refusals\n").expect("the page has this section");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    cells.flat_map(|(kinds, _)| kinds.split("`, `")).collect()
}

#[test]
fn the_page_about_failures_has_every_kind_of_refusal() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/failures.md");
    let page = fs::read_to_string(page).expect("the page");
    let (listed, kinds) = (listed(&page), BTreeSet::from(UnsafeBecause::KINDS));
    let missing: Vec<_> = kinds.difference(&listed).collect();
    assert!(missing.is_empty(), "add a row to the table of refusals in docs/failures.md for {missing:?}");
    let unknown: Vec<_> = listed.difference(&kinds).collect();
    assert!(unknown.is_empty(), "no refusal is called {unknown:?}: correct docs/failures.md");
}
