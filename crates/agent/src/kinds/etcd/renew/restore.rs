//! A snapshot that was brought here, taken for a restore: the very bytes that were named, or none.

use std::fs;
use std::path::PathBuf;

use super::{Database, Place};
use crate::api::Refusal;
use crate::files::Owner;
use crate::kinds::etcd::staging;
use crate::layout::Layout;
use crate::{AgentError, blocking, upload};

/// etcd puts a SHA-256 behind a database whose length is a multiple of 512, and so do its tools tell it.
const CHECKSUM: u64 = 32;
const SECTOR: u64 = 512;

/// A link to the snapshot in the place of work, so that nobody takes it away meanwhile.
pub(super) async fn database(
    layout: &Layout,
    place: &Place,
    sha256: &str,
    owner: Option<Owner>,
) -> Result<Database, Refusal> {
    let database = linked(layout, place, sha256).await?;
    place.give_to(owner).await?;
    Ok(database)
}

async fn linked(layout: &Layout, place: &Place, sha256: &str) -> Result<Database, Refusal> {
    let (layout, path, wanted) = (layout.clone(), place.snapshot(), sha256.to_owned());
    blocking(move || {
        let staged = staging::look(&layout)?;
        if staged.as_ref().is_none_or(|staged| staged.sha256 != wanted) {
            let found = staged.map_or(String::from("none"), |staged| format!("that with SHA-256 {}", staged.sha256));
            return Err(Refusal::NotAsExpected { expected: format!("the snapshot with SHA-256 {wanted}"), found });
        }
        let file = staging::file(&layout, &wanted);
        fs::hard_link(&file, &path).map_err(AgentError::file("link", &file))?;
        let bytes = fs::metadata(&path).map_err(AgentError::file("look at", &path))?.len();
        Ok(Database { path, has_checksum: bytes % SECTOR == CHECKSUM, revision: None })
    })
    .await
}

/// Compares its bytes once more: disks forget, and one damaged member is not found until the others are gone.
pub(super) async fn compare(layout: &Layout, path: PathBuf, wanted: &str) -> Result<(), Refusal> {
    let (layout, wanted) = (layout.clone(), wanted.to_owned());
    blocking(move || {
        let (found, _) = upload::file_digest(&path).map_err(AgentError::file("read", &path))?;
        if found == wanted {
            return Ok(());
        }
        staging::clear(&layout)?;
        let why = format!("the staged snapshot was damaged on disk: its SHA-256 is {found}, expected {wanted}");
        Err(Refusal::Failed { why: format!("{why}; it was removed and must be sent again") })
    })
    .await
}
