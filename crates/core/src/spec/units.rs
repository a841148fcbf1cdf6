//! Values of a spec that are text in a special form: sizes, durations, validity periods, names. Parsing errors say what
//! was expected, and the written form can be read again.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text has the wrong format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) String);

fn malformed<T>(message: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(message.into()))
}

/// Ties a type with `FromStr` and `Display` to serde as text, and to the schema by the name of its format.
macro_rules! written_as_text {
    ($type:ty, $format:literal, $kinds:tt) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl schemars::JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": $kinds, "format": $format })
            }
        }
    };
}

written_as_text!(Size, "size", ["string", "integer"]);
written_as_text!(Validity, "validity", "string");
written_as_text!(Millis, "duration", "string");
written_as_text!(Retention, "retention", ["string", "integer"]);
written_as_text!(Name, "name", "string");
written_as_text!(AuthName, "auth-name", "string");
written_as_text!(Sha256, "sha256", "string");
written_as_text!(San, "san", "string");
written_as_text!(AddressRange, "address-range", "string");
written_as_text!(Mac, "mac", "string");
written_as_text!(Uuid, "uuid", "string");
written_as_text!(VolumeName, "volume", "string");

/// Checks a text against the format that the schema names. Formats that are not ours pass.
pub(super) fn check_format(format: &str, text: &str) -> Result<(), String> {
    fn read<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<(), String> {
        text.parse::<T>().map(drop).map_err(|error| error.to_string())
    }
    match format {
        "size" => read::<Size>(text),
        "validity" => read::<Validity>(text),
        "duration" => read::<Millis>(text),
        "retention" => read::<Retention>(text),
        "name" => read::<Name>(text),
        "auth-name" => read::<AuthName>(text),
        "sha256" => read::<Sha256>(text),
        "san" => read::<San>(text),
        "address-range" => read::<AddressRange>(text),
        "mac" => read::<Mac>(text),
        "uuid" => read::<Uuid>(text),
        "volume" => read::<VolumeName>(text),
        "age-recipient" => read::<super::Recipient>(text),
        "signer" => read::<super::Signer>(text),
        "version" => read::<crate::model::Version>(text),
        "ip" => text.parse::<IpAddr>().map(drop).map_err(|_| format!("expected an IP address, found `{text}`")),
        "uri" if !is_web_address(text) => Err(format!("expected an http:// or https:// address, found `{text}`")),
        _ => Ok(()),
    }
}

fn is_web_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with('/') && rest.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

/// Splits "12h" into 12 and "h".
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim_start()))
}

/// A number with a fraction, such as 1 and ".5GiB", in the largest unit in which it is whole.
fn whole(number: u64, fraction: &str, units: &[(&str, u64)]) -> Option<String> {
    let fraction = fraction.strip_prefix('.')?;
    let end = fraction.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = (&fraction[..end], fraction[end..].trim_start());
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    let tenths = 10_u64.checked_pow(digits.len().try_into().ok()?)?;
    let parts = scale.checked_mul(digits.parse().ok()?)?;
    let value = number.checked_mul(scale)?.checked_add(parts.is_multiple_of(tenths).then(|| parts / tenths)?)?;
    // If the user wrote GiB, the message does not show MB.
    let alike = |name: &str| !name.is_empty() && name.ends_with("iB") == unit.ends_with("iB");
    let (name, scale) = units.iter().find(|(name, scale)| alike(name) && value.is_multiple_of(*scale))?;
    Some(format!("{}{name}", value / scale))
}

/// Reads "<number><unit>" by a table of units. Zero and overflow are errors too.
fn scaled(text: &str, units: &[(&str, u64)], expected: &str) -> Result<u64, Malformed> {
    let Some((number, unit)) = number_and_unit(text) else {
        return malformed(format!("expected {expected}, found `{text}`"));
    };
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
        return malformed(match unit {
            "" => format!("`{text}` has no unit; expected {expected}"),
            _ if unit.starts_with('.') => match whole(number, unit, units) {
                Some(instead) => format!("whole numbers only: write {instead} for `{text}`"),
                None => format!("whole numbers only, not `{text}`"),
            },
            _ => format!("unknown unit `{unit}` in `{text}`; use one of {}", names.join(", ")),
        });
    };
    match number.checked_mul(*scale) {
        Some(0) => malformed(format!("`{text}` must be more than zero")),
        Some(value) => Ok(value),
        None => malformed(format!("`{text}` is too large")),
    }
}

