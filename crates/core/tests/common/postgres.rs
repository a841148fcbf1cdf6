//! PostgreSQL clusters in stories: what happens to their members, and an audit that states the rules independently.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::kinds::etcd::AuthLook;
use quorate_core::kinds::etcd::front::FRONT;
use quorate_core::kinds::postgres::spec::Tags;
use quorate_core::kinds::postgres::{
    DataState, Dcs, Formation, HAPROXY, LogEnd, PatroniStatus, PostgresFacts, RestoreState, RestoreTarget, RestoreWish,
    Role, Rotation, RotationStage, Standby, SwitchoverRequest, Until,
};
use quorate_core::model::{
    BinarySeen, CertificateUse, Consent, Data, DataSeen, Desired, Exit, MemberName, ServiceState, Version,
};
use quorate_core::planner::simulate::{SimMachine, World};
use quorate_core::planner::{Action, Step};
use quorate_core::spec::{ClusterSpec, Document, HostFacts, Kind};
use quorate_core::{Secret, model};

use super::Scene;

/// A spec from the text below `postgres` of its only cluster.
pub fn cluster(name: &str, members: usize, rest: &str) -> ClusterSpec {
    let address = |n: usize| match rest.contains("network: fixed") {
        true => format!(", address: 192.0.2.{n}"),
        false => String::new(),
    };
    let names: Vec<String> = (1..=members).map(|n| format!("{{name: pg-{n}{}}}", address(n))).collect();
    let head = format!("quorate: 1\nclusters:\n  - name: {name}\n    members: [{}]\n", names.join(", "));
    let own = "    postgres:\n      version: 15\n      dcs: {cluster: orders}\n";
    let text = head + own + rest;
    let document = Document::parse("cluster.yaml", &text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    let checked = document.spec(&HostFacts::default());
    let mut spec = checked.spec.unwrap_or_else(|| panic!("{:?}\n{text}", checked.problems));
    spec.clusters.remove(0)
}

/// The etcd cluster is there, and every declared user has a password.
pub fn provide(scene: &mut Scene) {
    let dcs = Dcs {
        hosts: BTreeSet::from([String::from("192.0.2.1:2379")]),
        ca: String::from("ca"),
        login: Some((String::from("patroni-shop"), Secret::new("password"))),
        identity: None,
        version: Some(Version::new(3, 6, 16)),
    };
    scene.brought.dcs = Some(Ok(dcs));
    let users = scene.spec.postgres.iter().flat_map(|postgres| &postgres.users);
    scene.brought.verifiers =
        users.map(|user| (user.name.to_string(), Secret::new(format!("verifier of {}", user.name)))).collect();
}

fn facts<'a>(scene: &'a mut Scene, member: &MemberName) -> &'a mut PostgresFacts {
    scene.facts_mut(member).postgres.as_mut().expect("a member with PostgreSQL")
}

fn status<'a>(scene: &'a mut Scene, member: &MemberName) -> &'a mut PatroniStatus {
    facts(scene, member).status.as_mut().expect("Patroni answers")
}

