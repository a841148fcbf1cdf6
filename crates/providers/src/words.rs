//! Lists of names in errors.

use std::path::PathBuf;

pub(crate) fn list(names: &[String]) -> String {
    if names.is_empty() { String::from("none") } else { names.join(", ") }
}

pub(crate) fn shown(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

pub(crate) fn known(before: &str, names: &[String], after: &str) -> String {
    if names.is_empty() { String::new() } else { format!("{before}{}{after}", names.join(", ")) }
}
