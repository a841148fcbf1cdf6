//! Checks of a PostgreSQL cluster: its etcd, its members, and settings that Patroni would refuse, silently change or overwrite.

mod memory;

use super::parameters::{self, Wrong};
use super::spec::{Dcs, Haproxy, Pgbouncer, PostgresSettings, Synchronous, Tags, WatchdogMode};
use super::{BACKUP_PORT, CLIENT_PORT, REPLICATOR, REST_PORT, REWINDER, SUPERUSER, hba, repository, reserved};
use crate::kinds::etcd::spec::{ClientAuth, EtcdSettings, TokenKind};
use crate::model::AGENT_PORT;
use crate::providers::MachineKind;
use crate::spec::check::other_etcd::{WayIn, endpoints};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{ClusterSpec, Destination, Firewall, HostFacts, Kind, MemberSpec, Millis, Name, S3Destination, Spec};

/// Patroni silently raises smaller values to these.
const SHORTEST_TTL: Millis = Millis(20_000);
const SHORTEST_LOOP: Millis = Millis(1_000);
const SHORTEST_RETRY: Millis = Millis(3_000);
/// PostgreSQL's limit for the name of a slot, and Patroni's default for how many there are.
const LONGEST_SLOT: usize = 63;
const USUAL_SLOTS: usize = 10;
/// Parameters that quorate sets in clusters with backups.
const OF_BACKUPS: [&str; 3] = ["archive_mode", "archive_command", "archive_library"];

pub(crate) fn check(cluster: &Cluster, all: &Spec, host: &HostFacts, found: &mut Findings) {
    let Some(postgres) = &cluster.spec.postgres else {
        let hint = "add a `postgres` section with `version` and `dcs`, or leave `kind` out for etcd";
        return found.error(cluster.at("kind"), "a cluster of PostgreSQL needs its settings", hint);
    };
    sections(cluster, found);
    member_count(cluster, postgres, found);
    dcs(cluster, postgres, all, found);
    timing(cluster, postgres, found);
    watchdog(cluster, postgres, found);
    next_to_it(cluster, found);
    parameters(cluster, postgres, host, found);
    rules_of_access(cluster, postgres, found);
    catalog(cluster, postgres, found);
    backup(cluster, postgres, found);
    tags(cluster, postgres, found);
    slots(cluster, postgres, found);
    if let Some(haproxy) = &postgres.haproxy {
        proxy(cluster, haproxy, found);
    }
    if let Some(pgbouncer) = &postgres.pgbouncer {
        pooler(cluster, postgres, pgbouncer, found);
    }
}

/// Reserved ports on every member, with their owners. On a separate machine, only the agent's port is reserved.
const TAKEN: [(u16, &str); 4] =
    [(CLIENT_PORT, "PostgreSQL"), (REST_PORT, "Patroni"), (BACKUP_PORT, "pgBackRest"), (AGENT_PORT, "quorate's agent")];
/// The default of PostgreSQL and Patroni.
const USUAL_CONNECTIONS: u32 = 100;
const SHORTEST_CHECK: Millis = Millis(200);
const LONGEST_DRAIN: Millis = Millis(300_000);

