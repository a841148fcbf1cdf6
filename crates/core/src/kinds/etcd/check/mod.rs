//! Checks of an etcd cluster: its token, the number of members, and the `etcd` settings: release, binary, quota, gateway, timeouts,
//! compaction and flags.

mod auth;
mod front;
mod pod;

use crate::kinds::etcd::desire::CLIENT_CRL_FLAG;
use crate::kinds::etcd::flags::{self, Conflict, FEATURE_GATES, Knowledge, Renamed, Translation};
use crate::kinds::etcd::spec::{Binary, ClientAuth, CompactionMode};
use crate::kinds::etcd::versions::{self, Gate};
use crate::model::Version;
use crate::model::{AGENT_PORT, CLIENT_PORT, HEALTH_PORT, PEER_PORT};
use crate::providers::MachineKind;
use crate::spec::check::{Cluster, Findings};
use crate::spec::{HostFacts, Retention, Severity, Size};
use crate::text::plural;

/// The largest database that etcd's documentation recommends.
const ADVISED_QUOTA: Size = Size::gibibytes(8);
/// Below this a unit was most likely forgotten.
const SMALLEST_QUOTA: Size = Size(16 << 20);
/// etcd refuses to start with a longer one.
const LONGEST_ELECTION_MS: u64 = 50_000;

pub(crate) fn check(cluster: &Cluster, host: &HostFacts, found: &mut Findings) {
    token(cluster, found);
    member_count(cluster, found);
    release(cluster, found);
    binary(cluster, found);
    quota(cluster, host, found);
    gateway(cluster, found);
    timeouts(cluster, found);
    compaction(cluster, found);
    metrics(cluster, found);
    flags(cluster, found);
    pod::check(cluster, found);
    auth::check(cluster, found);
    if let Some(settings) = &cluster.spec.etcd.front {
        front::check(cluster, settings, found);
    }
}

const LONGEST_TOKEN: usize = 64;

/// It is used unchanged in flags and messages, and leaves room for the random suffix.
fn token(cluster: &Cluster, found: &mut Findings) {
    let token = &cluster.spec.initial_token;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let hint = "use a short name, such as the cluster's; it may be changed at any time, and is used when a cluster is bootstrapped";
    if let Some(odd) = token.chars().find(|c| !plain(*c)) {
        let message =
            format!("`initial_token` has the character {odd:?}: letters, digits, `.`, `_` and `-` can be used");
        found.error(cluster.at("initial_token"), message, hint);
    }
    if token.len() > LONGEST_TOKEN {
        let message = format!("`initial_token` has {} characters, and may have {LONGEST_TOKEN}", token.len());
        found.error(cluster.at("initial_token"), message, hint);
    }
}

/// etcd recommends at most seven. Twice as many is enough while a cluster moves from one set of machines to another.
pub const MOST_MEMBERS: usize = 15;

fn member_count(cluster: &Cluster, found: &mut Findings) {
    let count = cluster.spec.members.len();
    let at = cluster.at("members");
    if count == 0 {
        found.error(
            at,
            format!("the cluster `{}` has no members", cluster.spec.name),
            "list at least one; three is usual",
        );
        return;
    }
    if count == 2 {
        let message = "2 members tolerate no failure, like 1 member, and every write waits for both";
        found.warning(at.clone(), message, "use 1 or 3 members");
    } else if count.is_multiple_of(2) {
        let (fewer, survives) = (count - 1, (count - 1) / 2);
        found.warning(
            at.clone(),
            format!(
                "{count} members tolerate {}, like {fewer} members, and every write waits for one more",
                plural(survives, "failure")
            ),
            format!("use {fewer} members"),
        );
    }
    if count > MOST_MEMBERS {
        found.error(
            at,
            format!(
                "{count} members: every write would wait for {} of them, and {MOST_MEMBERS} are the most that quorate runs",
                count / 2 + 1
            ),
            "use 3, 5 or 7; 5 already tolerate 2 failures",
        );
    } else if count > 7 {
        found.warning(
            at,
            format!("{count} members: every write waits for {} of them", count / 2 + 1),
            "use at most 7; 5 already tolerate 2 failures",
        );
    }
}