/// Says whether the words are about PostgreSQL.
pub fn happen(scene: &mut Scene, member: &MemberName, words: &[&str]) -> bool {
    match words {
        ["loses", "its", "data"] => {
            let found = facts(scene, member);
            (found.data, found.service, found.status) = (DataSeen::Empty, ServiceState::Stopped, None);
        }
        ["has", "not", "confirmed", "the", "rotation"] => facts(scene, member).rotation = None,
        ["reports", "transaction", number] => {
            facts(scene, member).transaction = Some(number.parse().expect("a number"));
        }
        // Etcd was restored, and nobody is the primary.
        ["is", "held", "on", "timeline", timeline, "at", location] => {
            let number = |text: &str| text.parse().expect("a number");
            let status = status(scene, member);
            (status.role, status.streaming) = (Role::Replica, false);
            status.standbys.clear();
            status.held = Some(LogEnd { timeline: number(timeline), location: number(location) });
        }
        ["is", "held", "and", "still", "replays", "its", "log"] => {
            let status = status(scene, member);
            (status.role, status.streaming, status.held) = (Role::Replica, false, None);
        }
        ["does", "not", "reach", "the", "DCS"] => status(scene, member).dcs = false,
        ["is", "on", "timeline", number] => {
            status(scene, member).timeline = Some(number.parse().expect("a number"));
        }
        ["stops"] => {
            let found = facts(scene, member);
            (found.service, found.status) = (ServiceState::Stopped, None);
        }
        ["is", "tagged", "nofailover"] => {
            scene.ledger.spec_before = Some(Box::new(scene.spec.clone()));
            let spec = scene.spec.members.iter_mut().find(|spec| spec.name.as_str() == member.as_str());
            spec.expect("a member").tags = Some(Tags { nofailover: true, ..Tags::default() });
        }
        ["needs", "a", "restart"] => status(scene, member).pending_restart = true,
        ["runs", "PostgreSQL", running, "and", "has", installed] => {
            status(scene, member).server_version = Some((*running).to_owned());
            facts(scene, member).postgres = BinarySeen::Version((*installed).to_owned());
        }
        ["has", "not", "read", "the", "configuration"] => facts(scene, member).applied = None,
        ["does", "not", "stream"] => status(scene, member).streaming = false,
        ["has", "no", "synchronous", "standby"] => {
            status(scene, member).standbys.values_mut().for_each(|standby| standby.synchronous = false);
        }
        ["lags", "by", bytes] => {
            let lag: u64 = bytes.parse().expect("a number of bytes");
            status(scene, member).location = Some(1_000_000_000 - lag);
        }
        ["is", "at", "the", "end"] => status(scene, member).location = Some(1_000_000_000),
        ["was", "promoted", "too"] => status(scene, member).role = Role::Primary,
        ["becomes", "the", "primary"] => become_primary(scene, member),
        ["is", "no", "longer", "primary"] => {
            let status = status(scene, member);
            (status.role, status.streaming) = (Role::Replica, true);
        }
        ["holds", "the", "data", "of", "bootstrap", token] => {
            let stamp = model::Stamp {
                cluster_id: scene.ledger.cluster_id.clone(),
                token: (*token).to_owned(),
                member: member.clone(),
                incarnation: 1,
            };
            facts(scene, member).data = DataSeen::Stamped(stamp);
        }
        ["holds", "the", "replaced", "data"] => {
            let token = scene.ledger.postgres.replaced.first().expect("a restore has replaced data").clone();
            let found = facts(scene, member);
            let DataSeen::Stamped(stamp) = &mut found.data else { panic!("a member with data") };
            stamp.token = token;
        }
        ["restores", "slowly"] => {
            let restored = facts(scene, member).restored.as_mut().expect("a backup is being restored");
            restored.state = RestoreState::Running { doing: String::from("fetching backup b1") };
        }
        ["cannot", "restore"] => {
            let restored = facts(scene, member).restored.as_mut().expect("a backup is being restored");
            restored.state = RestoreState::Failed { why: String::from("the log is missing") };
        }
        ["has", "no", "PostgreSQL", version] => {
            let why = format!("PostgreSQL {version} is not in /usr/lib/postgresql/{version}/bin");
            facts(scene, member).next = BinarySeen::Missing { why };
        }
        ["has", "no", "Patroni"] => {
            let why = String::from("there is no program `patroni` on the PATH");
            facts(scene, member).patroni = BinarySeen::Missing { why };
        }
        ["has", "Patroni", version] => {
            facts(scene, member).patroni = BinarySeen::Version((*version).to_owned());
        }
        ["has", "pgBackRest", version] => {
            facts(scene, member).pgbackrest = BinarySeen::Version((*version).to_owned());
        }
        ["rehearses", "slowly"] => {
            let task = facts(scene, member).task.as_mut().expect("something is done in the background");
            task.state = RestoreState::Running { doing: String::from("copying its data") };
        }
        ["fails", "in", "the", "rehearsal"] => {
            let task = facts(scene, member).task.as_mut().expect("something is done in the background");
            task.state = RestoreState::Failed { why: String::from("table x has a column of type regproc") };
        }
        ["has", "a", "new", "agent"] => {
            let found = facts(scene, member);
            found.task = None;
            found.restored = found.restored.take().filter(|restored| restored.state == RestoreState::Ready);
        }
        ["fails", "to", "upgrade"] => {
            let restored = facts(scene, member).restored.as_mut().expect("data is being upgraded");
            restored.state = RestoreState::Failed { why: String::from("pg_upgrade failed: no space left on device") };
        }
        ["was", "killed"] => {
            let control = facts(scene, member).control.as_mut().expect("a member with data");
            control.state = DataState::InUse;
        }
        ["was", "shut", "down", "as", "the", "primary", "too"] => {
            let control = facts(scene, member).control.as_mut().expect("a member with data");
            control.state = DataState::ShutDown;
        }
        ["has", "later", "commits"] => {
            let control = facts(scene, member).control.as_mut().expect("a member with data");
            (control.timeline, control.checkpoint) = (1, 99);
        }
        ["keeps", "the", "data", "of", "bootstrap", token] => {
            let kept = facts(scene, member).replaced.as_mut().expect("an upgrade has replaced data");
            kept.stamp.token = (*token).to_owned();
        }
        ["does", "not", "serve"] => {
            let last_exit = Exit { at: scene.seen.now, how: String::from("exit status: 1"), last_words: String::new() };
            let fails = ServiceState::BackingOff { restarts: 3, last_exit };
            let service = scene.spec.kind.proxy_service().to_owned();
            scene.facts_mut(member).services.insert(service, fails);
        }
        ["keeps", "clients", "waiting"] => scene.facts_mut(member).holds_clients = true,
        ["claims", "to", "be", "the", "primary"] => {
            let primary = |machine: &&MemberName| {
                scene.seen.facts(machine).is_some_and(|facts| {
                    let status = facts.postgres.as_ref().and_then(|found| found.status.as_ref());
                    status.is_some_and(|status| status.role == Role::Primary)
                })
            };
            let primary = scene.seen.agents.keys().find(primary).cloned().expect("a primary");
            let claim = scene.facts_mut(&primary).postgres.clone();
            scene.facts_mut(member).postgres = claim;
        }
        ["has", "unreadable", "data"] => facts(scene, member).control = None,
        ["keeps", "the", "data", "of", "another", "cluster"] => {
            let kept = facts(scene, member).replaced.as_mut().expect("an upgrade has replaced data");
            kept.stamp.cluster_id = String::from("another");
        }
        ["keeps", "data", "that", "was", "not", "shut", "down"] => {
            let kept = facts(scene, member).replaced.as_mut().expect("an upgrade has replaced data");
            kept.control.state = DataState::InUse;
        }
        ["loses", "what", "it", "kept"] => facts(scene, member).replaced = None,
        ["loses", "the", "restored", "data"] => facts(scene, member).restored = None,
        _ => return false,
    }
    true
}

