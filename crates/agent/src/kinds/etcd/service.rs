//! etcd as a service of its machine: what its supervisor needs to know.

use std::fs;
use std::sync::Arc;

use quorate_core::kinds::etcd::SERVICE;
use quorate_core::model::DataSeen;
use tokio::process::Command;

use super::complaint::last_complaint;
use super::data;
use crate::AgentError;
use crate::layout::Layout;
use crate::process;
use crate::services::{FirstStart, Profile};

/// Said at every start but the first. etcd ignores it where it has data; where the data has vanished, it makes etcd fail
/// instead of bootstrapping a new cluster.
const NEVER_NEW: &str = "--initial-cluster-state=existing";
/// etcd takes variables that begin so for flags.
const VARIABLES: &str = "ETCD_";

pub(crate) fn profile(layout: &Layout) -> Profile {
    let (here, there) = (layout.clone(), layout.clone());
    let check = move || match data::look(&here)? {
        DataSeen::Empty => Err(AgentError::DataGone { path: here.data() }),
        DataSeen::Stamped(_) | DataSeen::Unstamped => Ok(()),
    };
    Profile {
        name: SERVICE.to_owned(),
        unit: String::from("etcd.service"),
        user: SERVICE.to_owned(),
        data: layout.data(),
        log: layout.service_log(SERVICE),
        first_start: Some(FirstStart {
            otherwise: NEVER_NEW,
            leaves: layout.data().join("member/wal"),
            check: Arc::new(check),
        }),
        variables: &[VARIABLES],
        may_be_pod: true,
        settings: "LimitNOFILE=65536\nOOMScoreAdjust=-900\nCPUWeight=1000\n",
        find_stray: Arc::new(move || find(&there)),
        last_words: last_complaint,
    }
}

/// The argument by which an etcd is known to work on the data below this root.
pub(super) fn data_argument(layout: &Layout) -> String {
    format!("--data-dir={}", layout.data().display())
}

/// The process of an etcd that uses the data below this root, no matter what started it. etcd's tools take the same argument, but have
/// no peer port.
fn find(layout: &Layout) -> Option<i32> {
    called_with(&data_argument(layout)).find(|pid| arguments(*pid).any(|one| one.starts_with("--listen-peer-urls=")))
}

/// Looks through all processes for one that was given this argument.
pub(super) fn search(argument: &str) -> Option<i32> {
    called_with(argument).next()
}

fn called_with(argument: &str) -> impl Iterator<Item = i32> {
    let pids = process::pids().filter_map(|pid| i32::try_from(pid).ok());
    pids.filter(move |pid| process::start_ticks(*pid).is_some() && arguments(*pid).any(|one| one == argument))
}

fn arguments(pid: i32) -> impl Iterator<Item = String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect();
    words.into_iter()
}

/// For etcd's tools, which take them for flags as well.
pub(super) fn without_variables(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(VARIABLES)) {
        command.env_remove(name);
    }
    command
}
