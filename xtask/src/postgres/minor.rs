//! The minor release before the installed one, for tests and drills of a minor upgrade. It is the installed PostgreSQL, whose server says that it
//! is of the release before: a copy in which its version was changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::PROGRAMS_DIRECTORY;
use crate::host;
use crate::lab::{Filling, Lab};

const SERVER: &str = "postgres";

/// The directory of its programs. All but the server are links to the installed ones.
pub fn ensure(lab: &Lab) -> Result<PathBuf> {
    let place = lab.older_postgres();
    let older = before(&release(Path::new(PROGRAMS_DIRECTORY))?)?;
    let is_whole = || release(&place).is_ok_and(|found| found == older);
    if !is_whole() {
        let filling = lab.lock()?;
        if !is_whole() {
            make(&filling, &place).with_context(|| format!("PostgreSQL {older} cannot be made"))?;
        }
    }
    Ok(place)
}

/// What the server says, such as 15.18.
fn release(programs: &Path) -> Result<String> {
    let said = host::read(Command::new(programs.join(SERVER)).arg("--version"))?;
    said.split_whitespace().nth(2).map(str::to_owned).with_context(|| format!("no release in `{said}`"))
}

/// With as many characters: it takes the place of the other one in the program.
fn before(release: &str) -> Result<String> {
    let (major, minor) = parts(release)?;
    let width = release.len() - major.to_string().len() - 1;
    let before = minor.checked_sub(1).with_context(|| format!("there is none before {release}"))?;
    Ok(format!("{major}.{before:0width$}"))
}

fn parts(release: &str) -> Result<(u32, u32)> {
    let parts = release.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.with_context(|| format!("{release} is not a release"))
}

/// The server's version as a number, as it is in the program and in what it writes.
fn number(release: &str) -> Result<[u8; 4]> {
    let (major, minor) = parts(release)?;
    Ok((major * 10_000 + minor).to_le_bytes())
}

fn make(filling: &Filling<'_>, place: &Path) -> Result<()> {
    let installed = Path::new(PROGRAMS_DIRECTORY);
    let release_now = release(installed)?;
    let older = before(&release_now)?;
    eprintln!("making PostgreSQL {older} of {release_now}");
    let draft = filling.scratch("postgres-minor")?;
    for entry in fs::read_dir(installed)? {
        let entry = entry?;
        if entry.file_name() != SERVER {
            symlink(entry.path(), draft.join(entry.file_name()))?;
        }
    }
    let server = draft.join(SERVER);
    fs::copy(installed.join(SERVER), &server)?;
    let mut program = fs::read(&server)?;
    replace_all(&mut program, release_now.as_bytes(), older.as_bytes())?;
    replace_all(&mut program, &number(&release_now)?, &number(&older)?)?;
    fs::write(&server, program)?;
    ensure!(release(&draft)? == older, "the changed server does not say that it is {older}");
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    fs::create_dir_all(place.parent().context("a place in no directory")?)?;
    fs::rename(&draft, place).with_context(|| format!("cannot move into place {}", place.display()))
}

fn replace_all(bytes: &mut [u8], from: &[u8], to: &[u8]) -> Result<()> {
    ensure!(from.len() == to.len(), "{from:?} and {to:?} have different lengths");
    let mut found = 0;
    for at in 0..=bytes.len().saturating_sub(from.len()) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            found += 1;
        }
    }
    ensure!(found > 0, "{from:?} is not in the program");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_before_is_as_long() {
        assert_eq!(before("15.18").unwrap(), "15.17");
        assert_eq!(before("15.10").unwrap(), "15.09");
        assert_eq!(before("9.6").unwrap(), "9.5");
        assert!(before("15.0").is_err() && before("15beta1").is_err());
        assert_eq!(number("15.18").unwrap(), 150_018_u32.to_le_bytes());
    }

    #[test]
    fn all_of_it_is_replaced_or_nothing_was_there() {
        let mut program = *b"15.18, 15.18 and 15.1";
        replace_all(&mut program, b"15.18", b"15.17").unwrap();
        assert_eq!(&program, b"15.17, 15.17 and 15.1");
        assert!(replace_all(&mut program, b"15.18", b"15.17").is_err());
        assert!(replace_all(&mut program, b"15.17", b"15").is_err());
    }
}
