//! Identifies the sender of a request, by password, etcd token or client certificate, and with it the user for the call to etcd. The
//! front itself has no permissions: what it sends to etcd carries the client's own credentials, or a certificate for the user whose
//! client certificate it has verified.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use quorate_control::kinds::etcd::front;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_etcd::{Client, ConnectOptions, Login};
use quorate_pki::Sha256;

use crate::behind::{Behind, pair};
use crate::members::Member;

/// Connections and logins that are kept.
const KEPT: usize = 1024;
/// One that was not used for so long is forgotten.
const UNUSED: Duration = Duration::from_secs(300);
/// The certificate with which the front acts as a user lives for an hour.
const LONGEST: Duration = Duration::from_secs(1800);

/// The certificate that a client has shown and that was verified.
#[derive(Clone, Debug)]
pub struct Shown {
    /// In hexadecimal.
    pub serial: String,
    /// `None` without a common name.
    pub user: Option<String>,
}

impl Shown {
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let facts = quorate_pki::inspect(&pem(der)).ok()?;
        Some(Shown { serial: facts.serial, user: facts.subject_common_name.filter(|name| !name.is_empty()) })
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[derive(Clone)]
pub enum Who {
    Nobody,
    User(String),
    Password(Login),
    Token(String),
}

/// A status of HTTP, and why.
pub type Denied = (u16, String);

fn denied<T>(status: u16, why: impl Into<String>) -> Result<T, Denied> {
    Err((status, why.into()))
}

/// `for_login`: the request itself is a login.
pub fn who(behind: &Behind, shown: Option<&Shown>, headers: &HeaderMap, for_login: bool) -> Result<Who, Denied> {
    let asks = behind.client_auth();
    if let Some(shown) = shown
        && behind.refuses(&shown.serial)
    {
        return denied(401, "this client certificate is revoked");
    }
    let needs_certificate = match asks {
        ClientAuth::CertificateAndPassword => true,
        ClientAuth::Certificate => !behind.authenticates(),
        ClientAuth::Password => false,
    };
    if needs_certificate && shown.is_none() {
        return denied(401, "this cluster serves only clients that present a certificate of its CA");
    }
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (given.next(), given.next());
    if second.is_some() {
        return denied(400, "more than one Authorization header");
    }
    if let Some(first) = first {
        return login(first);
    }
    let user = shown.and_then(|shown| shown.user.clone()).filter(|_| asks == ClientAuth::Certificate);
    match user {
        Some(user) if user == "root" && behind.authenticates() => denied(
            403,
            "the front does not act as root by certificate; connect with gRPC (etcdctl), or use a certificate of another user",
        ),
        Some(user) if user != "root" && !behind.acts_for_users() => denied(
            403,
            format!(
                "a front on a machine of the cluster has no key of its CA, so it cannot act as {user} by certificate; log in with user and \
                 password, connect with gRPC (etcdctl), or run `quorate front` where the ledger is"
            ),
        ),
        Some(user) if user != "root" => Ok(Who::User(user)),
        _ if behind.authenticates() && !for_login => {
            denied(401, "a login is needed: a client certificate, user and password (HTTP basic), or a token of etcd")
        }
        _ => Ok(Who::Nobody),
    }
}

fn login(header: &HeaderValue) -> Result<Who, Denied> {
    let Ok(text) = header.to_str() else { return denied(400, "the Authorization header is not text") };
    let (scheme, rest) = text.split_once(' ').unwrap_or(("", text));
    if scheme.eq_ignore_ascii_case("basic") {
        let decoded = STANDARD.decode(rest.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some((user, password)) = decoded.as_deref().and_then(|text| text.split_once(':')) else {
            return denied(400, "the Authorization header is not `Basic` with user:password in base64");
        };
        if user.is_empty() {
            return denied(401, "the user has no name");
        }
        return Ok(Who::Password(Login { user: user.to_owned(), password: password.to_owned() }));
    }
    let token = if scheme.eq_ignore_ascii_case("bearer") { rest.trim() } else { text };
    match token.is_empty() || token.contains(|c: char| !c.is_ascii_graphic()) {
        true => denied(400, "the Authorization header holds neither `Basic` nor a token of etcd"),
        false => Ok(Who::Token(token.to_owned())),
    }
}

/// Clients of etcd that are logged in, by member and user.
#[derive(Default)]
pub struct Clients {
    kept: Mutex<HashMap<Key, Kept>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    member: String,
    user: String,
    /// Of the password; empty for a user with a certificate.
    digest: String,
    /// Which CA has signed, or of which connection of the front it is.
    of: String,
}

struct Kept {
    client: Client,
    made: Instant,
    used: Instant,
}

impl Clients {
    /// A client of this member that acts as this user.
    pub fn get(&self, behind: &Behind, member: &Member, who: &Who) -> Result<Client, Denied> {
        let place = format!("{} {}", member.name, member.address);
        match who {
            Who::Nobody => Ok(member.client.clone()),
            Who::Token(token) => {
                member.client.with_token(token).ok_or_else(|| (400, String::from("the token cannot be sent to etcd")))
            }
            Who::Password(login) => {
                let digest = digest(&login.password);
                let of = format!("{:p}", std::sync::Arc::as_ptr(&behind.to_members));
                let key = Key { member: place, user: login.user.clone(), digest, of };
                self.kept(key, || Ok(member.client.with_login(login.clone())))
            }
            Who::User(user) => {
                let Some(ledger) = &behind.ledger else { return denied(403, "this front cannot act by certificate") };
                let of = ledger.authorities.client.as_ref().map(|a| a.key_id.clone()).unwrap_or_default();
                let key = Key { member: place, user: user.clone(), digest: String::new(), of };
                self.kept(key, || {
                    let issued = front::user_certificate(ledger, user);
                    let identity = Some(pair(issued.map_err(|error| (403, error.to_string()))?));
                    let options = ConnectOptions { identity, ..member.options(&behind.ca) };
                    Client::connect(options).map_err(|error| (500, error.to_string()))
                })
            }
        }
    }

    fn kept(&self, key: Key, make: impl FnOnce() -> Result<Client, Denied>) -> Result<Client, Denied> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.retain(|_, one| now - one.used < UNUSED && now - one.made < LONGEST);
        if let Some(one) = kept.get_mut(&key) {
            one.used = now;
            return Ok(one.client.clone());
        }
        if kept.len() >= KEPT
            && let Some(oldest) = kept.iter().min_by_key(|(_, one)| one.used).map(|(key, _)| key.clone())
        {
            kept.remove(&oldest);
        }
        let client = make()?;
        kept.insert(key, Kept { client: client.clone(), made: now, used: now });
        Ok(client)
    }

    /// Whether etcd has accepted this password. One that it has not seen yet, or has refused, may be a guess.
    pub fn knows(&self, login: &Login) -> bool {
        let digest = digest(&login.password);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().any(|(key, one)| key.user == login.user && key.digest == digest && one.client.is_logged_in())
    }

    /// A password that etcd has refused.
    pub fn forget(&self, login: &Login) {
        let digest = digest(&login.password);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|key, _| key.user != login.user || key.digest != digest);
    }
}

fn digest(password: &str) -> String {
    quorate_core::text::hex(&Sha256::digest(password))
}
