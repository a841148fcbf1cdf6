//! A good history passes; each damaged one is refused for the right reason.

use super::*;
use crate::kinds::postgres::history::{
    Call, Content, Entry, FinalRead, Head, Outcome, Reign, ReplicaRead, Seen, Timeline, TransferRow,
};
use crate::mark::Moment;

const FIRST: &str = "pg-1";
const SECOND: &str = "pg-2";

const fn on(number: u32) -> Timeline {
    Timeline { version: 15, number }
}

fn operation(client: u32, (member, number): (&str, u32), call: Call, called: Moment, outcome: Outcome) -> Operation {
    let timeline = on(number);
    Operation { client, member: member.to_owned(), timeline, call, called, ended: called + 5, outcome }
}

fn append(value: &str) -> Call {
    Call::Append { value: value.to_owned() }
}

fn number(value: &str) -> Call {
    Call::Number { list: 1, value: value.to_owned() }
}

fn transfer(value: &str) -> Call {
    Call::Transfer { from: 0, to: 1, amount: 7, value: value.to_owned(), serializable: false }
}

fn unknown() -> Outcome {
    Outcome::Unknown { why: String::from("no answer") }
}

fn aborted() -> Outcome {
    Outcome::Aborted { why: String::from("conflict"), conflict: true }
}

fn saw(commits: u64) -> Outcome {
    Outcome::Saw(Seen { commits, sum: 200 })
}

fn replica_read(session: u64, called: Moment, commits: u64, lsn: u64) -> ReplicaRead {
    let seen = Seen { commits, sum: 200 };
    ReplicaRead { reader: 0, session, member: String::from("pg-3"), called, ended: called + 2, lsn, seen }
}

fn reign(member: &str, timeline: u32, from: Moment, to: Moment) -> Reign {
    Reign { member: member.to_owned(), timeline: on(timeline), from, to }
}

fn content() -> Content {
    let entry = |value: &str, place| Entry { value: value.to_owned(), place };
    let row = |value: &str| TransferRow { value: value.to_owned(), from: 0, to: 1, amount: 7 };
    Content {
        entries: vec![entry("a", None), entry("n0", Some((1, 0))), entry("n1", Some((1, 1))), entry("open", None)],
        transfers: vec![row("t")],
        balances: [(0, 93), (1, 107)].into(),
    }
}

/// The first primary dies after 50, and the second takes over on timeline 2.
fn good() -> History {
    let (first, second) = ((FIRST, 1), (SECOND, 2));
    History {
        head: Head { clients: 2, accounts: 2, balance: 100, ..Head::default() },
        operations: vec![
            operation(0, first, append("a"), 10, Outcome::Committed),
            operation(1, first, number("n0"), 12, Outcome::Placed { position: 0 }),
            operation(0, first, Call::Read, 20, saw(2)),
            operation(0, first, transfer("t"), 30, Outcome::Committed),
            operation(1, first, transfer("conflict"), 31, aborted()),
            operation(0, first, append("open"), 40, unknown()),
            operation(1, first, append("gone"), 41, unknown()),
            operation(1, second, number("n1"), 60, Outcome::Placed { position: 1 }),
            operation(1, second, Call::Read, 70, saw(5)),
        ],
        replica_reads: vec![
            replica_read(1, 15, 0, 100),
            replica_read(1, 35, 2, 300),
            // Another session, on a member that is behind.
            replica_read(2, 40, 1, 200),
        ],
        reigns: vec![reign(FIRST, 1, 0, 48), reign(SECOND, 2, 58, 90)],
        finals: [FIRST, SECOND].map(|m| FinalRead { member: m.to_owned(), content: Ok(content()) }).into(),
        marks: Vec::new(),
    }
}

fn none() -> Least {
    Least { of_kind: BTreeMap::new(), of_client: 0 }
}

