//! Text that comes from elsewhere. Nobody may fill a ledger, a history or a terminal by writing much.

use std::borrow::Cow;

/// At most so many bytes of it, with a mark where something was cut off.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.len() <= most {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{} … (cut: {} bytes)", &text[..text.floor_char_boundary(most)], text.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_stays_and_the_rest_is_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "abc … (cut: 4 bytes)");
        assert_eq!(cut("aäöü", 4), "aä … (cut: 7 bytes)");
    }
}