fn proxy(cluster: &Cluster, haproxy: &Haproxy, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("postgres.haproxy.{field}"));
    let ports = [("primary_port", haproxy.primary_port), ("replica_port", haproxy.replica_port)];
    for (field, port) in ports {
        let is_taken = |taken: u16| taken == port && (haproxy.machines.is_none() || taken == AGENT_PORT);
        if let Some((_, who)) = TAKEN.iter().find(|(taken, _)| is_taken(*taken)) {
            let machine = if haproxy.machines.is_some() { "machine" } else { "member" };
            let message = format!("port {port} is taken on every {machine}, by {who}");
            found.error(at(field), message, "choose another port");
        } else if port < 1024 {
            let message = format!("port {port} is reserved for root, and HAProxy does not run as root");
            found.error(at(field), message, "choose a port above 1023");
        }
    }
    if haproxy.primary_port == haproxy.replica_port {
        let message = format!("port {} is already the port for the primary", haproxy.primary_port);
        found.error(at("replica_port"), message, "choose another port");
    }
    if haproxy.max_connections == 0 {
        found.error(at("max_connections"), "HAProxy would accept no connections", "set at least 1");
    }
    if haproxy.check_every.0 < SHORTEST_CHECK.0 {
        let message = format!("`check_every` is {}: Patroni would do little else", haproxy.check_every);
        found.error(at("check_every"), message, format!("set at least {SHORTEST_CHECK}"));
    }
    if haproxy.drain.0 > LONGEST_DRAIN.0 {
        let message = format!("`drain` is {}, and new clients wait for as long", haproxy.drain);
        found.error(at("drain"), message, format!("set at most {LONGEST_DRAIN}"));
    }
    if let Some(machines) = &haproxy.machines {
        proxy_machines(cluster, haproxy, machines, found);
    }
    let Some(members) = &haproxy.members else { return };
    if members.is_empty() {
        found.error(at("members"), "HAProxy would run on no member", "name one, or leave out `haproxy`");
    }
    found.repeated(members.iter(), |index| at(&format!("members[{index}]")), |name| format!("the member `{name}`"));
    for (index, name) in members.iter().enumerate() {
        if !cluster.spec.members.iter().any(|member| member.name == *name) {
            let message = format!("the cluster has no member `{name}`");
            found.error(at(&format!("members[{index}]")), message, "name members of this cluster");
        }
    }
}

/// Separate machines. Their names and addresses are checked together with those of members.
fn proxy_machines(cluster: &Cluster, haproxy: &Haproxy, machines: &[MemberSpec], found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("postgres.haproxy.{field}"));
    if machines.is_empty() {
        found.error(at("machines"), "HAProxy would run on no machine", "name one, or leave out `haproxy`");
    }
    if haproxy.members.is_some() {
        let message = "HAProxy runs either on members or on separate machines, not on both";
        found.error(at("machines"), message, "leave out `members` or `machines`");
    }
    for (index, machine) in machines.iter().enumerate() {
        let within = |field: &str| at(&format!("machines[{index}].{field}"));
        if machine.tags.is_some() {
            found.error(within("tags"), "tags are for members, and this machine has no PostgreSQL", "leave them out");
        }
        for field in machine.data_settings() {
            found.error(within(field), "a machine that only runs HAProxy has no data", "leave it out");
        }
    }
}

fn pooler(cluster: &Cluster, postgres: &PostgresSettings, pgbouncer: &Pgbouncer, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("postgres.pgbouncer{field}"));
    let Some(haproxy) = &postgres.haproxy else {
        let message = "PgBouncer finds the primary through HAProxy, and there is none";
        return found.error(at(""), message, "add `haproxy: {}`, or leave out `pgbouncer`");
    };
    if haproxy.machines.is_some() {
        let message =
            "PgBouncer finds the primary through HAProxy on the same member, and HAProxy runs on separate machines";
        return found.error(at(""), message, "leave out `haproxy.machines`, or `pgbouncer`");
    }
    if postgres.users.is_empty() {
        found.error(at(""), "PgBouncer admits only users in `postgres.users`, which is empty", "add `users`");
    }
    let proxies = [(haproxy.primary_port, "HAProxy"), (haproxy.replica_port, "HAProxy")];
    if let Some((port, who)) = TAKEN.iter().chain(&proxies).find(|(taken, _)| *taken == pgbouncer.port) {
        found.error(at(".port"), format!("port {port} is taken, by {who}"), "choose another port");
    } else if pgbouncer.port < 1024 {
        let message = format!("port {} is reserved for root, and PgBouncer does not run as root", pgbouncer.port);
        found.error(at(".port"), message, "choose a port above 1023");
    }
    for (field, value) in
        [("default_pool_size", pgbouncer.default_pool_size), ("max_client_conn", pgbouncer.max_client_conn)]
    {
        if value == 0 {
            found.error(at(&format!(".{field}")), "PgBouncer would accept no connections", "set at least 1");
        }
    }
    let limit = postgres.parameters.get("max_connections").and_then(|value| value.0.parse().ok());
    let limit: u32 = limit.unwrap_or(USUAL_CONNECTIONS);
    if pgbouncer.default_pool_size > limit {
        let size = pgbouncer.default_pool_size;
        let message = format!(
            "`default_pool_size` is {size}, and PostgreSQL accepts only {limit} connections (`max_connections`)"
        );
        found.error(at(".default_pool_size"), message, "lower it, or raise `max_connections`");
    }
    let Some(members) = &pgbouncer.members else { return };
    if members.is_empty() {
        found.error(at(".members"), "PgBouncer would run on no member", "name one, or leave out `pgbouncer`");
    }
    found.repeated(members.iter(), |index| at(&format!(".members[{index}]")), |name| format!("the member `{name}`"));
    for (index, name) in members.iter().enumerate() {
        let is_member = cluster.spec.members.iter().any(|member| member.name == *name);
        if !is_member || !haproxy.runs_on(name.as_str()) {
            let message = format!("HAProxy does not run on `{name}`, and PgBouncer connects through it");
            found.error(at(&format!(".members[{index}]")), message, "name members that HAProxy runs on");
        }
    }
}

