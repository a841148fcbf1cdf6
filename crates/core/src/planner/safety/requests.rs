//! A confirmation is valid for the situation in which it was given. A request survives interrupted runs until it is carried
//! out, and must never be carried out in a different situation later.

use jiff::{SignedDuration, Timestamp};

use crate::model::{Consent, Ledger, Reboot};

/// How long a request that has not begun is valid. Clients may have written since.
pub const CONFIRMED_FOR: SignedDuration = SignedDuration::from_mins(15);

/// Removes requests that are no longer valid when a run takes the ledger. `changed` says that the run has a different spec than the
/// previous one, to which consent to downtime was given.
pub fn drop_stale(ledger: &mut Ledger, now: Timestamp, changed: bool) {
    // A clock that was set back makes a request look as if it came from the future.
    let recent = |at: Timestamp| now.duration_since(at).abs() <= CONFIRMED_FOR;
    let counts = |consent: &Consent| recent(consent.at);
    ledger.downtime = ledger.downtime.take().filter(|consent| counts(consent) && !changed);
    // It was given for the machines that were unreachable then. In a later run, other machines may be.
    ledger.without_grace = None;
    for record in ledger.members.values_mut() {
        let is_ordered = |reboot: &Reboot| reboot.ordered.as_ref().is_some_and(|ordered| recent(ordered.at));
        record.reboot = record.reboot.take().filter(|reboot| counts(&reboot.consent) || is_ordered(reboot));
    }
    ledger.drop_stale_requests_of_kind(counts);
}
