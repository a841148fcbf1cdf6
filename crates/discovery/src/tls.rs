//! The service's certificate: from user-provided files, which are read again when they change, or signed by a CA that the service keeps
//! in its directory. Clients have none: the token decides what they may do.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use quorate_agent::{AgentError, private_directory, write_durably};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish, Secret};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

const CA_YEARS: i64 = 10;
const LEAF_DAYS: i64 = 90;
/// A leaf with less than this left is signed again.
const LEAF_LEFT: SignedDuration = SignedDuration::from_hours(30 * 24);
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Write(#[from] AgentError),
    #[error("{} holds no readable {what} in PEM", path.display())]
    Unreadable { what: &'static str, path: PathBuf },
    #[error("the certificate in {} cannot be used with its key", path.display())]
    NoPair { path: PathBuf, source: rustls::Error },
    #[error("the certificate cannot be created")]
    Pki(#[from] quorate_pki::Error),
    #[error("TLS cannot be set up")]
    Rustls(#[from] rustls::Error),
}

/// The source of the certificate.
#[derive(Clone, Debug)]
pub enum Source {
    Given {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// Signed by the CA in this directory, for these names and addresses.
    Own {
        directory: PathBuf,
        dns: Vec<String>,
        addresses: Vec<IpAddr>,
    },
}

pub struct Tls {
    source: Source,
    shown: Mutex<Shown>,
}

struct Shown {
    key: Arc<CertifiedKey>,
    /// What it was made from, to notice other files.
    pem: String,
    not_after: Timestamp,
}

impl Tls {
    pub fn new(source: Source) -> Result<Self, TlsError> {
        let shown = Mutex::new(source.make()?);
        Ok(Tls { source, shown })
    }

    /// The file of the CA that members must trust, where it is our own.
    pub fn ca_file(&self) -> Option<PathBuf> {
        match &self.source {
            Source::Own { directory, .. } => Some(directory.join("ca.crt")),
            Source::Given { .. } => None,
        }
    }

    /// Takes up changed files, and renews a certificate that ends soon. After an error, the old one stays in use.
    pub fn refresh(&self) -> Result<(), TlsError> {
        let is_due = {
            let shown = self.shown();
            match &self.source {
                Source::Given { certificate, .. } => read(certificate)? != shown.pem,
                Source::Own { .. } => shown.not_after.duration_since(Timestamp::now()) < LEAF_LEFT,
            }
        };
        if is_due {
            let made = self.source.make()?;
            tracing::info!(not_after = %made.not_after, "the service presents a new certificate");
            *self.shown() = made;
        }
        Ok(())
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For HTTP/2, which gRPC is spoken over, and HTTP/1.1.
    pub fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Source {
    fn make(&self) -> Result<Shown, TlsError> {
        match self {
            Source::Given { certificate, key } => {
                let (pem, key_pem) = (read(certificate)?, Secret::new(read(key)?));
                certified(certificate, key, pem, &key_pem)
            }
            Source::Own { directory, dns, addresses } => {
                let authority = authority(directory)?;
                let key = KeyPair::generate(KeyAlgorithm::P256)?;
                let wish = LeafWish {
                    common_name: String::from("quorate discovery"),
                    organization: None,
                    dns: dns.clone(),
                    addresses: addresses.clone(),
                    server: true,
                    client: false,
                    validity: SignedDuration::from_hours(LEAF_DAYS * 24),
                };
                let pem = authority.sign(&key.csr(&wish.common_name)?, &wish, Timestamp::now())?;
                certified(directory, directory, pem, &key.to_pem())
            }
        }
    }
}

fn certified(file: &Path, key_file: &Path, pem: String, key_pem: &Secret) -> Result<Shown, TlsError> {
    let unreadable = |what, path: &Path| TlsError::Unreadable { what, path: path.to_owned() };
    let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| unreadable("certificate", file))?;
    // The reader's own error may quote the key.
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes());
    let key = key.map_err(|_| unreadable("private key", key_file))?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    let certified = certified.map_err(|source| TlsError::NoPair { path: file.to_owned(), source })?;
    let not_after = quorate_pki::inspect(&pem)?.not_after;
    Ok(Shown { key: Arc::new(certified), pem, not_after })
}

/// The CA in the directory; made at the first start.
fn authority(directory: &Path) -> Result<Authority, TlsError> {
    let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
    if certificate.exists() {
        return Ok(Authority::load(&read(&certificate)?, &Secret::new(read(&key)?), Timestamp::now())?);
    }
    let subject = AuthoritySubject { common_name: String::from("quorate discovery CA"), organization: None };
    let validity = SignedDuration::from_hours(CA_YEARS * 365 * 24);
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, validity, Timestamp::now())?;
    private_directory(directory).map_err(|source| AgentError::File {
        doing: "make the directory",
        path: directory.to_owned(),
        source,
    })?;
    write_durably(&key, authority.key_pem().expose().as_bytes(), PRIVATE)?;
    // Last: a CA without its key is never found.
    write_durably(&certificate, authority.certificate_pem().as_bytes(), PUBLIC)?;
    Ok(authority)
}

fn read(path: &Path) -> Result<String, TlsError> {
    fs::read_to_string(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Tls {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown().key.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn own(directory: &Path) -> Source {
        Source::Own { directory: directory.to_owned(), dns: vec![String::from("d.example.com")], addresses: Vec::new() }
    }

    #[test]
    fn the_ca_is_made_once_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("tls");
        let first = Tls::new(own(&directory)).unwrap();
        let ca = fs::read_to_string(first.ca_file().unwrap()).unwrap();
        let again = Tls::new(own(&directory)).unwrap();
        assert_eq!(fs::read_to_string(again.ca_file().unwrap()).unwrap(), ca);
        assert_eq!(fs::metadata(directory.join("ca.key")).unwrap().permissions().mode() & 0o777, 0o600);
        let facts = quorate_pki::inspect(&again.shown().pem).unwrap();
        assert_eq!(facts.dns, ["d.example.com"]);
        assert!(facts.server && !facts.client);
    }

    #[test]
    fn a_certificate_that_ends_soon_is_renewed_and_another_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let tls = Tls::new(own(dir.path())).unwrap();
        let first = tls.shown().pem.clone();
        tls.refresh().unwrap();
        assert_eq!(tls.shown().pem, first);
        tls.shown().not_after = Timestamp::now() + SignedDuration::from_hours(24);
        tls.refresh().unwrap();
        assert_ne!(tls.shown().pem, first);
    }

    #[test]
    fn given_files_are_taken_up_when_they_change_and_only_if_they_fit() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("c"), dir.path().join("k"));
        let write = |name: &str| {
            let source = own(&dir.path().join(name)).make().unwrap();
            let authority = authority(&dir.path().join(name)).unwrap();
            fs::write(&certificate, authority.certificate_pem()).unwrap();
            fs::write(&key, authority.key_pem().expose()).unwrap();
            source.not_after
        };
        write("one");
        let given = Source::Given { certificate: certificate.clone(), key: key.clone() };
        let tls = Tls::new(given).unwrap();
        let first = tls.shown().pem.clone();
        write("two");
        let second_key = fs::read(&key).unwrap();
        fs::write(&key, "no key").unwrap();
        assert!(matches!(tls.refresh(), Err(TlsError::Unreadable { .. })));
        assert_eq!(tls.shown().pem, first);
        fs::write(&key, second_key).unwrap();
        tls.refresh().unwrap();
        assert_ne!(tls.shown().pem, first);
    }
}
