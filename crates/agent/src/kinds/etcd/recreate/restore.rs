//! Restores an uploaded snapshot, only if its bytes are exactly the expected ones.

use std::fs;
use std::path::PathBuf;

use super::{Database, WorkDirectory};
use crate::api::Refusal;
use crate::files::Owner;
use crate::kinds::etcd::staging;
use crate::layout::Layout;
use crate::{AgentError, blocking, upload};

/// A link to the snapshot in the place of work, so that nobody takes it away meanwhile.
pub(super) async fn database(
    layout: &Layout,
    place: &WorkDirectory,
    sha256: &str,
    owner: Option<Owner>,
) -> Result<Database, Refusal> {
    let database = linked(layout, place, sha256).await?;
    place.give_to(owner).await?;
    Ok(database)
}

async fn linked(layout: &Layout, place: &WorkDirectory, sha256: &str) -> Result<Database, Refusal> {
    let (layout, path, wanted) = (layout.clone(), place.snapshot(), sha256.to_owned());
    blocking(move || {
        let staged = staging::look(&layout)?;
        if staged.as_ref().is_none_or(|staged| staged.sha256 != wanted) {
            let found = staged.map_or(String::from("none"), |staged| format!("that with checksum {}", staged.sha256));
            return Err(Refusal::NotAsExpected { expected: format!("the snapshot with checksum {wanted}"), found });
        }
        let file = staging::file(&layout, &wanted);
        fs::hard_link(&file, &path).map_err(AgentError::file("link", &file))?;
        Ok(Database { path, has_checksum: true, revision: None })
    })
    .await
}

/// Says so where the bytes have changed since they came: etcd's tool, which compares them with their checksum, fails on that, but its message
/// does not say what to do.
pub(super) async fn refuse_damaged(layout: &Layout, path: PathBuf, checksum: &str) -> Result<(), Refusal> {
    let (layout, checksum) = (layout.clone(), checksum.to_owned());
    blocking(move || {
        if upload::ends_with_own_checksum(&path, &checksum).map_err(AgentError::file("read", &path))? {
            return Ok(());
        }
        staging::clear(&layout)?;
        let why = format!("the staged snapshot does not agree with its checksum {checksum} any more");
        Err(Refusal::Failed {
            why: format!("{why}; it was damaged on disk and has been removed, and must be sent again"),
        })
    })
    .await
}
