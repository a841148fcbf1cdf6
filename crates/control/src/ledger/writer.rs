//! The quorate version that wrote a ledger. A ledger that cannot be read here may be too new instead of damaged. An older version must
//! not replace it, because it would lose what the newer quorate has recorded.

use std::path::Path;

use quorate_core::model::{LEDGER_FORMAT, Program, Version};
use serde::Deserialize;
use serde_json::error::Category;

use super::LedgerError;

/// The header of a ledger, in every format.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) format: u32,
    #[serde(default)]
    written_by: String,
}

impl Head {
    pub(super) fn newer(self, path: &Path, what: String) -> LedgerError {
        LedgerError::Newer { path: path.to_owned(), what, written_by: self.written_by }
    }

    /// A version that cannot be read as one is not known here, so it is newer.
    fn is_newer(&self) -> bool {
        let version = |text: &str| text.parse::<Version>().ok();
        let (this, writer) = (&Program::this().version, &self.written_by);
        let later = match (version(writer), version(this)) {
            (Some(writer), Some(this)) => writer > this,
            _ => !writer.is_empty() && writer != this,
        };
        self.format > LEDGER_FORMAT || later
    }
}

/// Why a ledger cannot be read. It is too new rather than damaged if a newer quorate wrote it, or if it has something in it that this one
/// does not know.
pub(super) fn judged(error: LedgerError, path: &Path, bytes: &[u8]) -> LedgerError {
    let Ok(head) = serde_json::from_slice::<Head>(bytes) else { return error };
    if let Some(unknown) = unknown(&error) {
        return head.newer(path, format!("has an {unknown}"));
    }
    if error.is_damage() && head.is_newer() {
        return head.newer(path, format!("cannot be read ({})", error.in_a_line()));
    }
    error
}

/// "unknown field `x`", in serde's words.
fn unknown(error: &LedgerError) -> Option<String> {
    let LedgerError::Unreadable { source, .. } = error else { return None };
    let said = source.to_string();
    let is_unknown = source.classify() == Category::Data && said.starts_with("unknown ");
    is_unknown.then(|| said.split([',', '\n']).next().unwrap_or(&said).to_owned())
}