/// The operator confirms that all data is replaced by this backup.
pub fn restore(scene: &mut Scene, label: &str, consent: Consent) {
    let target = RestoreTarget { label: label.to_owned(), repository: 1, until: Until::End, timeline: None, bytes: 1 };
    let token = format!("shop-restored-{label}");
    let source = format!("backup {label} with all log that was stored");
    scene.ledger.postgres.restore = Some(RestoreWish { consent, token, target: Some(target), source });
}

pub fn want_version(scene: &mut Scene, version: &str) {
    scene.ledger.spec_before = Some(Box::new(scene.spec.clone()));
    scene.spec.postgres.as_mut().expect("a cluster of PostgreSQL").version = version.parse().expect("a version");
}

/// The operator confirms that all data is replaced by that from before the upgrade.
pub fn go_back(scene: &mut Scene, consent: Consent) {
    let source = String::from("the data from before the upgrade");
    scene.ledger.postgres.restore =
        Some(RestoreWish { consent, token: String::from("shop-back"), target: None, source });
}

/// Patroni has promoted this one; the others follow, and the first that may has become the synchronous standby.
fn become_primary(scene: &mut Scene, member: &MemberName) {
    let others: Vec<MemberName> = scene.seen.agents.keys().filter(|name| *name != member).cloned().collect();
    let streams = |number| Standby { state: String::from("streaming"), synchronous: number == 0 };
    let standbys = others.iter().enumerate().map(|(number, name)| (name.to_string(), streams(number)));
    let standbys = standbys.collect();
    for other in &others {
        let status = status(scene, other);
        (status.role, status.streaming) = (Role::Replica, true);
    }
    let status = status(scene, member);
    (status.role, status.standbys) = (Role::Primary, standbys);
}