fn release(cluster: &Cluster, found: &mut Findings) {
    let at = || cluster.at("etcd.version");
    let hint = || format!("{} does not have this defect", versions::DEFAULT);
    match versions::gate(cluster.spec.etcd.version) {
        Gate::Fine => {}
        Gate::Warned(warnings) => {
            for warning in warnings {
                found.warning(at(), warning, hint());
            }
        }
        Gate::Refused(reason) => found.error(at(), reason, format!("the default is {}", versions::DEFAULT)),
    }
    unknown_release(cluster, found);
}

/// A release newer than this quorate can be run if the operator names its program. Otherwise the number is probably a mistake.
fn unknown_release(cluster: &Cluster, found: &mut Findings) {
    let version = cluster.spec.etcd.version;
    let Some(newest) = versions::newest_before(version) else { return };
    let what =
        format!("etcd {version} is not known to this quorate; the newest {} it knows is {newest}", version.line());
    match cluster.spec.etcd.binary {
        Some(Binary::Path(_) | Binary::Archive { .. } | Binary::Package(_)) => {
            found.warning(cluster.at("etcd.version"), what, "its flags and defects are not checked");
        }
        None | Some(Binary::Mirror(_)) => found.error(
            cluster.at("etcd.version"),
            what,
            format!(
                "use {}; if {version} exists by now, set `binary` to `{{path: …}}` or `{{archive: {{url: …, sha256: …}}}}`",
                match versions::newest_download(version) {
                    Some(known) => format!("{known}, the newest {} that quorate can download", version.line()),
                    None => newest.to_string(),
                }
            ),
        ),
    }
}

fn binary(cluster: &Cluster, found: &mut Findings) {
    if let Some(Binary::Path(path)) = &cluster.spec.etcd.binary
        && has_control(&path.to_string_lossy())
    {
        found.error(cluster.at("etcd.binary.path"), CONTROL_MESSAGE, CONTROL_HINT);
    }
    let version = cluster.spec.etcd.version;
    let checksum_known = ["amd64", "arm64"].iter().any(|arch| versions::release_checksum(version, arch).is_some());
    if matches!(cluster.spec.etcd.binary, Some(Binary::Mirror(_))) && !checksum_known {
        found.error(
            cluster.at("etcd.binary.mirror"),
            format!("quorate knows no checksum of etcd {version}, so it cannot trust a mirror for it"),
            "use `archive` with its `sha256`, or `path`",
        );
    }
}

fn quota(cluster: &Cluster, host: &HostFacts, found: &mut Findings) {
    let quota = cluster.spec.etcd.quota;
    if let Some((memory, whose)) = cluster.memory(host).filter(|(memory, _)| quota.0 > *memory) {
        // Whole mebibytes read better than the exact number of bytes.
        let memory = Size((memory >> 20) << 20);
        found.warning(
            cluster.at("etcd.quota"),
            format!("the quota {quota} is more than the memory of {whose} ({memory}), where etcd maps its database"),
            "lower the quota, or expect slow reads once the database has outgrown the memory",
        );
    }
    if quota < SMALLEST_QUOTA {
        found.warning(
            cluster.at("etcd.quota"),
            format!(
                "the quota {quota} is below {SMALLEST_QUOTA}: etcd stops all writes as soon as its database is larger"
            ),
            "raise it, such as to 8GiB; a number without a unit counts bytes",
        );
    }
    if quota > ADVISED_QUOTA {
        found.warning(
            cluster.at("etcd.quota"),
            format!("the quota {quota} is above {ADVISED_QUOTA}, the most that etcd recommends"),
            "a large database makes snapshots, restarts and new members slow",
        );
    }
}

fn gateway(cluster: &Cluster, found: &mut Findings) {
    let etcd = &cluster.spec.etcd;
    // Without authentication etcd does not identify clients.
    if etcd.grpc_gateway && etcd.client_auth == ClientAuth::Certificate && cluster.spec.auth.bootstrap {
        found.error(
            cluster.at("etcd.grpc_gateway"),
            "the gateway refuses client certificates with a common name, and under `client_auth: certificate` every \
             client has one",
            "turn `grpc_gateway` off, or use `client_auth: password` or `certificate_and_password`",
        );
    }
}

