//! The controller's side of an agent's port. A certificate of the control CA with the machine's name identifies an agent.
//! Any other server there may only be asked to enrol; nothing else is sent to it.

mod bounded;
mod clock;
mod read;
mod upload;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use quorate_core::Secret;
use quorate_core::model::{AGENT_PORT, Facts, Program, ProgramSeen};
use quorate_core::text::cut;
use quorate_core::text::hex;
use quorate_core::text::with_causes;
use quorate_pki::Sha256;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use crate::api::{
    EnrolAnswer, EnrolCertificate, EnrolRequest, Envelope, EtcdOrder, FactsRequest, Identity, JobAnswer, JobRequest,
    LogAnswer, LogRequest, Order, ReadFailure, Refusal, ServedKey, path,
};
use crate::dial::Dial;
use crate::{channel, tls, x509};

use bounded::Bounded;
pub use read::Answers;

/// For the connection, and again for its handshake.
const CONNECTING: Duration = Duration::from_secs(1);
const TRIES: usize = 4;
const FACTS: Duration = Duration::from_secs(4);
/// RSA keys are made meanwhile.
const ENROLMENT: Duration = Duration::from_secs(60);
const ORDER: Duration = Duration::from_secs(60);
/// It may download etcd.
const SLOW_ORDER: Duration = Duration::from_secs(600);
const ANSWER_BYTES: usize = 16 << 20;
/// Of what is not understood.
const LONGEST_COMPLAINT: usize = 1 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the agent at {address} cannot be reached: {why}")]
    Unreachable { address: SocketAddr, why: String },
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Read(#[from] ReadFailure),
    /// It answers, but not like an agent of this cluster.
    #[error("unexpected answer from the agent at {address}: {why}")]
    Protocol { address: SocketAddr, why: String },
    #[error("the control CA or the controller's certificate cannot be used")]
    Tls(#[from] rustls::Error),
}

impl ClientError {
    /// The later fencing number that this agent claims to obey.
    pub fn obeyed(&self) -> Option<u64> {
        match self {
            ClientError::Refused(Refusal::StaleFence { obeyed, .. }) => Some(*obeyed),
            _ => None,
        }
    }
}

/// What answered at an agent's port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Look {
    /// An agent without a certificate of this cluster for this machine, with the SHA-256 of its TLS key.
    Unenrolled {
        public_key: String,
    },
    Facts(Box<Facts>),
    /// An agent of this cluster with an unsupported protocol, and the highest fencing number that it has obeyed.
    OtherProtocol {
        program: ProgramSeen,
        fence: Option<u64>,
    },
}

/// What an agent answers to a facts request. Its program is looked at first: agents of another protocol may answer in another form.
enum FactsAnswer {
    Facts(Box<Facts>),
    OtherProtocol { program: ProgramSeen, fence: Option<u64> },
}

impl<'de> Deserialize<'de> for FactsAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let answer = serde_json::Value::deserialize(deserializer)?;
        let program = answer.get("program").map(ProgramSeen::deserialize).transpose().map_err(D::Error::custom)?;
        let program = program.unwrap_or_default();
        if !Program::this().understands(&program.runs) {
            let fence = answer.get("fence").and_then(serde_json::Value::as_u64);
            return Ok(FactsAnswer::OtherProtocol { program, fence });
        }
        Facts::deserialize(answer).map(|facts| FactsAnswer::Facts(Box::new(facts))).map_err(D::Error::custom)
    }
}

/// A client of one agent. Connections are reused; two requests at once use two.
pub struct AgentClient {
    address: SocketAddr,
    dial: Dial,
    expected: Identity,
    control_ca: RootCertStore,
    connector: TlsConnector,
    idle: Mutex<Vec<Connection>>,
}

/// Dropping it ends everything in progress on it.
struct Connection {
    peer: Peer,
    sender: SendRequest<Sent>,
    task: AbortHandle,
    /// Why it ended. A sender on it only learns that it did.
    ended: Ended,
}

type Ended = Arc<Mutex<Option<hyper::Error>>>;

type Sent = UnsyncBoxBody<Bytes, io::Error>;

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Peer {
    Verified,
    Unverified(ServedKey),
}

