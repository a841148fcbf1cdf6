//! Errors, sorted by what a caller does about them. etcd distinguishes its errors by text more than by gRPC code, and the same text comes
//! with different codes and prefixes between versions and calls, so the text decides and the code is the fallback.

use std::error::Error as StdError;
use std::fmt;

use tonic::{Code, Status};

use crate::generated::etcdserverpb::WatchResponse;
use crate::room::{NO_ROOM, TOO_LONG};

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot connect to {endpoint:?}: {why}")]
    Options { endpoint: String, why: String },
    /// Nothing answers there, or not as etcd with the right certificates. Whether a request under way was carried out is unknown. A client
    /// certificate that etcd refuses often shows only as a closed connection: TLS 1.3 tells after the handshake, and the request may be
    /// faster than the alert.
    #[error("cannot reach etcd at {endpoint}")]
    Unreachable { endpoint: String, source: Transport },
    /// Whether the request was, or still will be, carried out is unknown.
    #[error("etcd did not answer in time")]
    Timeout,
    #[error("{0}")]
    Unauthenticated(LoginRefusal),
    #[error("permission denied")]
    PermissionDenied,
    #[error("authentication is not enabled")]
    AuthNotEnabled,
    #[error("{0} already exists")]
    AlreadyExists(Thing),
    #[error("{0} not found")]
    NotFound(Thing),
    #[error("the cluster has no leader")]
    NoLeader,
    /// The member answers, but cannot serve now.
    #[error("etcd is unavailable: {message}")]
    Unavailable { message: String },
    /// A change of membership is refused because too few members are started and connected.
    #[error("the cluster is not healthy enough to change its members")]
    UnhealthyCluster,
    #[error("the learner is not in sync with the leader yet")]
    LearnerNotReady,
    #[error("the member is not a learner")]
    NotLearner,
    #[error("the cluster has as many learners as it may have")]
    TooManyLearners,
    #[error("only the leader can do this")]
    NotLeader,
    #[error("a learner cannot do this")]
    NotForLearner,
    #[error("the database has reached its quota")]
    NoSpace,
    #[error("the data is corrupt, or alarmed as such")]
    Corrupt,
    /// `oldest` is the first revision that can still be read, where etcd says so.
    #[error("the revision has been compacted")]
    Compacted { oldest: Option<i64> },
    #[error("this version of etcd does not know the call")]
    Unimplemented,
    /// It was not read: longer than the client's options allow.
    #[error("{message}")]
    TooLong { message: String },
    /// The answer was not read: others take all the room of the client's options.
    #[error("{}", NO_ROOM)]
    NoRoom,
    #[error("etcd refused: {message} ({code:?})")]
    Other { code: Code, message: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginRefusal {
    /// User or password is wrong; etcd does not say which.
    WrongPassword,
    /// Authentication is on, and the request came from nobody.
    NoLogin,
    /// The token is unknown to this member: it was restarted, the token expired, or the password was changed.
    DeadToken,
    /// Users or roles changed while the request was under way.
    Outdated,
}

impl fmt::Display for LoginRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongPassword => "wrong user or password",
            Self::NoLogin => "a login is needed: neither a certificate's user nor a password was given",
            Self::DeadToken => "the login is no longer valid",
            Self::Outdated => "users or roles have changed since the login",
        })
    }
}

/// What exists already, or does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thing {
    User,
    Role,
    /// The grant of a role to a user.
    RoleGrant,
    /// The grant of a permission to a role.
    PermissionGrant,
    RootUser,
    /// The grant of the role root to the user root.
    RootRole,
    Member,
    PeerUrl,
    Lease,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Role => "role",
            Self::RoleGrant => "grant of the role to the user",
            Self::PermissionGrant => "grant of the permission to the role",
            Self::RootUser => "user root",
            Self::RootRole => "grant of the role root to the user root",
            Self::Member => "member",
            Self::PeerUrl => "peer URL",
            Self::Lease => "lease",
        })
    }
}

/// Why the connection could not be made, or broke: the innermost of the causes, which alone says something
/// ("Connection refused", "invalid peer certificate: …", "received fatal alert: …").
#[derive(Clone, Debug)]
pub struct Transport {
    cause: String,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl StdError for Transport {}

impl Error {
    pub(crate) fn from_status(endpoint: &str, status: &Status) -> Self {
        // Only a status made on this side has a source; one sent by etcd has none.
        match status.source() {
            Some(source) => {
                Self::Unreachable { endpoint: endpoint.to_owned(), source: Transport { cause: root_cause(source) } }
            }
            None => Self::from_answer(status.code(), status.message()),
        }
    }

    /// Why the watch ends with this answer, if it does.
    pub fn ending(answer: &WatchResponse) -> Option<Self> {
        if answer.compact_revision > 0 {
            return Some(Self::Compacted { oldest: Some(answer.compact_revision) });
        }
        answer.canceled.then(|| Self::from_text(&answer.cancel_reason))
    }

    pub(crate) fn watch_closed() -> Self {
        Self::Unavailable { message: "the watch was closed".to_owned() }
    }

