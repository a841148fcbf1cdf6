//! Computes the desired state of PostgreSQL from the spec and the ledger: Patroni's configuration on each machine, and the shared one in
//! the DCS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::spec::{Haproxy, PatroniSettings, PoolMode, PostgresSettings, Slot, Tags, WatchdogMode};
use super::{
    CLIENT_PORT, Dcs, FormedWith, HAPROXY, PGBOUNCER, Passwords, REPLICATOR, REST_PORT, REWINDER, Record, Rotation,
    RotationStage, RotationWish, SERVICE, SUPERUSER, Wish, repository,
};
use crate::Secret;
use crate::desire::password_fingerprint;
use crate::model::{
    ADDRESS, Brought, ConfigFile, HaproxyService, Ledger, MemberName, NextVersion, NodeConfig, PatroniService,
    PgbouncerService, ROOT, Runs, ServiceConfig, ServiceLog,
};
use crate::spec::{ClusterSpec, LogForwarding, MemberSpec, Millis};

/// The certificates of a member: `member` to clients, `peer` to other members and to Patroni's REST API, and `ca.crt` of clients.
pub const PKI_DIRECTORY: &str = "etc/patroni/pki";
/// The CA of members: clients with a certificate of it may replicate and command Patroni.
pub const PEER_TRUST_FILE: &str = "etc/patroni/peer-ca.crt";
/// Revocation lists in PEM, one for each CA in the bundle.
pub const PEER_LIST_FILE: &str = "etc/patroni/peer.crl";
/// The CA of the etcd that Patroni keeps its state in.
pub const DCS_TRUST_FILE: &str = "etc/patroni/dcs-ca.crt";
pub const DCS_CERTIFICATE_FILE: &str = "etc/patroni/dcs.crt";
pub const DCS_KEY_FILE: &str = "etc/patroni/dcs.key";
/// Patroni's configuration, which the agent writes from the service's.
pub const CONFIG_FILE: &str = "etc/patroni/patroni.yml";
/// The directory of PostgreSQL's data and related files. On a machine with a separate data disk, all of it is there.
pub const HOME_DIRECTORY: &str = "var/lib/postgresql";
pub const DATA_DIRECTORY: &str = "var/lib/postgresql/data";
/// Written by Patroni, for PostgreSQL's programs that log in to other members. Its user may write here, on every machine.
const PASSWORD_FILE: &str = "var/lib/postgresql/pgpass";
/// Replaced by the agent with the directory of PostgreSQL's programs.
pub const PROGRAMS: &str = "{programs}";
/// A partial WAL segment is archived after this time: the most that a total loss can cost.
const ARCHIVE_TIMEOUT: &str = "60s";
/// A bootstrap method that always fails. The agent creates the first data; Patroni may only clone it.
const NEVER: &str = "never";

/// The start of a comment in the access rules. Patroni writes the rules after it has read its configuration again, so the comment shows
/// that it has.
pub const ROTATION_MARK: &str = "# passwords ";
/// Decodes for PostgreSQL's own logical replication.
const USUAL_PLUGIN: &str = "pgoutput";

/// The key below which Patroni keeps all of this cluster's state.
pub fn key(spec: &ClusterSpec, postgres: &PostgresSettings) -> String {
    format!("/{}/{}/", postgres.namespace.trim_matches('/'), scope(spec, postgres))
}

fn scope(spec: &ClusterSpec, postgres: &PostgresSettings) -> String {
    postgres.scope.as_ref().unwrap_or(&spec.name).to_string()
}

