//! Text that must not be shown: private keys, passwords, tokens.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A text that never shows itself in `Debug` output. It serializes as it is: the agents' channel, which carries secrets, is
/// private, and the ledger's are taken out before it is stored (`Ledger::each_secret`).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself. Each use of this is a place to look at twice.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text, to put another in its place. As with `expose`, look twice.
    pub fn expose_mut(&mut self) -> &mut String {
        &mut self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_and_serialization_keeps() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "Secret(…) Some(Secret(…))");
        let json = serde_json::to_string(&secret).unwrap();
        assert_eq!(json, "\"hunter2\"");
        assert_eq!(serde_json::from_str::<Secret>(&json).unwrap(), secret);
    }
}
