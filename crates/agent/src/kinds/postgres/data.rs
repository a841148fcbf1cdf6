//! PostgreSQL's data directory, and the stamp next to it, which says which cluster and member the data belongs to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quorate_core::kinds::postgres::desire::ROTATION_MARK;
use quorate_core::kinds::postgres::{ArchiveSeen, ControlSeen, DataState, ReplacedSeen};
use quorate_core::model::{DataSeen, Stamp};

use super::tablespaces;
use crate::layout::Layout;
use crate::{AgentError, files, stamp};

const CONTROL_FILE: &str = "global/pg_control";

/// What is in the data directory. Without its control file there is no data: a clone writes that file last, and PostgreSQL would not start.
pub(super) fn look(layout: &Layout) -> Result<DataSeen, AgentError> {
    if !is_there(&control_file(layout))? {
        return Ok(DataSeen::Empty);
    }
    Ok(stamp::read(&layout.postgres_stamp())?.map_or(DataSeen::Unstamped, DataSeen::Stamped))
}

fn control_file(layout: &Layout) -> PathBuf {
    layout.postgres_data().join(CONTROL_FILE)
}

fn is_there(path: &Path) -> Result<bool, AgentError> {
    path.try_exists().map_err(AgentError::file("look at", path))
}

/// Whether anything at all is in the data directory.
pub(super) fn is_bare(layout: &Layout) -> Result<bool, AgentError> {
    let data = layout.postgres_data();
    match fs::read_dir(&data) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(AgentError::file("list", data)(error)),
    }
}

/// The identity that `initdb` gave the data: the first eight bytes of the control file, in the machine's byte order.
pub(super) fn system_id(layout: &Layout) -> Option<String> {
    system_id_in(&layout.postgres_data())
}

pub(super) fn system_id_in(data: &Path) -> Option<String> {
    let bytes = fs::read(data.join(CONTROL_FILE)).ok()?;
    let id: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    Some(u64::from_ne_bytes(id).to_string())
}

/// The part of the control file that all versions of PostgreSQL from 12 on have at the same place, in the machine's byte order.
pub(super) fn control(data: &Path) -> Option<ControlSeen> {
    let bytes = fs::read(data.join(CONTROL_FILE)).ok()?;
    let number = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let state = match number(16)? {
        1 => DataState::ShutDown,
        2 => DataState::ShutDownInRecovery,
        _ => DataState::InUse,
    };
    let checkpoint = u64::from_ne_bytes(bytes.get(32..40)?.try_into().ok()?);
    Some(ControlSeen { state, timeline: number(48)?, checkpoint })
}

/// What a restore or an upgrade has replaced.
pub(super) fn replaced(layout: &Layout) -> Result<Option<ReplacedSeen>, AgentError> {
    let Some(control) = control(&layout.postgres_replaced()) else { return Ok(None) };
    Ok(stamp::read(&layout.postgres_replaced_stamp())?.map(|stamp| ReplacedSeen { stamp, control }))
}

/// Makes what was replaced ready to be put in place. The mark comes first: alone it says nothing.
pub(super) fn bring_back(layout: &Layout, stamp: &Stamp) -> Result<(), AgentError> {
    let (kept, restored) = (layout.postgres_replaced(), layout.postgres_restored());
    files::remove_dir(&restored)?;
    stamp::write(&layout.postgres_restored_stamp(), stamp)?;
    fs::rename(&kept, &restored).map_err(AgentError::file("bring back", &kept))?;
    files::remove(&layout.postgres_replaced_stamp())?;
    files::make_durable(&layout.postgres_home())
}

/// The configuration of all members that Patroni has taken up: it writes that next to the data, after it has acted on it.
pub(super) fn applied(layout: &Layout) -> Option<String> {
    let bytes = fs::read(layout.postgres_data().join("patroni.dynamic.json")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&bytes).ok().map(|config| config.to_string())
}

/// What the rules of access that are in force say of a rotation of passwords.
pub(super) fn rotation(layout: &Layout) -> Option<String> {
    let rules = fs::read_to_string(layout.postgres_data().join("pg_hba.conf")).ok()?;
    rules.lines().find_map(|line| line.strip_prefix(ROTATION_MARK)).map(|mark| mark.trim().to_owned())
}

/// Whether the file that a standby takes its password from has this one, and no other.
pub(super) fn logs_in_with(layout: &Layout, password: &str) -> bool {
    let lines = fs::read_to_string(layout.standby_password()).unwrap_or_default();
    let mut lines = lines.lines().filter(|line| !line.is_empty()).peekable();
    lines.peek().is_some() && lines.all(|line| line.ends_with(&format!(":{password}")))
}

/// What of the log is finished and not stored yet: PostgreSQL notes that next to it.
pub(super) fn archive(layout: &Layout) -> Option<ArchiveSeen> {
    let entries = fs::read_dir(layout.postgres_data().join("pg_wal/archive_status")).ok()?;
    let is_waiting = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".ready");
    let age = |entry: fs::DirEntry| entry.metadata().ok()?.modified().ok()?.elapsed().ok();
    let waiting: Vec<_> = entries.flatten().filter(is_waiting).collect();
    let number = waiting.len() as u64;
    let oldest = waiting.into_iter().filter_map(age).max().unwrap_or_default();
    Some(ArchiveSeen { waiting: number, waits_s: oldest.as_secs() })
}

