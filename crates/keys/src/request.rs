//! Parses a request for keys, with etcd's order of checks. Pure.

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};

use crate::error::{Code, Refusal};
use crate::form::{Form, number};
use crate::path::{MAX_DEPTH, MAX_LENGTH, Path};

/// etcd grants no lease that lasts longer, in seconds.
pub const MAX_TTL: u64 = 9_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Get { path: Path, recursive: bool },
    Wait(Wait),
    Write(Write),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub path: Path,
    pub recursive: bool,
    pub stream: bool,
    /// Zero for what happens from now on.
    pub since: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// For `Post` the directory.
    pub path: Path,
    pub kind: Kind,
    pub value: Vec<u8>,
    pub dir: bool,
    pub ttl: Option<Ttl>,
    pub refresh: bool,
    pub no_value: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    pub seconds: u64,
    pub expires: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Set,
    Create,
    /// Under a new name, after all earlier ones.
    Post,
    Update,
    CompareAndSwap(Expected),
    Delete {
        recursive: bool,
    },
    CompareAndDelete(Expected),
}

/// An empty value and index zero are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub value: Vec<u8>,
    pub index: u64,
}

/// Reads a request for the node at `below`, the unescaped path behind `/v2/keys`.
pub fn parse(parts: &Parts, below: &[u8], body: &Bytes, now: Timestamp) -> Result<Call, Refusal> {
    let form = form(parts, body)?;
    let fields = Fields::read(&parts.method, &form, now)?;
    let path = checked(Path::parse(below), fields.is_post)?;
    Ok(fields.call(path))
}

fn form(parts: &Parts, body: &Bytes) -> Result<Form, Refusal> {
    let mut form = Form::default();
    let body = if has_form(parts) { form.add(body) } else { Ok(()) };
    let query = form.add(parts.uri.query().unwrap_or_default().as_bytes());
    body.and(query).map_err(|cause| Refusal::new(Code::InvalidForm, cause))?;
    Ok(form)
}

/// Go reads the bodies of these methods alone, and only those that say what they are.
fn has_form(parts: &Parts) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    matches!(parts.method, Method::POST | Method::PUT | Method::PATCH)
        && kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

fn checked(path: Path, is_post: bool) -> Result<Path, Refusal> {
    let depth = path.depth() + usize::from(is_post);
    if depth > MAX_DEPTH || path.length() > MAX_LENGTH {
        let cause =
            format!("the key has {depth} levels and {} bytes; at most {MAX_DEPTH} and {MAX_LENGTH}", path.length());
        return Err(Refusal::new(Code::InvalidField, cause).with_status(StatusCode::URI_TOO_LONG));
    }
    Ok(path)
}

struct Fields {
    is_post: bool,
    method: Method,
    expected: Expected,
    since: u64,
    recursive: bool,
    wait: bool,
    dir: bool,
    quorum: bool,
    stream: bool,
    no_value: bool,
    ttl: Option<Ttl>,
    exists: Option<bool>,
    refresh: bool,
    value: Vec<u8>,
}

impl Fields {
    /// The first wrong field is reported, in etcd's order.
    fn read(method: &Method, form: &Form, now: Timestamp) -> Result<Self, Refusal> {
        let (index, since) = (index(form, "prevIndex")?, index(form, "waitIndex")?);
        let recursive = flag(form, "recursive")?;
        flag(form, "sorted")?;
        let wait = flag(form, "wait")?;
        let (dir, quorum, stream) = (flag(form, "dir")?, flag(form, "quorum")?, flag(form, "stream")?);
        if wait && method != Method::GET {
            return Err(Refusal::new(Code::InvalidField, "\"wait\" can only be used with GET requests"));
        }
        if form.get("prevValue") == Some(b"") {
            return Err(Refusal::new(Code::PrevValueRequired, "\"prevValue\" cannot be empty"));
        }
        let no_value = flag(form, "noValueOnSuccess")?;
        let ttl = ttl(form, now)?;
        let exists = nullable(form, "prevExist")?;
        let refresh = nullable(form, "refresh")?.unwrap_or(false);
        let value = form.get("value").unwrap_or_default().to_vec();
        if refresh && !value.is_empty() {
            return Err(Refusal::new(Code::RefreshValue, "A value was provided on a refresh"));
        }
        if refresh && ttl.is_none() {
            return Err(Refusal::new(Code::RefreshTtlRequired, "No TTL value set"));
        }
        let expected = Expected { value: form.get("prevValue").unwrap_or_default().to_vec(), index };
        let (method, is_post) = (method.clone(), method == Method::POST);
        Ok(Fields {
            is_post,
            method,
            expected,
            since,
            recursive,
            wait,
            dir,
            quorum,
            stream,
            no_value,
            ttl,
            exists,
            refresh,
            value,
        })
    }

    fn call(self, path: Path) -> Call {
        let kind = match self.method {
            Method::PUT => self.put(),
            Method::POST => Kind::Post,
            Method::DELETE if self.expected != Expected::default() => Kind::CompareAndDelete(self.expected),
            Method::DELETE => Kind::Delete { recursive: self.recursive },
            // etcd waits for nothing where a quorum is asked for.
            _ if self.wait && !self.quorum => {
                let Fields { recursive, stream, since, .. } = self;
                return Call::Wait(Wait { path, recursive, stream, since });
            }
            _ => return Call::Get { path, recursive: self.recursive },
        };
        let Fields { value, dir, ttl, refresh, no_value, .. } = self;
        Call::Write(Write { path, kind, value, dir, ttl, refresh, no_value })
    }

    fn put(&self) -> Kind {
        let compares = self.expected != Expected::default();
        match self.exists {
            Some(false) => Kind::Create,
            Some(true) if !compares => Kind::Update,
            None if !compares => Kind::Set,
            _ => Kind::CompareAndSwap(self.expected.clone()),
        }
    }
}

fn index(form: &Form, name: &str) -> Result<u64, Refusal> {
    form.number(name).map_err(|()| Refusal::new(Code::IndexNotANumber, format!("invalid value for {name:?}")))
}

fn flag(form: &Form, name: &str) -> Result<bool, Refusal> {
    form.flag(name).map_err(|()| Refusal::new(Code::InvalidField, format!("invalid value for {name:?}")))
}

fn nullable(form: &Form, name: &str) -> Result<Option<bool>, Refusal> {
    let wrong = |()| Refusal::new(Code::InvalidField, format!("invalid value for {name}"));
    form.get(name).map(|_| form.flag(name).map_err(wrong)).transpose()
}

/// An empty one is none.
fn ttl(form: &Form, now: Timestamp) -> Result<Option<Ttl>, Refusal> {
    let Some(text) = form.get("ttl").filter(|text| !text.is_empty()) else { return Ok(None) };
    let seconds = number(text).map_err(|()| Refusal::new(Code::TtlNotANumber, "invalid value for \"ttl\""))?;
    let lasts = i64::try_from(seconds).ok().filter(|_| seconds <= MAX_TTL).map(SignedDuration::from_secs);
    let expires = lasts.and_then(|lasts| now.checked_add(lasts).ok());
    let too_long = || Refusal::new(Code::TtlNotANumber, format!("\"ttl\" is more than {MAX_TTL} seconds"));
    Ok(Some(Ttl { seconds, expires: expires.ok_or_else(too_long)? }))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