/// Tags are Patroni's.
pub(crate) fn refuse_tags(cluster: &Cluster, found: &mut Findings) {
    for (index, _) in cluster.spec.members.iter().enumerate().filter(|(_, member)| member.tags.is_some()) {
        let message = "tags are for members of PostgreSQL clusters";
        found.error(cluster.at(&format!("members[{index}].tags")), message, "leave them out");
    }
}

/// Settings that belong to the etcd cluster, not to this one.
fn sections(cluster: &Cluster, found: &mut Findings) {
    let hint = "set it in the etcd cluster that `postgres.dcs` names";
    if cluster.spec.etcd != EtcdSettings::default() {
        found.error(cluster.at("etcd"), "a cluster of PostgreSQL has no settings of etcd", hint);
    }
    if !cluster.spec.auth.users.is_empty() || !cluster.spec.auth.roles.is_empty() {
        let hint = "declare users of PostgreSQL in `postgres.users`";
        found.error(cluster.at("auth"), "a cluster of PostgreSQL has no users of etcd", hint);
    }
}

/// Settings that pgBackRest does not support, or that would disturb it.
fn backup(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let Some(backup) = &cluster.spec.backup else { return };
    if backup.bandwidth.is_some() {
        let hint = "leave it out; limit it in the network, or raise `compression`";
        found.error(cluster.at("backup.bandwidth"), "pgBackRest cannot limit its bandwidth", hint);
    }
    for (field, to) in [("to", Some(&backup.to)), ("also_to", backup.also_to.as_ref())] {
        if matches!(to, Some(Destination::Directory(_))) && machines(cluster) != MachineKind::Process {
            let message = "backups would go to a separate directory on each machine, and there PostgreSQL can write only to its data";
            found.error(cluster.at(&format!("backup.{field}.directory")), message, "use `s3`");
        }
        if let Some(Destination::S3(S3Destination { endpoint: Some(endpoint), .. })) = to
            && endpoint.starts_with("http://")
        {
            let message = format!("`{endpoint}` has no TLS, and pgBackRest speaks to no store without it");
            found.error(cluster.at(&format!("backup.{field}.s3.endpoint")), message, "use an https:// address");
        }
        if let Some(Destination::S3(s3)) = to
            && repository::host_and_port(s3).0.parse::<std::net::Ipv4Addr>().is_ok()
        {
            let message = "pgBackRest looks for names in the store's certificate, not for addresses";
            let hint = "name the store by its host name, unless the certificate has the address as its common name";
            found.warning(cluster.at(&format!("backup.{field}.s3.endpoint")), message, hint);
        }
    }
    for name in OF_BACKUPS.into_iter().filter(|name| postgres.parameters.contains_key(*name)) {
        let message = format!("`{name}` is set by quorate, because the cluster has backups");
        found.error(cluster.at(&format!("postgres.parameters.{name}")), message, "leave it out");
    }
}