pub(crate) fn wish(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought, token_suffix: &str) -> Option<Wish> {
    let postgres = spec.postgres.as_ref()?;
    let Record { formation, abandoned, replaced, formed_with, restore, switchover, rotation, .. } = &ledger.postgres;
    let Record { upgrade, upgrade_failed, previous, discard, .. } = &ledger.postgres;
    let extensions = postgres.databases.iter().map(|database| {
        let extensions = database.extensions.iter().map(ToString::to_string).collect();
        (database.name.to_string(), extensions)
    });
    Some(Wish {
        formation: formation.clone(),
        abandoned: abandoned.clone(),
        replaced: replaced.clone(),
        restore: restore.clone(),
        upgrade: upgrade.clone(),
        upgrade_failed: upgrade_failed.clone(),
        previous: previous.clone(),
        discard: discard.is_some(),
        repository: repository::place(spec),
        form_with: form_with(spec, postgres),
        formed_with: formed_with.clone(),
        next_token: format!("{}-{token_suffix}", spec.name),
        dcs: brought.dcs.clone().unwrap_or_else(|| Err(String::from("the etcd cluster was not observed"))),
        config: dynamic_config(spec, postgres).to_string(),
        synchronous: (postgres.synchronous.nodes > 0).then(|| postgres.synchronous.nodes.into()),
        users: user_fingerprints(postgres, ledger, brought),
        databases: postgres.databases.iter().map(|d| (d.name.to_string(), owner(d.owner.as_ref()))).collect(),
        extensions: extensions.collect(),
        switchover: switchover.clone(),
        rotation: rotation.as_ref().map(|rotation| RotationWish {
            stage: rotation.stage,
            users: rotation.next.keys().cloned().collect(),
            mark: rotation.concerns_members().then(|| rotation.mark()),
        }),
        never_primary: never_primary(spec),
    })
}

fn never_primary(spec: &ClusterSpec) -> BTreeSet<MemberName> {
    let barred = |member: &&MemberSpec| member.tags.as_ref().is_some_and(Tags::bars_takeover);
    spec.members.iter().filter(barred).map(|member| member.name.as_str().into()).collect()
}

fn owner(named: Option<&impl ToString>) -> String {
    named.map_or_else(|| SUPERUSER.to_owned(), ToString::to_string)
}

/// Password verifiers by user.
fn user_fingerprints(postgres: &PostgresSettings, ledger: &Ledger, brought: &Brought) -> BTreeMap<String, String> {
    let fingerprint = |verifier: &Secret| password_fingerprint(&ledger.cluster_id, verifier);
    let setting = setting(ledger);
    let users = postgres.users.iter().map(|user| user.name.to_string());
    let users = users.chain(setting.iter().flat_map(|rotation| rotation.next.keys().cloned()));
    users.map(|user| (user.clone(), verifier(ledger, brought, &user).map(fingerprint).unwrap_or_default())).collect()
}

/// Passwords that PostgreSQL is being given.
fn setting(ledger: &Ledger) -> Option<&Rotation> {
    ledger.postgres.rotation.as_ref().filter(|rotation| rotation.stage == RotationStage::Setting)
}

/// The verifier of a user's password.
fn verifier<'a>(ledger: &Ledger, brought: &'a Brought, user: &str) -> Option<&'a Secret> {
    let next = setting(ledger).and_then(|rotation| rotation.next.get(user));
    let known = || ledger.postgres.passwords.as_ref().and_then(|known| known.of(user));
    match brought.next_verifiers.get(user) {
        Some((password, verifier)) if next.or_else(known) == Some(password) => Some(verifier),
        _ => brought.verifiers.get(user),
    }
}

pub(crate) fn form_with(spec: &ClusterSpec, postgres: &PostgresSettings) -> FormedWith {
    FormedWith {
        version: postgres.version.to_string(),
        dcs: postgres.dcs.to_string(),
        key: key(spec, postgres),
        locale: postgres.locale.clone(),
    }
}

/// Whether the ledger has a password for every user who logs in.
pub(crate) fn has_passwords(spec: &ClusterSpec, ledger: &Ledger) -> bool {
    let Some(postgres) = &spec.postgres else { return true };
    let known = ledger.postgres.passwords.as_ref();
    let encrypts = spec.backup.as_ref().is_some_and(|backup| !backup.recipients.is_empty());
    known.is_some_and(|known| {
        postgres.users.iter().all(|user| known.users.contains_key(user.name.as_str()))
            && (!encrypts || known.repository.is_some())
    })
}

/// Patroni's name of a member: that of its machine, because a former machine may still exist. Data from a previous machine keeps that
/// machine's name.
pub fn patroni_name(member: &str, incarnation: u64) -> String {
    if incarnation <= 1 { member.to_owned() } else { format!("{member}.{incarnation}") }
}

