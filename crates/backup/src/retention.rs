//! Which full backups are kept. Pure: only the list and the rule decide. The newest one and the newest verified one are always kept, so
//! no rule can leave only backups that were never restored. The changes on top of a full backup are kept and deleted with it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quorate_core::spec::Keep;

use crate::names::BackupId;

#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    pub id: BackupId,
    pub at: Timestamp,
    pub verified: bool,
}

/// Why a backup is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    Newest,
    NewestVerified,
    /// The changes on top of it lead further than those on top of any later one.
    Furthest,
    Last,
    Hourly,
    Daily,
    Weekly,
    Monthly,
}

/// The reasons for keeping each; those without any may go.
pub fn decide(candidates: &[Candidate], keep: &Keep) -> BTreeMap<BackupId, Vec<Reason>> {
    let mut newest_first: Vec<&Candidate> = candidates.iter().collect();
    newest_first.sort_by(|one, other| (other.at, &other.id).cmp(&(one.at, &one.id)));
    let mut decided: BTreeMap<BackupId, Vec<Reason>> =
        newest_first.iter().map(|candidate| (candidate.id.clone(), Vec::new())).collect();
    let mut give = |candidate: &Candidate, reason| decided.entry(candidate.id.clone()).or_default().push(reason);
    if let Some(newest) = newest_first.first() {
        give(newest, Reason::Newest);
    }
    if let Some(verified) = newest_first.iter().find(|candidate| candidate.verified) {
        give(verified, Reason::NewestVerified);
    }
    newest_first.iter().take(keep.last as usize).for_each(|candidate| give(candidate, Reason::Last));
    let Keep { last: _, hourly, daily, weekly, monthly } = *keep;
    let periods: [(u32, Reason, &str); 4] = [
        (hourly, Reason::Hourly, "%Y-%m-%dT%H"),
        (daily, Reason::Daily, "%Y-%m-%d"),
        (weekly, Reason::Weekly, "%G-%V"),
        (monthly, Reason::Monthly, "%Y-%m"),
    ];
    for (count, reason, period) in periods {
        let mut seen = Vec::new();
        for candidate in &newest_first {
            let period = candidate.at.to_zoned(TimeZone::UTC).strftime(period).to_string();
            if seen.len() < count as usize && !seen.contains(&period) {
                seen.push(period);
                give(candidate, reason);
            }
        }
    }
    decided
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, verified: bool) -> Candidate {
        let at: Timestamp = text.parse().unwrap();
        Candidate { id: BackupId::new(at, "00000000"), at, verified }
    }

    /// The times, shortened, of those that stay.
    fn kept(candidates: &[Candidate], keep: Keep) -> Vec<String> {
        let decided = decide(candidates, &keep);
        let stay = candidates.iter().filter(|candidate| !decided[&candidate.id].is_empty());
        stay.map(|candidate| candidate.at.to_string()[5..13].to_owned()).collect()
    }

    #[test]
    fn the_rules_one_by_one() {
        let all: Vec<Candidate> = [
            "2026-09-30T12:00:00Z",
            "2026-10-31T23:00:00Z",
            "2026-11-01T06:00:00Z",
            "2026-11-08T23:59:59Z",
            "2026-11-09T00:00:00Z",
            "2026-11-13T06:00:00Z",
            "2026-11-13T18:00:00Z",
            "2026-11-14T10:00:00Z",
            "2026-11-14T10:30:00Z",
        ]
        .map(|text| at(text, true))
        .into();
        let none = Keep::NONE;
        let table: [(Keep, &[&str]); 6] = [
            (none, &["11-14T10"]),
            (Keep { last: 3, ..none }, &["11-13T18", "11-14T10", "11-14T10"]),
            (Keep { hourly: 2, ..none }, &["11-13T18", "11-14T10"]),
            (Keep { daily: 3, ..none }, &["11-09T00", "11-13T18", "11-14T10"]),
            // Weeks begin on Monday: the ninth is one.
            (Keep { weekly: 2, ..none }, &["11-08T23", "11-14T10"]),
            (Keep { monthly: 9, ..none }, &["09-30T12", "10-31T23", "11-14T10"]),
        ];
        for (keep, expected) in table {
            assert_eq!(kept(&all, keep), expected, "{keep:?}");
        }
    }

    #[test]
    fn the_last_verified_one_is_never_deleted() {
        let all = [
            at("2026-11-01T00:00:00Z", true),
            at("2026-11-02T00:00:00Z", true),
            at("2026-11-03T00:00:00Z", false),
            at("2026-11-04T00:00:00Z", false),
        ];
        assert_eq!(kept(&all, Keep { last: 1, ..Keep::NONE }), ["11-02T00", "11-04T00"]);
    }

    #[test]
    fn nothing_is_decided_about_nothing() {
        assert!(decide(&[], &Keep { last: 7, ..Keep::NONE }).is_empty());
    }

    mod any {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            #[test]
            fn rules_only_ever_keep_more(
                minutes in prop::collection::btree_set(0_i64..500_000, 1..40),
                verified in 0_usize..40,
                last in 0_u32..5, daily in 0_u32..5, monthly in 0_u32..5,
            ) {
                let all: Vec<Candidate> = minutes.iter().enumerate().map(|(n, minute)| {
                    let at = Timestamp::from_second(1_790_000_000 + minute * 60).unwrap();
                    Candidate { id: BackupId::new(at, "00000000"), at, verified: n == verified }
                }).collect();
                let less = decide(&all, &Keep { last, daily, ..Keep::NONE });
                let more = decide(&all, &Keep { last: last + 1, daily, monthly, ..Keep::NONE });
                prop_assert!(less.iter().all(|(id, why)| why.is_empty() || !more[id].is_empty()));
                prop_assert!(!less[&all[all.len() - 1].id].is_empty());
                if let Some(verified) = all.get(verified) {
                    prop_assert!(!less[&verified.id].is_empty());
                }
            }
        }
    }
}