fn member_count(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let (members, nodes) = (cluster.spec.members.len(), usize::from(postgres.synchronous.nodes));
    if members == 0 {
        return found.error(cluster.at("members"), "the cluster has no members", "name at least one; three are usual");
    }
    if nodes > 0 && nodes + 1 > members {
        let message = format!(
            "a commit waits for {nodes} {}, and the cluster has {}",
            if nodes == 1 { "standby" } else { "standbys" },
            members - 1
        );
        let hint = "add members, or lower `synchronous.nodes`; 0 confirms commits that a failover can lose";
        found.error(cluster.at("postgres.synchronous.nodes"), message, hint);
    } else if nodes > 0 && nodes + 1 == members && postgres.synchronous.strict {
        let message = format!("with {members} members and `strict`, writes stop as soon as one member is down");
        let hint = "add a member; or set `strict: false`, and commits of that time can be lost";
        found.warning(cluster.at("postgres.synchronous"), message, hint);
    }
}

fn dcs(cluster: &Cluster, postgres: &PostgresSettings, all: &Spec, found: &mut Findings) {
    match (&postgres.dcs.cluster, postgres.dcs == Dcs { cluster: postgres.dcs.cluster.clone(), ..Dcs::default() }) {
        (Some(name), true) => own_etcd(cluster, name, all, found),
        (Some(_), false) => {
            let message = "`cluster` and `endpoints` exclude each other";
            let hint = "keep `cluster`, whose addresses and logins are known; or remove it and keep `endpoints`";
            found.error(cluster.at("postgres.dcs"), message, hint);
        }
        (None, _) => other_etcd(cluster, &postgres.dcs, found),
    }
}

/// Without a password, only its network would protect Patroni's state; without a certificate, the password does.
fn other_etcd(cluster: &Cluster, dcs: &Dcs, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("postgres.dcs{field}"));
    if dcs.endpoints.is_empty() {
        let hint =
            "name an etcd cluster of this quorate with `cluster`, or another etcd with `endpoints`, `ca` and a login";
        return found.error(at(""), "`dcs` names no etcd for Patroni's state", hint);
    }
    endpoints(&dcs.endpoints, at, found);
    if dcs.ca.is_none() {
        found.error(at(""), "`dcs` names no CA for that etcd", "name its file with `ca`");
    }
    let certificate = (dcs.certificate.is_some(), dcs.key.is_some());
    let password = (dcs.username.is_some(), dcs.password_file.is_some());
    WayIn { certificate, password }.check(at, found);
}

/// The etcd cluster, if it is in the same file. Otherwise it is checked when the plan is created.
fn own_etcd(cluster: &Cluster, name: &Name, all: &Spec, found: &mut Findings) {
    let at = cluster.at("postgres.dcs.cluster");
    let Some(etcd) = all.clusters.iter().find(|other| other.name == *name) else { return };
    if etcd.kind != Kind::Etcd {
        let message = format!("`{name}` is not an etcd cluster, and Patroni keeps its state in etcd");
        return found.error(at, message, "name a cluster of etcd");
    }
    if let Err(Unusable { field, why, hint }) = can_serve(etcd) {
        let message = format!("Patroni cannot use the etcd cluster `{name}`: {why}");
        found.error(at, message, format!("{hint} (`{field}` of `{name}`)"));
    }
}

/// Why Patroni cannot keep its state in an etcd cluster.
pub struct Unusable {
    pub field: &'static str,
    pub why: &'static str,
    pub hint: &'static str,
}

/// Patroni uses etcd's JSON gateway and logs in with a password. etcd refuses certificates with a common name there, so one that Patroni needs
/// besides has none.
pub fn can_serve(etcd: &ClusterSpec) -> Result<(), Unusable> {
    let unusable = |field, why, hint| Err(Unusable { field, why, hint });
    if !etcd.etcd.grpc_gateway {
        let why = "its gRPC gateway is off, and Patroni uses no other API";
        return unusable("etcd.grpc_gateway", why, "set `grpc_gateway: true`");
    }
    let why_not = match etcd.etcd.client_auth {
        ClientAuth::Certificate => Some("clients log in with certificates, which etcd refuses at its gateway"),
        ClientAuth::CertificateAndPassword if etcd.tls.given.is_some() => {
            Some("clients need a certificate besides the password, and the key of their CA is not here to sign one")
        }
        ClientAuth::CertificateAndPassword | ClientAuth::Password => None,
    };
    if let Some(why) = why_not {
        return unusable("etcd.client_auth", why, "set `client_auth: password` when the etcd cluster is created");
    }
    if !etcd.auth.bootstrap {
        let why = "authentication is off, so anyone could change Patroni's state";
        return unusable("auth.bootstrap", why, "set `bootstrap: true`");
    }
    if etcd.auth.token == Some(TokenKind::Simple) {
        let why = "simple tokens are lost when a member restarts, and Patroni then loses its login";
        return unusable("auth.token", why, "set `token: jwt`, or leave it out");
    }
    Ok(())
}

