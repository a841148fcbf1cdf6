//! TLS: the agent's server, which accepts only the control CA and can replace its own certificate while it serves, and
//! the client configurations for etcd. Everything uses ring.

use std::sync::{Arc, Mutex};

use quorate_core::Secret;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::AgentError;
use crate::state::State;

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

pub(crate) fn chain_from_pem(pem: &str) -> Result<Vec<CertificateDer<'static>>, rustls::Error> {
    let unreadable = || rustls::Error::General(String::from("it holds no readable certificate in PEM"));
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(|_| unreadable())?;
    if chain.is_empty() { Err(unreadable()) } else { Ok(chain) }
}

pub(crate) fn key_from_pem(pem: &Secret) -> Result<PrivateKeyDer<'static>, rustls::Error> {
    // The reader's own error may quote the text.
    PrivateKeyDer::from_pem_slice(pem.expose().as_bytes())
        .map_err(|_| rustls::Error::General(String::from("it holds no readable private key in PEM")))
}

pub(crate) fn roots_from_pem(pem: &str) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for certificate in chain_from_pem(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// The certificate that the agent shows. It is read at each handshake, so that enrolment and renewal need no restart.
pub(crate) struct Shown(Mutex<Arc<CertifiedKey>>);

impl Shown {
    /// The certificate that the controller gave, or, before that, one that the agent signed itself.
    pub(crate) fn of(state: &State) -> Result<Self, AgentError> {
        Ok(Shown(Mutex::new(certified_key(state)?)))
    }

    pub(crate) fn swap(&self, state: &State) -> Result<(), AgentError> {
        *self.0.lock().expect("no holder panics") = certified_key(state)?;
        Ok(())
    }
}

fn certified_key(state: &State) -> Result<Arc<CertifiedKey>, AgentError> {
    let key = &state.agent_key().pem;
    let chain = match state.chains.get(&quorate_core::model::CertificateUse::Agent) {
        Some(chain) if state.enrolled => chain_from_pem(chain)?,
        _ => vec![self_signed(key)?],
    };
    Ok(Arc::new(CertifiedKey::from_der(chain, key_from_pem(key)?, &provider())?))
}

/// Says nothing but the key: who the machine is, only the enrolment proves.
fn self_signed(key: &Secret) -> Result<CertificateDer<'static>, AgentError> {
    let unusable = |_| AgentError::Tls(rustls::Error::General(String::from("the agent's own key cannot sign")));
    let key = rcgen::KeyPair::from_pem(key.expose()).map_err(unusable)?;
    let certificate = rcgen::CertificateParams::default().self_signed(&key).map_err(unusable)?;
    Ok(certificate.der().clone())
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.lock().expect("no holder panics").clone())
    }
}

/// Lets in only what the control CA signed for use as a client.
pub(crate) fn server_config(control_ca: &str, shown: Arc<Shown>) -> Result<Arc<ServerConfig>, AgentError> {
    let bad = |why: String| AgentError::ControlCa { why };
    let roots = roots_from_pem(control_ca).map_err(|error| bad(error.to_string()))?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| bad(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(shown);
    // Connections are few and long: resumption would only keep memory.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For etcd's plain pages: with the member's certificate to its peer port, with root's or none to its client port.
pub(crate) fn etcd_client_config(
    trust: &str,
    identity: Option<(&str, &Secret)>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots_from_pem(trust)?);
    let mut config = match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain_from_pem(chain)?, key_from_pem(key)?)?,
        None => config.with_no_client_auth(),
    };
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