    /// The reason that etcd gives, in text only, for ending a watch.
    fn from_text(text: &str) -> Self {
        let message = text.split_once("desc = ").map_or(text, |(_, message)| message);
        Self::from_answer(Code::Unknown, message)
    }

    fn from_answer(code: Code, message: &str) -> Self {
        by_message(message).unwrap_or_else(|| by_code(code, message))
    }
}

fn by_message(message: &str) -> Option<Error> {
    // Some calls let the inner error through as it is.
    let text = message.strip_prefix("etcdserver: ").or_else(|| message.strip_prefix("auth: ")).unwrap_or(message);
    Some(match text {
        "authentication failed, invalid user ID or password" => Error::Unauthenticated(LoginRefusal::WrongPassword),
        "user name is empty" => Error::Unauthenticated(LoginRefusal::NoLogin),
        "invalid auth token" => Error::Unauthenticated(LoginRefusal::DeadToken),
        "revision of auth store is old" | "revision in header is old" => Error::Unauthenticated(LoginRefusal::Outdated),
        "permission denied" => Error::PermissionDenied,
        "authentication is not enabled" => Error::AuthNotEnabled,
        "user name already exists" => Error::AlreadyExists(Thing::User),
        "role name already exists" => Error::AlreadyExists(Thing::Role),
        "member ID already exist" => Error::AlreadyExists(Thing::Member),
        "Peer URLs already exists" => Error::AlreadyExists(Thing::PeerUrl),
        "lease already exists" => Error::AlreadyExists(Thing::Lease),
        "user name not found" => Error::NotFound(Thing::User),
        "role name not found" => Error::NotFound(Thing::Role),
        "role is not granted to the user" => Error::NotFound(Thing::RoleGrant),
        "permission is not granted to the role" => Error::NotFound(Thing::PermissionGrant),
        "root user does not exist" => Error::NotFound(Thing::RootUser),
        "root user does not have root role" => Error::NotFound(Thing::RootRole),
        "member not found" => Error::NotFound(Thing::Member),
        "requested lease not found" => Error::NotFound(Thing::Lease),
        "no leader" | "leader changed" => Error::NoLeader,
        "unhealthy cluster" | "re-configuration failed due to not enough started members" => Error::UnhealthyCluster,
        "can only promote a learner member which is in sync with leader" => Error::LearnerNotReady,
        "can only promote a learner member" => Error::NotLearner,
        "too many learner members in cluster" => Error::TooManyLearners,
        "not leader" => Error::NotLeader,
        "rpc not supported for learner" => Error::NotForLearner,
        "mvcc: database space exceeded" => Error::NoSpace,
        "corrupt cluster" => Error::Corrupt,
        "mvcc: required revision has been compacted" => Error::Compacted { oldest: None },
        NO_ROOM => Error::NoRoom,
        too_long if too_long.starts_with(TOO_LONG) => Error::TooLong { message: message.to_owned() },
        timed_out if timed_out.starts_with("request timed out") => Error::Timeout,
        _ => return None,
    })
}

fn by_code(code: Code, message: &str) -> Error {
    match code {
        Code::DeadlineExceeded => Error::Timeout,
        Code::Unauthenticated => Error::Unauthenticated(LoginRefusal::DeadToken),
        Code::PermissionDenied => Error::PermissionDenied,
        Code::Unimplemented => Error::Unimplemented,
        Code::Unavailable => Error::Unavailable { message: message.to_owned() },
        Code::DataLoss => Error::Corrupt,
        code => Error::Other { code, message: message.to_owned() },
    }
}

/// The text of the innermost cause.
pub(crate) fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_decides_and_the_code_is_the_fallback() {
        let of = |code, message| Error::from_answer(code, message);
        assert!(matches!(
            of(Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"),
            Error::Unauthenticated(LoginRefusal::WrongPassword)
        ));
        assert!(matches!(of(Code::Unknown, "auth: permission denied"), Error::PermissionDenied));
        assert!(matches!(of(Code::Unavailable, "etcdserver: unhealthy cluster"), Error::UnhealthyCluster));
        assert!(matches!(
            of(Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
            Error::Timeout
        ));
        assert!(matches!(of(Code::Unavailable, "etcdserver: server stopped"), Error::Unavailable { .. }));
        assert!(matches!(of(Code::Unimplemented, "unknown method AuthStatus"), Error::Unimplemented));
        assert!(matches!(
            of(Code::FailedPrecondition, "etcdserver: bad leader transferee"),
            Error::Other { code: Code::FailedPrecondition, .. }
        ));
    }

    #[test]
    fn a_watch_that_etcd_ended_says_why_in_text() {
        let error = Error::from_text("rpc error: code = PermissionDenied desc = etcdserver: permission denied");
        assert!(matches!(error, Error::PermissionDenied));
        assert!(matches!(Error::from_text("something new"), Error::Other { .. }));
    }

    #[test]
    fn the_same_text_in_full_and_in_part_are_two_refusals() {
        let of = |message| Error::from_answer(Code::FailedPrecondition, message);
        assert!(matches!(of("etcdserver: can only promote a learner member"), Error::NotLearner));
        assert!(matches!(
            of("etcdserver: can only promote a learner member which is in sync with leader"),
            Error::LearnerNotReady
        ));
    }
}
