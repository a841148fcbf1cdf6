//! Converts between JSON and the bytes of a message, by the table of its fields. Follows protobuf's JSON mapping: bytes in base64,
//! 64-bit numbers as text, enums by name, and empty fields left out.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::schema::{Field, Message, TXN, TXN_ANSWER, Type};

/// Deeper transactions are refused by etcd too.
const DEEPEST: usize = 16;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const FOR_URLS: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// What is wrong with a request, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct BadJson {
    place: String,
    why: String,
}

fn bad<T>(place: &str, why: impl Into<String>) -> Result<T, BadJson> {
    Err(BadJson { place: place.to_owned(), why: why.into() })
}

/// The bytes of a message, from JSON. An empty text is an empty message.
pub fn to_wire(text: &[u8], message: Message) -> Result<Vec<u8>, BadJson> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let value = serde_json::from_slice(text).or_else(|error| bad("body", format!("not JSON: {error}")))?;
    let mut bytes = Vec::with_capacity(text.len());
    put_message(&mut bytes, &value, message, "body", 0)?;
    Ok(bytes)
}

fn put_message(to: &mut Vec<u8>, value: &Value, message: Message, place: &str, depth: usize) -> Result<(), BadJson> {
    let Value::Object(object) = value else { return bad(place, "expected an object") };
    if depth > DEEPEST {
        return bad(place, format!("nested more than {DEEPEST} times"));
    }
    for (name, value) in object {
        let Some(field) = message.iter().find(|field| is_named(field, name)) else {
            let known: Vec<&str> = message.iter().map(|field| field.name).collect();
            return bad(place, format!("unknown field {name:?}; expected one of: {}", known.join(", ")));
        };
        let place = format!("{place}.{}", field.name);
        match (value, field.many) {
            (Value::Null, _) => {}
            (Value::Array(values), true) => {
                for (at, value) in values.iter().enumerate() {
                    put(to, value, field, &format!("{place}[{at}]"), depth)?;
                }
            }
            (_, true) => return bad(&place, "expected a list"),
            (value, false) => put(to, value, field, &place, depth)?,
        }
    }
    Ok(())
}

/// By its name in protobuf or in its JSON form: `range_end` or `rangeEnd`.
fn is_named(field: &Field, name: &str) -> bool {
    let mut camel = String::with_capacity(field.name.len());
    let mut upper = false;
    for c in field.name.chars() {
        match c {
            '_' => upper = true,
            c if std::mem::take(&mut upper) => camel.push(c.to_ascii_uppercase()),
            c => camel.push(c),
        }
    }
    name == field.name || name == camel
}

fn put(to: &mut Vec<u8>, value: &Value, field: &Field, place: &str, depth: usize) -> Result<(), BadJson> {
    let number = field.number;
    match field.of {
        Type::Bytes => {
            let Value::String(text) = value else { return bad(place, "expected text in base64") };
            let bytes = STANDARD.decode(text).or_else(|_| FOR_URLS.decode(text));
            put_bytes(to, number, &bytes.or_else(|error| bad(place, format!("not base64: {error}")))?);
        }
        Type::Text => {
            let Value::String(text) = value else { return bad(place, "expected text") };
            put_bytes(to, number, text.as_bytes());
        }
        Type::Bool => {
            let Value::Bool(yes) = value else { return bad(place, "expected true or false") };
            put_number(to, number, u64::from(*yes));
        }
        Type::I64 => put_number(to, number, whole::<i64>(value, place)?.cast_unsigned()),
        Type::U64 => put_number(to, number, whole(value, place)?),
        Type::Enum(names) => {
            let at = match value {
                Value::String(text) => names.iter().position(|name| name == text).map(|at| at as u64),
                value => value.as_u64().filter(|at| *at < names.len() as u64),
            };
            let Some(at) = at else { return bad(place, format!("expected one of: {}", names.join(", "))) };
            put_number(to, number, at);
        }
        Type::Message(message) => put_inner(to, value, number, message, place, depth)?,
        Type::Txn => put_inner(to, value, number, TXN, place, depth)?,
        Type::TxnAnswer => put_inner(to, value, number, TXN_ANSWER, place, depth)?,
    }
    Ok(())
}

fn put_inner(
    to: &mut Vec<u8>,
    value: &Value,
    number: u32,
    message: Message,
    place: &str,
    depth: usize,
) -> Result<(), BadJson> {
    let mut inner = Vec::new();
    put_message(&mut inner, value, message, place, depth + 1)?;
    put_bytes(to, number, &inner);
    Ok(())
}

/// A number, or one as text: JSON's own numbers lose digits in many programs.
fn whole<N: std::str::FromStr + TryFrom<i128>>(value: &Value, place: &str) -> Result<N, BadJson> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => {
            let number = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            number.and_then(|number| N::try_from(number).ok())
        }
        _ => None,
    };
    number.map_or_else(|| bad(place, "expected a whole number of 64 bits, as a number or as text"), Ok)
}

fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn put_number(to: &mut Vec<u8>, field: u32, number: u64) {
    put_varint(to, u64::from(field) << 3);
    put_varint(to, number);
}