pub(crate) fn node_config(spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec, brought: &Brought) -> NodeConfig {
    let mut files = peer_files(ledger);
    let dcs = brought.dcs.as_ref().and_then(|dcs| dcs.as_ref().ok());
    files.extend(dcs.into_iter().flat_map(dcs_files));
    files.extend(repository::files(brought));
    let mut services = Vec::new();
    if let (Some(postgres), Some(passwords)) = (&spec.postgres, &ledger.postgres.passwords) {
        let text = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let incarnation = ledger.members.get(&member.name.as_str().into()).map_or(1, |record| record.incarnation);
        let name = ledger.postgres.formation.patroni_name(&member.name.as_str().into(), incarnation);
        let tags = member.tags.clone().unwrap_or_default();
        let rotation = ledger.postgres.rotation.as_ref();
        let mut config = patroni_config(spec, postgres, passwords, dcs, (&name, &tags), rotation);
        if files.iter().any(|file| file.path == PEER_LIST_FILE) {
            config["postgresql"]["parameters"]["ssl_crl_file"] = format!("{ROOT}/{PEER_LIST_FILE}").into();
        }
        let version = data_version(spec, ledger).unwrap_or(postgres.version);
        let wanted = ledger.postgres.version_to_come().and_then(|to| to.parse().ok()).unwrap_or(postgres.version);
        let named = text(&postgres.programs);
        let is_next = version != wanted;
        let runs = Runs::Patroni(PatroniService {
            version,
            programs: named.clone().filter(|_| !is_next),
            next: is_next.then_some(NextVersion { version: wanted, programs: named }),
            patroni: text(&postgres.patroni.program),
            locale: postgres.locale.clone(),
            config: Secret::new(config.to_string()),
            backup: repository::config(spec, ledger, brought),
        });
        let inputs = files.iter().map(|file| file.path.clone()).collect();
        services.push(ServiceConfig { name: SERVICE.to_owned(), user: SUPERUSER.to_owned(), runs, inputs });
    }
    let proxy = spec.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref());
    let proxy = proxy.filter(|haproxy| haproxy.runs_on(member.name.as_str()));
    services.extend(proxy.map(|proxy| haproxy(proxy, ledger, SUPERUSER)));
    services.extend(pgbouncer(spec, ledger, member, brought));
    NodeConfig { files, services, host: None }
}

/// HAProxy only. It knows the members' CA, and has nothing that a member would trust.
pub(crate) fn proxy_config(spec: &ClusterSpec, ledger: &Ledger) -> NodeConfig {
    let files = peer_files(ledger);
    let settings = spec.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref());
    let services = settings.map(|settings| haproxy(settings, ledger, HAPROXY)).into_iter().collect();
    NodeConfig { files, services, host: None }
}

/// The CAs of members, and the revoked certificates.
fn peer_files(ledger: &Ledger) -> Vec<ConfigFile> {
    let Some(peers) = &ledger.authorities.peer else { return Vec::new() };
    let trust = ConfigFile::text(PEER_TRUST_FILE, 0o644, Secret::new(peers.bundle()));
    let lists = peers.lists(&ledger.issued).map(Secret::new);
    std::iter::once(trust).chain(lists.map(|lists| ConfigFile::text(PEER_LIST_FILE, 0o644, lists))).collect()
}

/// The certificates of etcd and of Patroni's login.
fn dcs_files(dcs: &Dcs) -> Vec<ConfigFile> {
    let mut files = vec![ConfigFile::text(DCS_TRUST_FILE, 0o644, Secret::new(dcs.ca.clone()))];
    if let Some((certificate, key)) = &dcs.identity {
        files.push(ConfigFile::text(DCS_CERTIFICATE_FILE, 0o644, Secret::new(certificate.clone())));
        files.push(ConfigFile::text(DCS_KEY_FILE, 0o600, key.clone()));
    }
    files
}

/// Members that leave and former machines are servers too, as long as they have data: one of them may be the primary.
fn haproxy(haproxy: &Haproxy, ledger: &Ledger, user: &str) -> ServiceConfig {
    let runs = Runs::Haproxy(HaproxyService {
        program: haproxy.program.as_ref().map(|path| path.display().to_string()),
        primary_port: haproxy.primary_port,
        replica_port: haproxy.replica_port,
        max_connections: haproxy.max_connections,
        check_every_ms: haproxy.check_every.0,
        servers: addresses(ledger).map(|(name, address)| (server_name(name), address)).collect(),
    });
    let inputs = [PEER_TRUST_FILE, PEER_LIST_FILE].map(str::to_owned).into();
    ServiceConfig { name: HAPROXY.to_owned(), user: user.to_owned(), runs, inputs }
}

