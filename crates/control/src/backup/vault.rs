//! Opens the stores of the spec's `backup` section. Credentials are read here and are sent to the store only.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use jiff::SignedDuration;
use quorate_backup::Store;
use quorate_backup::settings::{Credentials, Location, Patience, S3Location, Settings};
use quorate_core::Secret;
use quorate_core::spec::{self, BackupSettings, ClusterSpec, Destination, Keep, S3Destination, StoreKeys};

use super::BackupError;

/// The stores of a cluster's backups, and the spec's settings for them.
#[derive(Clone, Debug)]
pub struct Vault {
    pub cluster: String,
    pub first: Store,
    /// Gets a copy of everything. If it cannot be used, the first one still is.
    pub second: Option<Result<Store, Arc<BackupError>>>,
    pub settings: Settings,
    pub keep: Keep,
    /// A full backup is made at least so often.
    pub schedule: SignedDuration,
}

/// The store that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    First,
    Second,
}

impl Which {
    /// As pgBackRest numbers them.
    pub fn repository(self) -> u8 {
        match self {
            Which::First => 1,
            Which::Second => 2,
        }
    }
}

impl Vault {
    pub fn open(spec: &ClusterSpec) -> Result<Self, BackupError> {
        let backup = settings_of(spec)?;
        let second = || open_store(spec, Which::Second).map_err(Arc::new);
        Ok(Vault {
            first: open_store(spec, Which::First)?,
            second: backup.also_to.as_ref().map(|_| second()),
            keep: backup.keep,
            schedule: SignedDuration::from_millis(i64::try_from(backup.schedule.0).unwrap_or(i64::MAX)),
            settings: settings(backup),
            cluster: spec.name.to_string(),
        })
    }

    /// The second, if the spec wants one.
    pub fn second(&self) -> Result<Option<&Store>, BackupError> {
        match &self.second {
            None => Ok(None),
            Some(Ok(store)) => Ok(Some(store)),
            Some(Err(error)) => Err(BackupError::Second { source: error.clone() }),
        }
    }

    /// Those that can be used.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        std::iter::once(&self.first).chain(self.second.as_ref().and_then(|second| second.as_ref().ok()))
    }
}

/// Opens one of the two stores, without opening the other one, which may be gone.
pub fn open_store(spec: &ClusterSpec, which: Which) -> Result<Store, BackupError> {
    let backup = settings_of(spec)?;
    let destination = match which {
        Which::First => &backup.to,
        Which::Second => {
            backup.also_to.as_ref().ok_or_else(|| BackupError::NoSecond { cluster: spec.name.to_string() })?
        }
    };
    Ok(Store::open(&place(destination)?, settings(backup).bandwidth, Patience::default())?)
}

fn settings_of(spec: &ClusterSpec) -> Result<&BackupSettings, BackupError> {
    spec.backup.as_ref().ok_or_else(|| BackupError::NoSettings { cluster: spec.name.to_string() })
}

fn settings(backup: &BackupSettings) -> Settings {
    Settings {
        recipients: backup.recipients.iter().map(|key| key.as_str().to_owned()).collect(),
        compression: i32::try_from(backup.compression).unwrap_or(3),
        bandwidth: backup.bandwidth.map(|size| size.0),
    }
}

fn place(destination: &Destination) -> Result<Location, BackupError> {
    match destination {
        Destination::Directory(path) => Ok(Location::Directory(path.clone())),
        Destination::S3(s3) => s3_place(s3).map(Location::S3),
    }
}

pub(crate) fn s3_place(s3: &S3Destination) -> Result<S3Location, BackupError> {
    Ok(S3Location {
        endpoint: s3.endpoint.clone(),
        region: s3.region.clone(),
        bucket: s3.bucket.clone(),
        prefix: s3.prefix.clone(),
        path_style: s3.path_style,
        ca: s3.ca.as_deref().map(read_ca).transpose()?,
        credentials: match &s3.credentials {
            spec::Credentials::Environment => Credentials::Environment,
            spec::Credentials::MachineRole => Credentials::MachineRole,
            spec::Credentials::File(path) => {
                let StoreKeys { access_key_id, secret_access_key, session_token } = read_keys(path)?;
                Credentials::Keys { access_key_id, secret_access_key, session_token }
            }
        },
    })
}

fn read_ca(path: &Path) -> Result<String, BackupError> {
    fs::read_to_string(path).map_err(BackupError::file("read", path))
}

/// The keys themselves, for machines that store their own backups; none where each machine has its role.
pub(crate) fn keys(credentials: &spec::Credentials) -> Result<Option<StoreKeys>, BackupError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let needed = |name: &'static str| variable(name).ok_or(BackupError::NoVariable { name });
    match credentials {
        spec::Credentials::MachineRole => Ok(None),
        spec::Credentials::File(path) => read_keys(path).map(Some),
        spec::Credentials::Environment => Ok(Some(StoreKeys {
            access_key_id: needed("AWS_ACCESS_KEY_ID")?,
            secret_access_key: Secret::new(needed("AWS_SECRET_ACCESS_KEY")?),
            session_token: variable("AWS_SESSION_TOKEN").map(Secret::new),
        })),
    }
}

fn read_keys(path: &Path) -> Result<StoreKeys, BackupError> {
    let unusable = |why: String| BackupError::Credentials { path: path.to_owned(), why };
    let mode = fs::metadata(path).map_err(|error| unusable(error.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(unusable(format!(
            "other users have access to it (its mode is {:03o}): `chmod 600` it, and treat its keys as known",
            mode & 0o777
        )));
    }
    let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    text.parse().map_err(|error: spec::Malformed| unusable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_credentials_file_is_for_its_owner_alone() {
        let text = "access_key_id=one\nsecret_access_key=hunter2\n";
        let open = file(text, 0o640);
        let told = read_keys(open.path()).unwrap_err().to_string();
        assert!(told.contains("its mode is 640") && !told.contains("hunter2"), "{told}");
        let closed = file(text, 0o600);
        assert_eq!(read_keys(closed.path()).unwrap().access_key_id, "one");
    }

    #[test]
    fn a_problem_in_a_credentials_file_is_reported_without_its_secrets() {
        let wrong = file("access_key_id=one\nhunter2\n", 0o600);
        let told = read_keys(wrong.path()).unwrap_err().to_string();
        assert!(told.contains("line 2") && !told.contains("hunter2"), "{told}");
        let told = read_keys(Path::new("/nonexistent/keys")).unwrap_err().to_string();
        assert!(told.contains("/nonexistent/keys"), "{told}");
    }
}
