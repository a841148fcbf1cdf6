//! Signatures of manifests. Anyone who can write to a store can put anything there, under any name and date; only the signature shows
//! what this cluster wrote. It covers the whole manifest, including fields that a later quorate adds, and, through the digests, all
//! objects that the manifest describes.

use jiff::{SignedDuration, Timestamp};
use quorate_core::spec::Signer;
use quorate_pki::{SigningKey, is_signed_by};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::damage::Damage;
use crate::names::BackupId;

/// Clocks of two controllers may differ by so much.
const SKEW: SignedDuration = SignedDuration::from_hours(1);
const FIELD: &str = "signature";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Signature {
    pub by: Signer,
    /// In hexadecimal.
    pub value: String,
}

/// The kind of a signed manifest: one kind is never accepted as the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Full,
    Segment,
    Postgres,
}

impl Kind {
    fn context(self) -> &'static [u8] {
        match self {
            Kind::Full => b"quorate full backup 1\n",
            Kind::Segment => b"quorate changes 1\n",
            Kind::Postgres => b"quorate PostgreSQL backup 1\n",
        }
    }
}

/// Signs something that is stored as JSON; a signature that it has already is left out.
pub(crate) fn sign(key: &SigningKey, kind: Kind, what: &impl Serialize) -> Signature {
    let value = serde_json::to_value(what).expect("plain data serializes");
    Signature { by: key.signer(), value: key.sign(&message(kind, value)) }
}

/// The same bytes whatever the order and the spacing in the file.
fn message(kind: Kind, mut value: Value) -> Vec<u8> {
    if let Some(fields) = value.as_object_mut() {
        fields.remove(FIELD);
    }
    let mut message = kind.context().to_vec();
    write(&value, &mut message);
    message
}

fn write(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            into.push(b'{');
            for name in names {
                into.extend(Value::from(name.as_str()).to_string().into_bytes());
                into.push(b':');
                write(&fields[name], into);
                into.push(b',');
            }
            into.push(b'}');
        }
        Value::Array(items) => {
            into.push(b'[');
            for item in items {
                write(item, into);
                into.push(b',');
            }
            into.push(b']');
        }
        plain => into.extend(plain.to_string().into_bytes()),
    }
}

/// Whose backups are believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trust {
    /// The key that signs them; without one, nothing can be checked.
    pub signer: Option<Signer>,
    /// Since when the cluster signs: what has no signature and is younger is not the cluster's.
    pub since: Option<Timestamp>,
    /// Those without a signature are taken too, with the operator's consent.
    pub unsigned: bool,
    pub now: Timestamp,
}

impl Trust {
    /// Only what this key signed.
    pub fn only(signer: Signer, now: Timestamp) -> Self {
        Trust { signer: Some(signer), since: None, unsigned: false, now }
    }

    /// Anything, with the operator's consent: nothing can be checked.
    pub fn anything(now: Timestamp) -> Self {
        Trust { signer: None, since: None, unsigned: true, now }
    }
}

/// The result of checking a manifest's signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// The expected key signed it.
    Signed,
    /// Nobody signed it, or it cannot be checked: to be used with consent only.
    Unproven,
}

/// Judges a manifest as it is in the store. Damage where it is not the cluster's for certain.
pub(crate) fn judge(
    trust: &Trust,
    kind: Kind,
    id: &BackupId,
    path: &str,
    json: &[u8],
) -> Result<Standing, Box<Damage>> {
    check(trust, kind, id.begun(), json).map_err(|found| {
        let (id, path) = (id.clone(), path.to_owned());
        Box::new(match found {
            Found::Damaged(why) => Damage::Manifest { id, path, why },
            Found::Forged(why) => Damage::Forged { id, path, why },
        })
    })
}

/// Why a manifest is not believed.
pub(crate) enum Found {
    Damaged(String),
    Forged(String),
}

