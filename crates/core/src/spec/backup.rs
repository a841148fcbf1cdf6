//! The spec's `backup` section as types: where backups are stored, how often they are taken, how many are kept, and for whom
//! they are encrypted. Also the format of the file with a store's keys. Plain data; `check` has the rules that involve several
//! fields.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::recipient::Recipient;
use super::signer::Signer;
use super::units::{Malformed, Millis, Size};
use crate::Secret;

/// Backups of the cluster's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupSettings {
    /// Where backups are stored.
    pub to: Destination,
    /// A second destination, which gets a copy of everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also_to: Option<Destination>,
    /// How often `quorate backup watch` takes a full backup, at least.
    #[serde(default = "default_schedule")]
    pub schedule: Millis,
    /// How often `quorate backup watch` takes an incremental backup between full ones. Of PostgreSQL alone; if absent, it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incremental: Option<Millis>,
    /// How many full backups `quorate backup prune` keeps.
    #[serde(default)]
    pub keep: Keep,
    /// age public keys. Their owners can decrypt the backups. Without any, backups are not encrypted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<Recipient>,
    /// The public key of the cluster's backup signatures, as `quorate backup list` prints it. A restore without the cluster's ledger
    /// accepts only backups with its signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<Signer>,
    /// zstd level: 1 is the fastest, 19 the smallest.
    #[serde(default = "default_compression")]
    #[schemars(range(min = 1, max = 19))]
    pub compression: u32,
    /// Upload limit per second. If absent, there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
}

fn default_schedule() -> Millis {
    Millis(24 * 3_600_000)
}

fn default_compression() -> u32 {
    3
}

/// A destination of backups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "DestinationFields", into = "DestinationFields")]
pub enum Destination {
    S3(S3Destination),
    Directory(PathBuf),
}

impl JsonSchema for Destination {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Destination".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        DestinationFields::json_schema(generator)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Directory(path) => write!(f, "{}", path.display()),
            Destination::S3(s3) => write!(f, "s3://{}/{}", s3.bucket, s3.prefix),
        }
    }
}

/// A destination of backups: a bucket of an `s3` store, or a `directory`.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [{"required": ["s3"]}, {"required": ["directory"]}]))]
struct DestinationFields {
    /// A bucket of an S3-compatible store.
    #[serde(skip_serializing_if = "Option::is_none")]
    s3: Option<S3Destination>,
    /// A directory on the machine where quorate runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    directory: Option<PathBuf>,
}

impl TryFrom<DestinationFields> for Destination {
    type Error = Malformed;
    fn try_from(fields: DestinationFields) -> Result<Self, Malformed> {
        match fields {
            DestinationFields { s3: Some(s3), directory: None } => Ok(Self::S3(s3)),
            DestinationFields { s3: None, directory: Some(directory) } => Ok(Self::Directory(directory)),
            _ => Err(Malformed("a destination is either s3 or directory".to_owned())),
        }
    }
}

impl From<Destination> for DestinationFields {
    fn from(destination: Destination) -> Self {
        match destination {
            Destination::S3(s3) => Self { s3: Some(s3), directory: None },
            Destination::Directory(directory) => Self { s3: None, directory: Some(directory) },
        }
    }
}

/// A bucket of an S3-compatible store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct S3Destination {
    /// URL of the store. If absent, AWS in `region`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(url)]
    pub endpoint: Option<String>,
    /// Region of the bucket; stores without regions accept any.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1))]
    pub region: String,
    /// Name of the bucket, which must exist.
    #[schemars(length(min = 1))]
    pub bucket: String,
    /// Prefix of all object names, such as `etcd/`; the cluster's name follows it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Whether URLs have the bucket in their path. If not, it is in the host name, as AWS prefers.
    #[serde(default = "default_path_style")]
    pub path_style: bool,
    /// The CA that signed the store's certificate, in PEM. If absent, those that the system trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Where the credentials of the store come from.
    #[serde(default)]
    pub credentials: Credentials,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

fn default_path_style() -> bool {
    true
}

/// Where the credentials of a store come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credentials {
    /// The variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, where there is one, `AWS_SESSION_TOKEN`.
    #[default]
    Environment,
    /// The role of the machine that quorate runs on.
    MachineRole,
    /// A file that only its owner may read.
    File(PathBuf),
}

