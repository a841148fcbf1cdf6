//! etcd from Debian's packages, several releases next to each other, without installing any of them. Uses a
//! private apt state, so that the machine's own package lists stay as they are; the mirror and its key are those of
//! the machine's apt configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{BINARIES, finish};
use crate::host;
use crate::lab::{Filling, Lab, Version};

/// A version that tests need, and the Debian release that carries it.
#[derive(Clone, Copy)]
pub struct Packaged {
    pub version: Version,
    suite: &'static str,
}

const WANTED: [Packaged; 3] = [
    Packaged { version: Version::new(3, 4, 23), suite: "bookworm" },
    Packaged { version: Version::new(3, 5, 16), suite: "trixie" },
    Packaged { version: Version::new(3, 5, 30), suite: "sid" },
];

/// Suites by which Debian's main archive is told from other archives in the machine's configuration.
const DEBIAN_SUITES: [&str; 9] =
    ["bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"];

/// Ends the name of a release's archive of security updates.
const SECURITY: &str = "-security";

fn is_main(suite: &str) -> bool {
    DEBIAN_SUITES.contains(&suite)
}

fn is_security(suite: &str) -> bool {
    suite.strip_suffix(SECURITY).is_some_and(is_main)
}

pub fn newest_first() -> impl Iterator<Item = Packaged> {
    WANTED.into_iter().rev()
}

pub fn missing(lab: &Lab) -> Vec<Packaged> {
    let installed = lab.installed();
    WANTED.into_iter().filter(|wanted| !installed.contains_key(&wanted.version)).collect()
}

pub fn install(filling: &Filling<'_>, wanted: &[Packaged]) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let archive = machine_archive(Path::new("/etc/apt"))?;
    let apt = PrivateApt::new(filling.scratch("apt")?, &archive, wanted)?;
    let names: Vec<String> = wanted.iter().map(|packaged| packaged.version.to_string()).collect();
    eprintln!("etcd {}: fetching Debian's packages", names.join(", "));
    let offered = apt.offered()?;
    for packaged in wanted {
        let version = packaged.version;
        let Some(package) = offered.iter().find(|offer| upstream(offer) == Some(version)) else {
            bail!(
                "Debian's mirror has no etcd-server {version} in {}; it offers {}",
                packaged.suite,
                if offered.is_empty() { "none".into() } else { offered.join(", ") }
            );
        };
        let unpacked = apt.unpack(package)?;
        let directory = filling.scratch(&version.to_string())?;
        for binary in BINARIES {
            let from = unpacked.join("usr/bin").join(binary);
            if from.exists() {
                fs::rename(&from, directory.join(binary)).with_context(|| format!("cannot take {}", from.display()))?;
            }
        }
        finish(&directory, version, &format!("Debian {} {package}", packaged.suite))?;
        filling.install(version, &directory)?;
    }
    Ok(())
}

