//! Makes text from machines, specs and stores safe for a terminal. Anyone who controls a machine controls its log: escape sequences
//! could hide lines, change a window's title or answer a prompt for the operator, and marks of writing direction can make a line read
//! differently. All of them are printed visibly.

use std::borrow::Cow;
use std::fmt::Write;

/// For people: `\u{1b}` in place of the character.
pub fn text(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c.escape_unicode().to_string())
}

/// For scripts: the same JSON, with these characters escaped.
pub fn json(text: &str) -> Cow<'_, str> {
    replaced(text, |c| {
        let mut escaped = String::new();
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
        escaped
    })
}

fn replaced(text: &str, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let safe = |c: char| if is_unsafe(c) { escape(c) } else { c.to_string() };
    Cow::Owned(text.chars().map(safe).collect())
}

fn is_unsafe(c: char) -> bool {
    let steers_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks_lines = matches!(c, '\u{2028}' | '\u{2029}');
    (c.is_control() && !matches!(c, '\n' | '\t')) || steers_direction || breaks_lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_shown_escaped() {
        assert_eq!(text("etcd: grüße\tok\n"), "etcd: grüße\tok\n");
        assert_eq!(text("a\u{1b}[2Jb\rc\u{9b}d\u{7f}"), r"a\u{1b}[2Jb\u{d}c\u{9b}d\u{7f}");
        assert_eq!(text("txt.\u{202e}fdp"), r"txt.\u{202e}fdp");
    }

    #[test]
    fn scripts_read_what_was_there() {
        let value = serde_json::json!({"line": "a\u{1b}[2J\u{9b}\u{202e}b\n"});
        let shown = value.to_string();
        let safe = json(&shown);
        assert!(!safe.contains(is_unsafe), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