/// Only users in the spec, not the superuser and replication users. PgBouncer logs in to PostgreSQL as the client's
/// user, for which it needs PostgreSQL's verifiers.
fn pgbouncer(spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec, brought: &Brought) -> Option<ServiceConfig> {
    let postgres = spec.postgres.as_ref()?;
    let (pgbouncer, haproxy) = postgres.pgbouncer_on(member.name.as_str())?;
    let declared = postgres.users.iter().map(|user| user.name.to_string());
    let users = declared.filter_map(|user| verifier(ledger, brought, &user).map(|known| (user, known.clone())));
    let runs = Runs::Pgbouncer(PgbouncerService {
        program: pgbouncer.program.as_ref().map(|path| path.display().to_string()),
        port: pgbouncer.port,
        pool_mode: match pgbouncer.pool_mode {
            PoolMode::Transaction => String::from("transaction"),
            PoolMode::Session => String::from("session"),
        },
        default_pool_size: pgbouncer.default_pool_size,
        max_client_conn: pgbouncer.max_client_conn,
        primary_port: haproxy.primary_port,
        users: users.collect(),
    });
    Some(ServiceConfig { name: PGBOUNCER.to_owned(), user: SUPERUSER.to_owned(), runs, inputs: BTreeSet::new() })
}

/// What runs on a member or a proxy, and the tag of its log. PostgreSQL's is in Patroni's.
pub(crate) fn logs(settings: &LogForwarding, spec: &ClusterSpec, member: &MemberSpec) -> Vec<ServiceLog> {
    let log = |service: &str, user: &str, tag: &String| ServiceLog {
        service: service.to_owned(),
        user: user.to_owned(),
        tag: tag.clone(),
    };
    if spec.proxies().any(|proxy| proxy.name == member.name) {
        return vec![log(HAPROXY, HAPROXY, &settings.haproxy_tag)];
    }
    let haproxy = spec.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref());
    let haproxy = haproxy.filter(|haproxy| haproxy.runs_on(member.name.as_str()));
    let haproxy = haproxy.map(|_| log(HAPROXY, SUPERUSER, &settings.haproxy_tag));
    let pgbouncer = spec.postgres.as_ref().and_then(|postgres| postgres.pgbouncer_on(member.name.as_str()));
    let pgbouncer = pgbouncer.map(|_| log(PGBOUNCER, SUPERUSER, &settings.pgbouncer_tag));
    std::iter::once(log(SERVICE, SUPERUSER, &settings.patroni_tag)).chain(haproxy).chain(pgbouncer).collect()
}

/// The addresses of members with data.
fn addresses(ledger: &Ledger) -> impl Iterator<Item = (&MemberName, IpAddr)> {
    let members = ledger.postgres.formation.members().filter(|_| ledger.postgres.formation.is_formed());
    members.into_iter().flatten().filter_map(|(name, known)| Some((name, known.address?)))
}

/// HAProxy's name of a member's server.
pub fn server_name(member: &MemberName) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
    member.as_str().chars().map(legal).collect()
}

/// A client that connects through HAProxy uses the proxy's address, and sees the certificate of the member behind it.
pub(crate) fn proxied_addresses(spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<IpAddr> {
    match spec.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref()) {
        Some(haproxy) => {
            let members = addresses(ledger).filter(|(name, _)| haproxy.runs_on(name.as_str()));
            members.map(|(_, address)| address).chain(ledger.proxy_addresses(spec)).collect()
        }
        None => BTreeSet::new(),
    }
}

/// The major version of the current data, and the one of a pending upgrade. Without an upgrade both are the spec's.
pub(crate) fn versions(spec: &ClusterSpec, ledger: &Ledger) -> (Option<u16>, Option<String>) {
    (data_version(spec, ledger), ledger.postgres.version_to_come().map(str::to_owned))
}

fn data_version(spec: &ClusterSpec, ledger: &Ledger) -> Option<u16> {
    spec.postgres.as_ref()?;
    ledger.postgres.data_version()?.parse().ok()
}

/// What configurations depend on in the ledger, in addition to secrets and incarnations.
pub(crate) fn servers(ledger: &Ledger) -> BTreeMap<MemberName, IpAddr> {
    addresses(ledger).map(|(name, address)| (name.clone(), address)).collect()
}