impl AgentClient {
    /// `identity` is the controller's certificate chain and key, in PEM.
    pub fn new(
        address: IpAddr,
        control_ca: &str,
        identity: (String, Secret),
        expected: Identity,
    ) -> Result<Self, ClientError> {
        let (chain, key) = identity;
        let provider = tls::provider();
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(HoldsItsKey(provider)))
            .with_client_auth_cert(tls::chain_from_pem(&chain)?, tls::key_from_pem(&key)?)?;
        config.resumption = Resumption::disabled();
        Ok(AgentClient {
            address: SocketAddr::new(address, AGENT_PORT),
            dial: Dial::Address,
            expected,
            control_ca: tls::roots_from_pem(control_ca)?,
            connector: TlsConnector::from(Arc::new(config)),
            idle: Mutex::default(),
        })
    }

    /// Connects in another way than from this process's network.
    pub fn by(self, dial: Dial) -> Self {
        AgentClient { dial, ..self }
    }

    pub async fn look(&self, request: &FactsRequest) -> Result<Look, ClientError> {
        match self.verified(path::FACTS, request, FACTS).await? {
            Answer::Of(Bounded(FactsAnswer::Facts(facts))) => Ok(Look::Facts(facts)),
            Answer::Of(Bounded(FactsAnswer::OtherProtocol { program, fence })) => {
                Ok(Look::OtherProtocol { program, fence })
            }
            Answer::Stranger(key) => Ok(Look::Unenrolled { public_key: key.sha256 }),
        }
    }

    pub async fn order(&self, envelope: &Envelope) -> Result<(), ClientError> {
        let slow = matches!(
            envelope.order,
            Order::Converge { .. }
                | Order::Etcd(EtcdOrder::Rebuild { .. })
                | Order::Etcd(EtcdOrder::RestoreData { .. })
        ) || matches!(&envelope.order, Order::Postgres(order) if order.is_slow());
        let time = if slow { SLOW_ORDER } else { ORDER };
        self.verified(path::ORDERS, envelope, time).await?.of_ours()
    }

    pub async fn logs(&self, request: &LogRequest) -> Result<LogAnswer, ClientError> {
        self.verified(path::LOGS, request, FACTS).await?.of_ours()
    }

    /// Starts work on backups, or polls it.
    pub async fn job(&self, request: &JobRequest) -> Result<JobAnswer, ClientError> {
        self.verified(path::JOB, request, ORDER).await?.of_ours()
    }

    /// Also returns the key of the connection: the proof must be for that key.
    pub async fn enrol(&self, request: &EnrolRequest) -> Result<(EnrolAnswer, ServedKey), ClientError> {
        let mut connection = self.connect_to_stranger().await?;
        let Bounded(answer) = self.ask(&mut connection, path::ENROL, request, ENROLMENT).await?;
        let Peer::Unverified(key) = connection.peer.clone() else { return Err(Refusal::AlreadyEnrolled.into()) };
        self.keep(connection);
        Ok((answer, key))
    }

    pub async fn enrol_certificate(&self, chain: String) -> Result<(), ClientError> {
        let mut connection = self.connect_to_stranger().await?;
        let request = EnrolCertificate { chain };
        let answer = self.ask(&mut connection, path::ENROL_CERTIFICATE, &request, ORDER).await;
        // From now on it presents another certificate.
        self.idle.lock().expect("no holder panics").clear();
        answer
    }

    /// Sends a request to a known agent of this cluster. A kept connection may have died with the agent's last process,
    /// so the request is repeated once on a new one; every request can be repeated.
    async fn verified<A: DeserializeOwned>(
        &self,
        at: &str,
        request: &impl Serialize,
        time: Duration,
    ) -> Result<Answer<A>, ClientError> {
        if let Some(connection) = self.kept() {
            match self.ask_and_keep(connection, at, request, time).await {
                Err(Failed { error: ClientError::Unreachable { .. }, hung_up: true }) => {}
                answer => return answer.map(Answer::Of).map_err(|failed| failed.error),
            }
        }
        let mut tried = 0;
        loop {
            let connection = self.connect().await?;
            if let Peer::Unverified(key) = &connection.peer {
                let key = key.clone();
                self.keep(connection);
                return Ok(Answer::Stranger(key));
            }
            tried += 1;
            match self.ask_and_keep(connection, at, request, time).await {
                // Our side of the handshake ends before the agent's does.
                Err(Failed { error: ClientError::Unreachable { .. }, hung_up: true }) if tried < TRIES => {}
                answer => return answer.map(Answer::Of).map_err(|failed| failed.error),
            }
        }
    }

    /// A connection on which an answer is still to come is not kept.
    async fn ask_and_keep<A: DeserializeOwned>(
        &self,
        mut connection: Connection,
        at: &str,
        request: &impl Serialize,
        time: Duration,
    ) -> Result<A, Failed> {
        let answer = self.ask(&mut connection, at, request, time).await;
        let hung_up = connection.sender.is_closed();
        if !matches!(answer, Err(ClientError::Unreachable { .. })) {
            self.keep(connection);
        }
        answer.map_err(|error| Failed { error, hung_up })
    }

    async fn connect_to_stranger(&self) -> Result<Connection, ClientError> {
        let kept = self.idle.lock().expect("no holder panics").pop();
        let connection = match kept.filter(|kept| !kept.sender.is_closed() && kept.peer != Peer::Verified) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        if connection.peer == Peer::Verified { Err(Refusal::AlreadyEnrolled.into()) } else { Ok(connection) }
    }

    fn keep(&self, connection: Connection) {
        if !connection.sender.is_closed() {
            self.idle.lock().expect("no holder panics").push(connection);
        }
    }

    /// A free connection to an agent of this cluster that seems to be alive.
    fn kept(&self) -> Option<Connection> {
        let kept = self.idle.lock().expect("no holder panics").pop();
        kept.filter(|kept| kept.peer == Peer::Verified && !kept.sender.is_closed())
    }

    async fn connect_to_ours(&self) -> Result<Connection, ClientError> {
        let connection = self.connect().await?;
        if connection.peer == Peer::Verified { Ok(connection) } else { Err(Refusal::NotEnrolled.into()) }
    }

    /// An agent with too many connections drops some of them, and nothing has been sent yet: it is tried again.
    async fn connect(&self) -> Result<Connection, ClientError> {
        for _ in 1..TRIES {
            match self.connect_once().await {
                Err(Failed { hung_up: true, .. }) => {}
                connected => return connected.map_err(|failed| failed.error),
            }
        }
        self.connect_once().await.map_err(|failed| failed.error)
    }

    async fn connect_once(&self) -> Result<Connection, Failed> {
        if let Dial::Line(line) = &self.dial {
            let stream = in_time(CONNECTING, channel::connect(line)).await.map_err(|why| self.unreachable(why))?;
            return self.shake_hands(stream).await;
        }
        let connecting = self.dial.connect(self.address);
        let stream = in_time(CONNECTING, connecting).await.map_err(|why| self.unreachable(why))?;
        let _ = stream.set_nodelay(true);
        self.shake_hands(stream).await
    }

    async fn shake_hands<S>(&self, stream: S) -> Result<Connection, Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let name = ServerName::from(self.address.ip());
        let mut hung_up = false;
        let connecting = self.connector.connect(name, stream);
        let connecting = async { connecting.await.inspect_err(|error| hung_up = was_dropped(error)) };
        let connected = in_time(CONNECTING, connecting).await;
        let stream = connected.map_err(|why| Failed { error: self.unreachable(why), hung_up })?;
        let peer = self.recognize(stream.get_ref().1.peer_certificates().unwrap_or_default())?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(error.to_string()))?;
        let ended = Ended::default();
        let note = ended.clone();
        let carry = async move {
            if let Err(error) = connection.await {
                *note.lock().expect("no holder panics") = Some(error);
            }
        };
        let task = tokio::spawn(carry).abort_handle();
        Ok(Connection { peer, sender, task, ended })
    }

    fn recognize(&self, chain: &[CertificateDer<'_>]) -> Result<Peer, ClientError> {
        let [first, others @ ..] = chain else { return Err(self.protocol("it presents no certificate")) };
        let leaf = ParsedCertificate::try_from(first)?;
        let algorithms = tls::provider().signature_verification_algorithms.all;
        let verify = |at| verify_server_cert_signed_by_trust_anchor(&leaf, &self.control_ca, others, at, algorithms);
        // An agent whose certificate ran out, or was signed by a clock that was ahead, is still the one that holds its key,
        // and must be reached to get a new one.
        use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
        let trusted = match verify(UnixTime::now()) {
            Err(rustls::Error::InvalidCertificate(
                Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
            )) => x509::last_second(first).is_some_and(|at| verify(at).is_ok()),
            verified => verified.is_ok(),
        };
        if trusted && x509::common_name(first) == Some(self.expected.common_name()) {
            return Ok(Peer::Verified);
        }
        let der = leaf.subject_public_key_info().as_ref().to_vec();
        let sha256 = hex(&Sha256::digest(&der));
        Ok(Peer::Unverified(ServedKey { der, sha256 }))
    }

    async fn ask<A: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        at: &str,
        request: &impl Serialize,
        time: Duration,
    ) -> Result<A, ClientError> {
        let body = serde_json::to_vec(request).expect("plain data serializes");
        let request = Request::post(at)
            .header(header::HOST, self.address.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync())
            .expect("the parts are constants");
        self.exchange(connection, request, time).await
    }

    async fn exchange<A: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        request: Request<Sent>,
        time: Duration,
    ) -> Result<A, ClientError> {
        let ended = connection.ended.clone();
        // A caller that waits for an answer is notified of the connection's end; its task is not.
        let failed = |error: hyper::Error| {
            let why = error.to_string();
            if clock::alert(&error).is_some() {
                *ended.lock().expect("no holder panics") = Some(error);
            }
            why
        };
        let exchange = async {
            connection.sender.ready().await.map_err(failed)?;
            let answer = connection.sender.send_request(request).await.map_err(failed)?;
            let status = answer.status();
            Ok::<_, String>((status, whole(answer.into_body()).await?))
        };
        let (status, body) = match in_time(time, exchange).await {
            Ok(answer) => answer,
            Err(why) => return Err(self.unreachable(self.why_ended(&connection.ended, why).await)),
        };
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| self.protocol(&error.to_string()));
        }
        Err(self.refusal(status, &body))
    }

    /// TLS says whether it accepts the controller's certificate only when something is sent: its reason is that of the
    /// connection, not of the request.
    async fn why_ended(&self, ended: &Ended, otherwise: String) -> String {
        let error = ended.lock().expect("no holder panics").take();
        let Some(error) = error else { return otherwise };
        match clock::alert(&error) {
            Some(rustls::AlertDescription::CertificateExpired) => {
                clock::advice(clock::difference(&self.dial, self.address.ip()).await)
            }
            Some(alert) => format!("it refuses the controller's certificate ({alert:?})"),
            None => with_causes(&error),
        }
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Bounded<Refusal>>(body) {
            Ok(Bounded(refusal)) => refusal.into(),
            Err(_) => self.protocol(&format!("it answers {status}")),
        }
    }

    fn unreachable(&self, why: String) -> ClientError {
        ClientError::Unreachable { address: self.address, why }
    }

    fn protocol(&self, why: &str) -> ClientError {
        ClientError::Protocol { address: self.address, why: cut(why, LONGEST_COMPLAINT).into_owned() }
    }
}

async fn whole(body: Incoming) -> Result<Bytes, String> {
    let body = Limited::new(body, ANSWER_BYTES).collect().await;
    Ok(body.map_err(|error| error.to_string())?.to_bytes())
}

async fn in_time<T, E: ToString>(time: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(time, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", time.as_secs())),
    }
}

/// The other side closed the connection, about which TLS itself reports nothing.
fn was_dropped(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | BrokenPipe | UnexpectedEof)
}

struct Failed {
    error: ClientError,
    /// The other side closed the connection, as an agent that ends does.
    hung_up: bool,
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Self {
        Failed { error, hung_up: false }
    }
}

enum Answer<A> {
    Of(A),
    Stranger(ServedKey),
}

impl<A> Answer<A> {
    fn of_ours(self) -> Result<A, ClientError> {
        match self {
            Answer::Of(answer) => Ok(answer),
            Answer::Stranger(_) => Err(Refusal::NotEnrolled.into()),
        }
    }
}

/// Accepts every certificate whose key the other side holds. Its owner is checked after the handshake.
#[derive(Debug)]
struct HoldsItsKey(Arc<CryptoProvider>);

impl ServerCertVerifier for HoldsItsKey {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