impl JsonSchema for Credentials {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Credentials".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [
                {
                    "type": "string",
                    "const": "environment",
                    "description": "The variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.",
                },
                {
                    "type": "string",
                    "const": "machine_role",
                    "description": "The role that the cloud gives to the machine that quorate runs on.",
                },
                {
                    "type": "object",
                    "properties": {
                        "file": {
                            "type": "string",
                            "minLength": 1,
                            "description": "A file with the lines `access_key_id=…`, `secret_access_key=…` and optionally \
                                            `session_token=…`. Only its owner may have access to it.",
                        },
                    },
                    "required": ["file"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

/// How many full backups are kept. A backup is kept if any of these numbers keeps it. The newest and the newest
/// verified one are always kept. Zero keeps none of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keep {
    /// Number of newest backups.
    pub last: u32,
    /// Number of hours of which the newest backup is kept.
    pub hourly: u32,
    /// Number of days of which the newest backup is kept.
    pub daily: u32,
    /// Number of weeks of which the newest backup is kept.
    pub weekly: u32,
    /// Number of months of which the newest backup is kept.
    pub monthly: u32,
}

impl Keep {
    pub const NONE: Keep = Keep { last: 0, hourly: 0, daily: 0, weekly: 0, monthly: 0 };
}

impl Default for Keep {
    fn default() -> Self {
        Keep { last: 7, hourly: 0, daily: 7, weekly: 4, monthly: 0 }
    }
}

/// The keys to a store, as a credentials file holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreKeys {
    pub access_key_id: String,
    pub secret_access_key: Secret,
    pub session_token: Option<Secret>,
}

impl FromStr for StoreKeys {
    type Err = Malformed;

    /// Reads a credentials file. No message repeats what stands after an equals sign.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (mut id, mut secret, mut token) = (None, None, None);
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
                return Err(Malformed(format!(
                    "line {number} is not NAME=VALUE; expected are access_key_id, secret_access_key and session_token"
                )));
            };
            let place = match name {
                "access_key_id" => &mut id,
                "secret_access_key" => &mut secret,
                "session_token" => &mut token,
                // What stands there may be a secret in the wrong place.
                _ => {
                    return Err(Malformed(format!(
                        "line {number} has an unknown name; use one of access_key_id, secret_access_key and \
                         session_token"
                    )));
                }
            };
            if value.is_empty() {
                return Err(Malformed(format!("line {number} has nothing after `{name}=`")));
            }
            if place.replace(value.to_owned()).is_some() {
                return Err(Malformed(format!("line {number} gives `{name}` for the second time")));
            }
        }
        let missing = |name: &str| Malformed(format!("no line begins with `{name}=`"));
        Ok(StoreKeys {
            access_key_id: id.ok_or_else(|| missing("access_key_id"))?,
            secret_access_key: Secret::new(secret.ok_or_else(|| missing("secret_access_key"))?),
            session_token: token.map(Secret::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credentials_file_is_read() {
        let text = "# of the store\naccess_key_id = AK1\n\nsecret_access_key=a=b/c+\n";
        let keys: StoreKeys = text.parse().unwrap();
        assert_eq!((keys.access_key_id.as_str(), keys.secret_access_key.expose()), ("AK1", "a=b/c+"));
        assert_eq!(keys.session_token, None);
        assert!(!format!("{keys:?}").contains("a=b"));
    }

    #[test]
    fn a_wrong_credentials_file_is_reported_by_line_without_its_secrets() {
        let error = |text: &str| text.parse::<StoreKeys>().unwrap_err().to_string();
        assert_eq!(error(""), "no line begins with `access_key_id=`");
        assert_eq!(error("access_key_id=a"), "no line begins with `secret_access_key=`");
        assert_eq!(error("access_key_id=a\nsecret_access_key="), "line 2 has nothing after `secret_access_key=`");
        assert_eq!(error("access_key_id=a\naccess_key_id=b"), "line 2 gives `access_key_id` for the second time");
        for wrong in ["hunter2", "hunter2=x", "[default]\naws_secret_access_key=hunter2"] {
            assert!(!error(wrong).contains("hunter2"), "{}", error(wrong));
        }
    }
}
