//! The timeline of a cluster's creation, from three sources: the calls that the proxy passed on, the lab's records of its instances, and
//! the output of `quorate apply`. Times are seconds since 1970, because they come from several programs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A call to AWS.
pub struct Call {
    pub action: String,
    pub refused: bool,
    pub begun: f64,
    pub ended: f64,
}

/// What `apply` said, and when.
pub struct Said {
    pub at: f64,
    pub line: String,
}

/// Each begins where the one before it ends.
pub const PHASES: [&str; 4] =
    ["all instances are asked for", "all agents listen", "all agents are enrolled", "the cluster is healthy"];
/// The call that asks for an instance.
const ASKS: &str = "RunInstances";
/// The step after which quorate and an agent know each other's keys.
const ENROLS: &str = ": enrol the agent of ";

pub struct Timeline {
    begun: f64,
    /// The ends of the phases.
    ends: [f64; 4],
    calls: Vec<Call>,
}

impl Timeline {
    /// Fails where something did not happen to each of so many members.
    pub fn read(span: (f64, f64), calls: Vec<Call>, events: &str, said: &[Said], members: usize) -> Result<Self> {
        let (begun, ended) = span;
        let last = |what: &str, found: Vec<f64>| {
            ensure!(found.len() == members, "{} of {members} {what}", found.len());
            Ok(found.into_iter().fold(begun, f64::max))
        };
        let asked = calls.iter().filter(|call| call.action == ASKS && !call.refused).map(|call| call.ended).collect();
        let listen: Result<Vec<Option<f64>>> = events.lines().map(|line| listens(line, begun)).collect();
        let enrolled = said.iter().filter(|said| said.line.contains(ENROLS) && said.line.contains(" … done"));
        let mut ends = [
            last("instances were asked for", asked)?,
            last("agents were seen to listen", listen?.into_iter().flatten().collect())?,
            last("agents were enrolled", enrolled.map(|said| said.at).collect())?,
            ended,
        ];
        for at in 1..ends.len() {
            ends[at] = ends[at].max(ends[at - 1]);
        }
        Ok(Timeline { begun, ends, calls })
    }

    pub fn all(&self) -> Duration {
        between(self.begun, self.ends[3])
    }

    fn span(&self, phase: usize) -> (f64, f64) {
        let begun = if phase == 0 { self.begun } else { self.ends[phase - 1] };
        (begun, self.ends[phase])
    }

    pub fn phase(&self, phase: usize) -> Duration {
        let (begun, ended) = self.span(phase);
        between(begun, ended)
    }

    /// How many calls began in it.
    pub fn calls(&self, phase: usize) -> usize {
        let (begun, ended) = self.span(phase);
        self.calls.iter().filter(|call| begun <= call.begun && call.begun < ended).count()
    }

    /// How much of it AWS took to answer: at least one call was under way.
    pub fn answering(&self, phase: usize) -> Duration {
        let (begun, ended) = self.span(phase);
        let mut calls: Vec<(f64, f64)> = self.calls.iter().map(|call| (call.begun, call.ended)).collect();
        calls.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (mut sum, mut covered) = (0.0, begun);
        for (from, to) in calls {
            let (from, to) = (from.max(covered), to.min(ended));
            if to > from {
                sum += to - from;
                covered = to;
            }
        }
        Duration::from_secs_f64(sum)
    }

    /// All calls, by what they are called.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for call in &self.calls {
            *counts.entry(call.action.as_str()).or_default() += 1;
        }
        counts
    }
}

fn between(begun: f64, ended: f64) -> Duration {
    Duration::from_secs_f64((ended - begun).max(0.0))
}

/// When an agent was first seen to listen, from a line of the lab such as `1700000000.5 i-1 listens`. Earlier rounds are left out.
fn listens(line: &str, since: f64) -> Result<Option<f64>> {
    let mut words = line.split(' ');
    let at = words.next().and_then(|at| at.parse::<f64>().ok()).with_context(|| format!("no time: `{line}`"))?;
    Ok((words.nth(1) == Some("listens") && at >= since).then_some(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(action: &str, begun: f64, ended: f64) -> Call {
        Call { action: action.to_owned(), refused: false, begun, ended }
    }

    fn said(at: f64, line: &str) -> Said {
        Said { at, line: line.to_owned() }
    }

    fn read(calls: Vec<Call>, events: &str) -> Result<Timeline> {
        let lines = [
            said(105.0, "[  5.000s] etcd-1: enrol the agent of etcd-1 …"),
            said(106.0, "[  6.000s] etcd-1: enrol the agent of etcd-1 … done (7 of 30)"),
            said(107.0, "[  7.000s] etcd-2: enrol the agent of etcd-2 … done (8 of 30)"),
        ];
        Timeline::read((100.0, 110.0), calls, events, &lines, 2)
    }

    /// The first line is of a round before.
    const EVENTS: &str = "90.0 i-0 listens\n102.0 i-1 begins\n103.0 i-1 listens\n104.0 i-2 listens\n";

    fn calls() -> Vec<Call> {
        let refused = Call { refused: true, ..call(ASKS, 100.5, 100.6) };
        let calls = [call("DescribeSubnets", 100.0, 100.5), call(ASKS, 101.0, 102.0), call(ASKS, 101.5, 102.5)];
        calls.into_iter().chain([refused, call("DescribeInstances", 102.4, 103.0)]).collect()
    }

    #[test]
    fn the_time_is_divided_into_phases() {
        let timeline = read(calls(), EVENTS).unwrap();
        assert_eq!(timeline.all(), Duration::from_secs(10));
        let seconds: Vec<f64> = (0..4).map(|phase| timeline.phase(phase).as_secs_f64()).collect();
        assert_eq!(seconds, [2.5, 1.5, 3.0, 3.0]);
        assert_eq!((0..4).map(|phase| timeline.calls(phase)).collect::<Vec<_>>(), [5, 0, 0, 0]);
        assert_eq!(timeline.counts()[ASKS], 3);
    }

    #[test]
    fn calls_at_the_same_time_count_once() {
        let timeline = read(calls(), EVENTS).unwrap();
        let milliseconds: Vec<u128> = (0..4).map(|phase| timeline.answering(phase).as_millis()).collect();
        // From 100 to 100.6 and from 101 to 102.5; the last call goes on to 103.
        assert_eq!(milliseconds[1..], [500, 0, 0]);
        assert!((2099..=2100).contains(&milliseconds[0]), "{milliseconds:?}");
    }

    #[test]
    fn events_missing_for_some_members_are_an_error() {
        let error = |calls, events| read(calls, events).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(error(vec![call(ASKS, 101.0, 102.0)], EVENTS), "1 of 2 instances were asked for");
        assert_eq!(error(calls(), "90.0 i-0 listens\n104.0 i-2 listens\n"), "1 of 2 agents were seen to listen");
        assert!(error(calls(), "soon i-2 listens").contains("no time"));
    }
}
