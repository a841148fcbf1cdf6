//! The report of a drill: lines for a terminal, and a self-contained page without scripts or external resources.

mod html;
mod timeline;

use std::fmt::Write;

pub use html::page;

use super::{Ending, Verdict};

/// "2 of 3 scenarios passed".
pub fn tally<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> String {
    let endings: Vec<Ending> = verdicts.map(|v| v.result).collect();
    let passed = endings.iter().filter(|e| **e == Ending::Passed).count();
    match (passed, endings.len()) {
        (1, 1) => String::from("the scenario passed"),
        (0, 1) => String::from("the scenario did not pass"),
        (passed, all) if passed == all => format!("all {all} scenarios passed"),
        (passed, all) => format!("{passed} of {all} scenarios passed"),
    }
}

/// One scenario, for a terminal.
pub fn text(verdict: &Verdict) -> String {
    let Verdict { scenario, summary, problems, checks, unanswered_writes, measures, downtime_expected, .. } = verdict;
    let mut text = format!("{scenario}: {summary}\n");
    let mut line = |name: &str, words: String| {
        let _ = writeln!(text, "  {name:12} {words}");
    };
    let kinds = measures.operations.iter().map(|(kind, count)| format!("{} {}", kind.name, count.answered));
    line("operations", kinds.collect::<Vec<_>>().join(", "));
    let unanswered: usize = measures.operations.values().map(|c| c.unanswered).sum();
    if unanswered > 0 {
        let (done, not) = (unanswered_writes.happened, unanswered_writes.did_not_happen);
        line("unanswered", format!("{unanswered}; of the writes among them {done} happened and {not} did not"));
    }
    line("throughput", format!("{:.0} per second over {:.1} s", measures.throughput, measures.seconds));
    if let Some(gap) = measures.longest_write_gap {
        line("write gap", format!("{:.3} s, from {:.3} s on; expected: {downtime_expected}", gap.seconds(), gap.from));
    }
    let settled = checks.iter().filter(|c| c.passed).map(|c| c.check).collect::<Vec<_>>();
    if !settled.is_empty() {
        line("final state", settled.join("; "));
    }
    for problem in problems.iter().take(MOST_TOLD).filter(|_| problems.len() > 1) {
        line("problem", problem.clone());
    }
    if problems.len() > MOST_TOLD {
        line("", format!("… and {} more", problems.len() - MOST_TOLD));
    }
    text
}

/// One broken promise often shows in hundreds of operations.
const MOST_TOLD: usize = 10;
