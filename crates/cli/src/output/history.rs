//! The history of a cluster, for people: the runs of quorate, and below each the steps that it did.

use std::fmt::Write;

use jiff::Timestamp;
use quorate_control::run::history::{Ending, Entry};

pub fn text(entries: &[Entry]) -> String {
    let mut text = String::new();
    let mut run = "";
    for entry in entries {
        if entry.run != run {
            let blank = if run.is_empty() { "" } else { "\n" };
            let (at, step) = (time(entry.at), &entry.step);
            let _ = writeln!(text, "{blank}quorate {}, by {} on {}, {at} UTC", step.verb, step.by, step.host);
            run = &entry.run;
        }
        text.push_str(&step(entry));
    }
    text
}

fn step(entry: &Entry) -> String {
    let margin = " ".repeat(36);
    let (at, ending) = (time(entry.at), ending(entry.result));
    let mut text = format!("  {at}  {ending:11}  {}{}\n", entry.step.action, took(entry));
    let mut explain = |word: &str, what: &str| {
        let mut lines = what.lines().map(str::trim).filter(|line| !line.is_empty());
        let _ = writeln!(text, "{margin}{word} {}", lines.next().unwrap_or_default());
        lines.for_each(|line| {
            let _ = writeln!(text, "{margin}{line}");
        });
    };
    explain("because", &entry.step.because);
    if let Some(why) = &entry.why {
        explain("failed:", why);
    }
    text
}

fn ending(result: Ending) -> &'static str {
    match result {
        Ending::Done => "done",
        Ending::Failed => "failed",
        Ending::Interrupted => "interrupted",
        Ending::Running => "running",
    }
}

/// What took less than a tenth of a second needs no time of its own.
fn took(entry: &Entry) -> String {
    let seconds = entry.ended.map_or(0.0, |ended| ended.duration_since(entry.at).as_secs_f64());
    if seconds < 0.1 { String::new() } else { format!(" ({seconds:.1} s)") }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use quorate_control::run::history::Beginning;

    use super::*;

    fn entry(run: &str, action: &str, result: Ending, why: Option<&str>) -> Entry {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        Entry {
            at,
            ended: Some(at + jiff::SignedDuration::from_millis(1500)),
            run: run.to_owned(),
            step: Beginning {
                verb: String::from("apply"),
                by: String::from("ada"),
                host: String::from("mill"),
                fence: 1,
                kind: String::from("restart-etcd"),
                member: None,
                action: action.to_owned(),
                because: String::from("its settings\n\nchanged"),
            },
            result,
            why: why.map(str::to_owned),
        }
    }

    #[test]
    fn steps_stand_below_the_run_that_did_them() {
        let told = text(&[
            entry("a", "restart etcd on etcd-1", Ending::Done, None),
            entry("b", "restart etcd on etcd-2", Ending::Failed, Some("it said no")),
        ]);
        let expected = "\
quorate apply, by ada on mill, 2026-01-02 03:04:05 UTC
  2026-01-02 03:04:05  done         restart etcd on etcd-1 (1.5 s)
                                    because its settings
                                    changed

quorate apply, by ada on mill, 2026-01-02 03:04:05 UTC
  2026-01-02 03:04:05  failed       restart etcd on etcd-2 (1.5 s)
                                    because its settings
                                    changed
                                    failed: it said no
";
        assert_eq!(told, expected);
    }
}