fn timeouts(cluster: &Cluster, found: &mut Findings) {
    let (heartbeat, election) = (cluster.spec.etcd.heartbeat, cluster.spec.etcd.election);
    if election.0 < heartbeat.0.saturating_mul(5) {
        found.error(
            cluster.at("etcd.election"),
            format!(
                "an election timeout of {election} is less than five heartbeats of {heartbeat}; etcd would not start"
            ),
            "ten heartbeats are usual",
        );
    }
    if election.0 > LONGEST_ELECTION_MS {
        found.error(
            cluster.at("etcd.election"),
            format!("an election timeout of {election} is more than 50s; etcd would not start"),
            "the default is 1s; 5s is enough across continents",
        );
    }
}

fn compaction(cluster: &Cluster, found: &mut Findings) {
    let compaction = &cluster.spec.etcd.auto_compaction;
    match (compaction.mode, compaction.retention) {
        (CompactionMode::Revision, Some(Retention::Time(time))) => found.error(
            cluster.at("etcd.auto_compaction.retention"),
            format!("under `mode: revision`, retention is a number of revisions, not {time}"),
            "write a whole number such as 1000, or `mode: periodic`",
        ),
        (CompactionMode::Periodic, None) => found.error(
            cluster.at("etcd.auto_compaction"),
            "under `mode: periodic`, retention must be given",
            "write a number of hours, or a time such as 30m or 12h",
        ),
        _ => {}
    }
}

/// Reserved ports of a member: ssh, etcd, the agent, its health page, and the node exporter.
const TAKEN: [u16; 6] = [22, CLIENT_PORT, PEER_PORT, AGENT_PORT, HEALTH_PORT, 9100];

fn metrics(cluster: &Cluster, found: &mut Findings) {
    let Some(metrics) = &cluster.spec.etcd.metrics else { return };
    if TAKEN.contains(&metrics.port) {
        found.error(
            cluster.at("etcd.metrics.port"),
            format!("port {} is taken on every member", metrics.port),
            "use another; etcd's own documentation has 2381",
        );
    }
    let firewall = cluster.spec.host.as_ref().is_none_or(|host| host.firewall.enabled);
    let machines = cluster.spec.provider.settings().machines() != MachineKind::Process;
    if machines && firewall && metrics.scrape_from.is_empty() {
        found.warning(
            cluster.at("etcd.metrics"),
            "no range is given in `scrape_from`, so the firewall blocks all scrapers of this port",
            "name the range of your Prometheus, such as `scrape_from: [10.9.0.0/16]`",
        );
    }
}

const CONTROL_MESSAGE: &str = "a line break or another control character cannot be on etcd's command line";
const CONTROL_HINT: &str = "write it in one line";

/// It would reach unit files, which are read line by line.
fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

