//! The REST API of one server. Every request has a time limit; background operations of Incus are waited for.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, ETAG, HOST, IF_MATCH};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use quorate_core::text::with_causes;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::error::IncusError;
use super::remote::{Address, Remote};

const CONNECTING: Duration = Duration::from_secs(10);
const ANSWERING: Duration = Duration::from_secs(60);
/// Fetching an image takes the longest.
const OPERATION: Duration = Duration::from_secs(900);
/// How long one question for an operation waits at the server.
const QUESTION: u64 = 20;

pub(super) struct Server {
    name: String,
    address: Address,
    pub(super) project: String,
    idle: RefCell<Vec<Connection>>,
    /// Whether it is in an Incus cluster; known when it was checked.
    clustered: Cell<bool>,
}

type Connection = SendRequest<Full<Bytes>>;

/// An answer, and its ETag.
pub(super) struct Found {
    pub(super) value: Value,
    pub(super) etag: String,
}

/// Why there was no answer, and whether the request was never sent.
struct Failed {
    why: String,
    unsent: bool,
}

struct Answer {
    status: StatusCode,
    etag: String,
    body: Bytes,
}

/// A request. `doing` says in words what it is for.
pub(super) struct Call<'a> {
    doing: String,
    method: Method,
    path: String,
    body: Bytes,
    headers: Vec<(&'a str, String)>,
    within: Duration,
}

impl<'a> Call<'a> {
    pub(super) fn new(doing: impl Into<String>, method: Method, path: impl Into<String>) -> Self {
        Call {
            doing: doing.into(),
            method,
            path: path.into(),
            body: Bytes::new(),
            headers: Vec::new(),
            within: ANSWERING,
        }
    }

    pub(super) fn json(self, body: &Value) -> Self {
        self.body(Bytes::from(body.to_string()), "application/json")
    }

    /// With another content type, Incus writes an empty file.
    pub(super) fn bytes(self, body: Bytes) -> Self {
        self.body(body, "application/octet-stream")
    }

    pub(super) fn body(mut self, body: Bytes, content_type: &str) -> Self {
        self.body = body;
        self.with(CONTENT_TYPE.as_str(), content_type)
    }

    pub(super) fn with(mut self, header: &'a str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }

    /// With enough time to send an image.
    pub(super) fn patiently(self) -> Self {
        Call { within: OPERATION, ..self }
    }

    /// Fails if it was changed since.
    pub(super) fn unless_changed(self, etag: &str) -> Self {
        self.with(IF_MATCH.as_str(), etag)
    }
}

impl Server {
    pub(super) fn new(remote: Option<&str>, project: Option<&str>) -> Result<Self, IncusError> {
        let Remote { name, address, project: usual } = Remote::find(remote)?;
        let project = project.map(str::to_owned).or(usual).unwrap_or_else(|| String::from("default"));
        Ok(Server { name, address, project, idle: RefCell::default(), clustered: Cell::new(false) })
    }

    /// At another socket.
    pub(super) fn at(socket: PathBuf, project: Option<&str>) -> Self {
        let project = project.unwrap_or("default").to_owned();
        Server {
            name: String::from("local"),
            address: Address::Socket(socket),
            project,
            idle: RefCell::default(),
            clustered: Cell::new(false),
        }
    }

    /// None if it does not exist.
    pub(super) async fn get(&self, doing: &str, path: &str) -> Result<Option<Found>, IncusError> {
        let call = Call::new(doing, Method::GET, path);
        let answer = self.send(&call).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let etag = answer.etag.clone();
        let value = understood(&call, &answer)?;
        Ok(Some(Found { value: value.get("metadata").cloned().unwrap_or_default(), etag }))
    }

    pub(super) async fn list(&self, doing: &str, path: &str) -> Result<Vec<Value>, IncusError> {
        let found = self.get(doing, path).await?;
        Ok(found.and_then(|found| found.value.as_array().cloned()).unwrap_or_default())
    }

