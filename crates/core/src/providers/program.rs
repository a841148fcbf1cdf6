//! Where machines with a stock image get the agent, for every provider that uses user data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::Sha256;
use crate::spec::check::Findings;

/// Where a machine downloads the agent's program: a static one, from `cargo xtask static`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgramSource {
    /// Its address, such as that of an object in S3 that machines may read.
    #[schemars(extend("format" = "uri"))]
    pub url: String,
    /// Its SHA-256, which is verified before it runs.
    pub sha256: Sha256,
}

impl ProgramSource {
    /// `within` is where these settings are in the file.
    pub(super) fn check(&self, within: &str, found: &mut Findings) {
        let authority = self.url.split_once("://").map_or("", |(_, rest)| rest).split(['/', '?', '#']).next();
        if authority.is_some_and(|authority| authority.contains('@')) {
            // What stands there may be a password.
            found.error(
                format!("{within}.url"),
                "this address has a user name or a password, and every process on a machine can read its user data",
                "use an address without them: the program may be public, as its digest is in the spec",
            );
        }
    }
}
