//! The manifest of an image: every package with its version and Debian's checksum, the agent, and the image's own
//! version, which is derived from these alone.

use quorate_core::text::hex;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use jiff::Timestamp;
use quorate_agent::boot::With;
use quorate_pki::Sha256;
use serde::{Deserialize, Serialize};

use super::{ImageError, Options};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Two images of one version hold the same packages and the same agent.
    pub version: String,
    pub built: Timestamp,
    pub suite: String,
    pub quorate: String,
    /// SHA-256 of the agent's program, where there is one.
    pub program_sha256: Option<String>,
    pub packages: Vec<Package>,
    /// SHA-256 of the image.
    pub image_sha256: String,
    pub image_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// Checksum of the package's file; absent if the sources no longer have it.
    pub sha256: Option<String>,
}

impl Manifest {
    pub(super) fn new(options: &Options, packages: Vec<Package>) -> Result<Self, ImageError> {
        let program_sha256 = options.program.as_deref().map(digest).transpose()?.map(|(sha256, _)| sha256);
        let mut all = Sha256::new();
        all.update(format!("{} {:?} {program_sha256:?}\n", options.suite, options.format));
        match options.with {
            With::Ec2 => all.update("ec2\n"),
            With::Nova => all.update("nova\n"),
            With::Nothing | With::CloudInit => {}
        }
        for package in &packages {
            all.update(format!("{} {} {:?}\n", package.name, package.version, package.sha256));
        }
        let quorate = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Manifest {
            version: format!("{quorate}-{}", &hex(&all.finalize())[..12]),
            built: Timestamp::now(),
            suite: options.suite.clone(),
            quorate,
            program_sha256,
            packages,
            image_sha256: String::new(),
            image_bytes: 0,
        })
    }

    pub(super) fn of_image(self, image: &Path) -> Result<Self, ImageError> {
        let (image_sha256, image_bytes) = digest(image)?;
        Ok(Manifest { image_sha256, image_bytes, ..self })
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), ImageError> {
        let text = serde_json::to_string_pretty(self).expect("plain data serializes");
        fs::write(path, text + "\n").map_err(ImageError::file("write", path))
    }
}

/// The packages in what `apt-cache show` says: paragraphs of fields, one for each.
pub(super) fn packages_in(listing: &str) -> Vec<Package> {
    let mut packages: Vec<Package> = listing
        .split("\n\n")
        .filter_map(|paragraph| {
            let fields: BTreeMap<&str, &str> = paragraph
                .lines()
                .filter(|line| !line.starts_with(' '))
                .filter_map(|line| line.split_once(": "))
                .collect();
            Some(Package {
                name: (*fields.get("Package")?).to_owned(),
                version: (*fields.get("Version")?).to_owned(),
                sha256: fields.get("SHA256").map(|&digest| digest.to_owned()),
            })
        })
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

pub(super) fn digest(path: &Path) -> Result<(String, u64), ImageError> {
    let mut file = File::open(path).map_err(ImageError::file("open", path))?;
    let (mut digest, mut bytes) = (Sha256::new(), 0);
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part).map_err(ImageError::file("read", path))? {
            0 => return Ok((hex(&digest.finalize()), bytes)),
            count => {
                digest.update(&part[..count]);
                bytes += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    const LISTING: &str = "Package: etcd-server\nVersion: 3.4.23-4\nDescription: a store\n Package: not this\nSHA256: abc\n\n\
                           Package: base-files\nVersion: 12.4\n\n";

    #[test]
    fn packages_are_read_from_what_apt_says() {
        let package = |name: &str, version: &str, sha256: Option<&str>| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256.map(str::to_owned),
        };
        let expected = [package("base-files", "12.4", None), package("etcd-server", "3.4.23-4", Some("abc"))];
        assert_eq!(packages_in(LISTING), expected);
        assert_eq!(packages_in(""), []);
    }

    #[test]
    fn another_package_or_agent_makes_another_version() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("quorate");
        let version_on = |with: With, content: &str, listing: &str| {
            fs::write(&program, content).unwrap();
            let options = Options {
                output: directory.path().join("image"),
                program: Some(program.clone()),
                suite: String::from("bookworm"),
                sources: None,
                packages: Vec::new(),
                postgres: None,
                with,
                bytes: 0,
                format: Format::Disk,
            };
            Manifest::new(&options, packages_in(listing)).unwrap().version
        };
        let version = |content: &str, listing: &str| version_on(With::Nothing, content, listing);
        let first = version("agent", LISTING);
        let clouds = [With::Ec2, With::Nova].map(|with| version_on(with, "agent", LISTING));
        assert!(clouds[0] != clouds[1] && !clouds.contains(&first), "{first}, {clouds:?}");
        assert_eq!(first, version("agent", LISTING));
        assert_ne!(first, version("another agent", LISTING));
        assert_ne!(first, version("agent", &LISTING.replace("3.4.23-4", "3.4.23-5")));
        assert_ne!(first, version("agent", &LISTING.replace("abc", "abd")));
    }
}
