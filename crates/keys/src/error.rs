//! Errors in the form of v2 clients: number, message, cause, index. Pure.

use hyper::StatusCode;

use crate::json::Json;

/// The numbers are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    KeyNotFound = 100,
    TestFailed = 101,
    NotFile = 102,
    NotDir = 104,
    NodeExist = 105,
    RootReadOnly = 107,
    DirNotEmpty = 108,
    Unauthorized = 110,
    PrevValueRequired = 201,
    TtlNotANumber = 202,
    IndexNotANumber = 203,
    InvalidField = 209,
    InvalidForm = 210,
    RefreshValue = 211,
    RefreshTtlRequired = 212,
    RaftInternal = 300,
    LeaderElect = 301,
    EventIndexCleared = 401,
}

impl Code {
    fn message(self) -> &'static str {
        match self {
            Code::KeyNotFound => "Key not found",
            Code::TestFailed => "Compare failed",
            Code::NotFile => "Not a file",
            Code::NotDir => "Not a directory",
            Code::NodeExist => "Key already exists",
            Code::RootReadOnly => "Root is read only",
            Code::DirNotEmpty => "Directory not empty",
            Code::Unauthorized => "The request requires user authentication",
            Code::PrevValueRequired => "PrevValue is Required in POST form",
            Code::TtlNotANumber => "The given TTL in POST form is not a number",
            Code::IndexNotANumber => "The given index in POST form is not a number",
            Code::InvalidField => "Invalid field",
            Code::InvalidForm => "Invalid POST form",
            Code::RefreshValue => "Value provided on refresh",
            Code::RefreshTtlRequired => "A TTL must be provided on refresh",
            Code::RaftInternal => "Raft Internal Error",
            Code::LeaderElect => "During Leader Election",
            Code::EventIndexCleared => "The event in requested index is outdated and cleared",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Code::KeyNotFound => StatusCode::NOT_FOUND,
            Code::NotFile | Code::DirNotEmpty => StatusCode::FORBIDDEN,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::TestFailed | Code::NodeExist => StatusCode::PRECONDITION_FAILED,
            Code::RaftInternal | Code::LeaderElect => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub status: StatusCode,
    pub cause: Vec<u8>,
    /// Zero where the store was not asked.
    pub index: u64,
}

impl Refusal {
    pub fn new(code: Code, cause: impl Into<Vec<u8>>) -> Self {
        Refusal { code, status: code.status(), cause: cause.into(), index: 0 }
    }

    pub fn at(self, index: u64) -> Self {
        Refusal { index, ..self }
    }

    pub fn with_status(self, status: StatusCode) -> Self {
        Refusal { status, ..self }
    }

    pub fn json(&self) -> String {
        let mut json = Json::default();
        json.object(|json| {
            json.field("errorCode").number(self.code as u64);
            json.field("message").text(self.code.message().as_bytes());
            if !self.cause.is_empty() {
                json.field("cause").text(&self.cause);
            }
            json.field("index").number(self.index);
        });
        json.line()
    }
}

impl From<quorate_etcd::Error> for Refusal {
    fn from(error: quorate_etcd::Error) -> Self {
        use quorate_etcd::Error;
        match error {
            Error::PermissionDenied | Error::Unauthenticated(_) => {
                Refusal::new(Code::Unauthorized, "Insufficient credentials")
            }
            Error::NoLeader => Refusal::new(Code::LeaderElect, "etcdserver: no leader"),
            Error::Timeout => Refusal::new(Code::RaftInternal, "etcdserver: request timed out"),
            Error::NoSpace => Refusal::new(Code::RaftInternal, "etcdserver: mvcc: database space exceeded"),
            Error::Other { ref message, .. } if message.contains("request is too large") => {
                Refusal::new(Code::InvalidForm, message.as_bytes()).with_status(StatusCode::PAYLOAD_TOO_LARGE)
            }
            Error::TooLong { message } => Refusal::new(Code::InvalidField, message),
            Error::NoRoom => {
                Refusal::new(Code::RaftInternal, error.to_string()).with_status(StatusCode::SERVICE_UNAVAILABLE)
            }
            error => Refusal::new(Code::RaftInternal, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_looks_like_etcds() {
        let refusal = Refusal::new(Code::KeyNotFound, "/foo").at(11);
        assert_eq!(
            refusal.json(),
            "{\"errorCode\":100,\"message\":\"Key not found\",\"cause\":\"/foo\",\"index\":11}\n"
        );
        let refusal = Refusal::new(Code::NotFile, "");
        assert_eq!(refusal.json(), "{\"errorCode\":102,\"message\":\"Not a file\",\"index\":0}\n");
        assert_eq!((refusal.status, Code::NotDir.status()), (StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST));
    }

    #[test]
    fn etcds_errors_keep_their_meaning() {
        let code = |error: quorate_etcd::Error| Refusal::from(error).code;
        assert_eq!(code(quorate_etcd::Error::PermissionDenied), Code::Unauthorized);
        assert_eq!(code(quorate_etcd::Error::NoLeader), Code::LeaderElect);
        assert_eq!(code(quorate_etcd::Error::Timeout), Code::RaftInternal);
    }
}
