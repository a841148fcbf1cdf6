//! Limits the size of logs of services and of the agent: a file that is too large is copied to `NAME.1` and truncated. It is not
//! renamed, because the service or systemd has it open and would continue to write to the renamed file. All of them append, so
//! the next write begins at the start of the truncated file. A line that is written between the copy and the truncation is lost;
//! that is a few microseconds for each 16 MiB.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::agent::Agent;
use crate::files;

/// What a log may grow to, and again its older part.
const LARGEST: u64 = 16 << 20;
const PAUSE: Duration = Duration::from_secs(2);

impl Agent {
    /// Until it is dropped.
    pub(crate) async fn keep_logs_small(&self) {
        // The agent's output may have been sent to a file with other things in it.
        let own = Some(self.layout.agent_log()).filter(|path| path.ends_with("agent.log"));
        loop {
            for log in self.service_logs().into_iter().chain(own.clone()) {
                let kept = crate::blocking(move || keep_small(&log, LARGEST).map_err(|error| (log, error))).await;
                if let Err((log, error)) = kept {
                    tracing::warn!(log = %log.display(), %error, "the log could not be emptied");
                    tokio::time::sleep(PAUSE * 30).await;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The older part of a log.
pub(crate) fn older(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".1");
    path.with_file_name(name)
}

fn keep_small(path: &Path, largest: u64) -> io::Result<()> {
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    // What else somebody made of it, such as a terminal, is not ours to empty.
    if !found.is_file() || found.len() <= largest {
        return Ok(());
    }
    let older = older(path);
    let copied = copy_end(path, &older, largest);
    // Where there is no room for a copy, the room is what matters.
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    copied
}

/// The last `most` bytes, in a file that nobody else can read.
fn copy_end(path: &Path, to: &Path, most: u64) -> io::Result<()> {
    let mut from = File::open(path)?;
    let _ = fs::remove_file(to);
    let mut to = OpenOptions::new().write(true).create_new(true).mode(files::PRIVATE).open(to)?;
    let length = from.metadata()?.len();
    from.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    // A process that writes meanwhile could write for ever.
    io::copy(&mut from.take(most.saturating_mul(2)), &mut to).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const SMALL: u64 = 64 << 10;

    #[test]
    fn a_log_that_a_process_holds_open_stays_small_and_continues() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut log = files::open_log(&path).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        let writer = std::thread::spawn(move || {
            let mut last = 0;
            while !ended.load(Ordering::Relaxed) || last < 20_000 {
                last += 1;
                writeln!(log, "line {last:08} of a log that has no end").unwrap();
            }
            last
        });
        for _ in 0..200 {
            keep_small(&path, SMALL).unwrap();
            let before = fs::metadata(older(&path)).map_or(0, |found| found.len());
            assert!(before <= 2 * SMALL, "{before} bytes");
            std::thread::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::Relaxed);
        let last = writer.join().unwrap();
        keep_small(&path, SMALL).unwrap();
        let end = [older(&path), path].map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
        assert!(!end.contains('\0'), "the writer wrote on behind a hole");
        assert!(end.ends_with(&format!("line {last:08} of a log that has no end\n")), "the end is missing");
        assert!(end.lines().count() > 1000);
    }

    #[test]
    fn a_log_that_is_small_enough_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.log");
        keep_small(&path, SMALL).unwrap();
        fs::write(&path, "one\n").unwrap();
        keep_small(&path, SMALL).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        assert!(!older(&path).exists());
        keep_small(Path::new("/dev/null"), 0).unwrap();
    }
}
