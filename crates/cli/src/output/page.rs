//! Text for people, with styles and hanging indents. Long lines wrap at spaces to fit the terminal, and colour is
//! optional. Nothing depends on colour alone, and foreign text cannot add colour.

use std::fmt::Write;

use super::plain;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

impl Style {
    /// The terminal's code for it.
    fn code(self) -> Option<&'static str> {
        match self {
            Style::Plain => None,
            Style::Bold => Some("1"),
            Style::Dim => Some("2"),
            Style::Green => Some("32"),
            Style::Yellow => Some("33"),
            Style::Red => Some("31"),
        }
    }
}

/// How a page is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// `None`: not a terminal, so lines are not wrapped.
    pub width: Option<usize>,
    pub colour: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, Default)]
struct Line {
    spans: Vec<(Style, String)>,
    /// The column of a wrapped line's continuation; `None`: it must not wrap, because it may be copied.
    hang: Option<usize>,
}

/// Narrower terminals get lines for this width.
const NARROWEST: usize = 40;

impl Page {
    pub fn new() -> Self {
        Page::default()
    }

    /// A line that wraps; what does not fit continues at column `hang`.
    pub fn line<'a>(&mut self, hang: usize, spans: impl IntoIterator<Item = (Style, &'a str)>) {
        let mut line = Line { spans: Vec::new(), hang: Some(hang) };
        for (style, text) in spans {
            // Text from machines may have several lines.
            let mut pieces = text.split('\n');
            line.spans.push((style, pieces.next().unwrap_or_default().to_owned()));
            for piece in pieces {
                self.lines.push(std::mem::take(&mut line));
                line = Line { spans: vec![(style, format!("{:hang$}{piece}", ""))], hang: Some(hang) };
            }
        }
        self.lines.push(line);
    }

    pub fn plain(&mut self, hang: usize, text: &str) {
        self.line(hang, [(Style::Plain, text)]);
    }

    /// A line that stays whole, such as a row of a table or a command to copy.
    pub fn whole(&mut self, style: Style, text: &str) {
        self.lines.extend(text.lines().map(|line| Line { spans: vec![(style, line.to_owned())], hang: None }));
    }

    /// The cells of a row, which stays whole.
    pub fn row(&mut self, cells: &[(Style, String)]) {
        let mut spans = cells.to_vec();
        if let Some((_, last)) = spans.last_mut() {
            last.truncate(last.trim_end().len());
        }
        self.lines.push(Line { spans, hang: None });
    }

    pub fn blank(&mut self) {
        self.lines.push(Line::default());
    }

    pub fn append(&mut self, other: Page) {
        self.lines.extend(other.lines);
    }

    /// Preformatted lines. Each wraps two columns deeper than it begins, and its first word is its level: `error:`,
    /// `warning:`.
    pub fn written(text: &str) -> Self {
        let mut page = Page::new();
        for line in text.lines() {
            let indent = line.len() - line.trim_start().len();
            let (marker, rest) = line.split_at(line.find(": ").map_or(0, |at| at + 1));
            let style = match marker.trim() {
                "error:" | "blocked:" => Style::Red,
                "warning:" => Style::Yellow,
                "note:" | "hint:" => Style::Bold,
                _ => Style::Plain,
            };
            page.line(indent + 2, [(style, marker), (Style::Plain, rest)]);
        }
        page
    }

    pub fn render(&self, look: Look) -> String {
        let mut text = String::new();
        for line in &self.lines {
            line.render(look, &mut text);
            text.push('\n');
        }
        text
    }
}

impl Line {
    fn render(&self, look: Look, text: &mut String) {
        let width = look.width.zip(self.hang).map(|(width, hang)| (width.max(NARROWEST), hang));
        let mut column = 0;
        for (style, span) in &self.spans {
            let span = plain::text(span);
            let mut run = String::new();
            for word in words(&span) {
                let Some((width, hang)) = width else {
                    run.push_str(word);
                    continue;
                };
                let mut rest = word;
                if column > hang && column + visible(word) > width {
                    run.truncate(run.trim_end().len());
                    let _ = write!(run, "\n{:hang$}", "");
                    column = hang;
                    rest = word.trim_start();
                }
                // A terminal would continue it in its first column.
                while hang < width && column + visible(rest) > width && !is_copied(rest) {
                    let (fits, more) = split_at_column(rest, width.saturating_sub(column).max(1));
                    let _ = write!(run, "{fits}\n{:hang$}", "");
                    (column, rest) = (hang, more);
                }
                run.push_str(rest);
                column += rest.chars().count();
            }
            paint(text, *style, &run, look.colour);
        }
    }
}

