//! An attacker at an agent's port, with any certificate or none, and any bytes. It uses TLS and plain HTTP directly,
//! because the controller's own client cannot send what these tests need.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_agent::api::CONTROLLER;
use quorate_core::Secret;
use quorate_core::model::AGENT_PORT;
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde::Serialize;
use serde_json::Value;

use super::trio::read_json;

const DAY: SignedDuration = SignedDuration::from_hours(24);

pub struct Intruder(Arc<ClientConfig>);

impl Intruder {
    pub fn without_certificate() -> Self {
        Intruder(Arc::new(builder().with_no_client_auth()))
    }

    /// With this certificate and key, in PEM.
    pub fn new(chain: &str, key: &str) -> Self {
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>().expect("a chain");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        Intruder(Arc::new(builder().with_client_auth_cert(chain, key).expect("they belong together")))
    }

    pub fn from_files(certificate: &str, key: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).expect(path);
        Self::new(&read(certificate), &read(key))
    }

    pub fn self_signed(name: &str) -> Self {
        let authority = authority(name);
        Self::new(authority.certificate_pem(), authority.key_pem().expose())
    }

    pub fn of_another_authority(name: &str) -> Self {
        Self::leaf(&authority("control CA"), name)
    }

    /// A client's certificate from a CA as the ledger holds it.
    pub fn signed_by(record: &Value, name: &str) -> Self {
        let text = |field: &str| record[field].as_str().expect("a CA").to_owned();
        let authority = Authority::load(&text("certificate"), &Secret::new(text("key")), Timestamp::now());
        Self::leaf(&authority.expect("a CA"), name)
    }

    /// What the real controller shows.
    pub fn controller(ledger: &Value) -> Self {
        Self::signed_by(&ledger["authorities"]["control"], CONTROLLER)
    }

    /// The agent that keeps this root, with its own certificate and key.
    pub fn agent(root: &Path) -> Self {
        let state = read_json(&root.join("var/lib/quorate/state.json"));
        let text = |value: &Value| value.as_str().expect("PEM").to_owned();
        Self::new(&text(&state["chains"]["agent"]), &text(&state["keys"]["agent"]["pem"]))
    }

    fn leaf(authority: &Authority, name: &str) -> Self {
        let key = KeyPair::generate(KeyAlgorithm::P256).expect("a key");
        let wish = LeafWish {
            common_name: name.to_owned(),
            organization: None,
            dns: Vec::new(),
            addresses: Vec::new(),
            server: false,
            client: true,
            validity: DAY,
        };
        let chain = authority.sign(&key.csr(name).expect("a request"), &wish, Timestamp::now()).expect("a leaf");
        Self::new(&chain, key.to_pem().expose())
    }

    /// One request, and its answer if there is one.
    pub fn ask(&self, address: IpAddr, path: &str, request: &impl Serialize) -> io::Result<(u16, Value)> {
        let body = serde_json::to_vec(request).expect("plain data serializes");
        let head = post(path, &format!("Content-Length: {}\r\n", body.len()));
        self.send(address, &[head.as_bytes(), &body])
    }

    /// Sends these parts until the other side has had enough, and reads what it answers: status and JSON.
    pub fn send(&self, address: IpAddr, parts: &[&[u8]]) -> io::Result<(u16, Value)> {
        let answer = self.exchange((address, AGENT_PORT).into(), parts)?;
        Ok((answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::Null)))
    }

    /// The same at any port.
    pub fn exchange(&self, to: SocketAddr, parts: &[&[u8]]) -> io::Result<Answer> {
        Ok(Answer::read(&self.raw(to, parts)?))
    }

    /// The same, from this address.
    pub fn exchange_from(&self, from: IpAddr, to: SocketAddr, parts: &[&[u8]]) -> io::Result<Answer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((from, 0).into())?;
            socket.connect(to).await?.into_std()
        })?;
        stream.set_nonblocking(false)?;
        Ok(Answer::read(&self.over(stream, to, parts)?))
    }

    /// All that comes back, as it comes.
    pub fn raw(&self, to: SocketAddr, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.over(TcpStream::connect(to)?, to, parts)
    }

    fn over(&self, stream: TcpStream, to: SocketAddr, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let connection = ClientConnection::new(self.0.clone(), ServerName::from(to.ip())).expect("a TLS client");
        let mut stream = StreamOwned::new(connection, stream);
        let sent = parts.iter().try_for_each(|part| stream.write_all(part)).and_then(|()| stream.flush());
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        if answer.is_empty() {
            read?;
            sent?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    }
}

/// What a server answered over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn read(bytes: &[u8]) -> Self {
        let answer = String::from_utf8_lossy(bytes).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an HTTP status");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }
}

/// The head of a request that ends its connection.
pub fn post(path: &str, headers: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n{headers}\r\n")
}

fn authority(name: &str) -> Authority {
    let subject = AuthoritySubject { common_name: name.to_owned(), organization: None };
    Authority::generate(&subject, KeyAlgorithm::P256, DAY, Timestamp::now()).expect("a CA")
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
}

/// An intruder does not mind who answers.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
