//! A problem of a spec: what, where, and what to do. Plain data, printed either as one line for scripts or with the
//! line of the file and a caret for people.

use std::fmt;

use serde::Serialize;

/// A range of the file. Lines and columns are counted from 1, columns in characters; the end is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Span {
    pub line: usize,
    pub column: usize,
    pub end_line: usize,
    pub end_column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Error,
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One problem of a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub severity: Severity,
    pub file: String,
    #[serde(flatten)]
    pub span: Span,
    /// The place in the spec, such as `clusters[0].tls.ca.key`; empty for the file as a whole.
    pub path: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    fn headline(&self) -> String {
        let Self { severity, file, span, message, .. } = self;
        format!("{file}:{}:{}: {severity}: {}", span.line, span.column, short(message, LONGEST_MESSAGE))
    }

    fn hint_line(&self) -> String {
        self.hint.as_ref().map(|hint| format!("\n  hint: {}", short(hint, LONGEST_MESSAGE))).unwrap_or_default()
    }

    /// The problem with its line of `text`, the file's content, and a caret below.
    pub fn render(&self, text: &str) -> String {
        self.with_room(text, LONGEST_LINE)
    }

    /// The same with at most this many columns: if a terminal wrapped the line, the caret would be elsewhere.
    pub fn render_within(&self, text: &str, columns: usize) -> String {
        // The line stands behind two spaces, its number and a bar.
        let before = self.span.line.to_string().len() + 5;
        self.with_room(text, columns.saturating_sub(before).clamp(LEAST_LINE, LONGEST_LINE))
    }

    fn with_room(&self, text: &str, room: usize) -> String {
        // Slow for a problem late in a long file, but much faster than reading the file.
        let Some(source) = text.lines().nth(self.span.line.saturating_sub(1)).filter(|line| !line.trim().is_empty())
        else {
            return self.to_string();
        };
        let number = self.span.line.to_string();
        let margin = " ".repeat(number.len());
        let (source, before) = around(source.trim_end(), self.span.column.saturating_sub(1), room);
        // A tab stays a tab, so that the caret stands below what it points at in every terminal.
        let indent: String = source.chars().take(before).map(|c| if c == '\t' { c } else { ' ' }).collect();
        let rest = source.chars().count().saturating_sub(before);
        let marked = match self.span.end_line == self.span.line {
            true => self.span.end_column.saturating_sub(self.span.column).min(rest),
            false => rest,
        };
        let carets = "^".repeat(marked.max(1));
        format!("{}\n  {number} | {source}\n  {margin} | {indent}{carets}{}", self.headline(), self.hint_line())
    }
}

/// How much of a line is shown, and how much of a message, both of which may quote whatever a file holds.
const LONGEST_LINE: usize = 160;
const LEAST_LINE: usize = 40;
const LONGEST_MESSAGE: usize = 400;

/// The part of a line around a column that has room, and where the column is in it. Of a long line a quarter stands before the column.
fn around(line: &str, column: usize, room: usize) -> (String, usize) {
    let printable = |c: char| if is_unprintable(c) { '\u{fffd}' } else { c };
    let long = line.chars().count();
    if long <= room {
        return (line.chars().map(printable).collect(), column);
    }
    // The ellipses need room too.
    let shown = room.saturating_sub(2);
    let skipped = column.saturating_sub(room / 4).min(long - shown);
    let (begin, offset) = if skipped == 0 { ("", 0) } else { ("…", 1) };
    let part: String = line.chars().skip(skipped).take(shown).map(printable).collect();
    let end = if skipped + shown < long { "…" } else { "" };
    (format!("{begin}{part}{end}"), column - skipped + offset)
}

/// A text that may quote the file: limited in length, and without characters that a terminal would interpret.
fn short(text: &str, longest: usize) -> String {
    let mut shown: String =
        text.chars().take(longest).map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

/// Control characters, and those that change the direction of what follows.
fn is_unprintable(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.headline(), self.hint_line())
    }
}

/// The most likely candidate, if one is similar enough.
pub(crate) fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (wrong.chars().count() / 3).clamp(1, 4);
    let distances = candidates.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    distances.filter(|(distance, _)| *distance <= allowed).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(column: usize, end_column: usize, message: &str) -> Problem {
        let span = Span { line: 1, column, end_line: 1, end_column };
        let (file, path) = (String::from("c.yaml"), String::new());
        Problem { severity: Severity::Error, file, span, path, message: message.to_owned(), hint: None }
    }

    #[test]
    fn a_long_line_is_shown_around_the_place_that_is_meant() {
        let line = format!("a: {}wrong{}", "x".repeat(1_000_000), "y".repeat(1_000_000));
        let column = 4 + 1_000_000;
        let shown = problem(column, column + 5, &line).render(&line);
        assert!(shown.chars().count() < 1000, "{} characters", shown.chars().count());
        let lines: Vec<&str> = shown.lines().collect();
        let marked = lines[2].chars().zip(lines[1].chars()).filter(|(caret, _)| *caret == '^').map(|(_, c)| c);
        assert_eq!(marked.collect::<String>(), "wrong");
    }

    #[test]
    fn nothing_of_a_file_reaches_the_terminal_as_a_command() {
        let line = "name: \u{1b}[31mred\u{202e}x";
        let shown = problem(7, 8, line).render(line);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'), "{shown:?}");
    }
}