/// The operator asks that another member, or this one, becomes the primary.
pub fn switch_over(scene: &mut Scene, consent: Consent, to: &[&str]) {
    let to = match to {
        [] => None,
        ["to", member] => Some(MemberName::from(*member)),
        words => panic!("the operator does not say: {words:?}"),
    };
    let primary = |scene: &Scene| {
        let found = |member: &&MemberName| {
            let status = scene.seen.facts(member).and_then(|facts| facts.postgres.as_ref()?.status.as_ref());
            status.is_some_and(|status| status.role == Role::Primary)
        };
        scene.seen.agents.keys().find(found).cloned().expect("a primary")
    };
    let from = primary(scene);
    let timeline = status(scene, &from).timeline;
    scene.ledger.postgres.switchover = Some(SwitchoverRequest { consent, from, timeline, to });
}

/// The operator wants other passwords for these users.
pub fn rotate(scene: &mut Scene, consent: Consent, users: &[&str]) {
    let next = |user: &&str| ((*user).to_owned(), Secret::new(format!("new password of {user}")));
    let next: BTreeMap<String, Secret> = users.iter().map(next).collect();
    let verifier = |user: &String| Secret::new(format!("new verifier of {user}"));
    let verifiers = next.iter().map(|(user, password)| (user.clone(), (password.clone(), verifier(user))));
    scene.brought.next_verifiers = verifiers.collect();
    scene.ledger.postgres.rotation = Some(Rotation::new(consent, String::from("one"), next));
}

/// etcd has another user for Patroni, and members are to use it.
pub fn rotate_dcs(scene: &mut Scene, consent: Consent, user: &str) {
    if let Some(Ok(dcs)) = &mut scene.brought.dcs {
        dcs.login.iter_mut().for_each(|(name, _)| user.clone_into(name));
    }
    scene.ledger.postgres.rotation = Some(Rotation::of_dcs(consent, String::from("one")));
}

/// What must hold while passwords are rotated: every member can log in to every other.
fn audit_rotation(world: &World, stage: Option<RotationStage>, step: &Step) {
    let rotation = world.ledger.postgres.rotation.as_ref().expect("nobody has asked for other passwords");
    let members = world.ledger.postgres.formation.members().into_iter().flat_map(|members| members.keys());
    let own =
        rotation.dcs || ["postgres", "replicator", "rewinder"].iter().any(|user| rotation.next.contains_key(*user));
    let says = |member: &MemberName| world.machines.get(member)?.facts()?.postgres.as_ref()?.rotation.clone();
    let wanted = match stage {
        Some(RotationStage::Setting) => Some("one old"),
        None => Some("one new"),
        Some(RotationStage::Opening | RotationStage::Switching) => None,
    };
    if let Some(wanted) = wanted.filter(|_| own) {
        for member in members {
            assert_eq!(says(member).as_deref(), Some(wanted), "{member} would be locked out: {step:?}");
        }
    }
}

/// Whether `max_connections` is to grow.
fn raised(status: &PatroniStatus) -> bool {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<u64>().ok());
    status.pending.get("max_connections").is_some_and(|(old, new)| number(new) > number(old))
}

/// What Patroni reports on each machine.
fn roles(world: &World) -> BTreeMap<&MemberName, &PatroniStatus> {
    world.machines.iter().filter_map(|(name, machine)| Some((name, status_of(machine)?))).collect()
}

fn status_of(machine: &SimMachine) -> Option<&PatroniStatus> {
    machine.facts()?.postgres.as_ref()?.status.as_ref()
}

fn serves(machine: &SimMachine) -> bool {
    let state = |name| machine.facts().and_then(|facts| facts.services.get(name));
    let runs = |name| matches!(state(name), Some(ServiceState::Running { .. }));
    machine.seen.is_up() && (runs(HAPROXY) || runs(FRONT))
}

