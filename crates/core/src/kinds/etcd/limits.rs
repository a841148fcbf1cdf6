//! Limits of revisions, shared by rules, messages and agents.

/// Larger revisions and log indexes are not believed: at a million writes a second, this is reached after 146,000 years. etcd counts
/// both in 63 bits, and a restore must still go above.
pub const MAX_REVISION: u64 = 1 << 62;

/// How far above every revision ever seen a restored or recovered cluster begins.
pub const MARGIN: u64 = 1_000_000_000;
