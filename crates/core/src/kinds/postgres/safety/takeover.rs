//! `CommitsSurvive` after the etcd below was restored: which member may take over if no primary runs and Patroni's own record is gone.

use std::collections::BTreeMap;

use serde_json::Value;

use super::status;
use crate::kinds::postgres::LogEnd;
use crate::model::MemberName;
use crate::planner::{UnsafeBecause, View};

/// Whether Patroni promotes no member until quorate names one.
pub(crate) fn is_held(view: &View<'_>) -> bool {
    view.desired.all_joined().any(|member| end(view, member).is_some())
}

/// The member whose log has every confirmed commit, and the end of that log. A confirmed commit is in the log of the last primary and,
/// with strict synchronous replication, of one more standby: then the most recent log has it even if one member is silent. Otherwise all
/// members must report.
pub(crate) fn member_with_every_commit(view: &View<'_>) -> Result<(MemberName, LogEnd), UnsafeBecause> {
    let all: Vec<&MemberName> = view.desired.all_joined().collect();
    let ends: BTreeMap<&MemberName, LogEnd> = all.iter().filter_map(|m| Some((*m, end(view, m)?))).collect();
    let silent: Vec<MemberName> = all.iter().filter(|m| !ends.contains_key(*m)).map(|m| (*m).clone()).collect();
    let may_be_silent = usize::from(is_strict(view));
    let furthest = ends.values().max().copied();
    let Some(furthest) = furthest.filter(|_| silent.len() <= may_be_silent) else {
        return Err(UnsafeBecause::CommitsUnknown { silent, may_be_silent });
    };
    let barred = |member: &MemberName| {
        view.desired.postgres().never_primary.contains(member) || !view.desired.members.contains_key(member)
    };
    let mut there = ends.iter().filter(|(_, end)| **end == furthest).map(|(member, _)| (*member).clone());
    let first = there.clone().next().expect("the furthest is one of them");
    match there.find(|member| !barred(member)) {
        Some(member) => Ok((member, furthest)),
        None => Err(UnsafeBecause::FurthestIsBarred { member: first }),
    }
}

fn end(view: &View<'_>, member: &MemberName) -> Option<LogEnd> {
    status(view.seen, member)?.held
}

/// Uses the configuration in the DCS, because the last primary used it. A later change of the spec has reached no member.
fn is_strict(view: &View<'_>) -> bool {
    let configs = view.desired.all_joined().filter_map(|member| status(view.seen, member)?.config.as_deref());
    let mut strict = configs.map(|config| {
        let config: Value = serde_json::from_str(config).unwrap_or_default();
        config["synchronous_mode"] == true && config["synchronous_mode_strict"] == true
    });
    strict.next().is_some_and(|first| first && strict.all(|other| other))
}