fn put_bytes(to: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(to, u64::from(field) << 3 | 2);
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// The JSON of a message between two texts. `None` if the bytes are no such message. Nothing else is made on the way: as values, a list
/// of small pairs would take many times its size.
pub fn text(before: &str, bytes: &[u8], message: Message, after: &str) -> Option<String> {
    let mut text = String::with_capacity(before.len() + length(bytes, message)? + after.len());
    text.push_str(before);
    object(&mut text, bytes, message, 0)?;
    text.push_str(after);
    Some(text)
}

/// How long the JSON of a message is.
pub fn length(bytes: &[u8], message: Message) -> Option<usize> {
    let mut length = Length(0);
    object(&mut length, bytes, message, 0)?;
    Some(length.0)
}

/// Takes the text, or counts it.
trait Sink {
    fn put(&mut self, text: &str);
    fn base64(&mut self, bytes: &[u8]);

    /// What needs no escapes.
    fn plain(&mut self, text: &str) {
        self.put("\"");
        self.put(text);
        self.put("\"");
    }

    fn name(&mut self, field: &Field) {
        self.plain(field.name);
        self.put(":");
    }
}

impl Sink for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }

    fn base64(&mut self, bytes: &[u8]) {
        STANDARD.encode_string(bytes, self);
    }
}

struct Length(usize);

impl Sink for Length {
    fn put(&mut self, text: &str) {
        self.0 += text.len();
    }

    fn base64(&mut self, bytes: &[u8]) {
        self.0 += bytes.len().div_ceil(3) * 4;
    }
}

fn object(to: &mut impl Sink, bytes: &[u8], message: Message, depth: usize) -> Option<()> {
    if depth > DEEPEST {
        return None;
    }
    let mut before = "{";
    for field in message {
        let (mut last, mut is_open) = (None, false);
        each(bytes, field, |wire| {
            if !field.many {
                last = Some(wire);
                return Some(());
            }
            if std::mem::replace(&mut is_open, true) {
                to.put(",");
            } else {
                to.put(before);
                to.name(field);
                to.put("[");
            }
            value(to, field.of, wire, depth)
        })?;
        if let Some(wire) = last {
            to.put(before);
            to.name(field);
            value(to, field.of, wire, depth)?;
            before = ",";
        } else if is_open {
            to.put("]");
            before = ",";
        }
    }
    to.put(if before == "{" { "{}" } else { "}" });
    Some(())
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a width that no field here has.
    Other,
}

/// What the bytes have for a field, wherever it is.
fn each<'a>(mut bytes: &'a [u8], field: &Field, mut then: impl FnMut(Wire<'a>) -> Option<()>) -> Option<()> {
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        let wire = take_wire(&mut bytes, key & 7)?;
        if key >> 3 != u64::from(field.number) {
            continue;
        }
        match (field.many, field.of, wire) {
            // Numbers of a list come in one piece, or in several.
            (true, Type::Enum(_) | Type::I64 | Type::U64 | Type::Bool, Wire::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    then(Wire::Number(take_varint(&mut packed)?))?;
                }
            }
            (_, _, wire) => then(wire)?,
        }
    }
    Some(())
}