/// Installs packages that this machine's release of Debian may have in its backports alone, without adding those to its sources.
pub fn install_with_backports(packages: &[&str]) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").context("cannot tell which release of Debian this is")?;
    let release = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let release = release.context("/etc/os-release does not name this release")?.trim_matches('"').to_owned();
    let backports = format!("{release}-backports");
    let directory = std::env::temp_dir().join(format!("quorate-apt-{}", std::process::id()));
    let archive = machine_archive(Path::new("/etc/apt"))?;
    let apt = PrivateApt::at(directory.clone(), &archive, &[&release, &format!("{release}-updates"), &backports])?;
    eprintln!("installing {} from {release} and its backports", packages.join(", "));
    let install = ["install", "-y", "--no-install-recommends", "--target-release", &backports];
    let installed = host::read(apt.command("apt-get").arg("update")).and_then(|_| {
        host::read(apt.command("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(install).args(packages))
    });
    let _ = fs::remove_dir_all(&directory);
    installed.map(drop)
}

/// Puts the files of packages of another release below one directory, without installing any of them.
pub fn unpack_from(suite: &str, packages: &[&str], apt: PathBuf, tree: &Path) -> Result<()> {
    let configuration = Path::new("/etc/apt");
    let apt = PrivateApt::at(apt, &machine_archive(configuration)?, &[suite])?;
    // A machine without security updates gets none here either.
    if let Some(security) = find_archive(configuration, is_security) {
        let stanza = security.stanza(&[&format!("{suite}{SECURITY}")]);
        fs::write(apt.directory.join("sources/security.sources"), stanza)?;
    }
    apt.update()?;
    host::read(apt.command("apt-get").arg("download").args(packages))?;
    apt.unpack_downloads(tree)
}

/// apt with lists, cache and sources of its own.
struct PrivateApt {
    directory: PathBuf,
}

impl PrivateApt {
    fn new(directory: PathBuf, archive: &Archive, wanted: &[Packaged]) -> Result<Self> {
        let suites: Vec<&str> = wanted.iter().map(|packaged| packaged.suite).collect();
        Self::at(directory, archive, &suites)
    }

    fn at(directory: PathBuf, archive: &Archive, suites: &[&str]) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial", "sources"] {
            fs::create_dir_all(directory.join(part))?;
        }
        fs::write(directory.join("sources/debian.sources"), archive.stanza(suites))?;
        Ok(Self { directory })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (option, part) in [
            ("Dir::Etc::SourceList", "no-such-file"),
            ("Dir::Etc::SourceParts", "sources"),
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(format!("{option}={}", self.directory.join(part).display()));
        }
        // apt's own unprivileged user could not write into a directory of ours.
        command.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "-qq"]);
        command.env("LC_ALL", "C").current_dir(&self.directory);
        command
    }

    fn update(&self) -> Result<()> {
        // apt takes an unreachable mirror for a passing trouble and succeeds, unless told otherwise.
        let strict = ["-o", "APT::Update::Error-Mode=any"];
        let updated = host::read(self.command("apt-get").args(strict).arg("update"));
        updated.map(drop).context("cannot read Debian's package lists")
    }

    /// The package versions of etcd-server that the mirror has.
    fn offered(&self) -> Result<Vec<String>> {
        self.update()?;
        Ok(parse_madison(&host::read(self.command("apt-cache").args(["madison", "etcd-server"]))?))
    }

    fn unpack(&self, package: &str) -> Result<PathBuf> {
        let unpacked = self.directory.join("unpacked");
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked)?;
        }
        for name in ["etcd-server", "etcd-client"] {
            host::read(self.command("apt-get").arg("download").arg(format!("{name}={package}")))?;
        }
        self.unpack_downloads(&unpacked)?;
        Ok(unpacked)
    }

    fn unpack_downloads(&self, tree: &Path) -> Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                host::read(Command::new("dpkg-deb").arg("-x").arg(&path).arg(tree))?;
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// The package versions in the table that `apt-cache madison` prints, in its order: newest first.
fn parse_madison(table: &str) -> Vec<String> {
    let mut versions: Vec<String> = table
        .lines()
        .filter(|line| line.ends_with(" Packages"))
        .filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned()))
        .collect();
    versions.dedup();
    versions
}

/// The upstream part of a package's version: 3.5.16 of `3.5.16-4+b1`.
fn upstream(package: &str) -> Option<Version> {
    package.split(['-', '+', '~']).next()?.parse().ok()
}

/// Debian's main archive as this machine reaches it.
#[derive(Debug, PartialEq)]
struct Archive {
    uri: String,
    /// A key file's path, or a whole key, as apt's configuration has it.
    signed_by: Option<String>,
    trusted: Option<String>,
}

impl Archive {
    fn stanza(&self, suites: &[&str]) -> String {
        // Only the package lists are of use here; configurations often add far larger indexes.
        let mut stanza = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nTargets: Packages\n",
            self.uri,
            suites.join(" ")
        );
        for (field, value) in [("Signed-By", &self.signed_by), ("Trusted", &self.trusted)] {
            if let Some(value) = value {
                stanza += &format!("{field}: {value}\n");
            }
        }
        stanza
    }
}

/// Finds the archive in the machine's apt configuration, in either of its two formats.
fn machine_archive(configuration: &Path) -> Result<Archive> {
    find_archive(configuration, is_main).with_context(|| {
        format!(
            "no source of Debian's main archive in {} (other versions of etcd and PostgreSQL come from there)",
            configuration.display()
        )
    })
}

fn find_archive(configuration: &Path, is_ours: fn(&str) -> bool) -> Option<Archive> {
    let mut files = vec![configuration.join("sources.list")];
    if let Ok(entries) = fs::read_dir(configuration.join("sources.list.d")) {
        let mut parts: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        parts.sort();
        files.extend(parts);
    }
    files.iter().find_map(|file| {
        let text = fs::read_to_string(file).ok()?;
        match file.extension()?.to_str()? {
            "list" => text.lines().find_map(|line| parse_one_line(line, is_ours)),
            "sources" => stanzas(&text).iter().find_map(|fields| parse_stanza(fields, is_ours)),
            _ => None,
        }
    })
}

