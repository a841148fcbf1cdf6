//! Errors of a store, sorted by what an operator does about them. S3 servers distinguish errors by a code in the body more than by
//! the HTTP status, and one problem has several codes, so the code decides and the status is the fallback.

use std::error::Error as StdError;
use std::io;

use object_store::Error as Raw;
use object_store::client::{HttpError, HttpErrorKind};

/// `place` is the store, `doing` what was tried there.
#[derive(Debug, thiserror::Error)]
#[error("{place}: cannot {doing}: {trouble}")]
pub struct StoreError {
    pub place: String,
    pub doing: String,
    pub trouble: Trouble,
}

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Trouble {
    #[error("the settings cannot be used: {0}")]
    Settings(String),
    #[error(
        "no credentials were found: {0}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a credentials file in the spec"
    )]
    NoCredentials(String),
    #[error(
        "the store does not accept the credentials ({0}): check the access key and its secret, and that the key was not revoked"
    )]
    WrongCredentials(String),
    #[error("there is no such bucket ({0}): create it, or correct its name, the endpoint or the region")]
    NoBucket(String),
    #[error(
        "the credentials are good but do not permit it ({0}): they need to list the bucket, and to get, put and delete below the prefix"
    )]
    Denied(String),
    #[error(
        "this machine's clock and the store's differ by more than the store accepts ({0}): set the clock, for example by NTP"
    )]
    ClockSkew(String),
    #[error("the bucket is in another region ({0}): correct `region` or `endpoint`")]
    OtherRegion(String),
    #[error("the store reports an internal error ({0}), also after several retries. Nothing is lost: try again later")]
    Unavailable(String),
    #[error("the store did not answer in time ({0}). Nothing is lost: try later, or check the network in between")]
    Timeout(String),
    #[error("the store cannot be reached ({0}): check the endpoint, the network and the store's certificate")]
    Unreachable(String),
    #[error("the connection was cut ({0}). Nothing is lost: try again")]
    Cut(String),
    #[error(
        "the store overwrites objects that must not be overwritten: it ignores conditional writes (If-None-Match, If-Match), without which two \
         controllers could destroy each other's backups. Use a store that has them: Amazon S3, SeaweedFS, MinIO, Ceph 19 or later"
    )]
    NoConditionalPut,
    #[error("the store has no space left ({0}): free some, raise its quota, or keep fewer backups")]
    NoSpace(String),
    #[error("there is no such object")]
    NotFound,
    #[error("it has {found} bytes, and at most {limit} were expected: it is not what was stored")]
    TooLarge { limit: u64, found: u64 },
    #[error("it exists already, with other content")]
    AlreadyExists,
    #[error("someone else changed it at the same time")]
    Changed,
    #[error("{0}")]
    Other(String),
}

impl StoreError {
    pub fn is_not_found(&self) -> bool {
        self.trouble == Trouble::NotFound
    }

    pub fn is_too_large(&self) -> bool {
        matches!(self.trouble, Trouble::TooLarge { .. })
    }

    /// Whether the same may well succeed later, with nothing done about it.
    pub fn is_passing(&self) -> bool {
        self.trouble.is_passing()
    }
}

impl Trouble {
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Trouble::Unavailable(_) | Trouble::Timeout(_) | Trouble::Unreachable(_) | Trouble::Cut(_))
    }

    /// Of what the S3 client says.
    pub(super) fn of(error: &Raw) -> Trouble {
        let (text, http) = innermost(error);
        if let Some(code) = code_in(&text)
            && let Some(trouble) = by_code(code)
        {
            return trouble;
        }
        match error {
            Raw::NotFound { .. } => Trouble::NotFound,
            Raw::AlreadyExists { .. } => Trouble::AlreadyExists,
            Raw::Precondition { .. } | Raw::NotModified { .. } => Trouble::Changed,
            Raw::PermissionDenied { .. } => Trouble::Denied(String::from("status 403")),
            Raw::Unauthenticated { .. } => Trouble::WrongCredentials(String::from("status 401")),
            Raw::NotImplemented { .. } => Trouble::NoConditionalPut,
            _ => http.map_or_else(|| by_text(text), by_transport),
        }
    }

    pub(super) fn of_io(error: &io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::NotFound => Trouble::NotFound,
            io::ErrorKind::AlreadyExists => Trouble::AlreadyExists,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Trouble::Other(format!("{error}: this user must be able to read and write there"))
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Trouble::NoSpace(error.to_string()),
            _ => Trouble::Other(error.to_string()),
        }
    }
}

