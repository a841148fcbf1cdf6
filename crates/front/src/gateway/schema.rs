//! The messages of etcd's API for REST clients: names, numbers and types, as in etcd's own JSON gateway. Each field is one line here,
//! so neither direction needs separate code.

/// A message: its fields.
pub type Message = &'static [Field];

#[derive(Debug)]
pub struct Field {
    pub number: u32,
    pub name: &'static str,
    pub of: Type,
    pub many: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Type {
    Bytes,
    Text,
    Bool,
    I64,
    U64,
    /// Its names, in the order of their numbers.
    Enum(&'static [&'static str]),
    Message(Message),
    /// The transaction within a transaction, which a constant cannot name.
    Txn,
    TxnAnswer,
}

use Type::{Bool, Bytes, Enum, I64, Message as M, Text, U64};

const fn one(number: u32, name: &'static str, of: Type) -> Field {
    Field { number, name, of, many: false }
}

const fn many(number: u32, name: &'static str, of: Type) -> Field {
    Field { number, name, of, many: true }
}

pub const EMPTY: Message = &[];

const HEADER: Message =
    &[one(1, "cluster_id", U64), one(2, "member_id", U64), one(3, "revision", I64), one(4, "raft_term", U64)];

const PAIR: Message = &[
    one(1, "key", Bytes),
    one(2, "create_revision", I64),
    one(3, "mod_revision", I64),
    one(4, "version", I64),
    one(5, "value", Bytes),
    one(6, "lease", I64),
];

pub const RANGE: Message = &[
    one(1, "key", Bytes),
    one(2, "range_end", Bytes),
    one(3, "limit", I64),
    one(4, "revision", I64),
    one(5, "sort_order", Enum(&["NONE", "ASCEND", "DESCEND"])),
    one(6, "sort_target", Enum(&["KEY", "VERSION", "CREATE", "MOD", "VALUE"])),
    one(7, "serializable", Bool),
    one(8, "keys_only", Bool),
    one(9, "count_only", Bool),
    one(10, "min_mod_revision", I64),
    one(11, "max_mod_revision", I64),
    one(12, "min_create_revision", I64),
    one(13, "max_create_revision", I64),
];
pub const RANGE_ANSWER: Message =
    &[one(1, "header", M(HEADER)), many(2, "kvs", M(PAIR)), one(3, "more", Bool), one(4, "count", I64)];

pub const PUT: Message = &[
    one(1, "key", Bytes),
    one(2, "value", Bytes),
    one(3, "lease", I64),
    one(4, "prev_kv", Bool),
    one(5, "ignore_value", Bool),
    one(6, "ignore_lease", Bool),
];
pub const PUT_ANSWER: Message = &[one(1, "header", M(HEADER)), one(2, "prev_kv", M(PAIR))];

pub const DELETE: Message = &[one(1, "key", Bytes), one(2, "range_end", Bytes), one(3, "prev_kv", Bool)];
pub const DELETE_ANSWER: Message = &[one(1, "header", M(HEADER)), one(2, "deleted", I64), many(3, "prev_kvs", M(PAIR))];

const COMPARE: Message = &[
    one(1, "result", Enum(&["EQUAL", "GREATER", "LESS", "NOT_EQUAL"])),
    one(2, "target", Enum(&["VERSION", "CREATE", "MOD", "VALUE", "LEASE"])),
    one(3, "key", Bytes),
    one(4, "version", I64),
    one(5, "create_revision", I64),
    one(6, "mod_revision", I64),
    one(7, "value", Bytes),
    one(8, "lease", I64),
    one(64, "range_end", Bytes),
];
const OPERATION: Message = &[
    one(1, "request_range", M(RANGE)),
    one(2, "request_put", M(PUT)),
    one(3, "request_delete_range", M(DELETE)),
    one(4, "request_txn", Type::Txn),
];
const OPERATION_ANSWER: Message = &[
    one(1, "response_range", M(RANGE_ANSWER)),
    one(2, "response_put", M(PUT_ANSWER)),
    one(3, "response_delete_range", M(DELETE_ANSWER)),
    one(4, "response_txn", Type::TxnAnswer),
];
pub const TXN: Message =
    &[many(1, "compare", M(COMPARE)), many(2, "success", M(OPERATION)), many(3, "failure", M(OPERATION))];
