//! Text that must not be shown: private keys, passwords, tokens.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A text that `Debug` output never shows. It serializes unchanged: the agents' channel, which carries secrets, is private,
/// and the ledger's secrets are removed before it is stored (`Ledger::each_secret`).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself. Review every use carefully.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text, to replace it. As with `expose`, review every use.
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
