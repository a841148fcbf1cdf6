//! The protocol of `--discovery`, used by members of etcd 3.4 to 3.6: part of version 2 of etcd's API over HTTP. Pure: parses
//! requests and renders answers.

use form_urlencoded::parse;
use serde::Serialize;

use crate::registry::{DEFAULT_SIZE, MAX_SIZE, MemberId, Refusal, Registration, Registry, Token};
use crate::store::StoreError;

/// Members know it as the place of all registries.
pub const PREFIX: &str = "/_etcd/registry";

/// What a request asks for. A registration's value is in its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    About,
    Health,
    New {
        size: u16,
    },
    Size {
        token: Token,
    },
    Directory {
        token: Token,
    },
    Member {
        token: Token,
        id: MemberId,
    },
    /// For the first registration at or after an index; by default, from now on.
    Wait {
        token: Token,
        id: Option<MemberId>,
        from: Option<u64>,
    },
    Register {
        token: Token,
        id: MemberId,
    },
}

/// An error as members read it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ApiError {
    #[serde(skip)]
    pub status: u16,
    #[serde(rename = "errorCode")]
    pub code: u16,
    pub message: &'static str,
    pub cause: String,
    pub index: u64,
}

/// The numbers are those of etcd.
mod code {
    pub const KEY_NOT_FOUND: u16 = 100;
    pub const KEY_EXISTS: u16 = 105;
    pub const READ_ONLY: u16 = 107;
    pub const VALUE_REQUIRED: u16 = 200;
    pub const INDEX_NOT_A_NUMBER: u16 = 203;
    pub const INVALID_FIELD: u16 = 209;
    pub const INVALID_FORM: u16 = 210;
    pub const INTERNAL: u16 = 300;
}

impl ApiError {
    fn new(status: u16, code: u16, message: &'static str, cause: impl Into<String>) -> Self {
        ApiError { status, code, message, cause: cause.into(), index: 0 }
    }

    fn not_found(cause: impl Into<String>) -> Self {
        Self::new(404, code::KEY_NOT_FOUND, "Key not found", cause)
    }

    pub fn no_such_token(index: u64) -> Self {
        let cause = "no such token, or it has expired; a new one comes from /new?size=N";
        ApiError { index, ..Self::not_found(cause) }
    }

    pub fn no_such_member(id: &MemberId, index: u64) -> Self {
        ApiError { index, ..Self::not_found(format!("member {} has not registered", id.as_str())) }
    }

    fn invalid(cause: impl Into<String>) -> Self {
        Self::new(400, code::INVALID_FIELD, "Invalid field", cause)
    }

    fn method(expected: &str) -> Self {
        Self::new(405, code::READ_ONLY, "Method not allowed", format!("expected {expected}"))
    }

    pub fn too_large(what: &str, most: usize) -> Self {
        Self::new(413, code::INVALID_FORM, "Invalid form", format!("{what} is larger than {most} bytes"))
    }

    pub fn body(cause: &str) -> Self {
        Self::new(400, code::INVALID_FORM, "Invalid form", cause)
    }

    pub fn too_slow() -> Self {
        Self::new(408, code::INVALID_FORM, "Invalid form", "the body did not arrive in time")
    }

    /// Members ask again after 5xx, and exit after 4xx.
    pub fn busy(cause: &str) -> Self {
        Self::new(503, code::INTERNAL, "Too many requests", cause)
    }

    pub fn too_many_tokens(cause: &str) -> Self {
        Self::new(429, code::INTERNAL, "Too many requests", cause)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoToken { index } => Self::no_such_token(index),
            StoreError::Refused { refusal, index } => ApiError { index, ..refusal.into() },
            StoreError::Full { .. } => Self::busy(&error.to_string()),
            StoreError::Failed(_) => Self::new(500, code::INTERNAL, "Internal error", error.to_string()),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let cause = refusal.to_string();
        match refusal {
            Refusal::OtherValue { .. } => Self::new(412, code::KEY_EXISTS, "Key already exists", cause),
            Refusal::Full { .. } => Self::new(403, code::READ_ONLY, "The cluster is full", cause),
            Refusal::NameTaken { .. } | Refusal::UrlTaken { .. } | Refusal::BadValue(_) => Self::invalid(cause),
        }
    }
}