pub const TXN_ANSWER: Message =
    &[one(1, "header", M(HEADER)), one(2, "succeeded", Bool), many(3, "responses", M(OPERATION_ANSWER))];

pub const COMPACTION: Message = &[one(1, "revision", I64), one(2, "physical", Bool)];
/// Of calls that answer nothing else.
pub const DONE: Message = &[one(1, "header", M(HEADER))];

pub const GRANT: Message = &[one(1, "TTL", I64), one(2, "ID", I64)];
pub const GRANT_ANSWER: Message =
    &[one(1, "header", M(HEADER)), one(2, "ID", I64), one(3, "TTL", I64), one(4, "error", Text)];
pub const LEASE: Message = &[one(1, "ID", I64)];
pub const KEEPALIVE_ANSWER: Message = &[one(1, "header", M(HEADER)), one(2, "ID", I64), one(3, "TTL", I64)];
pub const TIME_TO_LIVE: Message = &[one(1, "ID", I64), one(2, "keys", Bool)];
pub const TIME_TO_LIVE_ANSWER: Message = &[
    one(1, "header", M(HEADER)),
    one(2, "ID", I64),
    one(3, "TTL", I64),
    one(4, "grantedTTL", I64),
    many(5, "keys", Bytes),
];
pub const LEASES_ANSWER: Message = &[one(1, "header", M(HEADER)), many(2, "leases", M(LEASE))];

pub const LOGIN: Message = &[one(1, "name", Text), one(2, "password", Text)];
pub const LOGIN_ANSWER: Message = &[one(1, "header", M(HEADER)), one(2, "token", Text)];

const WATCH_CREATE: Message = &[
    one(1, "key", Bytes),
    one(2, "range_end", Bytes),
    one(3, "start_revision", I64),
    one(4, "progress_notify", Bool),
    many(5, "filters", Enum(&["NOPUT", "NODELETE"])),
    one(6, "prev_kv", Bool),
    one(7, "watch_id", I64),
    one(8, "fragment", Bool),
];
pub const WATCH: Message = &[
    one(1, "create_request", M(WATCH_CREATE)),
    one(2, "cancel_request", M(&[one(1, "watch_id", I64)])),
    one(3, "progress_request", M(EMPTY)),
];
const EVENT: Message = &[one(1, "type", Enum(&["PUT", "DELETE"])), one(2, "kv", M(PAIR)), one(3, "prev_kv", M(PAIR))];
pub const WATCH_ANSWER: Message = &[
    one(1, "header", M(HEADER)),
    one(2, "watch_id", I64),
    one(3, "created", Bool),
    one(4, "canceled", Bool),
    one(5, "compact_revision", I64),
    one(6, "cancel_reason", Text),
    one(7, "fragment", Bool),
    many(11, "events", M(EVENT)),
];

pub const MEMBER_LIST: Message = &[one(1, "linearizable", Bool)];
const MEMBER: Message = &[
    one(1, "ID", U64),
    one(2, "name", Text),
    many(3, "peerURLs", Text),
    many(4, "clientURLs", Text),
    one(5, "isLearner", Bool),
];
pub const MEMBER_LIST_ANSWER: Message = &[one(1, "header", M(HEADER)), many(2, "members", M(MEMBER))];

pub const STATUS_ANSWER: Message = &[
    one(1, "header", M(HEADER)),
    one(2, "version", Text),
    one(3, "dbSize", I64),
    one(4, "leader", U64),
    one(5, "raftIndex", U64),
    one(6, "raftTerm", U64),
    one(7, "raftAppliedIndex", U64),
    many(8, "errors", Text),
    one(9, "dbSizeInUse", I64),
    one(10, "isLearner", Bool),
    one(11, "storageVersion", Text),
    one(12, "dbSizeQuota", I64),
    one(13, "downgradeInfo", M(&[one(1, "enabled", Bool), one(2, "targetVersion", Text)])),
];