fn by_code(code: &str) -> Option<Trouble> {
    let told = code.to_owned();
    Some(match code {
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "InvalidToken"
        | "ExpiredToken"
        | "InvalidSecurity"
        | "AuthorizationHeaderMalformed"
        | "TokenRefreshRequired" => Trouble::WrongCredentials(told),
        "NoSuchBucket" | "InvalidBucketName" => Trouble::NoBucket(told),
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => Trouble::Denied(told),
        "RequestTimeTooSkewed" | "RequestExpired" => Trouble::ClockSkew(told),
        "PermanentRedirect" | "TemporaryRedirect" | "IllegalLocationConstraintException" => Trouble::OtherRegion(told),
        "InternalError" | "ServiceUnavailable" | "SlowDown" | "OperationAborted" | "ConditionalRequestConflict" => {
            Trouble::Unavailable(told)
        }
        "QuotaExceeded"
        | "XMinioStorageFull"
        | "InsufficientStorage"
        | "StorageQuotaExceeded"
        | "InsufficientCapacity"
        | "XMinioAdminBucketQuotaExceeded" => Trouble::NoSpace(told),
        "NotImplemented" => Trouble::NoConditionalPut,
        _ => return None,
    })
}

fn by_text(text: String) -> Trouble {
    let status = |number: &str| text.contains(&format!("status code: {number}"));
    if text.contains("normally indicates an incorrectly configured region") {
        return Trouble::OtherRegion(String::from("a redirect"));
    }
    if status("507") {
        return Trouble::NoSpace(String::from("status 507"));
    }
    for number in ["500", "502", "503", "504", "429", "408"] {
        if status(number) {
            return Trouble::Unavailable(format!("status {number}"));
        }
    }
    Trouble::Other(text)
}

fn by_transport((kind, text): (HttpErrorKind, String)) -> Trouble {
    match kind {
        HttpErrorKind::Connect => Trouble::Unreachable(text),
        HttpErrorKind::Timeout => Trouble::Timeout(text),
        _ => Trouble::Cut(text),
    }
}

/// The text of the first cause that is the server's or the connection's own, and what kind of trouble a connection had. The client's
/// outer texts repeat their sources, so one of them says all.
fn innermost(error: &Raw) -> (String, Option<(HttpErrorKind, String)>) {
    let mut cause: &(dyn StdError + 'static) = error;
    let mut http = None;
    loop {
        if let Some(error) = cause.downcast_ref::<HttpError>() {
            http = Some((error.kind(), root(error)));
        }
        match cause.source() {
            Some(source) => cause = source,
            None => break,
        }
    }
    (error.to_string(), http)
}

fn root(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// S3's own code, in the XML that comes with a refusal.
fn code_in(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: &str, body: &str) -> Trouble {
        let source = format!("Server returned non-2xx status code: {status}: {body}").into();
        Trouble::of(&Raw::Generic { store: "S3", source })
    }

    #[test]
    fn every_problem_has_a_separate_name() {
        let told = |code: &str| refused("403 Forbidden", &format!("<Error><Code>{code}</Code></Error>"));
        assert!(matches!(told("InvalidAccessKeyId"), Trouble::WrongCredentials(_)));
        assert!(matches!(told("SignatureDoesNotMatch"), Trouble::WrongCredentials(_)));
        assert!(matches!(told("AccessDenied"), Trouble::Denied(_)));
        assert!(matches!(told("RequestTimeTooSkewed"), Trouble::ClockSkew(_)));
        assert!(matches!(told("NoSuchBucket"), Trouble::NoBucket(_)));
        assert!(matches!(told("XMinioStorageFull"), Trouble::NoSpace(_)));
        assert!(matches!(refused("503 Service Unavailable", ""), Trouble::Unavailable(_)));
        assert!(matches!(refused("507 Insufficient Storage", ""), Trouble::NoSpace(_)));
        assert!(matches!(refused("418 I'm a teapot", ""), Trouble::Other(_)));
    }

    #[test]
    fn only_passing_trouble_is_worth_another_attempt() {
        assert!(Trouble::Unavailable(String::new()).is_passing() && Trouble::Cut(String::new()).is_passing());
        assert!(!Trouble::WrongCredentials(String::new()).is_passing() && !Trouble::NoConditionalPut.is_passing());
    }
}
