//! The HTML page: text and SVG only. The style is embedded and follows the reader's system, light or dark.

use std::fmt::Write;

use super::{tally, timeline};
use crate::mark::MarkKind;
use crate::record::Record;
use crate::{Ending, Verdict};

/// One broken promise often shows in hundreds of operations.
const MOST_PROBLEMS: usize = 50;

const STYLE: &str = include_str!("style.css");

/// The report of a drill: what was rehearsed, and what was recorded meanwhile.
pub fn page(runs: &[(Verdict, Record)]) -> String {
    let mut body = String::new();
    let head = runs.first().map(|(_, record)| record.about()).unwrap_or_default();
    let cluster = escape(&head.cluster);
    let began = head.began.strftime("%Y-%m-%d %H:%M UTC").to_string();
    let whole = runs.iter().map(|(v, _)| v.result).fold(Ending::Passed, worse);
    let _ = write!(
        body,
        "<header class=\"{}\">\n<p class=\"eyebrow\">Drill of cluster <strong>{cluster}</strong> · {} · {}</p>\n<h1>{}</h1>\n",
        class(whole),
        escape(&head.program),
        escape(&began),
        sentence(&tally(runs.iter().map(|(v, _)| v)))
    );
    if runs.len() > 1 {
        body.push_str(&overview(runs));
    }
    body.push_str("</header>\n");
    for (verdict, record) in runs {
        body.push_str(&section(verdict, record));
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Drill of {cluster}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         <footer>Times are seconds since the run began. Operations are counted when they end.</footer>\n</main>\n</body>\n</html>\n"
    )
}

fn worse(a: Ending, b: Ending) -> Ending {
    match (a, b) {
        (Ending::Failed, _) | (_, Ending::Failed) => Ending::Failed,
        (Ending::NotEnoughTraffic, _) | (_, Ending::NotEnoughTraffic) => Ending::NotEnoughTraffic,
        _ => Ending::Passed,
    }
}

fn class(ending: Ending) -> &'static str {
    match ending {
        Ending::Passed => "passed",
        Ending::Failed => "failed",
        Ending::NotEnoughTraffic => "unclear",
    }
}

fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Passed => "✓ passed",
        Ending::Failed => "✗ failed",
        Ending::NotEnoughTraffic => "? not enough traffic",
    }
}

fn overview(runs: &[(Verdict, Record)]) -> String {
    let mut html = String::from(
        "<table><thead><tr><th>Scenario</th><th>Verdict</th><th>What happened</th><th class=\"n\">Longest write gap</th>\
         <th class=\"n\">Operations</th></tr></thead><tbody>\n",
    );
    for (verdict, _) in runs {
        let gap = verdict.measures.longest_write_gap.map_or_else(String::new, |g| format!("{:.2} s", g.seconds()));
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td class=\"{1}\"><span class=\"pill\">{2}</span></td><td>{3}</td><td class=\"n\">{gap}</td><td class=\"n\">{4}</td></tr>",
            escape(&verdict.scenario),
            class(verdict.result),
            word(verdict.result),
            escape(&verdict.does),
            answered(verdict),
        );
    }
    html.push_str("</tbody></table>\n");
    html
}

fn answered(verdict: &Verdict) -> usize {
    verdict.measures.operations.values().map(|c| c.answered).sum()
}

fn section(verdict: &Verdict, record: &Record) -> String {
    let about = record.about();
    let mut html = format!(
        "<section id=\"{0}\" class=\"{1}\">\n<h2>{0} <span class=\"pill\">{2}</span></h2>\n<p class=\"does\">{3}. {5}, seed {6}.</p>\n<p class=\"verdict\">{4}.</p>\n",
        escape(&verdict.scenario),
        class(verdict.result),
        word(verdict.result),
        sentence(&verdict.does),
        sentence(&verdict.summary),
        escape(&about.crew),
        about.seed,
    );
    html.push_str(&problems(verdict));
    html.push_str(&numbers(verdict, record));
    let _ = write!(html, "<figure>\n{}</figure>\n", timeline::draw(record, &verdict.measures));
    html.push_str("<div class=\"columns\">\n");
    html.push_str(&event_table(verdict));
    html.push_str("<div>\n");
    html.push_str(&checks(verdict));
    html.push_str(&operations(verdict));
    html.push_str("</div>\n</div>\n</section>\n");
    html
}

fn problems(verdict: &Verdict) -> String {
    if verdict.problems.is_empty() {
        return String::new();
    }
    let mut html = String::from("<ul class=\"problems\">\n");
    for problem in verdict.problems.iter().take(MOST_PROBLEMS) {
        let _ = writeln!(html, "<li>{}</li>", escape(problem));
    }
    if verdict.problems.len() > MOST_PROBLEMS {
        let _ = writeln!(html, "<li>… and {} more</li>", verdict.problems.len() - MOST_PROBLEMS);
    }
    html.push_str("</ul>\n");
    html
}