/// Writes a value in the first unit of the table that divides it.
fn in_largest_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let exact = units.iter().find(|(_, scale)| value.is_multiple_of(*scale));
    let (unit, scale) = exact.copied().unwrap_or(("", 1));
    write!(f, "{}{unit}", value / scale)
}

/// Addresses with a common beginning, such as `10.0.0.0/8`, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    pub address: IpAddr,
    pub prefix: u8,
}

impl AddressRange {
    /// This address alone.
    pub fn of(address: IpAddr) -> Self {
        AddressRange { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        first_of(address, self.prefix) == Some(self.address)
    }
}

/// The first address of the range that an address is in; none where the prefix is too long for it.
fn first_of(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(prefix)?).unwrap_or_default();
            Some(IpAddr::from((address.to_bits() & mask).to_be_bytes()))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(prefix)?).unwrap_or_default();
            Some(IpAddr::from((address.to_bits() & mask).to_be_bytes()))
        }
    }
}

/// That address alone.
impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> Self {
        AddressRange { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for AddressRange {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let wrong = || Malformed(format!("expected a range such as 10.0.0.0/8 or an IP address, found `{text}`"));
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse::<u8>().ok().filter(|prefix| *prefix <= all).ok_or_else(wrong)?,
            None => all,
        };
        match first_of(address, prefix) {
            Some(first) if first == address => Ok(Self { address, prefix }),
            Some(first) => malformed(format!("`{text}` begins inside of its range; expected {first}/{prefix}")),
            None => Err(wrong()),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A number of bytes, such as `8GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

impl Size {
    pub const fn gibibytes(number: u64) -> Self {
        Self(number << 30)
    }

    /// To whole mebibytes, which people can read.
    pub const fn rounded_up(bytes: u64) -> Self {
        Self(bytes.div_ceil(1 << 20).saturating_mul(1 << 20))
    }
}

/// Largest first, as writing needs it.
const SIZES: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

impl FromStr for Size {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let bytes = scaled(text, &SIZES, "a size such as 8GiB, 512MiB or a number of bytes")?;
        // etcd reads its quota as a signed number.
        if i64::try_from(bytes).is_err() { malformed(format!("`{text}` is too large")) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_largest_unit(f, self.0, &SIZES)
    }
}

/// The validity of a certificate, in whole hours, such as `1y`. A year is 365 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Validity {
    hours: u64,
}

impl Validity {
    pub const fn hours(hours: u64) -> Self {
        Self { hours }
    }
    pub const fn days(days: u64) -> Self {
        Self::hours(days * 24)
    }
    pub const fn years(years: u64) -> Self {
        Self::days(years * 365)
    }
    pub const fn as_hours(self) -> u64 {
        self.hours
    }
    pub fn as_duration(self) -> SignedDuration {
        SignedDuration::from_hours(i64::try_from(self.hours).unwrap_or(i64::MAX / 3600))
    }
}

const VALIDITIES: [(&str, u64); 3] = [("y", 365 * 24), ("d", 24), ("h", 1)];

impl FromStr for Validity {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let validity = Self::hours(scaled(text, &VALIDITIES, "a time such as 90d, 1y or 36h")?);
        // Certificates write their years with four digits; a century is far from that and from every overflow.
        if validity > Self::years(100) { malformed(format!("`{text}` is more than 100y")) } else { Ok(validity) }
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_largest_unit(f, self.hours, &VALIDITIES)
    }
}

/// A short time in milliseconds, such as `100ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

const MILLIS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for Millis {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        scaled(text, &MILLIS, "a duration such as 100ms, 1s, 30m or 12h").map(Self)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        in_largest_unit(f, self.0, &MILLIS)
    }
}

/// How much history auto compaction keeps. `Display` writes it as etcd's flag wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Revisions, or hours when compaction is periodic. Zero turns compaction off.
    Number(u64),
    Time(Millis),
}

impl FromStr for Retention {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        match number_and_unit(text) {
            Some((number, "")) if i64::try_from(number).is_ok() => Ok(Self::Number(number)),
            Some((_, "")) => malformed(format!("`{text}` is too large")),
            Some(_) => text.parse().map(Self::Time),
            None => malformed(format!("expected a whole number, or a duration such as 30m or 12h, found `{text}`")),
        }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Time(time) => time.fmt(f),
        }
    }
}