/// Reads a request's head. `path` begins below the path of the service's URL.
pub fn route(method: &str, path: &str, query: &str) -> Result<Request, ApiError> {
    let reads = matches!(method, "GET" | "HEAD");
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/');
    let first = segments.next().unwrap_or_default();
    let rest: Vec<&str> = segments.collect();
    match (first, rest.as_slice()) {
        ("", []) if reads => return Ok(Request::About),
        ("health", []) if reads => return Ok(Request::Health),
        // Scripts ask for a token in any of these ways.
        ("new", []) if reads || matches!(method, "PUT" | "POST") => return Ok(Request::New { size: size(query)? }),
        ("" | "health" | "new", []) => return Err(ApiError::method("GET")),
        _ => {}
    }
    let Some(token) = Token::parse(first) else {
        return Err(ApiError::not_found("expected /new?size=N or /TOKEN, where a token is 32 hexadecimal digits"));
    };
    match rest.as_slice() {
        [] | [""] if reads => reading(query, token, None),
        ["_config", "size"] if reads => Ok(Request::Size { token }),
        [id] if !id.is_empty() && *id != "_config" => {
            let id = MemberId::parse(id).ok_or_else(|| {
                ApiError::not_found("expected a member's ID, 1 to 16 hexadecimal digits, behind the token")
            })?;
            match method {
                "PUT" => registering(query, token, id),
                _ if reads => reading(query, token, Some(id)),
                _ => Err(ApiError::method("GET or PUT")),
            }
        }
        [] | [""] | ["_config", "size"] => Err(ApiError::method("GET")),
        _ => Err(ApiError::not_found("expected /TOKEN, /TOKEN/_config/size or /TOKEN/MEMBER")),
    }
}

fn size(query: &str) -> Result<u16, ApiError> {
    let Some((_, size)) = parse(query.as_bytes()).find(|(name, _)| name == "size") else { return Ok(DEFAULT_SIZE) };
    let size = size.parse().ok().filter(|size| (1..=MAX_SIZE).contains(size));
    size.ok_or_else(|| ApiError::invalid(format!("size must be a whole number from 1 to {MAX_SIZE}")))
}

fn reading(query: &str, token: Token, id: Option<MemberId>) -> Result<Request, ApiError> {
    let (mut wait, mut from) = (false, None);
    for (name, value) in parse(query.as_bytes()) {
        match name.as_ref() {
            "wait" => wait = flag("wait", &value)?,
            "waitIndex" => from = Some(index(&value)?),
            // What is not known is the operator's own: etcd keeps the query of its discovery URL.
            _ => {}
        }
    }
    Ok(match (wait, id) {
        (true, id) => Request::Wait { token, id, from },
        (false, None) => Request::Directory { token },
        (false, Some(id)) => Request::Member { token, id },
    })
}

fn registering(query: &str, token: Token, id: MemberId) -> Result<Request, ApiError> {
    for (name, value) in parse(query.as_bytes()) {
        let is_refused = match name.as_ref() {
            "prevExist" => flag("prevExist", &value)?,
            "prevValue" | "prevIndex" | "ttl" | "dir" | "refresh" => true,
            _ => false,
        };
        if is_refused {
            let cause = format!("{name} is not supported: a member registers once, with prevExist=false");
            return Err(ApiError::invalid(cause));
        }
    }
    Ok(Request::Register { token, id })
}

fn flag(name: &str, value: &str) -> Result<bool, ApiError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(ApiError::invalid(format!("{name} must be true or false"))),
    }
}

fn index(value: &str) -> Result<u64, ApiError> {
    let refuse = |_| {
        let cause = "waitIndex must be a whole number";
        ApiError::new(400, code::INDEX_NOT_A_NUMBER, "The given index in POST form is not a number", cause)
    };
    value.parse().map_err(refuse)
}

/// The value in the body of a registration.
pub fn value(body: &[u8]) -> Result<String, ApiError> {
    let required = || ApiError::new(400, code::VALUE_REQUIRED, "Value is required", "expected a form: value=NAME=URL");
    let value = parse(body).find(|(name, _)| name == "value").ok_or_else(required)?;
    Ok(value.1.into_owned())
}

