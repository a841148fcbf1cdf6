//! Text helpers for several crates: bytes as hexadecimal digits, errors in one line, foreign text of bounded length.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Two lower-case digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An error and its causes in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Limits foreign text to this many bytes, so no one can fill a ledger, a history or a terminal. A mark shows where something was cut off.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.len() <= most {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{} … (cut: {} bytes)", &text[..text.floor_char_boundary(most)], text.len())),
    }
}

/// The text with another word in place of a name. The name of a machine, `etcd-2.1`, is not that of its member.
pub fn rename(text: &str, name: &str, to: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '#' | '.');
    let whole = |at: &usize| {
        let after = text[at + name.len()..].trim_start_matches('.');
        !text[..*at].ends_with(is_name) && !after.starts_with(is_name)
    };
    let found: Vec<usize> = text.match_indices(name).map(|(at, _)| at).filter(whole).collect();
    let mut renamed = text.to_owned();
    for at in found.into_iter().rev() {
        renamed.replace_range(at..at + name.len(), to);
    }
    renamed
}

/// "1 step", "3 steps".
pub fn plural<N: fmt::Display + PartialEq + From<u8>>(number: N, of: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {of}{ending}")
}

/// "a", "a and b", "a, b and c".
pub(crate) fn list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    match items.as_slice() {
        [] => String::from("nothing"),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(hex(&[0, 9, 255]), "0009ff");
    }

    #[test]
    fn the_causes_follow_the_error() {
        let inner = std::io::Error::other("disk full");
        let outer = std::io::Error::other(Wrapped(inner));
        assert_eq!(with_causes(&outer), "cannot write: disk full");
    }

    #[test]
    fn names_are_replaced_where_they_stand_alone() {
        let text = "move the leader from etcd-2 to etcd-20, then destroy etcd-2.1 of etcd-2.";
        let expected = "move the leader from etcd-2.2 to etcd-20, then destroy etcd-2.1 of etcd-2.2.";
        assert_eq!(rename(text, "etcd-2", "etcd-2.2"), expected);
    }

    #[test]
    fn only_one_is_singular() {
        assert_eq!(plural(1_i64, "key"), "1 key");
        assert_eq!(plural(0_usize, "key"), "0 keys");
        assert_eq!(plural(2_u64, "key"), "2 keys");
    }

    #[derive(Debug)]
    struct Wrapped(std::io::Error);

    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("cannot write")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn short_text_stays_and_long_text_is_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "abc … (cut: 4 bytes)");
        assert_eq!(cut("aäöü", 4), "aä … (cut: 7 bytes)");
    }
}
