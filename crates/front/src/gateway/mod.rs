//! etcd's v3 API as JSON over HTTP, like etcd's own gateway. The members' gateways stay off: they ignore client certificates, and
//! refuse some of them. Here each request becomes a gRPC call, sent as the user who made it.

mod json;
mod schema;

use serde_json::{Value, json};

pub use json::{length, text, to_wire};
pub use schema::Message;

/// A call that is offered.
#[derive(Debug)]
pub struct Call {
    paths: &'static [&'static str],
    pub method: &'static str,
    pub request: Message,
    pub answer: Message,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It may be asked of another member when one did not answer.
    Read,
    Write,
    /// Logs somebody in, so it needs no login.
    Login,
    /// Answers until the client goes.
    Stream,
    /// One answer of a stream.
    FirstOfStream,
}

use Kind::{FirstOfStream, Login, Read, Stream, Write};

const CALLS: &[Call] = &[
    call(&["/kv/range"], "/etcdserverpb.KV/Range", schema::RANGE, schema::RANGE_ANSWER, Read),
    call(&["/kv/put"], "/etcdserverpb.KV/Put", schema::PUT, schema::PUT_ANSWER, Write),
    call(&["/kv/deleterange"], "/etcdserverpb.KV/DeleteRange", schema::DELETE, schema::DELETE_ANSWER, Write),
    call(&["/kv/txn"], "/etcdserverpb.KV/Txn", schema::TXN, schema::TXN_ANSWER, Write),
    call(&["/kv/compaction"], "/etcdserverpb.KV/Compact", schema::COMPACTION, schema::DONE, Write),
    call(&["/lease/grant"], "/etcdserverpb.Lease/LeaseGrant", schema::GRANT, schema::GRANT_ANSWER, Write),
    call(&["/lease/revoke", "/kv/lease/revoke"], "/etcdserverpb.Lease/LeaseRevoke", schema::LEASE, schema::DONE, Write),
    call(
        &["/lease/keepalive"],
        "/etcdserverpb.Lease/LeaseKeepAlive",
        schema::LEASE,
        schema::KEEPALIVE_ANSWER,
        FirstOfStream,
    ),
    call(
        &["/lease/timetolive", "/kv/lease/timetolive"],
        "/etcdserverpb.Lease/LeaseTimeToLive",
        schema::TIME_TO_LIVE,
        schema::TIME_TO_LIVE_ANSWER,
        Read,
    ),
    call(
        &["/lease/leases", "/kv/lease/leases"],
        "/etcdserverpb.Lease/LeaseLeases",
        schema::EMPTY,
        schema::LEASES_ANSWER,
        Read,
    ),
    call(&["/auth/authenticate"], "/etcdserverpb.Auth/Authenticate", schema::LOGIN, schema::LOGIN_ANSWER, Login),
    call(&["/watch"], "/etcdserverpb.Watch/Watch", schema::WATCH, schema::WATCH_ANSWER, Stream),
    call(
        &["/cluster/member/list"],
        "/etcdserverpb.Cluster/MemberList",
        schema::MEMBER_LIST,
        schema::MEMBER_LIST_ANSWER,
        Read,
    ),
    call(&["/maintenance/status"], "/etcdserverpb.Maintenance/Status", schema::EMPTY, schema::STATUS_ANSWER, Read),
];

const fn call(
    paths: &'static [&'static str],
    method: &'static str,
    request: Message,
    answer: Message,
    kind: Kind,
) -> Call {
    Call { paths, method, request, answer, kind }
}

/// The call at a path, such as `/v3/kv/range`. Older clients say `/v3beta`.
pub fn find(path: &str) -> Option<&'static Call> {
    let rest = path.strip_prefix("/v3beta").or_else(|| path.strip_prefix("/v3"))?;
    CALLS.iter().find(|call| call.paths.contains(&rest))
}

/// The paths that are offered, for people.
pub fn offered() -> String {
    CALLS.iter().map(|call| format!("/v3{}", call.paths[0])).collect::<Vec<_>>().join(" ")
}

/// The status of HTTP for one of gRPC, as etcd's gateway has it.
pub fn status(code: i32) -> u16 {
    match code {
        0 => 200,
        1 => 408,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// An error, with the fields of the gateways of all versions of etcd.
pub fn error(code: i32, message: &str) -> Value {
    json!({"error": message, "code": code, "message": message, "details": []})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_found() {
        assert_eq!(find("/v3/kv/range").map(|call| call.method), Some("/etcdserverpb.KV/Range"));
        assert_eq!(find("/v3beta/kv/lease/revoke").map(|call| call.kind), Some(Write));
        for other in
            ["/v3/auth/user/add", "/v3/maintenance/snapshot", "/v3/kv/range/", "/v3//kv/range", "/kv/range", "/v3"]
        {
            assert!(find(other).is_none(), "{other}");
        }
    }
}