#[derive(Serialize)]
struct Answer<'a> {
    action: &'static str,
    node: Node<'a>,
}

/// The fields are in etcd's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<Node<'a>>,
    modified_index: u64,
    created_index: u64,
}

impl<'a> Node<'a> {
    fn leaf(key: String, value: &'a str, index: u64) -> Self {
        Node { key, dir: None, value: Some(value), nodes: Vec::new(), modified_index: index, created_index: index }
    }

    fn member(token: &Token, member: &'a Registration) -> Self {
        Self::leaf(format!("{PREFIX}/{}/{}", token.as_str(), member.id.as_str()), &member.value, member.index)
    }
}

fn json(action: &'static str, node: Node<'_>) -> String {
    serde_json::to_string(&Answer { action, node }).expect("plain data serializes")
}

pub fn size_answer(token: &Token, registry: &Registry) -> String {
    let (key, value) = (format!("{PREFIX}/{}/_config/size", token.as_str()), registry.size.to_string());
    json("get", Node::leaf(key, &value, registry.index))
}

pub fn directory_answer(token: &Token, registry: &Registry) -> String {
    let nodes = registry.members.iter().map(|member| Node::member(token, member)).collect();
    let (key, index) = (format!("{PREFIX}/{}", token.as_str()), registry.index);
    json("get", Node { key, dir: Some(true), value: None, nodes, modified_index: index, created_index: index })
}

pub fn member_answer(token: &Token, member: &Registration) -> String {
    json("get", Node::member(token, member))
}

/// To the member itself, and to those who wait for others.
pub fn created_answer(token: &Token, member: &Registration) -> String {
    json("create", Node::member(token, member))
}