fn rules(history: &History) -> Vec<Rule> {
    let mut rules: Vec<Rule> = check(history, &none()).violations.into_iter().map(|v| v.rule).collect();
    rules.dedup();
    rules
}

#[track_caller]
fn damaged(damage: impl FnOnce(&mut History), rule: Rule) {
    let mut history = good();
    damage(&mut history);
    let found = check(&history, &none()).violations;
    assert!(found.iter().any(|violation| violation.rule == rule), "{rule:?} in {found:#?}");
}

fn last(history: &mut History) -> &mut Content {
    history.finals[1].content.as_mut().unwrap()
}

#[test]
fn a_good_history_passes_and_unanswered_writes_are_resolved() {
    let findings = check(&good(), &none());
    assert_eq!(findings.violations, []);
    assert_eq!(findings.settled, Settled { happened: 1, did_not_happen: 1 });
}

#[test]
fn a_lost_commit_is_found_on_any_member() {
    damaged(|h| drop(last(h).entries.remove(0)), Rule::Lost);
    damaged(|h| h.finals[0].content.as_mut().unwrap().entries.clear(), Rule::Lost);
    // With its transfer, and balances that fit.
    damaged(
        |h| {
            last(h).transfers.clear();
            last(h).balances = [(0, 100), (1, 100)].into();
        },
        Rule::Lost,
    );
}

#[test]
fn doubled_entries_and_transfers_are_found() {
    damaged(
        |h| {
            let again = last(h).entries[0].clone();
            last(h).entries.push(again);
        },
        Rule::Doubled,
    );
    damaged(
        |h| {
            let again = last(h).transfers[0].clone();
            last(h).transfers.push(again);
            last(h).balances = [(0, 86), (1, 114)].into();
        },
        Rule::Doubled,
    );
}

#[test]
fn unknown_and_aborted_rows_are_found() {
    damaged(|h| last(h).entries.push(Entry { value: String::from("x"), place: None }), Rule::Phantom);
    damaged(
        |h| {
            let row = TransferRow { value: String::from("conflict"), ..last(h).transfers[0].clone() };
            last(h).transfers.push(row);
            last(h).balances = [(0, 86), (1, 114)].into();
        },
        Rule::Phantom,
    );
    damaged(|h| last(h).transfers[0].amount = 8, Rule::Phantom);
    // A read shows more than was ever asked for.
    damaged(|h| h.operations[2].outcome = saw(9), Rule::Phantom);
    damaged(|h| h.replica_reads[1].seen.commits = 9, Rule::Phantom);
}

#[test]
fn a_sum_or_a_balance_that_is_wrong_is_found() {
    damaged(|h| last(h).balances = [(0, 94), (1, 107)].into(), Rule::Sum);
    // A lost update: the sum is kept, the balances are not what the transfers say.
    damaged(|h| last(h).balances = [(0, 100), (1, 100)].into(), Rule::Balance);
    damaged(|h| last(h).balances = [(1, 200)].into(), Rule::Balance);
    damaged(|h| h.operations[2].outcome = Outcome::Saw(Seen { commits: 2, sum: 193 }), Rule::Sum);
    damaged(|h| h.replica_reads[1].seen.sum = 207, Rule::Sum);
}

#[test]
fn serializable_transactions_out_of_order_are_found() {
    // Two at the same position: each saw the list without the other.
    damaged(|h| last(h).entries[2].place = Some((1, 0)), Rule::Order);
    damaged(|h| last(h).entries[2].place = Some((1, 2)), Rule::Order);
    // In the other order than they happened, as clients saw it.
    damaged(
        |h| {
            last(h).entries[1].place = Some((1, 1));
            last(h).entries[2].place = Some((1, 0));
        },
        Rule::Order,
    );
    // Real time alone: nobody was told a position.
    let mut history = good();
    for at in [1, 7] {
        history.operations[at].outcome = Outcome::Committed;
    }
    assert_eq!(rules(&history), []);
    for member in &mut history.finals {
        let entries = &mut member.content.as_mut().unwrap().entries;
        (entries[1].place, entries[2].place) = (Some((1, 1)), Some((1, 0)));
    }
    assert_eq!(rules(&history), [Rule::Order]);
}