/// Settings that Patroni silently refuses or changes.
fn timing(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let patroni = &postgres.patroni;
    let least = [
        ("ttl", patroni.ttl, SHORTEST_TTL),
        ("loop_wait", patroni.loop_wait, SHORTEST_LOOP),
        ("retry_timeout", patroni.retry_timeout, SHORTEST_RETRY),
    ];
    for (field, value, least) in least {
        if value.0 < least.0 {
            let message = format!("`{field}` is {value}, and Patroni silently raises it to {least}");
            found.error(cluster.at(&format!("postgres.patroni.{field}")), message, format!("set at least {least}"));
        }
    }
    let needed = patroni.loop_wait.0 + 2 * patroni.retry_timeout.0;
    if needed > patroni.ttl.0 {
        let message = format!(
            "`ttl` is {}, and must be at least `loop_wait` + 2 × `retry_timeout`, which is {}: otherwise a primary that \
             only waits for etcd loses its role",
            patroni.ttl,
            Millis(needed)
        );
        found.error(cluster.at("postgres.patroni.ttl"), message, "raise `ttl`, or lower the other two");
    }
    let whole = [
        ("ttl", patroni.ttl),
        ("loop_wait", patroni.loop_wait),
        ("retry_timeout", patroni.retry_timeout),
        ("primary_start_timeout", patroni.primary_start_timeout),
        ("primary_stop_timeout", patroni.primary_stop_timeout.unwrap_or(patroni.primary_start_timeout)),
    ];
    for (field, value) in whole.into_iter().filter(|(_, value)| value.0 % 1000 != 0) {
        let message = format!("`{field}` is {value}, and Patroni counts in whole seconds");
        found.error(cluster.at(&format!("postgres.patroni.{field}")), message, "use whole seconds");
    }
}

/// Services next to PostgreSQL.
fn next_to_it(cluster: &Cluster, found: &mut Findings) {
    let Some(host) = cluster.spec.host.as_ref().filter(|_| machines(cluster) != MachineKind::Process) else { return };
    let Firewall { enabled, clients_from, peers_from, .. } = &host.firewall;
    let pinned = |member: &MemberSpec| cluster.spec.provider.settings().pinned(member).is_some();
    if *enabled && clients_from.is_some() && peers_from.is_none() && !cluster.spec.members.iter().all(pinned) {
        let message = "members reach each other at the port of clients, and their addresses are not known in advance: `clients_from` \
             could cut them off";
        let hint = "add `peers_from` with a range that holds all members, or give each member an `address`";
        found.error(cluster.at("host.firewall.clients_from"), message, hint);
    }
}

fn machines(cluster: &Cluster) -> MachineKind {
    cluster.spec.provider.settings().machines()
}

/// The watchdog must reset the machine before another member can become the primary, but not before Patroni had time to reset the watchdog.
fn watchdog(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let (patroni, watchdog) = (&postgres.patroni, &postgres.patroni.watchdog);
    if watchdog.mode == WatchdogMode::Off {
        return;
    }
    if machines(cluster) == MachineKind::Container {
        return watchdog_of_host(cluster, watchdog.mode, found);
    }
    let ttl = patroni.ttl.0 / 1000;
    // Half of `ttl` for -1.
    let margin = u64::try_from(watchdog.safety_margin).unwrap_or(ttl - ttl / 2);
    let timeout = ttl.saturating_sub(margin);
    if timeout * 1000 <= patroni.loop_wait.0 {
        let message = format!(
            "the watchdog would reset the machine after {timeout} s, and Patroni resets the watchdog only every `loop_wait`, which is {}",
            patroni.loop_wait
        );
        let hint = "lower `safety_margin` or `loop_wait`, or raise `ttl`";
        found.error(cluster.at("postgres.patroni.watchdog.safety_margin"), message, hint);
    }
}

