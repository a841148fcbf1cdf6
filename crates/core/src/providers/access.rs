//! The sources that security groups allow, for every provider that creates such groups.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who may connect through the security groups that quorate creates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Sources allowed by `host.firewall`.
    #[default]
    Firewall,
    /// Sources allowed by `host.firewall` that are also in one of two additional groups that quorate creates: one for clients, and one for
    /// ssh and quorate itself.
    Groups,
}