    /// A body that is not JSON, such as a log. None if it does not exist.
    pub(super) async fn read(&self, doing: &str, path: &str) -> Result<Option<Bytes>, IncusError> {
        let call = Call::new(doing, Method::GET, path);
        let answer = self.send(&call).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.body)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => understood(&call, &answer).map(|_| None),
        }
    }

    /// Changes something, and returns when it is done.
    pub(super) async fn change(&self, call: Call<'_>) -> Result<(), IncusError> {
        let answer = self.send(&call).await?;
        let value = understood(&call, &answer)?;
        match value.get("operation").and_then(Value::as_str).filter(|operation| !operation.is_empty()) {
            Some(operation) => self.wait(&call.doing, operation).await,
            None => Ok(()),
        }
    }

    async fn wait(&self, doing: &str, operation: &str) -> Result<(), IncusError> {
        let begun = Instant::now();
        while begun.elapsed() < OPERATION {
            let path = format!("{operation}/wait?timeout={QUESTION}");
            let call = Call::new(doing, Method::GET, path);
            let value = understood(&call, &self.send(&call).await?)?;
            let operation = value.get("metadata").unwrap_or(&Value::Null);
            let code = operation.get("status_code").and_then(Value::as_u64).unwrap_or_default();
            match code {
                200 => return Ok(()),
                400.. => {
                    let said = operation.get("err").and_then(Value::as_str).unwrap_or("it does not say why");
                    return Err(IncusError::Refused { doing: doing.to_owned(), code: 400, said: said.to_owned() });
                }
                _ => {}
            }
        }
        Err(IncusError::TooSlow { doing: doing.to_owned(), seconds: OPERATION.as_secs() })
    }

    /// A request that was not sent because the idle connection was closed is sent on a new one.
    async fn send(&self, call: &Call<'_>) -> Result<Answer, IncusError> {
        let kept = self.idle.borrow_mut().pop().filter(|kept| kept.is_ready());
        if let Some(connection) = kept {
            match self.send_on(connection, call).await {
                Err(Failed { unsent: true, .. }) => {}
                answer => return answer.map_err(|failed| self.unreachable(failed.why)),
            }
        }
        let connection = self.connect().await?;
        self.send_on(connection, call).await.map_err(|failed| self.unreachable(failed.why))
    }

    async fn send_on(&self, mut connection: Connection, call: &Call<'_>) -> Result<Answer, Failed> {
        let mut request = Request::builder().method(call.method.clone()).uri(self.uri(&call.path));
        request = request.header(HOST, "incus");
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let malformed = |error: hyper::http::Error| Failed { why: error.to_string(), unsent: false };
        let request = request.body(Full::new(call.body.clone())).map_err(malformed)?;
        let exchange = async {
            let answer = connection.send_request(request).await?;
            let (status, headers) = (answer.status(), answer.headers().clone());
            let body = answer.into_body().collect().await?.to_bytes();
            let etag = headers.get(ETAG).and_then(|etag| etag.to_str().ok()).unwrap_or_default().to_owned();
            Ok::<_, hyper::Error>(Answer { status, etag, body })
        };
        let silent = |_| Failed { why: format!("no answer within {} s", call.within.as_secs()), unsent: false };
        let answer = timeout(call.within, exchange).await.map_err(silent)?;
        let answer = answer.map_err(|error| Failed { why: with_causes(&error), unsent: error.is_canceled() })?;
        self.idle.borrow_mut().push(connection);
        Ok(answer)
    }

    fn uri(&self, path: &str) -> String {
        // Neither is of one project.
        if path.starts_with("/1.0/operations/") || path.contains("all-projects=true") {
            return path.to_owned();
        }
        let separator = if path.contains('?') { '&' } else { '?' };
        format!("{path}{separator}project={}", escaped(&self.project))
    }

    async fn connect(&self) -> Result<Connection, IncusError> {
        let connecting = async {
            match &self.address {
                Address::Socket(path) => {
                    let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
                        io::ErrorKind::PermissionDenied => IncusError::NoPermission { path: path.clone() },
                        _ => self.unreachable(error.to_string()),
                    })?;
                    self.speak(stream).await
                }
                Address::Https { host, port, connector } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await;
                    let stream = stream.map_err(|error| self.unreachable(error.to_string()))?;
                    let _ = stream.set_nodelay(true);
                    let name =
                        ServerName::try_from(host.clone()).map_err(|error| self.unreachable(error.to_string()))?;
                    let stream = connector.connect(name, stream).await.map_err(|error| self.not_accepted(&error))?;
                    self.speak(stream).await
                }
            }
        };
        let silent = |_| self.unreachable(format!("no answer within {} s", CONNECTING.as_secs()));
        timeout(CONNECTING, connecting).await.map_err(silent)?
    }

    async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
    ) -> Result<Connection, IncusError> {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(with_causes(&error)))?;
        // It ends with the last sender.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn unreachable(&self, why: String) -> IncusError {
        match &self.address {
            Address::Socket(path) => IncusError::NoSocket { path: path.clone(), why },
            Address::Https { .. } => IncusError::Unreachable { name: self.name.clone(), address: self.url(), why },
        }
    }

    fn not_accepted(&self, error: &std::io::Error) -> IncusError {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::InvalidCertificate(_)) => {
                IncusError::OtherCertificate { name: self.name.clone(), address: self.url() }
            }
            _ => self.unreachable(error.to_string()),
        }
    }

    fn url(&self) -> String {
        match &self.address {
            Address::Socket(path) => path.display().to_string(),
            Address::Https { host, port, .. } => format!("https://{host}:{port}"),
        }
    }

    pub(super) fn is_clustered(&self) -> bool {
        self.clustered.get()
    }

    /// A client that may not see all projects gets the instances of its project.
    pub(super) async fn instances_of_all_projects(&self) -> Result<Vec<Value>, IncusError> {
        match self.list("list instances", "/1.0/instances?recursion=1&all-projects=true").await {
            Err(IncusError::Refused { .. }) => self.list("list instances", "/1.0/instances?recursion=1").await,
            listed => listed,
        }
    }

    /// Checks that the server trusts this client and has everything that quorate uses.
    pub(super) async fn check(&self) -> Result<(), IncusError> {
        let server = self.get("read the server", "/1.0").await?;
        let server = server.map(|found| found.value).unwrap_or_default();
        if server.get("auth").and_then(Value::as_str) != Some("trusted") {
            return Err(IncusError::Untrusted { name: self.name.clone() });
        }
        let extensions = server.get("api_extensions").and_then(Value::as_array).cloned().unwrap_or_default();
        for (extension, needs) in EXTENSIONS {
            if !extensions.iter().any(|known| known == extension) {
                return Err(IncusError::TooOld { extension, needs });
            }
        }
        let environment = server.get("environment").unwrap_or(&Value::Null);
        self.clustered.set(environment.get("server_clustered") == Some(&Value::Bool(true)));
        self.check_project().await
    }

    /// A project that is not there has no instances either, says Incus; nor has one that this client may not use.
    async fn check_project(&self) -> Result<(), IncusError> {
        let known = names(&self.list("list projects", "/1.0/projects?recursion=1").await?);
        if known.contains(&self.project) {
            return Ok(());
        }
        let (name, path) = (self.project.clone(), format!("/1.0/projects/{}", escaped(&self.project)));
        match self.get("find the project", &path).await {
            Ok(None) => Err(IncusError::Missing { what: "project", name, known }),
            Ok(Some(_)) | Err(IncusError::Refused { code: 403, .. }) => Err(IncusError::NotAllowed { name, known }),
            Err(error) => Err(error),
        }
    }
}