fn flags(cluster: &Cluster, found: &mut Findings) {
    for (name, value) in &cluster.spec.etcd.flags {
        if has_control(name) || has_control(&value.0) {
            let at = cluster.at(&format!("etcd.flags.{name}"));
            found.about_key(Severity::Error, at, CONTROL_MESSAGE.to_owned(), CONTROL_HINT.to_owned());
        }
    }
    let (given, version) = (&cluster.spec.etcd.flags, cluster.spec.etcd.version);
    let at = |name: &str| cluster.at(&format!("etcd.flags.{}", name.split('=').next().unwrap_or(name)));
    let Translation { flags: written, renamed, conflicts } = flags::translate(given, version);
    for Renamed { given, written, doubled } in renamed {
        let (given_name, written_name) = (described(given), described(written));
        let (message, hint) = if doubled {
            let both = format!("{given_name} and {written_name} are one setting");
            let message = format!("{both}, and etcd {version} does not start with both; it gets the latter");
            (message, format!("leave {given_name} out"))
        } else {
            let missing = format!("etcd {version} does not have {given_name}");
            (format!("{missing}; it gets {written_name} instead"), format!("use {written_name}, which means the same"))
        };
        found.about_key(Severity::Warning, at(given), message, hint);
    }
    for Conflict { older, older_value, newer, newer_value } in &conflicts {
        let (first, second) = (described(older), described(newer));
        let message = format!("{first} and {second} are one setting, given here as {older_value} and {newer_value}");
        found.about_key(Severity::Error, at(older), message, "keep one of them".to_owned());
    }
    let in_conflict = |name: &str| conflicts.iter().any(|conflict| [conflict.older, conflict.newer].contains(&name));
    for (name, value) in written.iter().filter(|(name, _)| given.contains_key(*name) && !in_conflict(name)) {
        let gates: Vec<_> = if name == FEATURE_GATES { flags::gate_names(value).collect() } else { Vec::new() };
        let judged: Vec<_> = if gates.is_empty() {
            judge_flag(name, version).into_iter().collect()
        } else {
            gates.iter().filter_map(|gate| judge_name(gate, version)).collect()
        };
        for (severity, message, hint) in judged {
            found.about_key(severity, at(name), message, hint);
        }
    }
    if given.contains_key(CLIENT_CRL_FLAG) && cluster.spec.tls.given.is_none() {
        let what = format!(
            "with the flag `{CLIENT_CRL_FLAG}` etcd would not read quorate's own list, so certificates of removed users would \
             stay valid"
        );
        let hint = "leave it out: quorate signs these certificates and revokes those of a user that is removed from the spec; \
                    set your own list only with `tls.given`, where your CA signs";
        found.about_key(Severity::Error, at(CLIENT_CRL_FLAG), what, hint.to_owned());
    }
    for (name, value) in given {
        let Some(kind) = flags::Kind::of(name).filter(|kind| !kind.takes(&value.0)) else { continue };
        let message = format!("the flag `{name}` takes {}, not `{}`", kind.expected(), value.0);
        found.error(at(name), message, "etcd does not start with this value");
    }
}

fn described(name: &str) -> String {
    match name.split_once('=') {
        Some((_, gate)) => format!("the feature gate `{gate}`"),
        None => format!("the flag `{name}`"),
    }
}

/// The severity, the problem, and the remedy.
type Judgement = (Severity, String, String);

/// The problem with a flag of this name.
fn judge_flag(name: &str, version: Version) -> Option<Judgement> {
    let error = |message: String, hint: String| Some((Severity::Error, message, hint));
    let bare = name.trim_start_matches('-');
    if bare != name {
        return error(format!("flags are written without leading dashes, not `{name}`"), format!("write `{bare}`"));
    }
    if let Some(instead) = flags::managed(name) {
        return error(format!("the flag `{name}` cannot be set in the spec"), instead.to_owned());
    }
    judge_name(name, version)
}

/// The problem with the name of a flag or feature gate.
fn judge_name(name: &str, version: Version) -> Option<Judgement> {
    // The flags of an unknown minor version are not known; the version check has refused it already.
    if version.major != 3 || !versions::KNOWN_MINORS.contains(&version.minor) {
        return None;
    }
    let error = |message: String, hint: String| Some((Severity::Error, message, hint));
    let (kind, short) = match name.split_once('=') {
        Some((_, gate)) => ("feature gate", gate),
        None => ("flag", name),
    };
    match flags::knowledge(name, version) {
        Knowledge::Known => None,
        Knowledge::Uncertain => Some((
            Severity::Warning,
            format!("this quorate does not know whether etcd {version} has the {kind} `{short}`"),
            format!("etcd does not start with a {kind} that it does not know: check `etcd --help`"),
        )),
        Knowledge::Elsewhere(since) => error(
            format!("etcd {version} has no {kind} `{short}`; {}", releases_with(&since)),
            "leave it out, or use another version".to_owned(),
        ),
        Knowledge::Unknown { nearest } => {
            let nearest = nearest.map(|name| name.split_once('=').map_or(name, |(_, gate)| gate));
            error(
                format!("no known etcd has a {kind} `{short}`"),
                nearest.map_or("see `etcd --help`".to_owned(), |nearest| format!("did you mean `{nearest}`?")),
            )
        }
    }
}

fn releases_with(since: &[Version]) -> String {
    let each = since.iter().map(|version| match version.patch {
        0 => version.line(),
        _ => format!("{} from {version} on", version.line()),
    });
    format!("these have it: {}", each.collect::<Vec<_>>().join(", "))
}
