//! The stamp next to a service's data, which says which cluster and member the data belongs to.

use std::fs;
use std::io;
use std::path::Path;

use quorate_core::model::{DataSeen, Stamp};

use crate::api::Refusal;
use crate::state::State;
use crate::{AgentError, files};

/// A stamp that cannot be read says nothing.
pub(crate) fn read(path: &Path) -> Result<Option<Stamp>, AgentError> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AgentError::file("read", path)(error)),
    }
}

pub(crate) fn write(path: &Path, stamp: &Stamp) -> Result<(), AgentError> {
    let text = serde_json::to_vec(stamp).expect("plain data serializes");
    files::write_durably(path, &text, files::PRIVATE)
}

pub(crate) fn check_own(state: &State, stamp: &Stamp) -> Result<(), Refusal> {
    if (&stamp.cluster_id, &stamp.member) == (&state.identity.cluster_id, &state.identity.member) {
        Ok(())
    } else {
        Err(Refusal::failed("the stamp is that of another member"))
    }
}

pub(crate) fn describe(data: &DataSeen) -> String {
    match data {
        DataSeen::Empty => String::from("no data"),
        DataSeen::Unstamped => String::from("data without a stamp"),
        DataSeen::Stamped(Stamp { token, member, incarnation, .. }) => {
            format!("the data of {member}.{incarnation} in bootstrap {token}")
        }
    }
}