/// A proxy is trusted with nothing, and somebody serves while one is away.
fn audit_proxies(desired: &Desired, world: &World, step: &Step) {
    let is_proxy =
        |name: &MemberName| world.ledger.members.get(&name.seat().into()).is_some_and(|record| record.proxy.is_some());
    let Some(proxy) = step.action.member().filter(|member| is_proxy(member)) else { return };
    match &step.action {
        Action::InstallCertificates { uses, .. } => {
            let mut others = uses.iter().filter(|of| **of != CertificateUse::Agent);
            match desired.kind {
                Kind::Postgres => assert_eq!(others.next(), None, "a proxy passes for a member: {step:?}"),
                Kind::Etcd => {
                    let asks = matches!(&world.auth, AuthLook::Seen(found) if found.enabled);
                    assert!(others.all(|of| *of == CertificateUse::Front && asks), "it opens everything: {step:?}");
                }
            }
        }
        Action::DestroyMachine { .. } | Action::RebootMachine { .. } | Action::StopMachine { .. }
            if desired.destroy.is_none() && desired.power == model::Power::On && !desired.downtime =>
        {
            let mut others = world.machines.iter().filter(|(name, _)| *name != proxy && is_proxy(name));
            let any_wanted = !desired.proxies.is_empty();
            let served = world.machines.get(proxy).is_some_and(serves);
            assert!(!served || !any_wanted || others.any(|(_, machine)| serves(machine)), "nobody serves: {step:?}");
            let held = |machine: &SimMachine| machine.facts().is_some_and(|facts| facts.holds_clients);
            assert!(!world.machines.values().any(held), "clients wait for a switchover: {step:?}");
        }
        Action::CreateMachine { .. }
        | Action::StartMachine { .. }
        | Action::StopMachine { .. }
        | Action::DestroyMachine { .. }
        | Action::RebootMachine { .. }
        | Action::Enrol { .. }
        | Action::UpgradeAgent { .. }
        | Action::PushConfig { .. } => {}
        other => panic!("nothing else is asked of a proxy: {other:?}"),
    }
}

