//! What the ledger says of the cluster behind the front, and the certificates that follow from it. Exchanged as a whole when the ledger
//! changes, and before a certificate ends.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use quorate_control::kinds::etcd::clients::{ClientError, Issued};
use quorate_control::kinds::etcd::front;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::model::Ledger;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

#[derive(Debug, thiserror::Error)]
pub enum BehindError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cluster {0} does not exist yet: bring it up with `quorate apply` first")]
    NoAuthority(String),
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

fn tls(error: impl ToString) -> BehindError {
    BehindError::Tls(error.to_string())
}

pub struct Behind {
    pub ledger: Ledger,
    pub ca: String,
    /// What the front connects to members with.
    pub identity: Option<(String, String)>,
    /// Serial numbers of certificates that are refused.
    refused: HashSet<String>,
    /// For clients whose TLS ends here. `None` where nothing can be signed.
    pub rest: Option<Arc<ServerConfig>>,
    /// For connections of the front to members.
    pub to_members: Arc<ClientConfig>,
    /// What the front shows to clients.
    shown: Option<Issued>,
    made: Timestamp,
}

impl Behind {
    /// Keeps the certificates of `before`, unless they are old or another CA signs.
    pub fn new(
        ledger: Ledger,
        dns: &[String],
        addresses: &[IpAddr],
        before: Option<&Behind>,
    ) -> Result<Self, BehindError> {
        let Some(authority) = &ledger.authorities.client else {
            return Err(BehindError::NoAuthority(ledger.spec.name.to_string()));
        };
        let ca = authority.certificate.clone();
        let refused: HashSet<String> = ledger.issued.refused_of_clients().map(str::to_owned).collect();
        let can_sign = front::can_sign(&ledger);
        let asks = ledger.spec.etcd.client_auth.asks_for_certificates();
        let same = |before: &&Behind| {
            (&before.ca, before.shown.is_some(), before.identity.is_some()) == (&ca, can_sign, can_sign && asks)
                && !before.is_old()
        };
        let (made, shown, identity, to_members) = match before.filter(same) {
            Some(before) => (before.made, before.shown.clone(), before.identity.clone(), before.to_members.clone()),
            None => {
                let shown = can_sign.then(|| front::server_certificate(&ledger, dns, addresses)).transpose()?;
                let identity = (can_sign && asks).then(|| front::nameless_certificate(&ledger)).transpose()?.map(pair);
                let to_members = Arc::new(client(&ca, identity.as_ref())?);
                (Timestamp::now(), shown, identity, to_members)
            }
        };
        let rest = shown.as_ref().map(|shown| server(&ledger, shown)).transpose()?.map(Arc::new);
        Ok(Behind { ca, identity, refused, rest, to_members, shown, made, ledger })
    }

    /// Whether members must be connected to again, because the front shows them another certificate.
    pub fn renews(&self, before: &Behind) -> bool {
        !Arc::ptr_eq(&self.to_members, &before.to_members)
    }

    /// Whether its certificates should be made again.
    pub fn is_old(&self) -> bool {
        let age = Timestamp::now().duration_since(self.made);
        // A clock that was set back must not keep a certificate for longer.
        age * 2 > front::VALIDITY || age.is_negative()
    }

    pub fn refuses(&self, serial: &str) -> bool {
        self.refused.contains(serial)
    }

    pub fn client_auth(&self) -> ClientAuth {
        self.ledger.spec.etcd.client_auth
    }

    /// Whether etcd asks who somebody is.
    pub fn authenticates(&self) -> bool {
        self.ledger.spec.auth.bootstrap
    }
}

pub fn pair(issued: Issued) -> (String, String) {
    let key = issued.key.map(|key| key.expose().to_owned()).unwrap_or_default();
    (issued.certificate, key)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, BehindError> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(tls)
}

fn key(pem: &str) -> Result<PrivateKeyDer<'static>, BehindError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(tls)
}

fn roots(ca: &str) -> Result<RootCertStore, BehindError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(tls)?;
    }
    Ok(roots)
}

/// A client need not show a certificate. One that is shown must be signed by the CA and not be revoked.
fn server(ledger: &Ledger, issued: &Issued) -> Result<ServerConfig, BehindError> {
    let provider = Arc::new(ring::default_provider());
    let authority = ledger.authorities.client.as_ref().map_or("", |authority| authority.certificate.as_str());
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authority)?), provider.clone());
    if let Some(list) = ledger.issued.client_crl.as_deref().and_then(from_hex) {
        verifier = verifier
            .with_crls([CertificateRevocationListDer::from(list)])
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    let verifier = verifier.allow_unauthenticated().build().map_err(tls)?;
    let shown = issued.key.as_ref().map_or("", |key| key.expose());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&issued.certificate)?, key(shown)?)
        .map_err(tls)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would skip the look at the list.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client(ca: &str, identity: Option<&(String, String)>) -> Result<ClientConfig, BehindError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(tls)?
        .with_root_certificates(roots(ca)?);
    match identity {
        Some((chain, private)) => builder.with_client_auth_cert(certificates(chain)?, key(private)?).map_err(tls),
        None => Ok(builder.with_no_client_auth()),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |at| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..text.len()).step_by(2).map(digits).collect()
}