/// The figures that back the verdict.
fn numbers(verdict: &Verdict, record: &Record) -> String {
    let measures = &verdict.measures;
    let (gap, moment) = measures.longest_write_gap.map_or((0.0, 0.0), |g| (g.seconds(), g.from));
    let settled = verdict.unanswered_writes;
    let mut tiles = vec![
        (
            "Longest write gap",
            format!("{gap:.2} s"),
            format!("at {moment:.1} s; expected: {}", verdict.downtime_expected),
        ),
        ("Answered operations", answered(verdict).to_string(), format!("{:.0} per second", measures.throughput)),
        (
            "Lost acknowledged writes",
            lost(verdict).to_string(),
            String::from("in the final state, through every member"),
        ),
        (
            "Writes without an answer",
            (settled.happened + settled.did_not_happen).to_string(),
            format!("{} happened, {} did not", settled.happened, settled.did_not_happen),
        ),
    ];
    if record.watch_delays().is_some() {
        tiles.push((
            "Watch delay",
            format!("{:.0} ms", measures.watch_delay.longest * 1e3),
            format!("at most; {:.1} ms in the median", measures.watch_delay.median * 1e3),
        ));
    }
    let mut html = String::from("<dl class=\"tiles\">\n");
    for (name, value, note) in tiles {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{value}</dd><dd class=\"note\">{}</dd></div>", escape(&note));
    }
    html.push_str("</dl>\n");
    html
}

fn lost(verdict: &Verdict) -> usize {
    verdict.violations.iter().filter(|v| v.rule == "lost").count()
}

fn event_table(verdict: &Verdict) -> String {
    let mut marks: Vec<_> = verdict.marks.iter().collect();
    marks.sort_by_key(|m| (m.from, m.kind));
    let mut html = String::from("<div>\n<h3>What happened when</h3>\n");
    if marks.is_empty() {
        return html + "<p>Nothing but the traffic.</p>\n</div>\n";
    }
    html.push_str(
        "<table><thead><tr><th class=\"n\">From</th><th class=\"n\">For</th><th>What</th></tr></thead><tbody>\n",
    );
    for mark in marks {
        let (class, name) = match mark.kind {
            MarkKind::Fault => ("fault", "fault"),
            MarkKind::Command => ("command", "command"),
            MarkKind::Step => ("step", "step"),
        };
        let lasted = match mark.to.saturating_sub(mark.from) {
            0..=999 => String::from("–"),
            time => format!("{:.3} s", time as f64 / 1e6),
        };
        let _ = writeln!(
            html,
            "<tr><td class=\"n\">{:.3} s</td><td class=\"n\">{lasted}</td><td><span class=\"key {class}\"></span><span class=\"kind\">{name}</span> {}</td></tr>",
            mark.from as f64 / 1e6,
            escape(&mark.text)
        );
    }
    html.push_str("</tbody></table>\n</div>\n");
    html
}

fn checks(verdict: &Verdict) -> String {
    if verdict.checks.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h3>Final state</h3>\n<table><tbody>\n");
    for check in &verdict.checks {
        let (class, sign) = if check.passed { ("passed", "✓") } else { ("failed", "✗") };
        let _ = writeln!(
            html,
            "<tr class=\"{class}\"><td class=\"sign\">{sign}</td><td>{}</td><td>{}</td></tr>",
            escape(check.check),
            escape(&check.found)
        );
    }
    html.push_str("</tbody></table>\n");
    html
}

fn operations(verdict: &Verdict) -> String {
    let mut html = String::from(
        "<h3>Operations</h3>\n<table><thead><tr><th>Kind</th><th class=\"n\">Answered</th><th class=\"n\">Without an answer</th></tr></thead><tbody>\n",
    );
    for (kind, count) in &verdict.measures.operations {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            kind.name, count.answered, count.unanswered
        );
    }
    html.push_str("</tbody></table>\n");
    html
}

/// With a capital letter at its beginning.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    escape(&(first + letters.as_str()))
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd::history::{Head, History};
    use crate::mark::Mark;

    #[test]
    fn cluster_names_and_errors_cannot_break_the_page() {
        assert_eq!(escape("<b> & \"c\""), "&lt;b&gt; &amp; &quot;c&quot;");
        assert_eq!(sentence("passed: all"), "Passed: all");
    }

    #[test]
    fn the_page_stands_alone() {
        let head = Head { cluster: String::from("a<b"), scenario: String::from("kill-leader"), ..Head::default() };
        let marks = vec![Mark { kind: MarkKind::Fault, text: String::from("etcd killed on <x>"), from: 1, to: 2 }];
        let record = Record::Etcd(History { head, marks, ..History::default() });
        let page = page(&[(record.judge(Vec::new()), record)]);
        assert!(page.contains("a&lt;b") && !page.contains("a<b") && !page.contains("<x>"));
        assert!(page.contains("<svg") && page.contains("✗ failed"));
        for foreign in ["http:", "https:", "<script", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
