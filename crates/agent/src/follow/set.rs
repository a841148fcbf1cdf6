//! All files of fluent-bit's configuration as a unit: checked by fluent-bit itself, put in place atomically, identified by a digest.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::path::{Component, Path, PathBuf};

use quorate_core::text::hex;
use quorate_etcd::KeyValue;
use quorate_pki::Sha256;
use tokio::process::Command;

use super::allowed;
use crate::files::Owner;
use crate::host::{LOG_READER, find_below};
use crate::services::systemd::{owner_in, run};
use crate::{AgentError, files};

/// fluent-bit's path: a link to the set in use.
pub(crate) const DIRECTORY: &str = "etc/fluent-bit-customization/dynamic-config";
/// Where fluent-bit begins to read.
pub(crate) const INDEX: &str = "index.conf";
/// What fluent-bit was last started with. No reboot survives it.
const STARTED_WITH: &str = "run/quorate/log-source-taken";
const LONGEST_NAME: usize = 200;

pub(super) struct Set {
    files: BTreeMap<String, Vec<u8>>,
}

impl Set {
    /// The keys without their prefix are the names. One bad name makes the whole set bad: half a configuration is none.
    pub(super) fn of(prefix: &str, pairs: Vec<KeyValue>) -> Result<Self, String> {
        let mut found = BTreeMap::new();
        for KeyValue { key, value, .. } in pairs {
            let name = file_name(prefix, &key).ok_or_else(|| {
                format!(
                    "the key {:?} cannot be a file: after {prefix} it must be a name such as `{INDEX}` or `inputs/etcd.conf`",
                    String::from_utf8_lossy(&key)
                )
            })?;
            found.insert(name, value);
        }
        let directory = found.keys().find(|name| found.keys().any(|other| other.starts_with(&format!("{name}/"))));
        if let Some(name) = directory {
            return Err(format!("{prefix}{name} would be a file and a directory at once"));
        }
        if !found.contains_key(INDEX) {
            return Err(format!("there is no key {}, where fluent-bit begins to read", joined(prefix, INDEX)));
        }
        allowed::check(&found)?;
        Ok(Set { files: found })
    }

    fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for (name, content) in &self.files {
            for part in [name.as_bytes(), content] {
                digest.update((part.len() as u64).to_be_bytes());
                digest.update(part);
            }
        }
        hex(&digest.finalize()[..8])
    }

    /// Takes effect only if it differs from fluent-bit's current configuration.
    pub(super) async fn put(&self, root: &Path) -> Result<(), AgentError> {
        let digest = self.digest();
        let link = root.join(DIRECTORY);
        // Its name says what is in it.
        let home = format!("dynamic-config.{digest}");
        let started_with = root.join(STARTED_WITH);
        if std::fs::read_link(&link).ok().as_deref() != Some(Path::new(&home)) {
            self.check(root).await?;
            let place = link.with_file_name(&home);
            files::remove_dir(&place)?;
            self.write(root, &place, |content| content.to_vec())?;
            files::link(&link, &home)?;
            clear(&link, Some(&home))?;
        }
        if std::fs::read_to_string(&started_with).is_ok_and(|known| known == digest) {
            return Ok(());
        }
        restart(root).await?;
        tracing::info!(digest, files = self.files.len(), "fluent-bit is started with what was found");
        files::write(&started_with, digest.as_bytes(), 0o644, None)
    }

    /// In a separate place, into which its own paths lead for so long; as the user that will read it.
    async fn check(&self, root: &Path) -> Result<(), AgentError> {
        let Some(program) = find_below(root, "fluent-bit") else {
            tracing::warn!("there is no fluent-bit on this machine that could check its configuration");
            return Ok(());
        };
        let draft = root.join(format!("{DIRECTORY}.draft"));
        files::remove_dir(&draft)?;
        let (there, here) = (format!("/{DIRECTORY}/"), format!("{}/", draft.display()));
        self.write(root, &draft, |content| match std::str::from_utf8(content) {
            Ok(text) => text.replace(&there, &here).into_bytes(),
            Err(_) => content.to_vec(),
        })?;
        let mut command = Command::new(program);
        command.arg("--dry-run").arg("-c").arg(draft.join(INDEX));
        if let Some((user, group)) = reader(root) {
            command.uid(user).gid(group);
        }
        let checked = run(&mut command).await;
        files::remove_dir(&draft)?;
        checked.map(drop)
    }

    /// There may be secrets in it: root writes it and fluent-bit's user reads it. The name of a set says what is in it, after a power
    /// cut too.
    fn write(&self, root: &Path, place: &Path, change: impl Fn(&[u8]) -> Vec<u8>) -> Result<(), AgentError> {
        let readers = reader(root).map(|(_, group)| group);
        let (directory, file) = if readers.is_some() { (0o750, 0o640) } else { (0o700, files::PRIVATE) };
        let let_read = |path: &Path| match readers {
            Some(group) => chown(path, Some(0), Some(group)).map_err(AgentError::file("give to fluent-bit", path)),
            None => Ok(()),
        };
        for (name, content) in &self.files {
            let path = place.join(name);
            let parent = path.parent().unwrap_or(place);
            files::make_dir(parent, directory)?;
            files::write_durably(&path, &change(content), file)?;
            let_read(&path)?;
            parent.ancestors().take_while(|above| above.starts_with(place)).try_for_each(let_read)?;
        }
        Ok(())
    }
}

