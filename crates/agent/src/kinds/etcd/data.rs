//! etcd's data directory, and the stamp next to it, which says which cluster and member the data belongs to.

use std::fs;
use std::io;
use std::path::Path;

use quorate_core::model::{DataSeen, Stamp};

use crate::layout::Layout;
use crate::{AgentError, files, stamp};

/// The content of the data directory. Without a write-ahead log there is no data: an etcd that was killed during its
/// first start leaves an empty database without one, from which etcd would not continue.
pub(crate) fn look(layout: &Layout) -> Result<DataSeen, AgentError> {
    if !has_log(&layout.data())? {
        return Ok(DataSeen::Empty);
    }
    Ok(read_stamp(layout)?.map_or(DataSeen::Unstamped, DataSeen::Stamped))
}

fn has_log(data: &Path) -> Result<bool, AgentError> {
    let path = data.join("member/wal");
    match fs::read_dir(&path) {
        Ok(entries) => {
            Ok(entries.flatten().any(|entry| entry.path().extension().is_some_and(|extension| extension == "wal")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(AgentError::file("list", path)(error)),
    }
}

pub(super) fn read_stamp(layout: &Layout) -> Result<Option<Stamp>, AgentError> {
    stamp::read(&layout.stamp())
}

/// Makes an empty directory ready for a first start, and stamps it. What an interrupted start left is put aside, where the
/// next such start replaces it.
pub(super) fn prepare(layout: &Layout, stamp: &Stamp) -> Result<(), AgentError> {
    let data = layout.data();
    if data.join("member").exists() {
        files::remove_dir(&layout.remnant())?;
        fs::rename(&data, layout.remnant()).map_err(AgentError::file("put aside", &data))?;
    }
    files::make_dir(&data, 0o700)?;
    write_stamp(layout, stamp)
}

pub(super) fn write_stamp(layout: &Layout, stamp: &Stamp) -> Result<(), AgentError> {
    stamp::write(&layout.stamp(), stamp)
}

/// Data first: a crash in between leaves a stamp without data, and the wipe can be ordered again.
pub(super) fn wipe(layout: &Layout) -> Result<(), AgentError> {
    files::remove_dir(&layout.data())?;
    files::remove_dir(&layout.remnant())?;
    files::remove(&layout.stamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(token: &str) -> Stamp {
        Stamp { cluster_id: String::from("c"), token: token.to_owned(), member: "etcd-1".into(), incarnation: 1 }
    }

    #[test]
    fn data_is_a_write_ahead_log_and_belongs_to_whom_the_stamp_says() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Empty);
        prepare(&layout, &stamp("one")).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Empty, "a stamp without data");
        fs::create_dir_all(layout.data().join("member/snap")).unwrap();
        fs::write(layout.data().join("member/snap/db"), "half").unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Empty, "an interrupted start");
        fs::create_dir_all(layout.data().join("member/wal")).unwrap();
        fs::write(layout.data().join("member/wal/0-0.wal"), "log").unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Stamped(stamp("one")));
        fs::remove_file(layout.stamp()).unwrap();
        assert_eq!(look(&layout).unwrap(), DataSeen::Unstamped);
    }

    #[test]
    fn leftovers_of_an_interrupted_start_are_set_aside_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        for token in ["one", "two", "three"] {
            prepare(&layout, &stamp(token)).unwrap();
            assert_eq!(fs::read_dir(layout.data()).unwrap().count(), 0);
            fs::create_dir_all(layout.data().join("member/snap")).unwrap();
        }
        assert!(layout.remnant().join("member/snap").exists());
        wipe(&layout).unwrap();
        assert!(!layout.remnant().exists() && !layout.data().exists() && !layout.stamp().exists());
    }
}
