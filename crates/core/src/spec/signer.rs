//! The public half of the key that signs a cluster's backups. Only its form is checked here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::units::Malformed;

const PREFIX: &str = "ed25519:";
const BYTES: usize = 32;

/// An Ed25519 public key, as `quorate backup list` prints it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signer([u8; BYTES]);

impl Signer {
    pub fn new(bytes: [u8; BYTES]) -> Self {
        Signer(bytes)
    }

    pub fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

impl FromStr for Signer {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let wrong = || {
            Malformed(format!(
                "expected `{PREFIX}` and {} hexadecimal digits in lower case, as `quorate backup list` prints them, found `{text}`",
                2 * BYTES
            ))
        };
        let digits = text.strip_prefix(PREFIX).ok_or_else(wrong)?;
        let plain = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if digits.len() != 2 * BYTES || !plain {
            return Err(wrong());
        }
        let mut bytes = [0; BYTES];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Signer(bytes))
    }
}

impl TryFrom<String> for Signer {
    type Error = Malformed;

    fn try_from(text: String) -> Result<Self, Malformed> {
        text.parse()
    }
}

impl From<Signer> for String {
    fn from(signer: Signer) -> String {
        signer.to_string()
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl schemars::JsonSchema for Signer {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Signer".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "signer" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_written() {
        let signer = Signer::new(std::array::from_fn(|place| u8::try_from(place).unwrap()));
        assert_eq!(signer.to_string().parse::<Signer>().unwrap(), signer);
        let text = signer.to_string();
        for bad in ["", "ed25519:", &text[1..], &text[..text.len() - 1], &text.to_uppercase(), &format!("{text}0")] {
            assert!(bad.parse::<Signer>().is_err(), "{bad}");
        }
    }
}
