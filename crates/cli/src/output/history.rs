//! The history of a cluster, for people: the runs of quorate, each with its steps.

use jiff::Timestamp;
use quorate_control::run::history::{Ending, Entry};

use super::page::{Page, Style};

/// The column of a step's text.
const MARGIN: usize = 25;

pub fn page(entries: &[Entry]) -> Page {
    let mut page = Page::new();
    let mut run: Option<&Entry> = None;
    for entry in entries {
        let first = match run.filter(|first| first.run == entry.run) {
            Some(first) => first,
            None => {
                if run.is_some() {
                    page.blank();
                }
                head(&mut page, entry);
                entry
            }
        };
        run = Some(first);
        step(&mut page, entry, first);
    }
    page
}

fn head(page: &mut Page, entry: &Entry) {
    let (at, step) = (entry.at.strftime("%Y-%m-%d %H:%M:%S"), &entry.step);
    let command = format!("quorate {}", step.verb);
    let rest = format!(", by {} on {}, {at} UTC", step.by, step.host);
    page.line(2, [(Style::Bold, command.as_str()), (Style::Plain, &rest)]);
}

fn step(page: &mut Page, entry: &Entry, first: &Entry) {
    let (style, ending) = ending(entry.result);
    if date(entry.at) != date(first.at) {
        page.plain(2, &format!("  {}", date(entry.at)));
    }
    let at = format!("  {}  ", entry.at.strftime("%H:%M:%S"));
    let text = format!("  {}{}", entry.step.action, took(entry));
    page.line(MARGIN, [(Style::Plain, at.as_str()), (style, &format!("{ending:11}")), (Style::Plain, &text)]);
    let mut explain = |style, word: &str, what: &str| {
        let mut lines = what.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = format!("{:MARGIN$}{word} {}", "", lines.next().unwrap_or_default());
        page.line(MARGIN, [(style, first.as_str())]);
        lines.for_each(|line| page.line(MARGIN, [(style, format!("{:MARGIN$}{line}", "").as_str())]));
    };
    explain(Style::Dim, "because", &entry.step.because);
    if let Some(why) = &entry.why {
        explain(Style::Red, "failed:", why);
    }
}

fn ending(result: Ending) -> (Style, &'static str) {
    match result {
        Ending::Done => (Style::Plain, "done"),
        Ending::Failed => (Style::Red, "failed"),
        Ending::Interrupted => (Style::Yellow, "interrupted"),
        Ending::Running => (Style::Yellow, "running"),
    }
}

/// Steps that took less than a tenth of a second show no duration.
fn took(entry: &Entry) -> String {
    let seconds = entry.ended.map_or(0.0, |ended| ended.duration_since(entry.at).as_secs_f64());
    if seconds < 0.1 { String::new() } else { format!(" ({seconds:.1} s)") }
}

fn date(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use quorate_control::run::history::Beginning;

    use super::super::page::Look;
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
    fn steps_are_listed_below_the_run_that_took_them() {
        let mut after_midnight = entry("b", "restart etcd on etcd-3", Ending::Done, None);
        after_midnight.at += jiff::SignedDuration::from_hours(24);
        after_midnight.ended = None;
        let shown = page(&[
            entry("a", "restart etcd on etcd-1", Ending::Done, None),
            entry("b", "restart etcd on etcd-2", Ending::Failed, Some("it said no")),
            after_midnight,
        ]);
        let expected = "\
quorate apply, by ada on mill, 2026-01-02 03:04:05 UTC
  03:04:05  done         restart etcd on etcd-1 (1.5 s)
                         because its settings
                         changed

quorate apply, by ada on mill, 2026-01-02 03:04:05 UTC
  03:04:05  failed       restart etcd on etcd-2 (1.5 s)
                         because its settings
                         changed
                         failed: it said no
  2026-01-03
  03:04:05  done         restart etcd on etcd-3
                         because its settings
                         changed
";
        assert_eq!(shown.render(Look::default()), expected);
    }
}
