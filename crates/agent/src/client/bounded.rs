//! Limits the length of every text in an agent's answers. They end up in ledgers, histories and on terminals, and one compromised agent
//! could fill them all.

use quorate_core::text::cut;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A signing request for an RSA key has some KiB.
const LONGEST_TEXT: usize = 16 << 10;

/// Deserializes what is inside. Logs are not for this: they are all text.
pub(super) struct Bounded<A>(pub A);

impl<'de, A: DeserializeOwned> Deserialize<'de> for Bounded<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = bound(Value::deserialize(deserializer)?);
        serde_json::from_value(value).map(Bounded).map_err(D::Error::custom)
    }
}

fn bound(value: Value) -> Value {
    match value {
        Value::String(text) if text.len() > LONGEST_TEXT => Value::String(cut(&text, LONGEST_TEXT).into_owned()),
        Value::Array(items) => items.into_iter().map(bound).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (cut(&name, LONGEST_TEXT).into_owned(), bound(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Refusal;

    #[test]
    fn a_refusal_of_many_mebibytes_is_cut() {
        let told = Refusal::Failed { why: "y".repeat(8 << 20) };
        let Bounded(refusal): Bounded<Refusal> = serde_json::from_str(&serde_json::to_string(&told).unwrap()).unwrap();
        let why = refusal.to_string();
        assert!(why.len() < 17 << 10 && why.ends_with("(cut: 8388608 bytes)"), "{} bytes", why.len());
        let short = Refusal::Failed { why: String::from("no") };
        let Bounded(refusal): Bounded<Refusal> = serde_json::from_str(&serde_json::to_string(&short).unwrap()).unwrap();
        assert_eq!(refusal, short);
    }
}