#[test]
fn a_primary_that_does_not_show_what_was_acknowledged_is_found() {
    damaged(|h| h.operations[8].outcome = saw(3), Rule::StaleRead);
    damaged(|h| h.operations[2].outcome = saw(1), Rule::StaleRead);
    // Commits that had no answer may be missing: three were acknowledged before the last read.
    let mut history = good();
    history.operations[8].outcome = saw(4);
    assert_eq!(rules(&history), []);
}

#[test]
fn a_session_on_a_replica_that_goes_back_is_found() {
    damaged(|h| h.replica_reads[1].lsn = 99, Rule::BackInTime);
    damaged(
        |h| {
            h.replica_reads[0].called = 30;
            h.replica_reads[0].ended = 34;
            h.replica_reads[0].seen.commits = 3;
        },
        Rule::BackInTime,
    );
}

/// Timelines begin at 1 again, and the first primary may be the second version's too.
#[test]
fn a_newer_version_is_later_than_every_timeline_of_an_older_one() {
    let upgrade = |history: &mut History| {
        for operation in history.operations.iter_mut().filter(|operation| operation.member == SECOND) {
            operation.timeline = Timeline { version: 17, number: 1 };
        }
    };
    let mut upgraded = good();
    upgrade(&mut upgraded);
    assert_eq!(rules(&upgraded), []);
    damaged(
        |history| {
            upgrade(history);
            history.operations.push(operation(0, (FIRST, 9), Call::Read, 80, saw(5)));
            history.operations.push(operation(0, (FIRST, 9), append("late"), 82, Outcome::Committed));
        },
        Rule::SplitBrain,
    );
}

#[test]
fn two_primaries_that_confirm_commits_are_found() {
    // The first confirms something after the second has.
    damaged(
        |h| {
            h.operations.push(operation(0, (FIRST, 1), append("late"), 80, Outcome::Committed));
            for member in &mut h.finals {
                let late = Entry { value: String::from("late"), place: None };
                member.content.as_mut().unwrap().entries.push(late);
            }
        },
        Rule::SplitBrain,
    );
    // Two members on one timeline.
    damaged(|h| h.operations[1].member = SECOND.to_owned(), Rule::SplitBrain);
    // Asked for before, and answered late: the second had not confirmed anything when it was asked for.
    let mut history = good();
    history.operations[3].ended = 68;
    assert_eq!(rules(&history), []);
}

#[test]
fn two_writable_members_are_found_unless_one_was_paused() {
    damaged(|h| h.reigns[0].to = 59, Rule::TwoPrimaries);
    let mut paused = good();
    (paused.reigns[0].to, paused.head.pauses) = (59, true);
    assert_eq!(rules(&paused), []);
    // Two sessions on the same member are one primary.
    let mut history = good();
    history.reigns.push(reign(SECOND, 2, 60, 80));
    assert_eq!(rules(&history), []);
    // A pause excuses nothing that was confirmed.
    damaged(
        |h| {
            h.head.pauses = true;
            h.operations[3].called = 80;
            h.operations[3].ended = 85;
        },
        Rule::SplitBrain,
    );
}

#[test]
fn an_end_that_cannot_be_read_proves_nothing() {
    damaged(|h| h.finals.clear(), Rule::Unread);
    damaged(|h| h.finals[1].content = Err(String::from("no connection")), Rule::Unread);
}

#[test]
fn too_little_traffic_is_reported() {
    let told = check(&good(), &Least::default()).too_little;
    assert!(told.iter().any(|t| t == "too few append operations were answered: 1 of at least 30"), "{told:?}");
    assert!(told.iter().any(|t| t.starts_with("client 0 got too few answers: 3 of")), "{told:?}");
}
