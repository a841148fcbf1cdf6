//! Stories of operators: given this cluster and these events, these are the steps and their reasons. Each file of
//! `stories/` is one test; `common/story.rs` describes the language.

#[path = "common/scene.rs"]
#[allow(dead_code, reason = "the property tests use the rest")]
mod scene;
#[path = "common/story.rs"]
mod story;

use std::path::Path;
use std::{env, fs};

fn told_as_it_is(path: &Path) -> datatest_stable::Result<()> {
    let expected = fs::read_to_string(path)?;
    let told = story::retell(&expected, &mut story::Reached::default());
    if env::var_os("UPDATE_STORIES").is_some() {
        fs::write(path, told)?;
        return Ok(());
    }
    match first_difference(&expected, &told) {
        None => Ok(()),
        Some(difference) => Err(difference.into()),
    }
}

fn first_difference(expected: &str, told: &str) -> Option<String> {
    let (mut theirs, mut ours) = (expected.lines(), told.lines());
    for number in 1.. {
        match (theirs.next(), ours.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => {
                let [a, b] = [a, b].map(|line| line.unwrap_or("the end").to_owned());
                return Some(format!("line {number}\nexpected: {a}\n   found: {b}"));
            }
        }
    }
    None
}

datatest_stable::harness! {
    { test = told_as_it_is, root = "tests/stories", pattern = r"\.txt$" },
}