/// fluent-bit's user, if it exists.
fn reader(root: &Path) -> Option<Owner> {
    owner_in(&std::fs::read_to_string(root.join("etc/passwd")).ok()?, LOG_READER)
}

/// Lets fluent-bit be started again with the configuration that it has.
pub(crate) fn start_over(root: &Path) -> Result<(), AgentError> {
    files::remove(&root.join(STARTED_WITH))
}

/// Leftovers of a configuration that is no longer followed.
pub(crate) fn forget(root: &Path) -> Result<(), AgentError> {
    let link = root.join(DIRECTORY);
    files::remove(&link)?;
    start_over(root)?;
    clear(&link, None)
}

/// Sets that were in use, or were about to be.
fn clear(link: &Path, keep: Option<&str>) -> Result<(), AgentError> {
    let parent = link.parent().unwrap_or(link);
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("dynamic-config.") && keep != Some(&name) {
            files::remove_dir(&entry.path())?;
        }
    }
    Ok(())
}

async fn restart(root: &Path) -> Result<(), AgentError> {
    let systemctl = find_below(root, "systemctl").unwrap_or_else(|| PathBuf::from("systemctl"));
    run(Command::new(&systemctl).args(["enable", "--quiet", "fluent-bit.service"])).await?;
    run(Command::new(&systemctl).args(["restart", "--no-block", "fluent-bit.service"])).await.map(drop)
}

fn joined(prefix: &str, name: &str) -> String {
    format!("{}/{name}", prefix.trim_end_matches('/'))
}

/// Only names below the directory, of visible files, that every program takes as they are.
fn file_name(prefix: &str, key: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let name = name.strip_prefix('/').filter(|_| !prefix.ends_with('/')).unwrap_or(name);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
    let parts = || name.split('/');
    let normal = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let visible = parts().all(|part| !part.is_empty() && !part.starts_with('.'));
    (normal && visible && name.len() <= LONGEST_NAME && name.chars().all(plain)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> KeyValue {
        let (key, value) = (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        KeyValue { key, value, create_revision: 1, mod_revision: 1, version: 1, lease: 0 }
    }

    #[test]
    fn keys_become_names_below_the_directory_and_nothing_else() {
        for (prefix, key) in [("/logs/", "/logs/a/b.conf"), ("/logs", "/logs/a/b.conf"), ("logs-", "logs-a/b.conf")] {
            assert_eq!(file_name(prefix, key.as_bytes()).as_deref(), Some("a/b.conf"));
        }
        for key in ["", "../up", "a/../../up", "/etc/passwd", "a//b", ".hidden", "a/.new", "a b", "a\nb", "a/"] {
            assert_eq!(file_name("/logs/", format!("/logs/{key}").as_bytes()), None, "{key:?}");
        }
        assert_eq!(file_name("/logs/", b"/logs/\xff"), None);
    }

    #[test]
    fn a_set_is_whole_or_is_none() {
        let of =
            |keys: &[&str]| Set::of("/l/", keys.iter().map(|key| pair(key, "# x")).collect()).map(|set| set.digest());
        assert!(of(&["/l/index.conf", "/l/in/a.conf"]).is_ok());
        let runs_programs = pair("/l/index.conf", "[INPUT]\n    Name exec\n    Command id\n");
        let refused = Set::of("/l/", vec![runs_programs]).map(|set| set.digest()).unwrap_err();
        assert!(refused.starts_with("index.conf: line 2: the input `exec` is not allowed"), "{refused}");
        for (keys, expected) in [
            (&["/l/a.conf"][..], "there is no key /l/index.conf"),
            (&[], "there is no key /l/index.conf"),
            (&["/l/index.conf", "/l/../x"], "the key \"/l/../x\" cannot be a file"),
            (&["/l/index.conf", "/l/a", "/l/a/b"], "/l/a would be a file and a directory at once"),
        ] {
            let said = of(keys).unwrap_err();
            assert!(said.starts_with(expected), "{said}");
        }
    }

    #[test]
    fn sets_that_differ_in_name_or_content_have_different_digests() {
        let digest = |pairs: Vec<KeyValue>| Set::of("", pairs).unwrap().digest();
        let one = digest(vec![pair("index.conf", "#a"), pair("c", "d")]);
        assert_eq!(one, digest(vec![pair("c", "d"), pair("index.conf", "#a")]));
        assert_ne!(one, digest(vec![pair("index.conf", "#a"), pair("cd", "")]));
        assert_ne!(one, digest(vec![pair("index.conf", "#a"), pair("c", "e")]));
    }
}
