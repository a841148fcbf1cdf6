//! The server's address: the socket of this host, or a remote of the `incus` command with its certificate and the client's.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_core::spec::read_plain_yaml;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::Value;
use tokio_rustls::TlsConnector;

use super::error::IncusError;

/// The name of the server on this host.
const LOCAL: &str = "local";
/// Where it listens by default, newest first.
const SOCKETS: [&str; 2] = ["/run/incus/unix.socket", "/var/lib/incus/unix.socket"];

/// How a server is reached.
#[derive(Clone)]
pub(super) enum Address {
    Socket(PathBuf),
    Https { host: String, port: u16, connector: TlsConnector },
}

pub(super) struct Remote {
    pub(super) name: String,
    pub(super) address: Address,
    /// The one that the `incus` command uses there.
    pub(super) project: Option<String>,
}

impl Remote {
    pub(super) fn find(name: Option<&str>) -> Result<Self, IncusError> {
        match name {
            None | Some(LOCAL) => {
                Ok(Remote { name: LOCAL.to_owned(), address: Address::Socket(socket()), project: None })
            }
            Some(name) => Self::of_config(&config_directory(), name),
        }
    }

    fn of_config(directory: &Path, name: &str) -> Result<Self, IncusError> {
        let (path, remotes) = remotes(directory)?;
        let Some(remote) = remotes.get(name) else {
            let known = remotes.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
            return Err(IncusError::NoRemote { name: name.to_owned(), path, known });
        };
        let text = |field: &str| remote.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let Some(protocol) = text("protocol").filter(|protocol| *protocol != "incus") {
            return Err(IncusError::ImagesOnly { name: name.to_owned(), protocol: protocol.to_owned() });
        }
        let url = text("addr").unwrap_or_default();
        let address = match url.strip_prefix("unix:").map(|rest| rest.trim_start_matches("//")) {
            Some("") => Address::Socket(socket()),
            Some(path) => Address::Socket(PathBuf::from(path)),
            None => https(directory, name, url)?,
        };
        Ok(Remote { name: name.to_owned(), address, project: text("project").map(str::to_owned) })
    }
}

/// A server of images that instances can be made from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImageServer {
    pub(super) url: String,
    pub(super) protocol: String,
    /// The one that the `incus` command has accepted. Without it the server's certificate must be a public one.
    pub(super) certificate: Option<String>,
}

impl ImageServer {
    pub(super) fn find(name: &str) -> Result<Self, IncusError> {
        Self::of_config(&config_directory(), name)
    }

    fn of_config(directory: &Path, name: &str) -> Result<Self, IncusError> {
        let (path, remotes) = remotes(directory)?;
        let text = |field: &str| remotes.get(name).and_then(|remote| remote.get(field)).and_then(Value::as_str);
        let (url, protocol) = match (text("addr"), text("protocol")) {
            (Some(url), protocol) => (url, protocol.unwrap_or("incus")),
            // The `incus` command knows this one without being told.
            (None, _) if name == "images" => ("https://images.linuxcontainers.org", "simplestreams"),
            (None, _) => {
                let known = remotes.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
                return Err(IncusError::NoRemote { name: name.to_owned(), path, known });
            }
        };
        let certificate = fs::read_to_string(accepted(directory, name)).ok();
        Ok(ImageServer { url: url.to_owned(), protocol: protocol.to_owned(), certificate })
    }
}

/// Where the `incus` command keeps the certificate of a server.
fn accepted(directory: &Path, name: &str) -> PathBuf {
    directory.join("servercerts").join(format!("{name}.crt"))
}

fn remotes(directory: &Path) -> Result<(PathBuf, Value), IncusError> {
    let path = directory.join("config.yml");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((path, Value::Null)),
        text => text.map_err(|error| IncusError::Config { path: path.clone(), why: error.to_string() })?,
    };
    let unreadable = |why: String| IncusError::Config { path: path.clone(), why };
    let config = read_plain_yaml(&text).map_err(unreadable)?;
    Ok((path, config.get("remotes").cloned().unwrap_or_default()))
}