/// What must hold of every step on PostgreSQL in a world that is as it was seen.
pub fn audit(desired: &Desired, world: &World, step: &Step) {
    audit_proxies(desired, world, step);
    let formation = &world.ledger.postgres.formation;
    let roles = roles(world);
    let primaries = roles.values().filter(|status| status.role == Role::Primary).count();
    let others_stream = |member: &MemberName| {
        let joined = formation.members().into_iter().flat_map(|members| members.keys());
        joined
            .filter(|name| *name != member)
            .all(|name| roles.get(name).is_some_and(|status| status.role == Role::Primary || status.streaming))
    };
    match &step.action {
        Action::InitializePostgres { stamp, .. } => {
            let Formation::Forming { token, .. } = formation else {
                panic!("creates data of a living cluster: {step:?}")
            };
            assert_eq!(*token, stamp.token);
            assert!(roles.is_empty(), "somebody runs already: {step:?}");
            assert!(world.ledger.postgres.replaced.is_empty(), "empty in place of data that was given up: {step:?}");
        }
        Action::RecordInitialized { .. } => assert_eq!(primaries, 1, "{step:?}"),
        Action::RecordRotation { stage } => audit_rotation(world, *stage, step),
        Action::WipePostgres { member, .. } => {
            assert!(!formation.is_formed(), "data of a living cluster: {step:?}");
            let found = world.machines.get(member).and_then(|machine| machine.facts()?.postgres.as_ref());
            assert!(found.is_none_or(|found| found.replaced.is_none()), "with what was given up: {step:?}");
        }
        Action::JoinPostgres { .. } => {
            assert!(formation.is_formed() && primaries == 1, "clones from nobody: {step:?}");
        }
        Action::StopPatroni { member } if is_to_be_replaced(world, member) => {}
        Action::StopPatroni { member } if world.ledger.postgres.upgrade.is_some() => {
            let leads = roles.get(member).is_some_and(|status| status.role == Role::Primary);
            assert!(!leads || roles.len() == 1, "somebody could take over: {step:?}");
        }
        Action::RecordUpgrading { to, .. } => {
            assert!(desired.downtime, "an outage without consent: {step:?}");
            assert!(primaries == 1 && desired.members.keys().all(others_stream), "not all are well: {step:?}");
            let task = |machine: &SimMachine| machine.facts()?.postgres.as_ref()?.task.clone();
            let mut tasks = world.machines.values().filter_map(task);
            let rehearsed =
                tasks.any(|task| task.state == RestoreState::Ready && task.id.contains(&format!("to {to},")));
            assert!(rehearsed, "it was not rehearsed: {step:?}");
        }
        Action::UpgradeData { member, stamp, .. } => audit_upgraded(world, member, &stamp.token, step),
        Action::DiscardReplaced { stamp, .. } => {
            assert!(world.ledger.postgres.discard.is_some(), "nobody has confirmed it: {step:?}");
            assert_ne!(formation.token(), Some(stamp.token.as_str()), "the data of the cluster: {step:?}");
            assert!(desired.members.keys().all(others_stream), "not all are well: {step:?}");
        }
        Action::TakeBack { was, .. } => {
            let restore = world.ledger.postgres.restore.as_ref().expect("nobody has confirmed it");
            assert!(restore.target.is_none() && world.ledger.postgres.replaced.contains(&was.token), "{step:?}");
        }
        Action::PutRestored { stamp, .. } => {
            assert!(roles.is_empty(), "somebody runs on the data of before: {step:?}");
            assert_eq!(formation.token(), Some(stamp.token.as_str()), "{step:?}");
        }
        Action::SetAside { stamp, .. } => {
            assert!(world.ledger.postgres.replaced.contains(&stamp.token), "nobody has confirmed it: {step:?}");
        }
        Action::DestroyMachine { member, data: Data::Stays } => {
            let leads = roles.get(member).is_some_and(|status| status.role == Role::Primary);
            assert!(!leads || desired.downtime, "the machine of the primary: {step:?}");
            assert!(others_stream(member) || desired.downtime, "two disturbances: {step:?}");
        }
        Action::RestartPatroni { member }
        | Action::RestartPostgres { member }
        | Action::RebootMachine { member, .. }
        | Action::StopPatroni { member } => {
            assert!(!formation.is_formed() || others_stream(member), "two disturbances: {step:?}");
            let leads = roles.get(member).is_some_and(|status| status.role == Role::Primary);
            let alone = roles.len() == 1;
            let limits = [
                "max_connections",
                "max_locks_per_transaction",
                "max_prepared_transactions",
                "max_wal_senders",
                "max_worker_processes",
            ];
            let own = roles.get(member);
            let lowered = own.is_some_and(|status| status.pending.keys().any(|name| limits.contains(&name.as_str())));
            let first = lowered || desired.downtime;
            assert!(!leads || alone || first || !formation.is_formed(), "the primary hands over first: {step:?}");
            let primary = roles.values().find(|status| status.role == Role::Primary);
            let old = |status: &PatroniStatus| status.pending.get("max_connections").and_then(|(old, _)| old.clone());
            let keeps = leads
                || primary.is_none_or(|status| old(status).is_none())
                || !lowered
                || own.is_some_and(|status| raised(status));
            assert!(keeps, "a standby would have less than its primary: {step:?}");
            assert!(!alone || desired.downtime || !formation.is_formed(), "an outage without consent: {step:?}");
        }
        Action::LetTakeOver { member, end } => {
            assert_eq!(primaries, 0, "{step:?}");
            assert_eq!(roles[member].held.as_ref(), Some(end), "{step:?}");
            let all: Vec<&MemberName> = formation.members().into_iter().flat_map(|members| members.keys()).collect();
            let ends: Vec<_> = all.iter().filter_map(|other| roles.get(*other)?.held).collect();
            assert!(ends.iter().all(|other| other <= end), "another log goes further: {step:?}");
            let strict = world.ledger.spec.postgres.as_ref().is_some_and(|postgres| postgres.synchronous.strict);
            assert!(all.len() - ends.len() <= usize::from(strict), "who is silent may have more: {step:?}");
        }
        Action::Switchover { member, to } => {
            assert_eq!(primaries, 1, "{step:?}");
            assert_eq!(roles[member].role, Role::Primary, "{step:?}");
            assert!(roles[to].streaming && (others_stream(member) || desired.downtime), "{step:?}");
            let tags = world.ledger.spec.members.iter().find(|spec| spec.name.as_str() == to.as_str());
            let barred = tags.and_then(|spec| spec.tags.as_ref()).is_some_and(|tags| tags.nofailover);
            assert!(!barred, "its tags bar it: {step:?}");
            let lag = roles[member].location.unwrap().saturating_sub(roles[to].location.unwrap());
            assert!(lag <= 16 << 20, "clients would wait: {step:?}");
            let confirms = |name: &MemberName| {
                let known = formation.members().and_then(|members| members.get(name)?.number);
                let number = known.unwrap_or(desired.members[name].incarnation);
                let called = if number > 1 { format!("{name}.{number}") } else { name.to_string() };
                roles[member].standbys.get(&called).is_some_and(|standby| standby.synchronous)
            };
            let waits = world.ledger.spec.postgres.as_ref().is_some_and(|postgres| postgres.synchronous.nodes > 0);
            assert!(!waits || confirms(to), "it may lack confirmed commits: {step:?}");
        }
        _ => {}
    }
}

