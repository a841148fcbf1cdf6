//! Patroni as a service of its machine: what its supervisor needs to know.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::kinds::postgres::SUPERUSER;
use rustix::process::Signal;

use super::rest::{Rest, STATUS};
use super::user::VARIABLES;
use super::{SERVICE, processes};
use crate::agent::Agent;
use crate::layout::Layout;
use crate::process::Process;
use crate::services::{Profile, Service};
use crate::{AgentError, logs};

/// Enough for what Patroni and PostgreSQL print when they end.
const LAST_BYTES: u64 = 16 << 10;
/// A Patroni that starts is waited for so often before it is told to read its files again.
const RELOADS: u32 = 600;
const BETWEEN_RELOADS: Duration = Duration::from_secs(1);

/// PostgreSQL is Patroni's child and outlives it: it keeps its processes and its shared memory when Patroni ends. Its compiler of queries makes
/// code at run time. One process of it that runs out of memory does not end the others. Patroni may use a watchdog, and no other device.
const SETTINGS: &str = "\
    KillMode=process\n\
    RemoveIPC=no\n\
    TimeoutStopSec=120\n\
    LimitNOFILE=65536\n\
    OOMScoreAdjust=-900\n\
    OOMPolicy=continue\n\
    MemoryDenyWriteExecute=no\n\
    PrivateDevices=no\n\
    DevicePolicy=closed\n\
    DeviceAllow=/dev/watchdog rw\n\
    DeviceAllow=char-watchdog rw\n";

fn profile(layout: &Layout) -> Profile {
    let here = layout.clone();
    Profile {
        name: SERVICE.to_owned(),
        unit: String::from("patroni.service"),
        user: SUPERUSER.to_owned(),
        data: layout.postgres_home(),
        log: layout.service_log(SERVICE),
        first_start: None,
        variables: VARIABLES,
        may_be_pod: false,
        settings: SETTINGS,
        find_stray: Arc::new(move || processes::find_patroni(&here)),
        last_words: last_complaint,
    }
}

impl Agent {
    /// Created at first use: a machine without PostgreSQL has no user for it.
    pub(crate) async fn patroni(&self) -> Result<Arc<dyn Service>, AgentError> {
        self.services.with(profile(&self.layout)).await
    }

    /// Makes Patroni and PostgreSQL reload their configuration, CAs and certificates. Stopped ones read them when they start.
    pub(crate) async fn reload_postgres(&self) {
        if !self.has_patroni() {
            return;
        }
        let Ok(rest) = self.rest() else { return };
        if let Some(process) = processes::find_postmaster(&self.layout) {
            process.signal(Signal::HUP);
        }
        if !reload_patroni(&self.layout, &rest).await {
            let layout = self.layout.clone();
            tokio::spawn(async move {
                for _ in 0..RELOADS {
                    tokio::time::sleep(BETWEEN_RELOADS).await;
                    if reload_patroni(&layout, &rest).await {
                        return;
                    }
                }
            });
        }
    }
}

/// Returns whether nothing is left to do. A Patroni that does not answer yet may die of the signal, and may have read the previous files.
async fn reload_patroni(layout: &Layout, rest: &Rest) -> bool {
    let found = processes::find_patroni(layout).and_then(|pid| Process::of(u32::try_from(pid).ok()?));
    let Some(process) = found else { return true };
    let answers = rest.get(STATUS).await.is_ok();
    if answers {
        process.signal(Signal::HUP);
    }
    answers
}

/// The last line that names an error. Patroni prints a stack after some, and PostgreSQL's own lines come in between.
fn last_complaint(log: &Path) -> String {
    complaint_in(&logs::last_bytes(log, LAST_BYTES))
}

fn complaint_in(text: &str) -> String {
    let is_complaint = |line: &&str| {
        ["ERROR", "FATAL", "CRITICAL", "PANIC", "Error: ", "Exception: "].iter().any(|word| line.contains(word))
    };
    // A connection that was refused is none.
    let is_passing =
        |line: &&str| line.contains("FATAL:  the database system is") || line.contains("client certificate");
    let last = text.lines().rfind(|line| is_complaint(line) && !is_passing(line));
    last.or_else(|| text.lines().next_back()).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_those_of_the_error() {
        let text = "2026-11-17 12:51:20,669 WARNING: Postgresql is not running.\n\
            2026-11-17 12:51:21,000 CRITICAL: system ID mismatch, node pg-1 belongs to a different cluster: 1 != 2\n\
            2026-11-17 12:51:21.551 UTC [27102] FATAL:  the database system is starting up\n\
            2026-11-17 12:51:21,901 INFO: Lock owner: None; I am pg-1\n";
        assert!(complaint_in(text).ends_with("belongs to a different cluster: 1 != 2"));
        assert_eq!(complaint_in("one\ntwo\n"), "two");
    }
}
