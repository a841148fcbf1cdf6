//! The spec of PostgreSQL and Patroni.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{REPLICATOR, REWINDER, SUPERUSER};
use crate::spec::{AuthName, MemberSpec, Millis, Name};

/// Settings of PostgreSQL and of Patroni, which keeps it available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresSettings {
    /// Major version of PostgreSQL.
    #[schemars(range(min = 13, max = 18))]
    pub version: u16,
    /// The etcd in which Patroni keeps its state.
    pub dcs: Dcs,
    /// Prefix of Patroni's keys in the DCS.
    #[serde(default = "default_namespace")]
    #[schemars(length(min = 2))]
    pub namespace: String,
    /// Name of the cluster in the DCS. If absent, the cluster's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Name>,
    /// Directory with PostgreSQL's programs on the machines. If absent, where Debian's package puts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub programs: Option<PathBuf>,
    /// Parameters of PostgreSQL, such as `max_connections: 200`. Patroni applies them to all members.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterValue>,
    /// Which commits are confirmed to clients.
    #[serde(default)]
    pub synchronous: Synchronous,
    /// Databases to create.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<Database>,
    /// Users to create; `quorate env` shows their passwords.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// Files with the passwords of the users that quorate itself needs. If absent, quorate generates these passwords.
    #[serde(default, skip_serializing_if = "PasswordFiles::is_empty")]
    pub password_files: PasswordFiles,
    /// Replication slots that Patroni keeps on whichever member is the primary. It drops one that is removed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<Slot>,
    /// Additional rules for `pg_hba.conf`. They come after the rules of quorate's own users, and before the last two, which accept everyone
    /// with TLS and a password and reject everyone else. Each must require TLS and authentication, or reject.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pg_hba: Vec<String>,
    /// Locale of the data, as `initdb` takes it. It cannot be changed.
    #[serde(default = "default_locale")]
    #[schemars(length(min = 1))]
    pub locale: String,
    /// HAProxy on the members: one port for the primary, one for replicas. If absent, there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub haproxy: Option<Haproxy>,
    /// PgBouncer on members: clients share connections to the primary. It needs `haproxy`, through which it finds the primary. If absent, there
    /// is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgbouncer: Option<Pgbouncer>,
    /// Settings of Patroni.
    #[serde(default)]
    pub patroni: PatroniSettings,
}

impl PostgresSettings {
    /// Everything but these two has a default.
    pub fn new(version: u16, dcs: Name) -> Self {
        PostgresSettings {
            version,
            dcs: Dcs { cluster: Some(dcs), ..Dcs::default() },
            namespace: default_namespace(),
            scope: None,
            programs: None,
            parameters: BTreeMap::new(),
            synchronous: Synchronous::default(),
            databases: Vec::new(),
            users: Vec::new(),
            password_files: PasswordFiles::default(),
            slots: Vec::new(),
            pg_hba: Vec::new(),
            locale: default_locale(),
            haproxy: None,
            pgbouncer: None,
            patroni: PatroniSettings::default(),
        }
    }
}

fn default_namespace() -> String {
    String::from("/patroni/")
}

fn default_locale() -> String {
    String::from("C.UTF-8")
}

/// The etcd in which Patroni keeps its state: `cluster`, or `endpoints` with a CA and a login.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dcs {
    /// Name of an etcd cluster that this quorate operates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    /// Endpoints of another etcd, each as `HOST:PORT`, over TLS; names and addresses may be mixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// File with the certificate of the CA that signed that etcd's certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub ca: Option<PathBuf>,
    /// User to log in as; requires `password_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// File with that user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub password_file: Option<PathBuf>,
    /// File with a client certificate, where that etcd asks for one; requires `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub certificate: Option<PathBuf>,
    /// File with that certificate's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub key: Option<PathBuf>,
}

impl std::fmt::Display for Dcs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.cluster {
            Some(cluster) => write!(f, "{cluster}"),
            None => f.write_str(&self.endpoints.join(",")),
        }
    }
}

/// The value of a parameter, as in `postgresql.conf`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterValue(pub String);

impl JsonSchema for ParameterValue {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ParameterValue".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "number", "boolean"] })
    }
}

/// Which commits are confirmed to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Synchronous {
    /// How many standbys must have a commit on disk before it is confirmed. 0: none, and a failover can lose confirmed commits.
    pub nodes: u16,
    /// Whether writes stop while there are fewer standbys. If not, commits of that time can be lost.
    pub strict: bool,
}

