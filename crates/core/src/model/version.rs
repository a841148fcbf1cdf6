//! Versions of released programs: quorate, and what a kind runs.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The version of a release, such as 3.6.14.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Its major and minor, such as 3.6: a release line.
    pub fn line(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a version such as 3.6.14, found `{0}`")]
pub struct NotAVersion(String);

impl FromStr for Version {
    type Err = NotAVersion;

    /// A leading `v` is accepted, because tags of releases often carry one.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let fail = || NotAVersion(text.to_owned());
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.').map(whole_number);
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => Ok(Self::new(major, minor, patch)),
            _ => Err(fail()),
        }
    }
}

/// `u32::from_str` also accepts "+3"; a version does not.
fn whole_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl TryFrom<String> for Version {
    type Error = NotAVersion;
    fn try_from(text: String) -> Result<Self, NotAVersion> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

impl schemars::JsonSchema for Version {
    fn schema_name() -> Cow<'static, str> {
        "Version".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "version", "pattern": r"^v?\d+\.\d+\.\d+$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_compared_and_written() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert_eq!(version("v3.6.14"), Version::new(3, 6, 14));
        assert!(version("3.5.9") < version("3.5.10"));
        assert_eq!(serde_json::to_string(&version("3.6.14")).unwrap(), "\"3.6.14\"");
        for wrong in ["", "3", "3.6", "3.6.x", "3.6.14.1", "3.6.+1", "3.6.14-rc.0", " 3.6.14", "3..1"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong:?}");
        }
    }
}