/// Nobody runs, and the data has every commit: its server was the last one that took any.
fn audit_upgraded(world: &World, member: &MemberName, token: &str, step: &Step) {
    assert!(roles(world).is_empty(), "somebody runs: {step:?}");
    let upgrade = world.ledger.postgres.upgrade.as_ref().expect("nobody has begun an upgrade");
    assert_eq!(upgrade.token, token, "{step:?}");
    let control = |machine: &SimMachine| machine.facts()?.postgres.as_ref()?.control;
    let own = world.machines.get(member).and_then(control).expect("a member with data");
    let known = upgrade.source.as_ref() == Some(member);
    assert!(known || own.state == DataState::ShutDown, "its server was not shut down as the primary: {step:?}");
    let others = world.machines.iter().filter(|(name, _)| *name != member).filter_map(|(_, machine)| control(machine));
    let earlier =
        others.map(|other| (other.timeline, other.checkpoint)).all(|place| place <= (own.timeline, own.checkpoint));
    assert!(known || earlier, "another member has later commits: {step:?}");
}

/// Whether the operator has confirmed that the data of this member is replaced, and what replaces it is there.
fn is_to_be_replaced(world: &World, member: &MemberName) -> bool {
    let record = &world.ledger.postgres;
    let found = |machine: &SimMachine| machine.facts()?.postgres.clone();
    let ready = world.machines.values().filter_map(found).filter_map(|found| found.restored);
    let mut ready = ready.filter(|restored| restored.state == RestoreState::Ready);
    let is_ready = ready.any(|restored| record.restore.as_ref().is_some_and(|wish| wish.token == restored.token));
    let own = world.machines.get(member).and_then(found).map(|found| found.data);
    is_ready || matches!(own, Some(DataSeen::Stamped(stamp)) if record.replaced.contains(&stamp.token))
}

/// What must hold where nothing is left to do.
pub fn audit_settled(after: &Scene) {
    let desired = after.desired();
    let machines = after.seen.machines.get().expect("the provider answers");
    assert_eq!(machines.len(), desired.machines().count(), "a machine too many or too few");
    for proxy in desired.proxies.keys() {
        let facts = after.seen.facts(proxy).expect("a proxy that answers");
        assert!(matches!(facts.services.get(HAPROXY), Some(ServiceState::Running { .. })), "{proxy} does not serve");
        assert!(facts.certificates.keys().all(|of| *of == CertificateUse::Agent), "{proxy} passes for a member");
    }
    let Formation::Formed { members, .. } = &after.ledger.postgres.formation else {
        panic!("settled without a cluster")
    };
    assert!(members.keys().eq(desired.members.keys()), "others than the declared belong to the cluster: {members:?}");
    let found = |member: &MemberName| after.seen.facts(member)?.postgres.as_deref();
    let status = |member: &MemberName| found(member)?.status.as_ref();
    let primaries = desired.members.keys().filter(|m| status(m).is_some_and(|s| s.role == Role::Primary)).count();
    assert_eq!(primaries, 1);
    for (member, wish) in &desired.members {
        let found = found(member).expect("a member with PostgreSQL");
        let runs = matches!(&found.service, ServiceState::Running { digest, .. } if *digest == wish.service_digest);
        assert!(runs, "{member} does not run what was declared: {:?}", found.service);
        let status = found.status.as_ref().expect("Patroni answers");
        assert!(status.role == Role::Primary || status.streaming, "{member} is not healthy");
        assert!(!status.pending_restart, "{member} waits for a restart");
        assert_eq!(found.rotation, None, "{member} lets others in without their passwords");
    }
}