impl Default for Synchronous {
    fn default() -> Self {
        Synchronous { nodes: 1, strict: true }
    }
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// Name of the database.
    pub name: AuthName,
    /// The user that owns it. If absent, the superuser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AuthName>,
    /// Extensions to create in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AuthName>,
}

/// A user who logs in with a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Name of the user.
    pub name: AuthName,
    /// File with the password. If absent, quorate generates it. `quorate passwords rotate` applies a changed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub password_file: Option<PathBuf>,
}

/// Where the passwords of PostgreSQL's own users come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PasswordFiles {
    /// Of the user `postgres`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superuser: Option<PathBuf>,
    /// For the user `replicator`, with which standbys log in to the primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicator: Option<PathBuf>,
    /// For the user `rewinder`, for `pg_rewind`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewinder: Option<PathBuf>,
}

impl PasswordFiles {
    pub fn is_empty(&self) -> bool {
        *self == PasswordFiles::default()
    }

    /// By user, with the name of the field.
    fn named(&self) -> [(&'static str, &'static str, &Option<PathBuf>); 3] {
        [
            (SUPERUSER, "superuser", &self.superuser),
            (REPLICATOR, "replicator", &self.replicator),
            (REWINDER, "rewinder", &self.rewinder),
        ]
    }
}

impl PostgresSettings {
    /// All files with passwords: the user, the field below the cluster, and the file.
    pub fn all_password_files(&self) -> Vec<(String, String, &PathBuf)> {
        let own = self.password_files.named().into_iter().filter_map(|(user, field, path)| {
            Some((user.to_owned(), format!("postgres.password_files.{field}"), path.as_ref()?))
        });
        let declared = self.users.iter().enumerate().filter_map(|(index, user)| {
            let field = format!("postgres.users[{index}].password_file");
            Some((user.name.to_string(), field, user.password_file.as_ref()?))
        });
        own.chain(declared).collect()
    }

    pub fn all_password_files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let PasswordFiles { superuser, replicator, rewinder } = &mut self.password_files;
        let declared = self.users.iter_mut().map(|user| &mut user.password_file);
        [superuser, replicator, rewinder].into_iter().chain(declared).flatten()
    }
}

/// A replication slot for a client outside the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Name of the slot.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The database that it decodes. If absent, it is a physical slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<AuthName>,
    /// The plugin that decodes, for a slot with a database. If absent, `pgoutput`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub plugin: Option<String>,
}

/// HAProxy, which asks Patroni who is the primary. It passes TLS through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Haproxy {
    /// The port for the primary.
    pub primary_port: u16,
    /// The port for streaming replicas.
    pub replica_port: u16,
    /// The members that it runs on. If absent, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Name>>,
    /// Separate machines for it. If absent, it runs on members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<Vec<MemberSpec>>,
    /// The maximum number of client connections of each HAProxy.
    pub max_connections: u32,
    /// Time between two health checks of a member.
    pub check_every: Millis,
    /// How long a planned switchover waits for transactions to end.
    pub drain: Millis,
    /// Path of HAProxy's program on the machines. If absent, `haproxy` from `PATH` or `/usr/sbin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub program: Option<PathBuf>,
}

impl Default for Haproxy {
    fn default() -> Self {
        Haproxy {
            primary_port: 5000,
            replica_port: 5001,
            members: None,
            machines: None,
            max_connections: 1000,
            check_every: Millis(2_000),
            drain: Millis(5_000),
            program: None,
        }
    }
}

impl Haproxy {
    /// Whether it runs on this member.
    pub fn runs_on(&self, member: &str) -> bool {
        let is_named = |members: &Vec<Name>| members.iter().any(|name| name.as_str() == member);
        self.machines.is_none() && self.members.as_ref().is_none_or(is_named)
    }
}

/// When a client returns its server connection to the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolMode {
    /// After each transaction. Session features such as `SET`, `LISTEN` and prepared statements do not work.
    #[default]
    Transaction,
    /// When it disconnects.
    Session,
}