fn https(directory: &Path, name: &str, url: &str) -> Result<Address, IncusError> {
    let path = directory.join("config.yml");
    let unreadable =
        || IncusError::Config { path: path.clone(), why: format!("`{url}` is not the address of a server") };
    let rest = url.strip_prefix("https://").ok_or_else(unreadable)?.trim_end_matches('/');
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| unreadable())?),
        _ => (rest, 443),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(Address::Https { host, port, connector: connector(directory, name)? })
}

/// With the certificate of the `incus` command, for the server whose certificate that command has accepted.
fn connector(directory: &Path, name: &str) -> Result<TlsConnector, IncusError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let accepted = accepted(directory, name);
    let [certificate, key] = ["client.crt", "client.key"].map(|file| directory.join(file));
    let failed = |path: &Path, why: String| IncusError::Config { path: path.to_owned(), why };
    let pinned = CertificateDer::from_pem_file(&accepted).map_err(|error| failed(&accepted, error.to_string()))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| failed(&certificate, error.to_string()))?;
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| failed(&key, error.to_string()))?;
    let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().and_then(
        |builder| {
            let verifier = Arc::new(Accepted { certificate: pinned, provider });
            builder.dangerous().with_custom_certificate_verifier(verifier).with_client_auth_cert(chain, private)
        },
    );
    let config = config.map_err(|error| failed(&certificate, error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Accepts exactly this certificate, whatever its names and dates.
#[derive(Debug)]
struct Accepted {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Accepted {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *shown == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn config_directory() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/incus"));
    std::env::var_os("INCUS_CONF").map(PathBuf::from).or_else(home).unwrap_or_default()
}

/// Where the `incus` command would look.
fn socket() -> PathBuf {
    if let Some(socket) = std::env::var_os("INCUS_SOCKET") {
        return PathBuf::from(socket);
    }
    if let Some(directory) = std::env::var_os("INCUS_DIR") {
        return Path::new(&directory).join("unix.socket");
    }
    let found = SOCKETS.iter().find(|socket| Path::new(socket).exists());
    PathBuf::from(found.unwrap_or(&SOCKETS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(remotes: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("config.yml"), format!("default-remote: local\nremotes:\n{remotes}")).unwrap();
        directory
    }

    #[test]
    fn remotes_are_those_of_the_incus_command() {
        let directory = config(
            "  images: {addr: 'https://images.example', protocol: simplestreams, public: true}\n  \
             here: {addr: 'unix:///srv/incus.socket', project: etcd}\n",
        );
        let find = |name| Remote::of_config(directory.path(), name);
        let here = find("here").unwrap();
        assert!(matches!(&here.address, Address::Socket(path) if path == Path::new("/srv/incus.socket")));
        assert_eq!(here.project.as_deref(), Some("etcd"));
        let missing = find("lab").err().unwrap().to_string();
        assert!(missing.contains("no Incus remote `lab`") && missing.ends_with("has here, images"), "{missing}");
        let images = find("images").err().unwrap().to_string();
        assert!(images.contains("serves images only (simplestreams)"), "{images}");
    }

    #[test]
    fn a_server_of_images_is_shown_with_the_certificate_that_was_accepted() {
        let directory = config("  store: {addr: 'https://10.0.0.1:8443', protocol: incus, public: true}\n");
        let find = |name| ImageServer::of_config(directory.path(), name);
        assert_eq!(find("store").unwrap().certificate, None);
        fs::create_dir(directory.path().join("servercerts")).unwrap();
        fs::write(directory.path().join("servercerts/store.crt"), "PEM").unwrap();
        let (url, protocol) = (String::from("https://10.0.0.1:8443"), String::from("incus"));
        assert_eq!(find("store").unwrap(), ImageServer { url, protocol, certificate: Some(String::from("PEM")) });
        assert_eq!(find("images").unwrap().protocol, "simplestreams");
        assert!(find("lab").unwrap_err().to_string().contains("no Incus remote `lab`"));
    }

    #[test]
    fn a_remote_that_was_not_accepted_is_not_spoken_to() {
        let directory = config("  lab: {addr: 'https://[fd00::1]:8443', protocol: incus}\n");
        let refused = Remote::of_config(directory.path(), "lab").err().unwrap().to_string();
        assert!(refused.contains("servercerts/lab.crt cannot be read"), "{refused}");
    }
}