/// A container has no separate device, and resetting its host would end everything else that runs there.
fn watchdog_of_host(cluster: &Cluster, mode: WatchdogMode, found: &mut Findings) {
    let at = cluster.at("postgres.patroni.watchdog.mode");
    let hint = "use virtual machines, or `mode: off`";
    match mode {
        WatchdogMode::Required => {
            let message = "a container has no watchdog, so no member could become the primary";
            found.error(at, message, hint);
        }
        WatchdogMode::Automatic | WatchdogMode::Off => {
            found.warning(at, "a container has no watchdog: this has no effect", hint);
        }
    }
}

fn tags(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let members = &cluster.spec.members;
    for (index, member) in members.iter().enumerate() {
        let Some(tags) = &member.tags else { continue };
        if tags.nofailover && tags.failover_priority.is_some_and(|priority| priority > 0) {
            let message = format!("`{}` can never become the primary, but has a priority for it", member.name);
            let at = cluster.at(&format!("members[{index}].tags.failover_priority"));
            found.error(at, message, "leave out one of the two");
        }
    }
    let counts = |which: fn(&Tags) -> bool| {
        members.iter().filter(|member| member.tags.as_ref().is_none_or(|tags| !which(tags))).count()
    };
    let (can_lead, can_confirm) = (counts(Tags::bars_takeover), counts(|tags| tags.nosync));
    let nodes = usize::from(postgres.synchronous.nodes);
    let at = || cluster.at("members");
    if can_lead == 0 && !members.is_empty() {
        let hint = "remove `nofailover`, or raise `failover_priority`, for at least two members";
        return found.error(at(), "the tags of all members say that they never become the primary", hint);
    }
    if can_lead == 1 && members.len() > 1 {
        let message = "only one member may become the primary: if it is lost, no member takes over";
        found.warning(at(), message, "remove `nofailover` from another member");
    }
    if nodes > 0 && nodes < members.len() && can_confirm <= nodes {
        let message = format!(
            "a commit waits for {nodes} {}, and the tags leave {} that it could wait for besides the primary",
            if nodes == 1 { "standby" } else { "standbys" },
            can_confirm.saturating_sub(1)
        );
        found.error(at(), message, "remove `nosync` from a member, or lower `synchronous.nodes`");
    }
}

fn slots(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let at = |index: usize| cluster.at(&format!("postgres.slots[{index}].name"));
    found.repeated(postgres.slots.iter().map(|slot| &slot.name), at, |name| format!("the slot `{name}`"));
    let parameter = |name: &str| postgres.parameters.get(name).map(|value| value.0.as_str());
    for (index, slot) in postgres.slots.iter().enumerate() {
        let name = &slot.name;
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.len() > LONGEST_SLOT || !name.bytes().all(legal) {
            let message = format!("`{name}` is not the name of a slot");
            found.error(at(index), message, "names have at most 63 lower case letters, digits and `_`");
        } else if let Some(member) = cluster.spec.members.iter().find(|member| is_slot_of(name, member.name.as_str())) {
            let message = format!("`{name}` is the slot of member `{}`, which Patroni creates", member.name);
            found.error(at(index), message, "choose another name");
        }
        let field = |field: &str| cluster.at(&format!("postgres.slots[{index}].{field}"));
        if slot.plugin.is_some() && slot.database.is_none() {
            let message = format!("slot `{name}` has a plugin and no database to decode");
            found.error(field("plugin"), message, "add `database`, or leave the plugin out for a physical slot");
        }
        if slot.database.is_some() && parameter("wal_level") != Some("logical") {
            let message = format!("slot `{name}` decodes changes, and `wal_level` is not `logical`");
            found.error(field("database"), message, "add `wal_level: logical` to `postgres.parameters`");
        }
    }
    let needed = postgres.slots.len() + cluster.spec.members.len();
    let most = parameter("max_replication_slots").and_then(|most| most.parse().ok()).unwrap_or(USUAL_SLOTS);
    if !postgres.slots.is_empty() && needed > most {
        let message = format!(
            "{needed} slots are needed, one for each member and {} more, and `max_replication_slots` is {most}",
            postgres.slots.len()
        );
        found.error(cluster.at("postgres.slots"), message, "raise `max_replication_slots` in `postgres.parameters`");
    }
}

