//! Shared by the tests: the real `openssl`, and helpers to create authorities and leaf certificates.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish, Secret};
use tempfile::TempDir;

pub const DAY: SignedDuration = SignedDuration::from_hours(24);
pub const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

/// A second in the life of every certificate that OpenSSL checks here: it looks at the real clock.
pub fn now() -> Timestamp {
    Timestamp::now()
}

pub fn authority(algorithm: KeyAlgorithm) -> Authority {
    let subject = AuthoritySubject { common_name: "etcd CA".into(), organization: Some("Example".into()) };
    Authority::generate(&subject, algorithm, YEAR * 10, now()).unwrap()
}

pub fn wish(common_name: &str) -> LeafWish {
    LeafWish {
        common_name: common_name.into(),
        organization: Some("Example".into()),
        dns: vec!["localhost".into(), "etcd-1.example.com".into()],
        addresses: addresses(&["127.0.0.1", "fd00::1"]),
        server: true,
        client: true,
        validity: YEAR,
    }
}

pub fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub fn p256() -> KeyPair {
    KeyPair::generate(KeyAlgorithm::P256).unwrap()
}

/// A directory in which openssl works; it is gone with the value.
pub struct OpenSsl(TempDir);

impl OpenSsl {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn write(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    pub fn secret(&self, name: &str) -> Secret {
        Secret::new(self.read(name))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs openssl with these words; what it says if it succeeds, and if it fails.
    pub fn attempt(&self, words: &str) -> Result<String, String> {
        let output = Command::new("openssl")
            .args(words.split_whitespace())
            .current_dir(self.path())
            .output()
            .expect("these tests need the openssl command on the PATH (Debian: apt install openssl)");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        if output.status.success() { Ok(said) } else { Err(said) }
    }

    pub fn run(&self, words: &str) -> String {
        self.attempt(words).unwrap_or_else(|said| panic!("openssl {words}: {said}"))
    }
}