fn value(to: &mut impl Sink, of: Type, wire: Wire<'_>, depth: usize) -> Option<()> {
    match (of, wire) {
        (Type::Bytes, Wire::Bytes(bytes)) => {
            to.put("\"");
            to.base64(bytes);
            to.put("\"");
        }
        (Type::Text, Wire::Bytes(bytes)) => {
            to.put(&serde_json::to_string(std::str::from_utf8(bytes).ok()?).ok()?);
        }
        (Type::Bool, Wire::Number(number)) => to.put(if number == 0 { "false" } else { "true" }),
        (Type::I64, Wire::Number(number)) => to.plain(&number.cast_signed().to_string()),
        (Type::U64, Wire::Number(number)) => to.plain(&number.to_string()),
        (Type::Enum(names), Wire::Number(number)) => match names.get(usize::try_from(number).ok()?) {
            Some(name) => to.plain(name),
            None => to.put(&number.to_string()),
        },
        (Type::Message(message), Wire::Bytes(bytes)) => object(to, bytes, message, depth + 1)?,
        (Type::Txn, Wire::Bytes(bytes)) => object(to, bytes, TXN, depth + 1)?,
        (Type::TxnAnswer, Wire::Bytes(bytes)) => object(to, bytes, TXN_ANSWER, depth + 1)?,
        _ => return None,
    }
    Some(())
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_wire<'a>(bytes: &mut &'a [u8], kind: u64) -> Option<Wire<'a>> {
    let length = match kind {
        0 => return take_varint(bytes).map(Wire::Number),
        1 => 8,
        2 => usize::try_from(take_varint(bytes)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(if kind == 2 { Wire::Bytes(taken) } else { Wire::Other })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::schema;
    use super::*;

    fn there_and_back(json: &str, message: Message) -> Value {
        let bytes = to_wire(json.as_bytes(), message).unwrap();
        let back = text("", &bytes, message, "\n").unwrap();
        assert_eq!(back.len(), length(&bytes, message).unwrap() + 1, "{back}");
        serde_json::from_str(&back).unwrap()
    }

    #[test]
    fn stored_data_is_read_back_unchanged() {
        let put = r#"{"key":"Zm9v","value":"YmFy","lease":"-9223372036854775808","prev_kv":true}"#;
        assert_eq!(there_and_back(put, schema::PUT), serde_json::from_str::<Value>(put).unwrap());
        let range =
            there_and_back(r#"{"rangeEnd":"AA","limit":5,"sortOrder":"DESCEND","sort_target":3}"#, schema::RANGE);
        assert_eq!(range, json!({"range_end": "AA==", "limit": "5", "sort_order": "DESCEND", "sort_target": "MOD"}));
        let txn = r#"{"compare":[{"key":"Zm9v","target":"VERSION","version":"0"}],"success":[{"request_txn":{"success":[{"request_put":{"key":"Zg=="}}]}}]}"#;
        assert_eq!(there_and_back(txn, schema::TXN), serde_json::from_str::<Value>(txn).unwrap());
        let filters = r#"{"create_request":{"key":"Zg==","filters":["NODELETE","NOPUT"]}}"#;
        assert_eq!(there_and_back(filters, schema::WATCH), serde_json::from_str::<Value>(filters).unwrap());
        assert_eq!(there_and_back("", schema::RANGE), json!({}));
    }

    #[test]
    fn parts_of_a_list_may_be_apart_and_the_last_of_what_is_one_counts() {
        let parts = [r#"{"kvs":[{"key":"Zg=="}],"count":"1"}"#, r#"{"kvs":[{"key":"Zm8="}],"more":true,"count":"2"}"#];
        let bytes = parts.map(|part| to_wire(part.as_bytes(), schema::RANGE_ANSWER).unwrap()).concat();
        let read: Value = serde_json::from_str(&text("", &bytes, schema::RANGE_ANSWER, "").unwrap()).unwrap();
        assert_eq!(read, json!({"kvs": [{"key": "Zg=="}, {"key": "Zm8="}], "more": true, "count": "2"}));
        let filters = [0x2a, 2, 1, 0];
        let create = schema::WATCH.iter().find_map(|field| match field.of {
            Type::Message(message) if field.name == "create_request" => Some(message),
            _ => None,
        });
        let read = text("", &filters, create.unwrap(), "").unwrap();
        assert_eq!(read, r#"{"filters":["NODELETE","NOPUT"]}"#, "numbers in one piece");
        let version = [0x12, 7, b'"', b'\n', b'a', 0xc3, 0xa4, b'\\', b'b'];
        let read: Value =
            serde_json::from_str(&text("", &version, schema::STATUS_ANSWER, "").unwrap()).expect("escaped");
        assert_eq!(read["version"], "\"\na\u{e4}\\b");
        assert_eq!(text("", &[0x12, 1, 0xff], schema::STATUS_ANSWER, ""), None, "not text");
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let why = |text: &str| to_wire(text.as_bytes(), schema::TXN).unwrap_err().to_string();
        assert!(why("{").starts_with("body: not JSON"));
        assert!(why("[]").starts_with("body: expected an object"));
        assert!(
            why(r#"{"sucess":[]}"#).contains(r#"unknown field "sucess"; expected one of: compare, success, failure"#)
        );
        let inner = why(r#"{"success":[{},{"request_put":{"key":"%"}}]}"#);
        assert!(inner.starts_with("body.success[1].request_put.key: not base64"), "{inner}");
        assert!(why(r#"{"compare":[{"version":1.5}]}"#).contains("whole number"));
        assert!(why(r#"{"compare":[{"version":"9223372036854775808"}]}"#).contains("whole number"));
        let deep = format!("{}{}", r#"{"success":[{"request_txn":"#.repeat(40), "}]}".repeat(40));
        assert!(to_wire(deep.as_bytes(), schema::TXN).is_err());
    }

    #[test]
    fn fuzz_neither_side_panics_or_grows() {
        let good = to_wire(
            br#"{"compare":[{"key":"Zm9v","version":"7"}],"success":[{"request_put":{"key":"Zg==","value":"AAEC"}}]}"#,
            schema::TXN,
        )
        .unwrap();
        let text = br#"{"create_request":{"key":"Zg==","start_revision":"9","filters":["NOPUT",1],"prev_kv":true}}"#;
        for seed in 0..2000_usize {
            let mut bytes = good.clone();
            let mut words = text.to_vec();
            for at in 0..=seed % 4 {
                let place = seed.wrapping_mul(31).wrapping_add(at * 17) % bytes.len();
                bytes[place] = bytes[place].wrapping_add((seed / 7) as u8 | 1);
                let place = seed.wrapping_mul(13).wrapping_add(at * 29) % words.len();
                words[place] = words[place].wrapping_add((seed / 5) as u8 | 1);
            }
            let _ = super::text("", &bytes, schema::TXN, "");
            let _ = super::text("", &bytes[..seed % bytes.len()], schema::TXN_ANSWER, "");
            let _ = to_wire(&words, schema::WATCH);
        }
    }
}
