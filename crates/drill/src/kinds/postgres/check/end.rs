//! The final state on every member: exactly one row for every acknowledged transaction; none for an aborted one; balances that match the
//! transfers; lists that are numbered without gaps.

use std::collections::BTreeMap;

use super::{Rule, Violation, found};
use crate::Settled;
use crate::kinds::postgres::history::{Call, Content, FinalRead, History, Operation, Outcome};

pub(super) fn check(history: &History, violations: &mut Vec<Violation>) {
    if history.finals.is_empty() {
        violations.push(found(Rule::Unread, String::from("it was not read from any member")));
    }
    let by_value: BTreeMap<&str, &Operation> =
        history.operations.iter().filter_map(|operation| Some((operation.call.value()?, operation))).collect();
    for FinalRead { member, content } in &history.finals {
        match content {
            Err(why) => violations.push(found(Rule::Unread, format!("{member}: {why}"))),
            Ok(content) => {
                let end = End { member, content, history, by_value: &by_value };
                end.rows(violations);
                end.balances(violations);
                end.lists(violations);
            }
        }
    }
}

struct End<'a> {
    member: &'a str,
    content: &'a Content,
    history: &'a History,
    by_value: &'a BTreeMap<&'a str, &'a Operation>,
}

impl End<'_> {
    fn rows(&self, violations: &mut Vec<Violation>) {
        let member = self.member;
        let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
        let entries = self.content.entries.iter().map(|entry| entry.value.as_str());
        for value in entries.chain(self.content.transfers.iter().map(|row| row.value.as_str())) {
            *rows.entry(value).or_default() += 1;
        }
        for (value, count) in &rows {
            match self.by_value.get(value) {
                None => violations.push(found(Rule::Phantom, format!("{member} has {value}, which no client wrote"))),
                Some(operation) if !operation.may_have_written() => {
                    violations.push(found(Rule::Phantom, format!("{member} has the row of {operation}")));
                }
                Some(operation) if *count > 1 => {
                    violations.push(found(Rule::Doubled, format!("{member} has {count} rows of {operation}")));
                }
                Some(_) => {}
            }
        }
        for operation in self.history.operations.iter().filter(|operation| operation.is_acknowledged()) {
            if operation.call.value().is_some_and(|value| !rows.contains_key(value)) {
                violations.push(found(Rule::Lost, format!("{member} has no row of {operation}")));
            }
        }
        self.transfers_as_asked(violations);
    }

    /// A transfer's row says what its client asked for.
    fn transfers_as_asked(&self, violations: &mut Vec<Violation>) {
        for row in &self.content.transfers {
            let Some(operation) = self.by_value.get(row.value.as_str()) else { continue };
            let asked = matches!(&operation.call, Call::Transfer { from, to, amount, .. }
                if (*from, *to, *amount) == (row.from, row.to, row.amount));
            if !asked {
                violations.push(found(Rule::Phantom, format!("{} has {row:?} of {operation}", self.member)));
            }
        }
    }

    fn balances(&self, violations: &mut Vec<Violation>) {
        let (member, head) = (self.member, &self.history.head);
        let sum: i64 = self.content.balances.values().sum();
        if sum != head.total() {
            violations.push(found(Rule::Sum, format!("{member} has {sum} in the end, not {}", head.total())));
        }
        let accounts = 0..i32::try_from(head.accounts).unwrap_or(i32::MAX);
        let mut expected: BTreeMap<i32, i64> = accounts.map(|account| (account, head.balance)).collect();
        for row in &self.content.transfers {
            *expected.entry(row.from).or_default() -= row.amount;
            *expected.entry(row.to).or_default() += row.amount;
        }
        for (account, should) in &expected {
            let is = self.content.balances.get(account);
            if is != Some(should) {
                let text = format!("account {account} of {member} has {is:?}; its transfers leave {should}");
                violations.push(found(Rule::Balance, text));
            }
        }
    }

    fn lists(&self, violations: &mut Vec<Violation>) {
        let member = self.member;
        let mut lists: BTreeMap<i32, Vec<(i64, &str)>> = BTreeMap::new();
        for entry in &self.content.entries {
            if let Some((list, position)) = entry.place {
                lists.entry(list).or_default().push((position, &entry.value));
            }
        }
        for (list, rows) in &mut lists {
            rows.sort_unstable();
            let expected = (0_i64..).zip(rows.iter());
            for (position, (is, value)) in expected.filter(|(position, (is, _))| position != is) {
                let text = format!("list {list} of {member} has {value} at position {is}, where {position} is next");
                violations.push(found(Rule::Order, text));
            }
            self.real_time(*list, rows, violations);
        }
        self.positions_as_told(&lists, violations);
    }

    /// What was acknowledged before another was asked for has the lower position.
    fn real_time(&self, list: i32, rows: &[(i64, &str)], violations: &mut Vec<Violation>) {
        let known = rows.iter().filter_map(|(_, value)| self.by_value.get(value)).copied();
        // From the last position to the first: nothing may have been acknowledged before a row below it was asked for.
        let mut earliest: Option<&Operation> = None;
        for operation in known.rev() {
            if let Some(later) = earliest.filter(|later| later.ended < operation.called) {
                let text = format!("in list {list} of {}, {later} is behind {operation}", self.member);
                violations.push(found(Rule::Order, text));
            }
            if operation.is_acknowledged() && earliest.is_none_or(|known| operation.ended < known.ended) {
                earliest = Some(operation);
            }
        }
    }

    fn positions_as_told(&self, lists: &BTreeMap<i32, Vec<(i64, &str)>>, violations: &mut Vec<Violation>) {
        for (position, value) in lists.values().flatten() {
            let Some(operation) = self.by_value.get(value) else { continue };
            if matches!(operation.outcome, Outcome::Placed { position: told } if told != *position) {
                let text = format!("{} has {value} at position {position}: {operation}", self.member);
                violations.push(found(Rule::Order, text));
            }
        }
    }
}

/// Whether transactions without an answer happened, as the first member shows that could be read.
pub(super) fn settled(history: &History) -> Settled {
    let Some(content) = history.finals.iter().find_map(|read| read.content.as_ref().ok()) else {
        return Settled::default();
    };
    let has = |value: &str| {
        content.entries.iter().any(|entry| entry.value == value)
            || content.transfers.iter().any(|row| row.value == value)
    };
    let open = history.operations.iter().filter(|o| matches!(o.outcome, Outcome::Unknown { .. }));
    let (happened, not): (Vec<&str>, Vec<&str>) = open.filter_map(|o| o.call.value()).partition(|value| has(value));
    Settled { happened: happened.len(), did_not_happen: not.len() }
}