/// PgBouncer, which asks clients for TLS and for the passwords of `users`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pgbouncer {
    /// The port for clients.
    pub port: u16,
    /// When a client returns its server connection to the pool.
    pub pool_mode: PoolMode,
    /// The maximum number of connections to the primary that each PgBouncer shares, for each user in each database.
    pub default_pool_size: u32,
    /// The maximum number of client connections of each PgBouncer.
    pub max_client_conn: u32,
    /// The members that it runs on. If absent, those of `haproxy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Name>>,
    /// Path of PgBouncer's program on the machines. If absent, `pgbouncer` from `PATH` or `/usr/sbin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub program: Option<PathBuf>,
}

impl Default for Pgbouncer {
    fn default() -> Self {
        Pgbouncer {
            port: 6432,
            pool_mode: PoolMode::default(),
            default_pool_size: 20,
            max_client_conn: 1000,
            members: None,
            program: None,
        }
    }
}

impl PostgresSettings {
    /// PgBouncer, where it runs on this member, and the HAProxy that it goes through.
    pub fn pgbouncer_on(&self, member: &str) -> Option<(&Pgbouncer, &Haproxy)> {
        let (pgbouncer, haproxy) = (self.pgbouncer.as_ref()?, self.haproxy.as_ref()?);
        let is_named =
            pgbouncer.members.as_ref().is_none_or(|members| members.iter().any(|name| name.as_str() == member));
        (is_named && haproxy.runs_on(member)).then_some((pgbouncer, haproxy))
    }
}

/// Patroni's tags for one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tags {
    /// It never becomes the primary.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nofailover: bool,
    /// Patroni's health check for replicas does not count it, so proxies send it no clients.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub noloadbalance: bool,
    /// New members are cloned from it rather than from the primary, while it is a standby. If absent, true, unless `nofailover` or
    /// `nosync` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clonefrom: Option<bool>,
    /// Commits never wait for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nosync: bool,
    /// Among standbys with the same log position, the one with the highest takes over. 0: never. If absent, 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_priority: Option<u16>,
}

impl Tags {
    /// Whether others are cloned from it while it is a standby. Reading all data for a clone is work that the primary need not do.
    pub fn is_cloned_from(&self) -> bool {
        self.clonefrom.unwrap_or(!self.nofailover && !self.nosync)
    }

    /// Whether it never becomes the primary.
    pub fn bars_takeover(&self) -> bool {
        self.nofailover || self.failover_priority == Some(0)
    }
}

/// Settings of Patroni.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatroniSettings {
    /// Path of Patroni's program on the machines. If absent, `patroni` from `PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub program: Option<PathBuf>,
    /// How long a primary that cannot reach the DCS keeps its role; a failover takes about this long.
    pub ttl: Millis,
    /// Time between two rounds of Patroni.
    pub loop_wait: Millis,
    /// How long requests to the DCS and to PostgreSQL are retried.
    pub retry_timeout: Millis,
    /// How long a primary that fails may take to recover before a standby is promoted.
    pub primary_start_timeout: Millis,
    /// How long PostgreSQL may take to stop while a synchronous cluster fails over. If absent, there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_stop_timeout: Option<Millis>,
    /// A standby that lags by more bytes is not promoted.
    pub maximum_lag_on_failover: u64,
    /// Whether the primary keeps its role without a DCS while it reaches all members.
    pub failsafe_mode: bool,
    /// A watchdog device that resets the machine when Patroni does not keep up.
    pub watchdog: Watchdog,
}

impl Default for PatroniSettings {
    fn default() -> Self {
        PatroniSettings {
            program: None,
            ttl: Millis(30_000),
            loop_wait: Millis(10_000),
            retry_timeout: Millis(10_000),
            primary_start_timeout: Millis(300_000),
            primary_stop_timeout: None,
            maximum_lag_on_failover: 1 << 20,
            failsafe_mode: true,
            watchdog: Watchdog::default(),
        }
    }
}

/// A watchdog device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Watchdog {
    /// Whether Patroni uses a watchdog.
    pub mode: WatchdogMode,
    /// The device.
    #[schemars(length(min = 1))]
    pub device: String,
    /// Seconds between the reset and the end of `ttl`; -1 for half of `ttl`.
    #[schemars(range(min = -1))]
    pub safety_margin: i32,
}

impl Default for Watchdog {
    fn default() -> Self {
        Watchdog { mode: WatchdogMode::Off, device: String::from("/dev/watchdog"), safety_margin: 5 }
    }
}

/// Whether a watchdog is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchdogMode {
    #[default]
    Off,
    /// Where there is one.
    Automatic,
    /// A member without one never becomes the primary.
    Required,
}
