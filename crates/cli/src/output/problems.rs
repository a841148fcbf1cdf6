//! The problems of a spec, for people: each with its line of the file, a mark below, and a hint.

use quorate_core::spec::{Problem, Severity};

use super::page::{Look, Page, Style};
use quorate_core::text::plural;

/// How many problems are printed. Anyone with more of them fixes these first.
pub const MOST: usize = 50;

/// The first problems, with `between` blank lines after each, and how many more there are. Lines of the file are cut to fit the look.
pub fn page(problems: &[Problem], text: &str, between: usize, look: Look) -> Page {
    let mut page = Page::new();
    for problem in problems.iter().take(MOST) {
        one(&mut page, problem, text, look);
        (0..between).for_each(|_| page.blank());
    }
    match problems.len().saturating_sub(MOST) {
        0 => {}
        more => page.plain(2, &format!("and {}", plural(more, "more problem"))),
    }
    page
}

fn one(page: &mut Page, problem: &Problem, text: &str, look: Look) {
    let Problem { file, span, severity, .. } = problem;
    let rendered = match look.width {
        Some(columns) => problem.render_within(text, columns),
        None => problem.render(text),
    };
    let mut lines = rendered.lines();
    let (place, word) = (format!("{file}:{}:{}: ", span.line, span.column), format!("{severity}:"));
    let style = match severity {
        Severity::Error => Style::Red,
        Severity::Warning => Style::Yellow,
    };
    let head = lines.next().unwrap_or_default();
    let message = head.strip_prefix(&place).and_then(|rest| rest.strip_prefix(&word)).unwrap_or(head);
    page.line(2, [(Style::Bold, place.as_str()), (style, &word), (Style::Plain, message)]);
    for line in lines {
        match line.strip_prefix("  hint:") {
            Some(hint) => page.line(4, [(Style::Bold, "  hint:"), (Style::Plain, hint)]),
            None => page.whole(Style::Plain, line),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::spec::{Document, HostFacts};

    use super::*;

    fn shown(text: &str, width: Option<usize>) -> String {
        let problems = Document::parse("c.yaml", text).unwrap().spec(&HostFacts::default()).problems;
        let look = Look { width, colour: false };
        page(&problems, text, 0, look).render(look)
    }

    #[test]
    fn thousands_of_problems_are_counted_and_not_all_printed() {
        let members: String = (0..2000).map(|n| format!("      - {{name: m{n}, adress: x}}\n")).collect();
        let text = format!("quorate: 1\nclusters:\n  - name: c\n    members:\n{members}");
        let shown = shown(&text, None);
        assert_eq!(shown.lines().filter(|line| line.contains(": error: ")).count(), MOST);
        assert!(shown.lines().last().is_some_and(|line| line.starts_with("and ")), "{shown}");
        assert!(shown.ends_with(" more problems\n"), "{shown}");
    }

    #[test]
    fn a_long_message_wraps_and_the_mark_stays_below_its_place() {
        let text = "quorate: 1\nclusters:\n  - name: c\n    members: [{name: a}]\n    replace_after: 5\n";
        let expected = "\
c.yaml:5:20: error: `5` has no unit; expected a duration
  such as 100ms, 1s, 30m or 12h
  5 |     replace_after: 5
    |                    ^
";
        assert_eq!(shown(text, Some(60)), expected);
    }

    #[test]
    fn a_line_of_the_file_is_cut_to_the_width_around_its_mark() {
        let text = format!(
            "quorate: 1\nclusters:\n  - {{name: c, members: [{{name: a}}], initial_token: {}, adress: b}}\n",
            "t".repeat(30)
        );
        let shown = shown(&text, Some(60));
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{shown}");
        let at = lines.iter().position(|line| line.contains('^')).expect("a mark");
        let marked = lines[at].chars().zip(lines[at - 1].chars()).filter(|(mark, _)| *mark == '^').map(|(_, c)| c);
        assert_eq!(marked.collect::<String>(), "adress", "{shown}");
    }
}
