//! Changes that no watch has shown because they were compacted first, as a recovery does with everything before it. They are
//! reconstructed from the clients' answers, and for writes without an answer from later reads: a value that was read was written at
//! its revision, and a key that is missing was deleted. The effect of an acknowledged write is still expected.

use super::changes::{Change, Changes};
use super::condition;
use crate::kinds::etcd::history::{Call, Found, History, Operation, Outcome};

/// What somebody found, at some revision.
struct Sight<'a> {
    revision: i64,
    key: &'a str,
    found: Option<&'a Found>,
}

impl<'a> Changes<'a> {
    /// Adds what can be known of the revisions that no watch has passed.
    pub(super) fn learn(&mut self, history: &'a History, unseen: &[(i64, i64)]) {
        if unseen.is_empty() {
            return;
        }
        let writes = history.operations.iter().filter(|o| o.call.is_write());
        let open: Vec<&Operation> = writes.filter(|o| matches!(o.outcome, Outcome::Unknown { .. })).collect();
        let sights = self.sights(history);
        for Sight { key, found, .. } in &sights {
            if let Some(Found { value, mod_revision }) = *found
                && unseen.iter().any(|(from, through)| (*from..=*through).contains(mod_revision))
                && !self.is_known(*mod_revision)
                && let Some(by) = open.iter().find(|o| o.call.value() == Some(value) && o.call.key() == Some(key))
            {
                self.add(*mod_revision, Change { key, value: Some(value), by: Some(*by) });
            }
        }
        for Sight { revision, key, .. } in sights.iter().filter(|sight| sight.found.is_none()) {
            self.learn_removal(key, *revision, &open, unseen);
        }
    }

    /// A key that was there before and is absent later was deleted by an operation without an answer, or went with its lease.
    fn learn_removal(&mut self, key: &'a str, revision: i64, open: &[&'a Operation], unseen: &[(i64, i64)]) {
        let Some(Found { mod_revision, .. }) = self.at(key, revision) else { return };
        let between = |(from, through): &&(i64, i64)| mod_revision < *through && *from <= revision;
        let Some((from, through)) = unseen.iter().find(between) else { return };
        let deletes = open.iter().filter(|o| matches!(o.call, Call::Delete { .. }) && o.call.key() == Some(key));
        let by = deletes.copied().find(|o| condition(&o.call) == Some(mod_revision) && !self.has_happened(o));
        if by.is_none() && !self.is_leased(mod_revision) {
            return;
        }
        let mut room = ((*from).max(mod_revision + 1)..=(*through).min(revision)).rev();
        if let Some(at) = room.find(|at| !self.is_known(*at)) {
            self.add(at, Change { key, value: None, by });
        }
    }

    fn is_leased(&self, revision: i64) -> bool {
        let by = self.between(revision, revision).next().and_then(|(_, change)| change.by);
        by.is_some_and(|by| matches!(by.call, Call::Put { lease: Some(_), .. }))
    }

    /// All that was read, the earliest revision first.
    fn sights(&self, history: &'a History) -> Vec<Sight<'a>> {
        let of_operation = |o: &'a Operation| match &o.outcome {
            Outcome::Read { revision, found } => {
                Some(Sight { revision: *revision, key: o.call.key()?, found: found.as_ref() })
            }
            _ => None,
        };
        let mut sights: Vec<Sight<'a>> = history.operations.iter().filter_map(of_operation).collect();
        for read in &history.finals {
            let Ok(pairs) = &read.pairs else { continue };
            let keys = self.keys().chain(pairs.keys().map(String::as_str));
            sights.extend(keys.map(|key| Sight { revision: read.revision, key, found: pairs.get(key) }));
        }
        sights.sort_by_key(|sight| sight.revision);
        sights
    }
}
