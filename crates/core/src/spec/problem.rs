//! What is wrong with a spec, where, and what to do. A problem is plain data; it is written either as one line for
//! scripts or with the line of the file and a caret below for people.

use std::fmt;

use serde::Serialize;

/// A stretch of the file. Lines and columns are counted from 1, columns in characters; the end is exclusive.
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

/// One finding about a spec.
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
        format!("{file}:{}:{}: {severity}: {message}", span.line, span.column)
    }

    fn hint_line(&self) -> String {
        self.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default()
    }

    /// The problem with its line of `text`, the file's content, and a caret below.
    pub fn render(&self, text: &str) -> String {
        // Slow for one problem late in a long file, and still far below what reading the file costs.
        let Some(source) = text.lines().nth(self.span.line.saturating_sub(1)).filter(|line| !line.trim().is_empty())
        else {
            return self.to_string();
        };
        let number = self.span.line.to_string();
        let margin = " ".repeat(number.len());
        let before = self.span.column.saturating_sub(1);
        // A tab stays a tab, so that the caret stands below what it points at in every terminal.
        let indent: String = source.chars().take(before).map(|c| if c == '\t' { c } else { ' ' }).collect();
        let rest = source.trim_end().chars().count().saturating_sub(before);
        let marked = match self.span.end_line == self.span.line {
            true => self.span.end_column.saturating_sub(self.span.column).min(rest),
            false => rest,
        };
        let carets = "^".repeat(marked.max(1));
        format!(
            "{}\n  {number} | {}\n  {margin} | {indent}{carets}{}",
            self.headline(),
            source.trim_end(),
            self.hint_line()
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.headline(), self.hint_line())
    }
}

/// The candidate that was most likely meant, if one is near enough to be worth saying.
pub(crate) fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (wrong.chars().count() / 3).clamp(1, 4);
    let distances = candidates.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    distances.filter(|(distance, _)| *distance <= allowed).min().map(|(_, name)| name)
}
