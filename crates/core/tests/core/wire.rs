//! Messages between controllers and agents change only together with the protocol number. Otherwise an agent of an earlier build
//! counts as current, is not upgraded, and gets orders that it cannot read.

use quorate_core::model::PROTOCOL;

use crate::declarations::{Types, digest, has};

/// The protocol, and the digest of its messages.
const MESSAGES: (u32, &str) = (4, "561c3edffa3004d3");

/// The requests and answers of an agent's port: `agent/src/api.rs` has their paths. What stands in a seed, too.
const ROOTS: [&str; 14] = [
    "FactsRequest",
    "AgentSeen",
    "Envelope",
    "Refusal",
    "LogRequest",
    "LogAnswer",
    "JobRequest",
    "JobAnswer",
    "EnrolRequest",
    "EnrolAnswer",
    "EnrolCertificate",
    "ReadEnd",
    "NodeConfig",
    "Seed",
];

const WHAT_TO_DO: &str = "\n
what controllers and agents say to each other has changed. In core/src/model/program.rs raise `PROTOCOL` and the number in `MARK`,
and `OLDEST_PROTOCOL` too if agents of the last protocol cannot read the new orders. Raise the version of the workspace, and add both to
`FIRST_VERSION_OF` and CHANGELOG.md. The number may stay if no program with it is in use anywhere, because it was raised only just now.
Then set `MESSAGES` in this test to";

#[test]
fn message_types_change_only_with_the_protocol_number() {
    let types = Types::read();
    let reached = types.reached(&ROOTS);
    // The search went from an order to a service, to facts and to what only one kind has.
    for part in ["TakeRaftSnapshot", "PgbouncerService{", "struct PostgresFacts", "upgrade_packages:bool"] {
        assert!(has(&reached, part), "{part} was not found");
    }
    let digest = digest(&reached);
    assert_eq!(MESSAGES, (PROTOCOL, digest.as_str()), "{WHAT_TO_DO} ({PROTOCOL}, \"{digest}\")");
}