fn visible(word: &str) -> usize {
    word.trim_end().chars().count()
}

/// A command or a setting stays in one piece, however long it is: a line break would be copied with it.
fn is_copied(word: &str) -> bool {
    word.contains('`')
}

fn split_at_column(word: &str, columns: usize) -> (&str, &str) {
    let at = word.char_indices().nth(columns).map_or(word.len(), |(at, _)| at);
    word.split_at(at)
}

/// Words with the white space behind them. What stands between backticks is one word: it is a command or a setting.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut start, mut quoted, mut in_space) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        if in_space && c != ' ' && !quoted {
            words.push(&text[start..at]);
            start = at;
        }
        if c == '`' {
            quoted = !quoted;
        }
        in_space = c == ' ';
    }
    words.push(&text[start..]);
    words
}

/// Each line is painted by itself, so that no colour reaches into the margin.
fn paint(text: &mut String, style: Style, run: &str, colour: bool) {
    let Some(code) = style.code().filter(|_| colour) else {
        return text.push_str(run);
    };
    for (index, line) in run.split('\n').enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let shown = line.trim();
        if shown.is_empty() {
            text.push_str(line);
            continue;
        }
        let (before, after) = (line.len() - line.trim_start().len(), line.trim_end().len());
        let _ = write!(text, "{}\x1b[{code}m{shown}\x1b[0m{}", &line[..before], &line[after..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(width: usize) -> Look {
        Look { width: Some(width), colour: false }
    }

    #[test]
    fn lines_wrap_at_spaces_with_a_hanging_indent_and_commands_stay_whole() {
        let mut page = Page::new();
        page.line(
            5,
            [(Style::Plain, "  1. "), (Style::Red, "destroy the machine of etcd-1, see `quorate status demo` first")],
        );
        let expected = "  1. destroy the machine of etcd-1, see\n     `quorate status demo` first\n";
        assert_eq!(page.render(at(40)), expected);
        assert_eq!(page.render(Look::default()).lines().count(), 1);
        let mut rows = Page::new();
        rows.whole(Style::Plain, &"column ".repeat(20));
        assert_eq!(rows.render(at(40)).lines().count(), 1);
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_continues_below_its_beginning() {
        let mut page = Page::new();
        page.line(
            4,
            [(Style::Plain, "  to "), (Style::Dim, &format!("/{}", "long/".repeat(13))), (Style::Plain, " or so")],
        );
        let text = page.render(at(40));
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("    ") && !line.starts_with("     ")), "{text}");
        let whole = format!("  to /{} or so\n", "long/".repeat(13));
        assert_eq!(text.replace("\n    ", ""), whole, "nothing is lost");
        let mut command = Page::new();
        let typed = format!("`quorate plan {}`", "long/".repeat(14));
        command.plain(4, &format!("  run {typed}"));
        assert!(command.render(at(40)).contains(&typed), "it can be copied");
    }

    #[test]
    fn only_quorates_own_colours_reach_the_terminal() {
        let mut page = Page::new();
        page.line(2, [(Style::Red, "blocked: "), (Style::Plain, "it said \u{1b}[32mfine\u{1b}[0m")]);
        let look = Look { width: None, colour: true };
        assert_eq!(page.render(look), "\x1b[31mblocked:\x1b[0m it said \\u{1b}[32mfine\\u{1b}[0m\n");
        assert!(!page.render(Look::default()).contains('\x1b'));
    }

    #[test]
    fn preformatted_text_wraps_with_a_hanging_indent() {
        let page = Page::written("error: the machine of etcd-1 does not answer, so nothing is done\n  hint: wait\n");
        let text = page.render(at(42));
        assert_eq!(text, "error: the machine of etcd-1 does not\n  answer, so nothing is done\n  hint: wait\n");
    }
}
