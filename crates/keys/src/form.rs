//! Forms in queries and bodies, parsed like Go's: malformed input is an error with Go's text. Pure.

/// The fields of body and query; those of the body come first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Form(Vec<(Vec<u8>, Vec<u8>)>);

impl Form {
    /// Adds the fields of one encoded text. A malformed field is skipped and reported after the others have been read.
    pub fn add(&mut self, text: &[u8]) -> Result<(), String> {
        let mut wrong = None;
        for field in text.split(|byte| *byte == b'&').filter(|field| !field.is_empty()) {
            match read_field(field) {
                Ok(pair) => self.0.push(pair),
                Err(cause) => wrong = wrong.or(Some(cause)),
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    /// The first value of a field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(key, _)| key == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    /// Zero where there is none.
    pub fn number(&self, name: &str) -> Result<u64, ()> {
        self.get(name).map_or(Ok(0), number)
    }

    /// False where there is none.
    pub fn flag(&self, name: &str) -> Result<bool, ()> {
        self.get(name).map_or(Ok(false), flag)
    }
}

fn read_field(field: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    if field.contains(&b';') {
        return Err(String::from("invalid semicolon separator in query"));
    }
    let at = field.iter().position(|byte| *byte == b'=');
    let (name, value) = at.map_or((field, &b""[..]), |at| (&field[..at], &field[at + 1..]));
    Ok((unescape(name, true)?, unescape(value, true)?))
}

/// Digits only: neither signs nor spaces.
pub fn number(text: &[u8]) -> Result<u64, ()> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or(())
}

fn flag(text: &[u8]) -> Result<bool, ()> {
    match text {
        b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True" => Ok(true),
        b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False" => Ok(false),
        _ => Err(()),
    }
}

/// Decodes `%XX`, and in forms `+`.
pub fn unescape(text: &[u8], is_form: bool) -> Result<Vec<u8>, String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'%' => {
                let byte = text.get(at + 1..at + 3).and_then(hexadecimal).ok_or_else(|| bad_escape(&text[at..]))?;
                decoded.push(byte);
                at += 3;
            }
            b'+' if is_form => {
                decoded.push(b' ');
                at += 1;
            }
            byte => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    Ok(decoded)
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()
}

fn bad_escape(rest: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&rest[..rest.len().min(3)]);
    format!("invalid URL escape {shown:?}")
}

/// Encodes a path for a `Location`.
pub fn escape_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"/-_.~$&+,:;=@!*'()".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_comes_before_the_query() {
        let mut form = Form::default();
        form.add(b"value=a+b%2Bc&dir=true").unwrap();
        form.add(b"value=x&ttl=5&empty=&bare").unwrap();
        assert_eq!(form.get("value"), Some(&b"a b+c"[..]));
        assert_eq!(form.get("bare"), Some(&b""[..]));
        assert_eq!((form.number("ttl"), form.number("none")), (Ok(5), Ok(0)));
        assert_eq!((form.flag("dir"), form.flag("none"), form.flag("ttl")), (Ok(true), Ok(false), Err(())));
    }

    #[test]
    fn input_that_go_refuses_is_refused_with_the_same_error_text() {
        let cause = |text: &[u8]| Form::default().add(text).unwrap_err();
        assert_eq!(cause(b"value=%zz"), r#"invalid URL escape "%zz""#);
        assert_eq!(cause(b"value=%1"), r#"invalid URL escape "%1""#);
        assert_eq!(cause(b"a;b=1"), "invalid semicolon separator in query");
        for bad in ["-1", "+1", " 1", "1.0", "", "18446744073709551616", "0x1", "1_0"] {
            assert_eq!(number(bad.as_bytes()), Err(()), "{bad}");
        }
        assert_eq!(number(b"18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn a_location_has_no_bytes_that_end_a_header() {
        assert_eq!(escape_path(b"/v2/keys/a\r\nX: y"), "/v2/keys/a%0D%0AX:%20y");
        assert_eq!(unescape(b"%2Fa+b%00", false).unwrap(), b"/a+b\0");
    }
}