/// Clears away what is no data: Patroni would take it for data that it does not understand. What is known to be half a clone is removed.
/// Anything else may be data that has lost its control file: it is put aside, where the next such start replaces it.
pub(super) fn clear_remnant(layout: &Layout, is_half_clone: bool) -> Result<(), AgentError> {
    if is_there(&control_file(layout))? || is_bare(layout)? {
        return Ok(());
    }
    let data = layout.postgres_data();
    if is_half_clone {
        return files::remove_dir(&data);
    }
    files::remove_dir(&layout.postgres_remnant())?;
    fs::rename(&data, layout.postgres_remnant()).map_err(AgentError::file("put aside", &data))
}

/// Makes the empty directory ready for a clone. The stamp comes first: once there is data, nobody must take it for a stranger's.
pub(super) fn prepare_clone(layout: &Layout, stamp: &Stamp, after_another: bool) -> Result<(), AgentError> {
    clear_remnant(layout, after_another)?;
    // A clone wants its tablespaces empty.
    tablespaces::clear_unused(layout)?;
    stamp::write(&layout.postgres_stamp(), stamp)
}

/// Puts the data that was created in the draft directory in place, with its stamp. A crash in between leaves a stamp without data, and the
/// data is created again.
pub(super) fn put_draft(layout: &Layout, stamp: &Stamp) -> Result<(), AgentError> {
    let (draft, data) = (layout.postgres_draft(), layout.postgres_data());
    if !is_bare(layout)? {
        return Err(AgentError::file("put data into", data)(io::ErrorKind::DirectoryNotEmpty.into()));
    }
    stamp::write(&layout.postgres_stamp(), stamp)?;
    fs::rename(&draft, &data).map_err(AgentError::file("put in place", &data))?;
    files::make_durable(&layout.postgres_home())
}

/// Data first: a crash in between leaves a stamp without data, and the wipe can be ordered again.
pub(super) fn wipe(layout: &Layout) -> Result<(), AgentError> {
    let beside = [
        layout.postgres_restored(),
        layout.postgres_replaced(),
        layout.postgres_verified(),
        layout.postgres_rehearsed(),
        layout.postgres_rehearsed_new(),
    ];
    let data = [layout.postgres_data(), layout.postgres_draft(), layout.postgres_remnant()];
    for directory in data.into_iter().chain(beside) {
        files::remove_dir(&directory)?;
    }
    tablespaces::wipe(layout)?;
    files::remove(&layout.postgres_restored_stamp())?;
    files::remove(&layout.postgres_replaced_stamp())?;
    files::remove(&layout.postgres_stamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(token: &str) -> Stamp {
        Stamp { cluster_id: String::from("c"), token: token.to_owned(), member: "pg-1".into(), incarnation: 1 }
    }

    fn put_control_file(directory: &Path) {
        fs::create_dir_all(directory.join("global")).unwrap();
        fs::write(directory.join("global/pg_control"), 7_709_122_112_588_023_710_u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn data_is_what_has_a_control_file_and_belongs_to_whom_the_stamp_says() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        assert_eq!((look(&layout).unwrap(), is_bare(&layout).unwrap()), (DataSeen::Empty, true));
        prepare_clone(&layout, &stamp("one"), false).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Empty, "a stamp without data");
        fs::create_dir_all(layout.postgres_data().join("base")).unwrap();
        assert_eq!((look(&layout).unwrap(), is_bare(&layout).unwrap()), (DataSeen::Empty, false), "half a clone");
        put_control_file(&layout.postgres_data());
        assert_eq!(look(&layout).unwrap(), DataSeen::Stamped(stamp("one")));
        assert_eq!(system_id(&layout).as_deref(), Some("7709122112588023710"));
        fs::remove_file(layout.postgres_stamp()).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Unstamped);
    }

    #[test]
    fn possible_data_is_set_aside_a_partial_clone_is_removed_and_real_data_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        for token in ["one", "two"] {
            fs::create_dir_all(layout.postgres_data().join("base")).unwrap();
            prepare_clone(&layout, &stamp(token), false).unwrap();
            assert!(is_bare(&layout).unwrap());
        }
        assert!(layout.postgres_remnant().join("base").exists());
        put_control_file(&layout.postgres_data());
        clear_remnant(&layout, true).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Stamped(stamp("two")));
        fs::remove_file(control_file(&layout)).unwrap();
        clear_remnant(&layout, true).unwrap();
        assert!(!layout.postgres_data().exists() && layout.postgres_remnant().join("base").exists());
        wipe(&layout).unwrap();
        assert_eq!(fs::read_dir(layout.postgres_home()).unwrap().count(), 0);
    }

    #[test]
    fn a_draft_never_replaces_data() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        put_control_file(&layout.postgres_draft());
        fs::create_dir_all(layout.postgres_data()).unwrap();
        put_draft(&layout, &stamp("one")).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Stamped(stamp("one")));
        put_control_file(&layout.postgres_draft());
        assert!(put_draft(&layout, &stamp("two")).is_err());
        assert_eq!(look(&layout).unwrap(), DataSeen::Stamped(stamp("one")));
    }
}