/// API extensions that quorate uses.
const EXTENSIONS: [(&str, &str); 4] = [
    ("etag", "protects instances against concurrent changes"),
    ("instances", "creates containers and virtual machines with the same calls"),
    ("directory_manipulation", "prepares an instance before its first start"),
    ("projects", "keeps instances of different people apart"),
];

/// The names of things in a list.
pub(super) fn names(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(|one| one.get("name")?.as_str()).map(str::to_owned).collect()
}

/// For use in a URL.
pub(super) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A failed operation is answered with a success status.
fn understood(call: &Call<'_>, answer: &Answer) -> Result<Value, IncusError> {
    let unreadable = |why: String| IncusError::Unreadable { doing: call.doing.clone(), why };
    let value: Value = serde_json::from_slice(&answer.body).map_err(|error| unreadable(error.to_string()))?;
    if value.get("type").and_then(Value::as_str) != Some("error") && answer.status.is_success() {
        return Ok(value);
    }
    let said = value.get("error").and_then(Value::as_str).unwrap_or("it does not say why");
    let code = value.get("error_code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let code = code.unwrap_or(answer.status.as_u16());
    Err(IncusError::Refused { doing: call.doing.clone(), code, said: said.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped_in_urls() {
        assert_eq!(escaped("etcd-1.2_a~"), "etcd-1.2_a~");
        assert_eq!(escaped("a b/c&d=é"), "a%20b%2Fc%26d%3D%C3%A9");
    }

    #[test]
    fn a_refusal_says_what_incus_said() {
        let call = Call::new("start etcd-1", Method::PUT, "/1.0");
        let body = r#"{"type":"error","error_code":500,"error":"no such pool","metadata":null}"#;
        let answer = Answer { status: StatusCode::INTERNAL_SERVER_ERROR, etag: String::new(), body: body.into() };
        let refused = understood(&call, &answer).unwrap_err();
        assert_eq!(refused.to_string(), "Incus refused to start etcd-1: no such pool");
        let answer = Answer { status: StatusCode::BAD_GATEWAY, etag: String::new(), body: "<html>".into() };
        assert!(matches!(understood(&call, &answer), Err(IncusError::Unreadable { .. })));
    }
}