/// The same for a backup that was begun at this time.
pub(crate) fn check(trust: &Trust, kind: Kind, begun: Timestamp, json: &[u8]) -> Result<Standing, Found> {
    let Some(signer) = &trust.signer else { return Ok(Standing::Unproven) };
    let forged = |why: String| Err(Found::Forged(why));
    let Ok(value) = serde_json::from_slice::<Value>(json) else {
        return Err(Found::Damaged(String::from("it is not JSON")));
    };
    let signature = match value.get(FIELD) {
        None | Some(Value::Null) => {
            return match trust.since.filter(|since| begun > *since + SKEW) {
                Some(since) => {
                    forged(format!("it has no signature, and this cluster has signed its backups since {since}"))
                }
                None => Ok(Standing::Unproven),
            };
        }
        Some(signature) => match Signature::deserialize(signature) {
            Ok(signature) => signature,
            Err(error) => return forged(format!("its signature cannot be read: {error}")),
        },
    };
    if signature.by != *signer {
        return forged(format!("it is signed by {}, and this cluster's backups are signed by {signer}", signature.by));
    }
    match is_signed_by(signer, &message(kind, value), &signature.value) {
        true => Ok(Standing::Signed),
        false => forged(format!("its signature does not fit its content: it was changed after {signer} signed it")),
    }
}

/// An id from the future cannot exist yet, no matter who signed it.
pub(crate) fn is_of_the_future(trust: &Trust, id: &BackupId) -> bool {
    id.begun() > trust.now + SKEW
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id() -> BackupId {
        BackupId::new(Timestamp::UNIX_EPOCH, "0123abcd")
    }

    fn signed(key: &SigningKey, kind: Kind, mut what: Value) -> Value {
        what[FIELD] = serde_json::to_value(sign(key, kind, &what)).unwrap();
        what
    }

    fn judged(trust: &Trust, value: &Value) -> Result<Standing, Box<Damage>> {
        judge(trust, Kind::Full, &id(), "m", &serde_json::to_vec_pretty(value).unwrap())
    }

    #[test]
    fn any_change_breaks_the_signature_and_the_order_of_fields_does_not() {
        let key = SigningKey::generate();
        let trust = Trust::only(key.signer(), Timestamp::UNIX_EPOCH);
        let what = signed(&key, Kind::Full, json!({"b": [1, {"d": null, "c": "x"}], "a": "y"}));
        assert_eq!(judged(&trust, &what), Ok(Standing::Signed));
        let text = format!(r#"{{"a":"y", "signature": {}, "b":[1,{{"c":"x","d":null}}]}}"#, what[FIELD]);
        assert_eq!(judge(&trust, Kind::Full, &id(), "m", text.as_bytes()), Ok(Standing::Signed));
        for (field, value) in [("a", json!("z")), ("e", json!(1)), ("b", json!([1]))] {
            let mut changed = what.clone();
            changed[field] = value;
            assert!(judged(&trust, &changed).is_err_and(|damage| damage.is_forgery()), "{field}");
        }
        assert!(judge(&trust, Kind::Segment, &id(), "m", &serde_json::to_vec(&what).unwrap()).is_err());
    }

    #[test]
    fn another_key_is_named_and_a_missing_signature_is_known_by_its_date() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let trust = Trust::only(key.signer(), Timestamp::UNIX_EPOCH);
        let told = judged(&trust, &signed(&other, Kind::Full, json!({}))).unwrap_err().to_string();
        assert!(told.contains(&other.signer().to_string()) && told.contains(&key.signer().to_string()), "{told}");
        assert_eq!(judged(&trust, &json!({})), Ok(Standing::Unproven));
        let since = Some(Timestamp::UNIX_EPOCH - SignedDuration::from_hours(2));
        assert!(judged(&Trust { since, ..trust.clone() }, &json!({})).is_err());
        assert_eq!(judged(&Trust { signer: None, ..trust }, &json!({})), Ok(Standing::Unproven));
    }

    #[test]
    fn an_hour_of_clock_skew_is_tolerated() {
        let at = |seconds| Trust::anything(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds));
        assert!(!is_of_the_future(&at(-3600), &id()) && is_of_the_future(&at(-3601), &id()));
    }
}