pub fn error_answer(error: &ApiError) -> String {
    serde_json::to_string(error).expect("plain data serializes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "9a69d64726338dabf0a279d4fa7e803e";

    fn token() -> Token {
        Token::parse(TOKEN).unwrap()
    }

    fn id() -> MemberId {
        MemberId::parse("38cebe7031d3d519").unwrap()
    }

    #[test]
    fn the_requests_of_a_member_in_their_order() {
        let get = |path: &str, query| route("GET", &path.replace("TOKEN", TOKEN), query);
        let plain = "quorum=false&recursive=false&sorted=false";
        assert_eq!(get("/TOKEN/_config/size", plain), Ok(Request::Size { token: token() }));
        assert_eq!(get("/TOKEN", plain), Ok(Request::Directory { token: token() }));
        assert_eq!(get("/TOKEN/", ""), Ok(Request::Directory { token: token() }));
        let at = format!("/{TOKEN}/38cebe7031d3d519");
        assert_eq!(route("PUT", &at, "prevExist=false"), Ok(Request::Register { token: token(), id: id() }));
        let waits = |id, from| Ok(Request::Wait { token: token(), id, from });
        assert_eq!(get(&at, "recursive=false&wait=true&waitIndex=7"), waits(Some(id()), Some(7)));
        assert_eq!(get("/TOKEN", "recursive=true&wait=true&waitIndex=12"), waits(None, Some(12)));
        assert_eq!(get("/TOKEN", "wait=true&secret=x"), waits(None, None));
        assert_eq!(get(&at, ""), Ok(Request::Member { token: token(), id: id() }));
    }

    #[test]
    fn a_new_token_has_a_size_within_bounds() {
        assert_eq!(route("GET", "/new", ""), Ok(Request::New { size: 3 }));
        assert_eq!(route("POST", "/new", "size=5"), Ok(Request::New { size: 5 }));
        for bad in ["0", "-1", "32", "99999999999999999999", "", "3x", "%33%00"] {
            let refused = route("GET", "/new", &format!("size={bad}")).unwrap_err();
            assert_eq!((refused.status, refused.code), (400, 209), "{bad}");
        }
    }

    #[test]
    fn other_paths_and_methods_are_refused_with_what_was_expected() {
        let status =
            |method, path: &str| route(method, &path.replace("TOKEN", TOKEN), "").map_err(|error| error.status);
        for path in [
            "/x",
            "/../TOKEN",
            "//TOKEN",
            "/TOKEN/../x",
            "/TOKEN/_config",
            "/TOKEN/_config/size/x",
            "/TOKEN/a/b",
            "/TOKEN/%2e%2e",
            "/TOKEN//a",
        ] {
            assert_eq!(status("GET", path), Err(404), "{path}");
        }
        for (method, path) in [
            ("DELETE", "/TOKEN/a"),
            ("PUT", "/TOKEN"),
            ("PUT", "/TOKEN/_config/size"),
            ("DELETE", "/new"),
            ("POST", "/"),
        ] {
            assert_eq!(status(method, path), Err(405), "{method} {path}");
        }
        for query in ["prevExist=true", "prevIndex=3", "ttl=5", "prevExist=perhaps"] {
            let refused = route("PUT", &format!("/{TOKEN}/a"), query).unwrap_err();
            assert_eq!(refused.status, 400, "{query}");
        }
        let refused = route("GET", &format!("/{TOKEN}"), "wait=true&waitIndex=-1").unwrap_err();
        assert_eq!((refused.status, refused.code), (400, 203));
    }

    #[test]
    fn the_value_comes_from_a_form() {
        assert_eq!(value(b"value=m%3Dhttps%3A%2F%2Fh%3A2380").unwrap(), "m=https://h:2380");
        assert_eq!(value(b"").unwrap_err().code, 200);
        assert_eq!(value(b"m=https://h:1").unwrap_err().code, 200);
    }

    #[test]
    fn the_registry_looks_as_it_does_at_discovery_etcd_io() {
        let mut registry = Registry::new(3, 1509771563);
        registry.members.push(Registration {
            id: id(),
            value: String::from("741452a8c5544c7b9d93339dd98d3870=http://10.66.44.247:2380"),
            index: 1509771734,
        });
        let expected = concat!(
            r#"{"action":"get","node":{"key":"/_etcd/registry/9a69d64726338dabf0a279d4fa7e803e","dir":true,"nodes":[{"#,
            r#""key":"/_etcd/registry/9a69d64726338dabf0a279d4fa7e803e/38cebe7031d3d519","#,
            r#""value":"741452a8c5544c7b9d93339dd98d3870=http://10.66.44.247:2380","#,
            r#""modifiedIndex":1509771734,"createdIndex":1509771734}],"modifiedIndex":1509771563,"createdIndex":1509771563}}"#
        );
        assert_eq!(directory_answer(&token(), &registry), expected);
        let size = r#"{"action":"get","node":{"key":"/_etcd/registry/9a69d64726338dabf0a279d4fa7e803e/_config/size","value":"3","#;
        assert!(size_answer(&token(), &registry).starts_with(size));
        let error = error_answer(&ApiError { index: 4, ..Refusal::OtherValue { id: String::from("a") }.into() });
        assert!(
            error.starts_with(r#"{"errorCode":105,"message":"Key already exists","cause":"member a is"#),
            "{error}"
        );
        assert!(error.ends_with(r#","index":4}"#), "{error}");
    }

    /// Whatever comes in, it is refused or understood, and nothing but what a token and an ID may hold gets further.
    #[test]
    fn fuzz_requests() {
        let samples = [
            format!("GET /{TOKEN}?recursive=true&wait=true&waitIndex=12"),
            format!("PUT /{TOKEN}/38cebe7031d3d519?prevExist=false"),
            String::from("GET /new?size=3"),
            String::from("PUT / value=m%3Dhttps%3A%2F%2Fh%3A2380"),
        ];
        let samples: Vec<Vec<u8>> = samples.into_iter().map(String::into_bytes).collect();
        quorate_fuzz::campaign(&samples, |input| {
            let text = String::from_utf8_lossy(input);
            let (method, rest) = text.split_once(' ').unwrap_or((&text, ""));
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            if let Ok(Request::Register { token, id } | Request::Member { token, id }) = route(method, path, query) {
                assert!(token.as_str().bytes().chain(id.as_str().bytes()).all(|byte| byte.is_ascii_hexdigit()));
            }
            if let Ok(value) = value(input) {
                let _ = Registry::new(3, 1).judge(&id(), &value);
            }
        });
    }
}