/// Patroni's configuration on one machine. JSON is YAML too.
fn patroni_config(
    spec: &ClusterSpec,
    postgres: &PostgresSettings,
    passwords: &Passwords,
    dcs: Option<&Dcs>,
    (name, tags): (&str, &Tags),
    rotation: Option<&Rotation>,
) -> Value {
    let pki = |file: &str| format!("{ROOT}/{PKI_DIRECTORY}/{file}");
    let peer_trust = format!("{ROOT}/{PEER_TRUST_FILE}");
    json!({
        "scope": scope(spec, postgres),
        "namespace": postgres.namespace,
        "name": name,
        "restapi": {
            "listen": format!("{ADDRESS}:{REST_PORT}"),
            "connect_address": format!("{ADDRESS}:{REST_PORT}"),
            "certfile": pki("peer.crt"),
            "keyfile": pki("peer.key"),
            "cafile": peer_trust,
            "verify_client": "optional",
        },
        "ctl": { "certfile": pki("peer.crt"), "keyfile": pki("peer.key"), "cacert": peer_trust },
        "etcd3": etcd3(dcs, [DCS_TRUST_FILE, DCS_CERTIFICATE_FILE, DCS_KEY_FILE].map(|path| format!("{ROOT}/{path}"))),
        // With these the first member starts. Limits that it started with could not be lowered without a restart.
        "bootstrap": { "method": NEVER, NEVER: { "command": "/bin/false" }, "dcs": dynamic_config(spec, postgres) },
        "postgresql": {
            "listen": format!("{ADDRESS}:{CLIENT_PORT}"),
            "connect_address": format!("{ADDRESS}:{CLIENT_PORT}"),
            "use_unix_socket": false,
            "data_dir": format!("{ROOT}/{DATA_DIRECTORY}"),
            "bin_dir": PROGRAMS,
            "pgpass": format!("{ROOT}/{PASSWORD_FILE}"),
            "authentication": {
                "superuser": login(SUPERUSER, &passwords.superuser, &pki),
                "replication": login(REPLICATOR, &passwords.replicator, &pki),
                "rewind": login(REWINDER, &passwords.rewinder, &pki),
            },
            "parameters": parameters(spec, &pki, &peer_trust),
            "pg_hba": hba(&postgres.pg_hba, rotation),
            "basebackup": [{ "checkpoint": "fast" }],
        },
        "watchdog": watchdog(&postgres.patroni),
        "tags": tags_of(tags),
    })
}

/// The configuration of an operator's `patronictl`, in JSON: the certificate, its key and the CA with which it commands members.
pub fn patronictl_config(spec: &ClusterSpec, dcs: &Dcs, of_dcs: [&Path; 3], of_members: [&Path; 3]) -> String {
    let [certificate, key, trust] = of_members;
    let Some(postgres) = &spec.postgres else { return String::new() };
    json!({
        "scope": scope(spec, postgres),
        "namespace": postgres.namespace,
        "etcd3": etcd3(Some(dcs), of_dcs.map(|path| path.display().to_string())),
        "ctl": { "certfile": certificate, "keyfile": key, "cacert": trust },
    })
    .to_string()
}

/// How Patroni and `patronictl` reach the DCS: its CA, and the client's certificate and key.
fn etcd3(dcs: Option<&Dcs>, [trust, certificate, key]: [String; 3]) -> Value {
    let hosts: BTreeSet<&str> = dcs.iter().flat_map(|dcs| dcs.hosts.iter().map(String::as_str)).collect();
    let mut etcd3 = json!({ "hosts": hosts, "protocol": "https", "cacert": trust });
    if let Some((user, password)) = dcs.and_then(|dcs| dcs.login.as_ref()) {
        etcd3["username"] = Value::from(user.as_str());
        etcd3["password"] = Value::from(password.expose());
    }
    if dcs.is_some_and(|dcs| dcs.identity.is_some()) {
        etcd3["cert"] = Value::from(certificate);
        etcd3["key"] = Value::from(key);
    }
    etcd3
}

/// The settings of each member.
fn parameters(spec: &ClusterSpec, pki: &impl Fn(&str) -> String, peer_trust: &str) -> Value {
    let mut parameters = json!({
        "ssl": "on",
        "ssl_cert_file": pki("member.crt"),
        "ssl_key_file": pki("member.key"),
        "ssl_ca_file": peer_trust,
        "unix_socket_directories": "",
        "password_encryption": "scram-sha-256",
    });
    if spec.backup.is_some() {
        parameters["archive_mode"] = Value::from("on");
        parameters["archive_command"] = Value::from(repository::archive_command(spec));
    }
    parameters
}