/// Patroni makes a slot's name from a member's: `pg-1` has `pg_1`, and its second machine `pg_1_2`.
fn is_slot_of(slot: &str, member: &str) -> bool {
    let own = member.replace('-', "_");
    let later = |rest: &str| rest.strip_prefix('_').is_some_and(|number| number.parse::<u64>().is_ok());
    slot.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || later(rest))
}

fn parameters(cluster: &Cluster, postgres: &PostgresSettings, host: &HostFacts, found: &mut Findings) {
    for (name, value) in &postgres.parameters {
        let at = cluster.at(&format!("postgres.parameters.{name}"));
        if let Some(Wrong { message, hint }) = reserved::reserved(name) {
            found.error(at, message, hint);
        } else if !is_parameter(name) {
            let message = format!("`{name}` is not the name of a parameter");
            found.error(at, message, "names have lower case letters, digits, `_` and, for extensions, one `.`");
        } else if let Some(Wrong { message, hint }) = parameters::wrong(postgres.version, name, &value.0) {
            found.error(at, message, hint);
        } else if let Some(Wrong { message, hint }) = reserved::dangerous(name, &value.0) {
            found.error(at, message, hint);
        } else if name == "synchronous_commit" {
            confirmed_early(at, &value.0, &postgres.synchronous, found);
        } else if name == "wal_level" && value.0.eq_ignore_ascii_case("minimal") {
            let message = "with `wal_level` `minimal` there are no standbys, and Patroni does not use it";
            found.error(at, message, "use `replica` or `logical`");
        }
    }
    memory::check(cluster, postgres, host, found);
}

/// Without `strict` there is no promise to keep every commit, so it is not refused.
fn confirmed_early(at: String, value: &str, synchronous: &Synchronous, found: &mut Findings) {
    match reserved::confirms_early(value, synchronous) {
        Some(Wrong { message, hint }) if synchronous.strict => found.error(at, message, hint),
        Some(Wrong { message, hint }) => found.warning(at, message, hint),
        None => {}
    }
}

fn rules_of_access(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    for (index, rule) in postgres.pg_hba.iter().enumerate() {
        let at = cluster.at(&format!("postgres.pg_hba[{index}]"));
        match hba::check(postgres.version, rule) {
            Ok(None) => {}
            Ok(Some(Wrong { message, hint })) => found.warning(at, message, hint),
            Err(Wrong { message, hint }) => found.error(at, message, hint),
        }
    }
}

fn is_parameter(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    name.split('.').count() <= 2 && name.split('.').all(part)
}

fn catalog(cluster: &Cluster, postgres: &PostgresSettings, found: &mut Findings) {
    let at = |index: usize| cluster.at(&format!("postgres.users[{index}].name"));
    found.repeated(postgres.users.iter().map(|user| &user.name), at, |name| format!("the user `{name}`"));
    for (index, user) in postgres.users.iter().enumerate() {
        if [SUPERUSER, REPLICATOR, REWINDER].contains(&user.name.as_str()) {
            let message = format!("`{}` is reserved for quorate", user.name);
            found.error(at(index), message, "choose another name");
        }
    }
    let at = |index: usize| cluster.at(&format!("postgres.databases[{index}].name"));
    found.repeated(postgres.databases.iter().map(|database| &database.name), at, |name| {
        format!("the database `{name}`")
    });
    for (index, database) in postgres.databases.iter().enumerate() {
        let Some(owner) = &database.owner else { continue };
        if !postgres.users.iter().any(|user| user.name == *owner) {
            let message = format!("database `{}` should be owned by `{owner}`, which is not declared", database.name);
            let hint = "add the user to `postgres.users`";
            found.error(cluster.at(&format!("postgres.databases[{index}].owner")), message, hint);
        }
    }
}
