//! age public keys, checked as far as typing errors: their checksum is compared, and nothing is encrypted here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::units::Malformed;

/// The letters of bech32; the value of each is its index.
const LETTERS: &str = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";
const PREFIX: &str = "age";
/// `age1`, 32 bytes in 52 letters, and 6 letters of checksum.
const LENGTH: usize = 62;

/// An age public key of the kind X25519, such as `age-keygen` makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Recipient(String);

impl Recipient {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Recipient {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let wrong = |why: String| Err(Malformed(why));
        if text.to_ascii_uppercase().starts_with("AGE-SECRET-KEY-") {
            return wrong(
                "this is an age secret key; only public keys belong here, which begin with `age1`".to_owned(),
            );
        }
        let Some(data) = text.strip_prefix("age1") else {
            return wrong(format!("expected an age public key, which begins with `age1`, found `{text}`"));
        };
        if let Some(plugin) = data.split_once('1').map(|(plugin, _)| plugin) {
            return wrong(format!("`{text}` is a key of the kind `{plugin}`; only keys from `age-keygen` can be used"));
        }
        let values: Option<Vec<u32>> =
            data.chars().map(|c| LETTERS.find(c).and_then(|at| at.try_into().ok())).collect();
        let Some(values) = values.filter(|_| text.len() == LENGTH) else {
            return wrong(format!(
                "`{text}` is not an age public key: expected {LENGTH} lower case letters and digits, without b, i and o"
            ));
        };
        if !fits(&values) {
            return wrong(format!("the checksum of the age public key `{text}` does not fit: a letter is wrong"));
        }
        Ok(Recipient(text.to_owned()))
    }
}

/// The checksum of bech32: the remainder of prefix and data, read as a polynomial, is one.
fn fits(data: &[u32]) -> bool {
    let high = PREFIX.bytes().map(|byte| u32::from(byte >> 5));
    let low = PREFIX.bytes().map(|byte| u32::from(byte & 31));
    let all = high.chain([0]).chain(low).chain(data.iter().copied());
    let remainder = all.fold(1u32, |sum, value| {
        let top = sum >> 25;
        let shifted = ((sum & 0x1ff_ffff) << 5) ^ value;
        let generators = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
        generators.iter().enumerate().fold(
            shifted,
            |sum, (bit, generator)| {
                if top >> bit & 1 == 1 { sum ^ generator } else { sum }
            },
        )
    });
    remainder == 1
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Recipient {
    type Error = Malformed;
    fn try_from(text: String) -> Result<Self, Malformed> {
        text.parse()
    }
}

impl From<Recipient> for String {
    fn from(recipient: Recipient) -> String {
        recipient.0
    }
}

impl schemars::JsonSchema for Recipient {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Recipient".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "age-recipient" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the age specification.
    const KNOWN: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

    #[test]
    fn a_typing_error_is_found() {
        assert_eq!(KNOWN.parse::<Recipient>().unwrap().as_str(), KNOWN);
        for at in 4..KNOWN.len() {
            let mut wrong = KNOWN.to_owned();
            let other = if &KNOWN[at..=at] == "q" { "p" } else { "q" };
            wrong.replace_range(at..=at, other);
            assert!(wrong.parse::<Recipient>().is_err(), "{wrong}");
        }
        for wrong in ["", "age1", "age1b", &KNOWN[..61], &format!("{KNOWN}q"), "ssh-ed25519 AAAA", "age1yubikey1qqq"] {
            assert!(wrong.parse::<Recipient>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_secret_key_is_not_repeated() {
        let error = "AGE-SECRET-KEY-1QQQ".parse::<Recipient>().unwrap_err().to_string();
        assert!(!error.contains("QQQ") && error.contains("public"), "{error}");
    }
}
