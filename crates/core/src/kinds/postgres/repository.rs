//! pgBackRest: where backups and the write-ahead log are stored, and its configuration on each machine.

use std::fmt::Write as _;

use super::SUPERUSER;
use super::desire::DATA_DIRECTORY;
use crate::Secret;
use crate::model::{Brought, ConfigFile, Ledger, ROOT};
use crate::spec::{BackupSettings, ClusterSpec, Destination, S3Destination};

/// pgBackRest's configuration, which the agent writes from the service's.
pub const CONFIG_FILE: &str = "etc/pgbackrest.conf";
/// Its locks. The user that runs PostgreSQL may write here, on every machine.
const WORK_DIRECTORY: &str = "var/lib/postgresql/pgbackrest";
/// quorate decides what is kept, so pgBackRest keeps all.
const KEEPS_ALL: u32 = 9_999_999;

/// The repository below a store, with `/` at its beginning and none at its end. One that is encrypted is never taken for one that is not.
pub fn directory(spec: &ClusterSpec) -> String {
    let encrypted = spec.backup.as_ref().is_some_and(|backup| !backup.recipients.is_empty());
    format!("/{}/{}", spec.name, if encrypted { "pgbackrest" } else { "pgbackrest-plain" })
}

/// A unique description of the repositories' places. None without backups.
pub fn place(spec: &ClusterSpec) -> Option<String> {
    let backup = spec.backup.as_ref()?;
    let places =
        destinations(backup).map(|(_, to)| format!("{}{}", to.to_string().trim_end_matches('/'), directory(spec)));
    Some(places.collect::<Vec<_>>().join(" and "))
}

/// The destinations with the numbers that pgBackRest gives them.
fn destinations(backup: &BackupSettings) -> impl Iterator<Item = (u8, &Destination)> {
    (1..).zip([Some(&backup.to), backup.also_to.as_ref()].into_iter().flatten())
}

/// The command with which PostgreSQL archives a finished segment of its log.
pub(crate) fn archive_command(spec: &ClusterSpec) -> String {
    format!("pgbackrest '--config={ROOT}/{CONFIG_FILE}' --stanza={} archive-push %p", spec.name)
}

/// The CA of a store's certificate, by the number of the store.
fn ca_file(number: u8) -> String {
    format!("etc/patroni/store-{number}-ca.crt")
}

/// What its configuration refers to.
pub(crate) fn files(brought: &Brought) -> impl Iterator<Item = ConfigFile> {
    brought.store_cas.iter().map(|(number, pem)| ConfigFile::text(&ca_file(*number), 0o644, Secret::new(pem.clone())))
}

/// None without backups, and while the ledger has no key for them.
pub(crate) fn config(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought) -> Option<Secret> {
    let backup = spec.backup.as_ref()?;
    let mut text = String::from("[global]\n");
    for (number, to) in destinations(backup) {
        let mut set = |name: &str, value: &str| {
            let _ = writeln!(text, "repo{number}-{name}={value}");
        };
        match to {
            Destination::Directory(path) => {
                set("path", &format!("{}{}", path.display().to_string().trim_end_matches('/'), directory(spec)));
            }
            Destination::S3(s3) => {
                s3_settings(spec, s3, brought.store_keys.get(&number), &mut set);
                if s3.ca.is_some() {
                    set("storage-ca-file", &format!("{ROOT}/{}", ca_file(number)));
                }
            }
        }
        set("bundle", "y");
        set("retention-full", &KEEPS_ALL.to_string());
        if !backup.recipients.is_empty() {
            set("cipher-type", "aes-256-cbc");
            set("cipher-pass", ledger.postgres.passwords.as_ref()?.repository.as_ref()?.expose());
        }
    }
    let _ = write!(
        text,
        "compress-type=zst\ncompress-level={}\nprocess-max=2\nstart-fast=y\nlock-path={ROOT}/{WORK_DIRECTORY}/lock\n\
         spool-path={ROOT}/{WORK_DIRECTORY}/spool\nlog-level-file=off\nlog-level-console=warn\n\
         [{}]\npg1-path={ROOT}/{DATA_DIRECTORY}\npg1-user={SUPERUSER}\n",
        backup.compression, spec.name
    );
    Some(Secret::new(text))
}

fn s3_settings(
    spec: &ClusterSpec,
    s3: &S3Destination,
    keys: Option<&crate::spec::StoreKeys>,
    set: &mut impl FnMut(&str, &str),
) {
    let prefix = s3.prefix.trim_matches('/');
    let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
    set("type", "s3");
    set("path", &format!("{prefix}{}", directory(spec)));
    set("s3-bucket", &s3.bucket);
    set("s3-region", &s3.region);
    set("s3-uri-style", if s3.path_style { "path" } else { "host" });
    match host_and_port(s3) {
        (host, Some(port)) => {
            set("s3-endpoint", &host);
            set("storage-port", &port);
        }
        (host, None) => set("s3-endpoint", &host),
    }
    match keys {
        Some(keys) => {
            set("s3-key", &keys.access_key_id);
            set("s3-key-secret", keys.secret_access_key.expose());
            if let Some(token) = &keys.session_token {
                set("s3-token", token.expose());
            }
        }
        None => set("s3-key-type", "auto"),
    }
}

/// pgBackRest speaks TLS to every store, so the scheme says nothing.
pub(super) fn host_and_port(s3: &S3Destination) -> (String, Option<String>) {
    let Some(endpoint) = &s3.endpoint else { return (format!("s3.{}.amazonaws.com", s3.region), None) };
    let host = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, host)| host).trim_end_matches('/');
    match host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit())) {
        Some((host, port)) => (host.to_owned(), Some(port.to_owned())),
        None => (host.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(endpoint: Option<&str>) -> S3Destination {
        S3Destination {
            endpoint: endpoint.map(str::to_owned),
            region: String::from("eu-1"),
            bucket: String::from("b"),
            prefix: String::new(),
            path_style: true,
            ca: None,
            credentials: crate::spec::Credentials::Environment,
        }
    }

    #[test]
    fn a_store_is_named_as_pgbackrest_wants_it() {
        let at = |endpoint| host_and_port(&s3(endpoint));
        assert_eq!(at(None), (String::from("s3.eu-1.amazonaws.com"), None));
        assert_eq!(at(Some("https://s3.example.org/")), (String::from("s3.example.org"), None));
        assert_eq!(at(Some("https://[::1]:8333")), (String::from("[::1]"), Some(String::from("8333"))));
    }
}
