//! What a front knows about its cluster, from the ledger or, on a machine of the cluster, from the agent; and the certificates that
//! follow from it. Replaced as a whole when that changes, and before a certificate expires.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use quorate_control::clients::ClientError;
use quorate_control::kinds::etcd::clients::Issued;
use quorate_control::kinds::etcd::front;
use quorate_core::kinds::etcd::front::FrontConfig;
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
    /// The name of the cluster.
    pub cluster: String,
    /// `None` on a machine of the cluster, which has no key of a CA: nobody can be acted for by certificate there.
    pub ledger: Option<Ledger>,
    client_auth: ClientAuth,
    authenticates: bool,
    pub ca: String,
    /// The front's client certificate for members.
    pub identity: Option<(String, String)>,
    /// Serial numbers of certificates that are refused.
    refused: HashSet<String>,
    /// For clients whose TLS ends here. `None` where nothing can be signed.
    pub rest: Option<Arc<ServerConfig>>,
    /// For connections of the front to members.
    pub to_members: Arc<ClientConfig>,
    /// What the front shows to clients, made here. On a machine the controller renews it.
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
        let crl = ledger.issued.client_crl.as_deref();
        let rest = shown.clone().map(|shown| server(&ca, crl, &pair(shown))).transpose()?.map(Arc::new);
        let (cluster, client_auth) = (ledger.spec.name.to_string(), ledger.spec.etcd.client_auth);
        let (authenticates, ledger) = (ledger.spec.auth.bootstrap, Some(ledger));
        Ok(Behind { cluster, ledger, client_auth, authenticates, ca, identity, refused, rest, to_members, shown, made })
    }

    /// On a machine of the cluster: with what its agent was told, and the certificate and key that it was given, if it was.
    pub fn on_machine(
        told: &FrontConfig,
        given: Option<(String, String)>,
        before: Option<&Behind>,
    ) -> Result<Self, BehindError> {
        let ca = told.ca.clone().unwrap_or_default();
        let identity = given.clone().filter(|_| told.client_auth.asks_for_certificates());
        let same = |before: &&Behind| (&before.ca, &before.identity) == (&ca, &identity);
        let to_members = match before.filter(same) {
            Some(before) => before.to_members.clone(),
            None => Arc::new(client(&ca, identity.as_ref())?),
        };
        let rest = given.map(|given| server(&ca, told.crl.as_deref(), &given)).transpose()?.map(Arc::new);
        Ok(Behind {
            cluster: told.cluster.clone(),
            ledger: None,
            client_auth: told.client_auth,
            authenticates: told.authenticates,
            ca,
            identity,
            refused: told.refused.iter().cloned().collect(),
            rest,
            to_members,
            shown: None,
            made: Timestamp::now(),
        })
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
        self.client_auth
    }

    /// Whether it can act for users who have shown a certificate.
    pub fn acts_for_users(&self) -> bool {
        self.ledger.is_some()
    }

    /// Whether etcd authenticates clients.
    pub fn authenticates(&self) -> bool {
        self.authenticates
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
fn server(ca: &str, crl: Option<&str>, (chain, private): &(String, String)) -> Result<ServerConfig, BehindError> {
    let provider = Arc::new(ring::default_provider());
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider.clone());
    if let Some(list) = crl.and_then(from_hex) {
        verifier = verifier
            .with_crls([CertificateRevocationListDer::from(list)])
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    let verifier = verifier.allow_unauthenticated().build().map_err(tls)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(chain)?, key(private)?)
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