/// `deb [option=value …] URI SUITE COMPONENT…`
fn parse_one_line(line: &str, is_ours: fn(&str) -> bool) -> Option<Archive> {
    let rest = line.split('#').next()?.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix(char::is_whitespace)?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let option = |name: &str| {
        let pairs = options.split_whitespace().filter_map(|option| option.split_once('='));
        pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let ours = is_ours(suite) && words.any(|component| component == "main");
    ours.then(|| Archive { uri: uri.into(), signed_by: option("signed-by"), trusted: option("trusted") })
}

/// A stanza's fields; a value of several lines keeps its line breaks and indentation.
type Fields = Vec<(String, String)>;

/// Splits a deb822 file into stanzas.
fn stanzas(text: &str) -> Vec<Fields> {
    let mut stanzas = vec![Fields::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let current = stanzas.last_mut().expect("there is always one");
        if line.trim().is_empty() {
            stanzas.push(Fields::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = current.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            current.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    stanzas
}

fn parse_stanza(fields: &Fields, is_ours: fn(&str) -> bool) -> Option<Archive> {
    let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let has = |name: &str, wanted: &[&str]| {
        field(name).is_some_and(|value| value.split_whitespace().any(|word| wanted.contains(&word)))
    };
    let ours = has("types", &["deb"])
        && field("suites").is_some_and(|suites| suites.split_whitespace().any(is_ours))
        && has("components", &["main"])
        && !has("enabled", &["no", "false"]);
    let uri = field("uris")?.split_whitespace().next()?.to_owned();
    ours.then(|| Archive {
        uri,
        signed_by: field("signed-by").map(str::to_owned),
        trusted: field("trusted").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(uri: &str, signed_by: Option<&str>) -> Archive {
        Archive { uri: uri.into(), signed_by: signed_by.map(str::to_owned), trusted: None }
    }

    fn first(deb822: &str) -> Option<Archive> {
        stanzas(deb822).iter().find_map(|fields| parse_stanza(fields, is_main))
    }

    #[test]
    fn madison_gives_versions_newest_first() {
        let table = "\
etcd-server |   3.5.30-1 | http://mirror.test/debian sid/main amd64 Packages
etcd-server | 3.5.16-4+b9 | http://mirror.test/debian trixie/main amd64 Packages
etcd-server | 3.4.23-4+b4 | http://mirror.test/debian bookworm/main amd64 Packages
      etcd |   3.5.30-1 | http://mirror.test/debian sid/main Sources
";
        assert_eq!(parse_madison(table), ["3.5.30-1", "3.5.16-4+b9", "3.4.23-4+b4"]);
        assert!(parse_madison("").is_empty());
    }

    #[test]
    fn the_upstream_version_ends_where_debian_begins() {
        assert_eq!(upstream("3.4.23-4+b4"), Some(Version::new(3, 4, 23)));
        assert_eq!(upstream("3.5.16+dfsg-1"), Some(Version::new(3, 5, 16)));
        assert_eq!(upstream("3.6.0~rc1-1"), Some(Version::new(3, 6, 0)));
        assert_eq!(upstream("garbage"), None);
    }

    #[test]
    fn deb822_is_read_past_comments_and_other_archives() {
        let text = "\
Types: deb
URIs: https://vendor.test/apt
Suites: nodistro
Components: main

Types: deb
# where this image came from
URIs: http://mirror.test/debian http://second.test/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /keys/debian.gpg
";
        assert_eq!(first(text), Some(archive("http://mirror.test/debian", Some("/keys/debian.gpg"))));
    }

    #[test]
    fn a_disabled_security_or_source_stanza_is_not_the_archive() {
        for fields in [
            "Types: deb\nEnabled: no\nSuites: trixie",
            "Types: deb\nSuites: trixie-security",
            "Types: deb-src\nSuites: trixie",
        ] {
            assert_eq!(
                first(&format!("{fields}\nURIs: http://mirror.test/debian\nComponents: main\n")),
                None,
                "{fields}"
            );
        }
    }

    #[test]
    fn a_key_inside_the_stanza_survives_into_ours() {
        let key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n -----END PGP PUBLIC KEY BLOCK-----";
        let text =
            format!("Types: deb\nURIs: http://mirror.test/debian\nSuites: sid\nComponents: main\nSigned-By:{key}\n");
        let found = first(&text).unwrap();
        assert_eq!(found.signed_by.as_deref(), Some(key));
        assert_eq!(first(&found.stanza(&["sid"])), Some(found));
    }

    #[test]
    fn one_line_sources_are_read_with_and_without_options() {
        assert_eq!(
            parse_one_line(
                "deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror.test/debian bookworm main # ours",
                is_main
            ),
            Some(archive("http://mirror.test/debian", Some("/keys/debian.gpg")))
        );
        assert_eq!(
            parse_one_line("deb\thttp://mirror.test/debian  stable  contrib main", is_main),
            Some(archive("http://mirror.test/debian", None))
        );
        for other in [
            "# deb http://mirror.test/debian bookworm main",
            "deb-src http://mirror.test/debian bookworm main",
            "deb http://mirror.test/debian bookworm-updates main",
            "deb https://vendor.test/apt bookworm stable",
            "",
        ] {
            assert_eq!(parse_one_line(other, is_main), None, "{other}");
        }
    }
}
