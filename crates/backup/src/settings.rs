//! Where backups are stored, how they are taken and which are kept: the spec's settings, in this crate's types.

use std::path::PathBuf;
use std::time::Duration;

use quorate_core::Secret;

/// A place that holds backups, of one or many clusters.
#[derive(Clone, PartialEq, Debug)]
pub enum Location {
    S3(S3Location),
    Directory(PathBuf),
}

#[derive(Clone, PartialEq, Debug)]
pub struct S3Location {
    /// `https://…`; `http://…` is taken too, for a store on this machine.
    pub endpoint: Option<String>,
    pub region: String,
    pub bucket: String,
    /// May be empty; a slash at the end makes no difference.
    pub prefix: String,
    pub path_style: bool,
    /// The CAs that are believed, in PEM. If absent, those of the system.
    pub ca: Option<String>,
    pub credentials: Credentials,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Credentials {
    /// `AWS_ACCESS_KEY_ID` and its companions.
    Environment,
    /// What the cloud gives to this machine, container or workload.
    MachineRole,
    Keys {
        access_key_id: String,
        secret_access_key: Secret,
        session_token: Option<Secret>,
    },
}

/// How backups are made.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// age public keys; none: backups are not encrypted.
    pub recipients: Vec<String>,
    /// zstd's, 1 to 19.
    pub compression: i32,
    /// Bytes a second, of what goes to a store.
    pub bandwidth: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { recipients: Vec::new(), compression: 3, bandwidth: None }
    }
}

/// How long a store may take. Tests shorten it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Patience {
    pub connect: Duration,
    /// For one request: a small object, or one part of a large one.
    pub request: Duration,
    pub retries: usize,
    /// From the first attempt of a request to the last one.
    pub in_all: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(120),
            retries: 8,
            in_all: Duration::from_secs(180),
        }
    }
}
