//! The labs' program: quorate without shared libraries, from what the tests were compiled from. Only the last crate is compiled again, and
//! linked with glibc's static library in place of the shared one. To compile every crate for musl takes as long as all tests do.
//!
//! Cargo has no way to build one package with the features that the workspace as a whole gives to its dependencies. So the build
//! of the tests notes how it compiles the program (`test/rustc.sh`), and this file does the same once more.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::lab;
use crate::test::build;

/// Builds the tests and from them the program, and returns where it is.
pub fn build() -> Result<PathBuf> {
    let shared = build::programs()?.join("quorate");
    let directory = host::target_directory()?.join("lab");
    let program = directory.join("quorate");
    if !is_newer(&program, &shared) {
        eprintln!("linking the labs' program");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        link(&directory)?;
    }
    Ok(program)
}

fn is_newer(one: &Path, other: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    modified(one).is_some_and(|one| modified(other).is_some_and(|other| one > other))
}

/// In another directory first, so nobody starts half of a program.
fn link(directory: &Path) -> Result<()> {
    let note = build::note()?;
    let words = read(&note)?;
    let draft = directory.join(format!("draft-{}", std::process::id()));
    fs::create_dir_all(&draft).with_context(|| format!("cannot create {}", draft.display()))?;
    let (rustc, arguments) = words.split_first().context("nothing was noted of how the program is compiled")?;
    let mut command = Command::new(rustc);
    command.args(statically(arguments.to_vec(), &draft)?).current_dir(lab::workspace()?).env_clear();
    command.envs(read(&note.with_extension("env"))?.iter().filter_map(|pair| pair.split_once('=')));
    // It names what a cargo that has ended had open.
    command.env_remove("CARGO_MAKEFLAGS");
    host::run(&mut command)?;
    let made = fs::read_dir(&draft)?.flatten().map(|entry| entry.path()).next().context("rustc made no program")?;
    super::check_static(&made)?;
    fs::rename(&made, directory.join("quorate")).with_context(|| format!("cannot rename {}", made.display()))?;
    fs::remove_dir(&draft).with_context(|| format!("cannot remove {}", draft.display()))
}

/// Text with a zero byte after each part. What cargo says to rustc is text, and so is what quorate is built from of the environment.
fn read(file: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}: build the tests again", file.display()))?;
    let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    Ok(parts.filter_map(|part| OsString::from_vec(part.to_vec()).into_string().ok()).collect())
}

/// The same compilation, whose result is one static program in this directory.
fn statically(arguments: Vec<String>, into: &Path) -> Result<Vec<String>> {
    let into = into.to_str().context("the path of the target directory is not text")?;
    let (mut changed, mut directories) = (Vec::new(), 0);
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let mut of_two = |name: &str| argument == "-C" && arguments.peek().is_some_and(|next| next.starts_with(name));
        if of_two("incremental=") {
            arguments.next();
        } else if argument == "--out-dir" {
            directories += 1;
            arguments.next();
            changed.extend([argument, into.to_owned()]);
        } else if argument.starts_with("--emit=") {
            changed.push(String::from("--emit=link"));
        } else if !argument.starts_with("--error-format=") && !argument.starts_with("--json=") {
            changed.push(argument);
        }
    }
    ensure!(directories == 1, "cargo compiles the program in another way than this file expects: no --out-dir");
    // Of two that contradict each other, the last counts.
    changed.extend(["-Ctarget-feature=+crt-static", "-Cstrip=symbols"].map(String::from));
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_compilation_makes_a_static_program() {
        let cargos = "--crate-name quorate --edition=2024 src/main.rs --error-format=json --json=artifacts \
                      --crate-type bin --emit=dep-info,link -C incremental=/i -C debuginfo=0 --out-dir /deps -L /deps";
        let changed = statically(cargos.split_whitespace().map(str::to_owned).collect(), Path::new("/lab")).unwrap();
        let expected = "--crate-name quorate --edition=2024 src/main.rs --crate-type bin --emit=link -C debuginfo=0 \
                        --out-dir /lab -L /deps -Ctarget-feature=+crt-static -Cstrip=symbols";
        assert_eq!(changed.join(" "), expected);
        assert!(statically(vec![String::from("--crate-name")], Path::new("/lab")).is_err());
    }

    #[test]
    fn parts_are_read() {
        let file = tempfile();
        fs::write(&file, b"rustc\0--crate-name\0quorate\0").unwrap();
        assert_eq!(read(&file).unwrap(), ["rustc", "--crate-name", "quorate"]);
        fs::remove_file(&file).unwrap();
        assert!(read(&file).is_err());
    }

    fn tempfile() -> PathBuf {
        std::env::temp_dir().join(format!("quorate-xtask-parts-{}", std::process::id()))
    }
}