/// Types that are a checked text and nothing more.
macro_rules! checked_text {
    ($type:ident) => {
        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }
        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }
    };
}

/// The longest DNS label, and so the longest name of a machine.
pub const LONGEST_NAME: usize = 63;

/// The name of a cluster, a namespace or a member: a DNS label, because machines are named after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);
checked_text!(Name);

impl FromStr for Name {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.len() > LONGEST_NAME {
            malformed(format!("the name `{text}` has {} characters, and may have {LONGEST_NAME}", text.len()))
        } else if text.is_empty() || !text.bytes().all(inner) || text.starts_with('-') || text.ends_with('-') {
            malformed(format!("the name `{text}` must be lower case letters, digits and inner hyphens"))
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

/// The name of an etcd user or role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthName(String);
checked_text!(AuthName);

impl FromStr for AuthName {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        // 64 is the longest common name of a certificate; etcdctl splits user and password at a colon.
        if text.is_empty() || text.len() > 64 {
            malformed(format!("the name `{text}` must have 1 to 64 characters"))
        } else if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            malformed(format!("the name `{text}` must be ASCII without spaces and colons"))
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

/// A SHA-256 checksum in lower case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256(String);
checked_text!(Sha256);

impl FromStr for Sha256 {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            malformed(format!("expected 64 hexadecimal digits, found `{text}` ({} characters)", text.len()))
        }
    }
}

/// A MAC address, in lower case with colons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(String);
checked_text!(Mac);

impl FromStr for Mac {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let bytes: Vec<&str> = text.split(':').collect();
        let pair = |pair: &&str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        if bytes.len() != 6 || !bytes.iter().all(pair) {
            return malformed(format!("expected a MAC address such as 52:54:00:de:e3:64, found `{text}`"));
        }
        // The lowest bit of the first byte.
        if u8::from_str_radix(bytes[0], 16).is_ok_and(|first| first & 1 == 1) {
            return malformed(format!(
                "`{text}` is a multicast MAC address, not that of one interface; begin it with 52:54:00"
            ));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// A UUID, in lower case with hyphens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(String);
checked_text!(Uuid);

impl FromStr for Uuid {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if groups != [8, 4, 4, 4, 12] || !hexadecimal {
            return malformed(format!("expected a UUID such as 6e1e2b0c-1f5d-4a57-9c1e-0a4f6a1d2b3c, found `{text}`"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// A volume of libvirt: `NAME` in the default pool, or `POOL/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);
checked_text!(VolumeName);

impl VolumeName {
    /// Its pool and its name.
    pub fn within<'a>(&'a self, pool: &'a str) -> (&'a str, &'a str) {
        self.0.split_once('/').unwrap_or((pool, &self.0))
    }
}

impl FromStr for VolumeName {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let parts: Vec<&str> = text.split('/').collect();
        if text.starts_with('/') {
            return malformed(format!("expected the name of a volume, not the path of a file, found `{text}`"));
        }
        if parts.len() > 2 || parts.iter().any(|part| part.is_empty() || part.contains(char::is_control)) {
            return malformed(format!("expected a volume as NAME or POOL/NAME, found `{text}`"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A further name or address in the certificates of members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum San {
    Dns(String),
    Ip(IpAddr),
}

impl FromStr for San {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<Self, Malformed> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= LONGEST_NAME
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        // "10.0.0.300" reads as a name of four labels, and was surely meant as an address.
        let numeric = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !numeric && text.len() <= 253 && text.strip_prefix("*.").unwrap_or(text).split('.').all(label) {
            Ok(Self::Dns(text.to_owned()))
        } else {
            malformed(format!("expected a DNS name or an IP address, found `{text}`"))
        }
    }
}

impl fmt::Display for San {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => name.fmt(f),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
