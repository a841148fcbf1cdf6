//! The content of a ledger changes only together with its format number. Otherwise an earlier build of the same format meets an unknown
//! field and reports the ledger as damaged, or drops what it does not know.

use quorate_core::model::LEDGER_FORMAT;

use crate::declarations::{Types, digest, has};

/// The format, and the digest of a ledger's types, those of the spec in it among them.
const SHAPE: (u32, &str) = (5, "e6480627e7056c14");

const WHAT_TO_DO: &str = "\n
what a ledger can hold has changed. In core/src/model/ledger.rs raise `LEDGER_FORMAT`, say there what is new, and move what has another
place in `migrate_ledger`. Add a ledger of the last format to control/tests/control/format-N, and a test of it to formats.rs. Raise the
version of the workspace, too, if the last one was released: a ledger names the version that wrote it. The number may stay if no ledger
of it exists anywhere, because it was raised only just now. Then set `SHAPE` in this test to";

#[test]
fn ledger_types_change_only_with_the_format_number() {
    let types = Types::read();
    let reached = types.reached(&["Ledger"]);
    // The search went to what only one kind has, to settings of single providers, and to what stands for another type in a file.
    for part in [
        "struct Lock{",
        "highest_revision:u64",
        "struct Rotation{",
        "struct AwsSettings",
        "struct Front{",
        "BinaryFields{",
    ] {
        assert!(has(&reached, part), "{part} was not found");
    }
    let digest = digest(&reached);
    assert_eq!(SHAPE, (LEDGER_FORMAT, digest.as_str()), "{WHAT_TO_DO} ({LEDGER_FORMAT}, \"{digest}\")");
}