/// Those that say something.
fn tags_of(tags: &Tags) -> Map<String, Value> {
    let words = [
        ("nofailover", tags.nofailover),
        ("noloadbalance", tags.noloadbalance),
        ("clonefrom", tags.is_cloned_from()),
        ("nosync", tags.nosync),
    ];
    let words = words.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name.to_owned(), Value::from(true)));
    let priority = tags.failover_priority.map(|priority| (String::from("failover_priority"), Value::from(priority)));
    words.chain(priority).collect()
}

/// Members authenticate with a certificate of the peers' CA, in addition to the password.
fn login(user: &str, password: &Secret, pki: &impl Fn(&str) -> String) -> Value {
    json!({
        "username": user,
        "password": password.expose(),
        "sslmode": "verify-ca",
        "sslrootcert": pki("ca.crt"),
        "sslcert": pki("peer.crt"),
        "sslkey": pki("peer.key"),
    })
}

/// Every connection needs TLS and a password. The users of quorate and Patroni also need a member's certificate. While such
/// a user's password changes, the certificate is enough.
fn hba(own: &[String], rotation: Option<&Rotation>) -> Vec<String> {
    let rotation = rotation.filter(|rotation| rotation.concerns_members());
    let rule = |database: &str, user: &str| {
        let changes = rotation.is_some_and(|rotation| rotation.next.contains_key(user));
        let method = if changes { "trust" } else { "scram-sha-256" };
        format!("hostssl {database} {user} all {method} clientcert=verify-ca")
    };
    let mark = rotation.map(|rotation| format!("{ROTATION_MARK}{}", rotation.mark()));
    let internal = [rule("replication", REPLICATOR), rule("all", SUPERUSER), rule("all", REWINDER)];
    let first = mark.into_iter().chain(internal);
    let last = [String::from("hostssl all all all scram-sha-256"), String::from("host all all all reject")];
    first.chain(own.iter().cloned()).chain(last).collect()
}

fn watchdog(patroni: &PatroniSettings) -> Value {
    let mode = match patroni.watchdog.mode {
        WatchdogMode::Off => "off",
        WatchdogMode::Automatic => "automatic",
        WatchdogMode::Required => "required",
    };
    json!({ "mode": mode, "device": patroni.watchdog.device, "safety_margin": patroni.watchdog.safety_margin })
}

/// The shared configuration of all members, in the DCS.
pub(crate) fn dynamic_config(spec: &ClusterSpec, postgres: &PostgresSettings) -> Value {
    let patroni = &postgres.patroni;
    let seconds = |time: Millis| time.0 / 1000;
    let mut parameters: Map<String, Value> =
        postgres.parameters.iter().map(|(name, value)| (name.clone(), Value::from(value.0.clone()))).collect();
    if spec.backup.is_some() {
        parameters.entry("archive_timeout").or_insert_with(|| Value::from(ARCHIVE_TIMEOUT));
    }
    let mut config = json!({
        "ttl": seconds(patroni.ttl),
        "loop_wait": seconds(patroni.loop_wait),
        "retry_timeout": seconds(patroni.retry_timeout),
        "primary_start_timeout": seconds(patroni.primary_start_timeout),
        "primary_stop_timeout": patroni.primary_stop_timeout.map_or(0, seconds),
        "maximum_lag_on_failover": patroni.maximum_lag_on_failover,
        "failsafe_mode": patroni.failsafe_mode,
        "synchronous_mode": postgres.synchronous.nodes > 0,
        "synchronous_mode_strict": postgres.synchronous.nodes > 0 && postgres.synchronous.strict,
        "synchronous_node_count": postgres.synchronous.nodes.max(1),
        "postgresql": { "use_pg_rewind": true, "use_slots": true, "parameters": parameters },
    });
    if !postgres.slots.is_empty() {
        config["slots"] = postgres.slots.iter().map(slot).collect::<Map<String, Value>>().into();
    }
    config
}

fn slot(slot: &Slot) -> (String, Value) {
    let kind = match &slot.database {
        None => json!({ "type": "physical" }),
        Some(database) => {
            let plugin = slot.plugin.as_deref().unwrap_or(USUAL_PLUGIN);
            json!({ "type": "logical", "database": database.as_str(), "plugin": plugin })
        }
    };
    (slot.name.clone(), kind)
}
