//! Certificates for members without quorate, created by openssl before the measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;

/// Where the CA, the members' certificates and root's are.
pub struct Certificates(PathBuf);

impl Certificates {
    pub fn make(directory: PathBuf, members: &[(String, String)]) -> Result<Self> {
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let own = Self(directory);
        own.openssl(&["req", "-x509", "-subj", "/CN=ca", "-days", "30", "-keyout", "ca.key", "-out", "ca.crt"])?;
        for (name, address) in members {
            own.sign(name, &format!("subjectAltName=IP:{address},IP:127.0.0.1"))?;
        }
        own.sign("root", "extendedKeyUsage=clientAuth")?;
        Ok(own)
    }

    fn sign(&self, name: &str, extension: &str) -> Result<()> {
        let subject = format!("/CN={name}");
        let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        let common = ["req", "-x509", "-days", "30", "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", &subject];
        self.openssl(&[&common[..], &["-addext", extension, "-keyout", &key, "-out", &certificate]].concat())
    }

    fn openssl(&self, words: &[&str]) -> Result<()> {
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        host::read(Command::new("openssl").args(words).args(key).current_dir(&self.0)).map(drop)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn read(&self, name: &str) -> Result<String> {
        read(&self.file(name))
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
