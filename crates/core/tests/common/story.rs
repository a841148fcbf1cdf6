//! The language of the stories: one line, one thing that is given or asked.
//!
//! ```text
//! == a title
//! cluster demo members 3          # what is declared; indented lines below it are more of the cluster's YAML
//! settled                         # carried out until nothing is left to do
//! etcd-2 disk lost                # what happened since
//! plan
//! ----
//! what the operator is told
//! ```
//!
//! `plan` tells all steps until it settles, `decide` one round, `apply` carries the plan out and tells it, so that the
//! story can continue. `until STEP` carries out quietly what comes before that step. A second `cluster` is the edited spec.
//! `UPDATE_STORIES=1` writes what comes out; read the difference before keeping it.

mod happened;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use jiff::SignedDuration;
use quorate_core::kinds::etcd::safety::requests;
use quorate_core::kinds::etcd::{AuthLook, AuthSeen, EtcdStatus, Formation, MemberEntry, RecoveryRequest};
use quorate_core::model::{
    AgentSeen, BackupNote, BackupRecord, Consent, FixtureSeen, History, IssuedCertificate, MemberName, Obstacle, Power,
    Reboot, Seen,
};
use quorate_core::planner::remember::{raise_incarnation, renew};
use quorate_core::planner::{Decision, Step};

use crate::scene::{self, Scene};
use happened::happen;

/// What the stories have reached, for the test that they reach everything.
#[derive(Default)]
pub struct Reached {
    pub actions: BTreeSet<&'static str>,
    pub refusals: BTreeSet<&'static str>,
}

/// Tells a whole file of stories again, with what really comes out in place of what was expected.
pub fn retell(text: &str, reached: &mut Reached) -> String {
    let mut told = String::new();
    let mut scene: Option<Scene> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "----" {
            panic!("`----` follows plan, decide or apply");
        }
        let _ = writeln!(told, "{line}");
        let line = line.split(" #").next().unwrap_or_default().trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with("== ") {
            scene = None;
            continue;
        }
        let mut more = String::new();
        while let Some(next) = lines.next_if(|l| l.starts_with("    ")) {
            let _ = writeln!(more, "{next}");
        }
        told.push_str(&more);
        if matches!(line, "plan" | "decide" | "apply") {
            let scene = scene.as_mut().expect("a cluster");
            scene.ask_who_reaches();
            let _ = writeln!(told, "----\n{}", answer(scene, line, reached));
            skip_expected(&mut lines);
        } else {
            tell(&mut scene, line, &more);
        }
    }
    told
}

/// Passes over the old expectation: all up to an empty line.
fn skip_expected<'a>(lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) {
    if lines.next_if(|l| *l == "----").is_some() {
        while lines.next_if(|l| !l.is_empty()).is_some() {}
    }
}

fn answer(scene: &mut Scene, question: &str, reached: &mut Reached) -> String {
    if question == "decide" {
        let decision = scene.decide();
        scene::audit_decision(&scene.desired(), &scene.seen, &decision);
        note(reached, &decision.steps, &decision);
        return show(&decision.steps, &decision);
    }
    let outcome = scene.run();
    for round in &outcome.rounds {
        note(reached, &round.steps, round);
    }
    scene::audit_end(scene, &outcome);
    let wish = scene.wish();
    let shown = quorate_core::planner::plan(wish, wish.configs(&scene.ledger), &scene.ledger, &scene.seen);
    assert_eq!(shown.steps.len(), outcome.steps.len(), "what `plan` shows is what is done");
    let end = if outcome.world.machines.is_empty() { shown.end } else { outcome.end.clone() };
    let told = show(&outcome.steps, &end);
    if question == "apply" {
        scene.go_on_from(&outcome);
    }
    told
}

fn note(reached: &mut Reached, steps: &[Step], decision: &Decision) {
    reached.actions.extend(steps.iter().map(|s| s.action.kind()));
    reached.refusals.extend(decision.blocked.iter().map(|b| b.kind()));
}

fn show(steps: &[Step], end: &Decision) -> String {
    let mut lines: Vec<String> = steps.iter().map(|s| format!("{}: {}", s.action, s.why)).collect();
    lines.extend(end.waiting.iter().map(|w| format!("waiting for {w}")));
    for because in &end.blocked {
        lines.push(format!("blocked: {because}"));
        lines.push(format!("  rule: {}", because.rule()));
        lines.push(format!("  hint: {}", because.remedy()));
    }
    if end.settled() {
        lines.push(String::from("settled"));
    }
    lines.join("\n")
}

fn tell(scene: &mut Option<Scene>, line: &str, more: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let [kind @ ("cluster" | "postgres"), name, "members", count] = words[..] {
        let members = count.parse().expect("a number of members");
        let spec = match kind {
            "postgres" => scene::postgres::cluster(name, members, more),
            _ => scene::cluster(name, members, more),
        };
        match scene {
            Some(scene) => {
                let before = std::mem::replace(&mut scene.spec, spec);
                scene.ledger.spec_before = Some(Box::new(before));
            }
            None => *scene = Some(Scene::nothing(spec)),
        }
        scene.iter_mut().filter(|_| kind == "postgres").for_each(scene::postgres::provide);
        return;
    }
    let scene = scene.as_mut().unwrap_or_else(|| panic!("`{line}` before any cluster"));
    match words[..] {
        ["settled"] => scene.settle(),
        ["until", ..] => until(scene, line.strip_prefix("until ").unwrap_or_default()),
        ["operator", ..] => operator(scene, &words[1..]),
        ["user", user, "made", "by", "another", "tool"] => {
            change_auth(scene, |auth| drop(auth.users.insert(user.to_owned(), BTreeSet::new())))
        }
        ["user", user, "removed", "by", "another", "tool"] => change_auth(scene, |auth| drop(auth.users.remove(user))),
        ["users", "unseen:", ..] => {
            let why = line.strip_prefix("users unseen: ").unwrap_or_default().to_owned();
            look_at_auth(scene, |look| *look = AuthLook::Failed { why: why.clone() });
        }
        ["users", "not", "asked"] => look_at_auth(scene, |look| *look = AuthLook::NotAsked),
        ["password", "of", user, "is", fingerprint] => {
            scene.brought.passwords.insert(user.to_owned(), fingerprint.to_owned());
        }
        ["certificates", "brought", mark] => bring_certificates(scene, mark),
        ["CA", "brought", mark] => scene.brought.authority = Some(mark.to_owned()),
        ["root", "password", "brought", mark] => scene.brought.root_password = Some(mark.to_owned()),
        ["provider", "away"] => {
            let why = String::from("connection refused");
            scene.seen.machines = Seen::Unreachable { since: scene.seen.now, why };
            scene.seen.agents.clear();
        }
        ["snapshot", "file", "gone"] => scene.brought.snapshot = None,
        ["backup", id, "verified", "at", "revision", revision] => {
            let (at, revision) = (scene.seen.now, revision.parse().expect("a number"));
            let note = BackupNote { id: id.to_owned(), at, revision, verified_at: Some(at), history: None };
            scene.ledger.backups =
                Some(BackupRecord { newest: note.clone(), verified: Some(note), forged: Vec::new() });
        }
        ["backup", id, "verified", "with", "all", "before", "transaction", revision] => {
            let (at, revision) = (scene.seen.now, revision.parse().expect("a number"));
            let history = Some(History { system_id: String::from("1"), timeline: 1 });
            let note = BackupNote { id: id.to_owned(), at, revision, verified_at: Some(at), history };
            scene.ledger.backups =
                Some(BackupRecord { newest: note.clone(), verified: Some(note), forged: Vec::new() });
        }
        ["highest", "revision", revision] => {
            scene.ledger.etcd.highest_revision = revision.parse().expect("a number");
        }
        ["ledger", "gave", "up", token] => {
            scene.ledger.etcd.abandoned.insert(token.to_owned());
        }
        ["ledger", "forgets", "the", "formation"] => scene.ledger.etcd.formation = Formation::Unformed,
        ["days", "pass:", days] => {
            scene.seen.now += SignedDuration::from_hours(24 * days.parse::<i64>().expect("a number of days"));
        }
        ["CA", "ends", "in", days, "days"] => {
            let ends = scene.seen.now + SignedDuration::from_hours(24 * days.parse::<i64>().expect("a number of days"));
            scene.ledger.authorities.client.as_mut().expect("a CA").not_after = ends;
        }
        ["certificate", "issued", "to", user] => {
            let not_after = scene.seen.now + SignedDuration::from_hours(24 * 365);
            let serial = format!("{:02x}", scene.ledger.issued.users.len() + 1);
            let issued = IssuedCertificate { user: user.to_owned(), serial, not_after, recorded: None, revoked: false };
            scene.ledger.issued.users.push(issued);
        }
        ["peers", "share", "the", "CA", "of", "clients"] => scene.share_ca(),
        ["learner", "added", "at", address] => add_by_hand(scene, address, true),
        ["voter", "added", "at", address] => add_by_hand(scene, address, false),
        ["pin", member] => {
            let address =
                scene.seen.machines.get().expect("a provider")[&MemberName::from(member)].address.expect("an address");
            pin(scene, member, address);
        }
        ["host", member, uri] => {
            let member = scene.spec.members.iter_mut().find(|m| m.name.as_str() == member);
            let section = member.and_then(|member| member.libvirt.as_mut());
            section.expect("a member of libvirt's").uri = Some(uri.to_owned());
        }
        ["pin", member, "at", address] => pin(scene, member, address.parse().expect("an address")),
        ["removed", "by", "another", "hand:", member] => {
            let address =
                scene.seen.machines.get().expect("a provider")[&MemberName::from(member)].address.expect("an address");
            let url = format!("https://{address}:2380");
            for_each_status(scene, |status| status.members.retain(|m| !m.peer_urls.contains(&url)));
            scene.hide(&member.into(), "it was removed");
        }
        ["peer", "URL", "of", member, "is", url] => {
            let id = scene.facts_mut(&member.into()).etcd.status.as_ref().expect("a status").member_id;
            for_each_status(scene, |status| {
                let moved = status.members.iter_mut().filter(|m| m.id == id);
                moved.for_each(|m| m.peer_urls = vec![url.to_owned()]);
            });
        }
        ["membership", "changed", "just", "now"] => scene.ledger.etcd.last_change = Some(scene.seen.now),
        ["seconds", "pass:", seconds] => {
            let passed = SignedDuration::from_secs(seconds.parse().expect("a number of seconds"));
            scene.seen.now += passed;
            for agent in scene.seen.agents.values_mut() {
                if let Seen::At(at, _) = agent {
                    *at += passed;
                }
            }
        }
        ["cluster", "speaks", "nothing", "yet"] => for_each_status(scene, |status| status.cluster_version = None),
        ["ledger", "forgets", "the", "restore"] => scene.ledger.postgres.restore = None,
        ["ledger", "forgets", "the", "version"] => {
            (scene.ledger.formed_with, scene.ledger.etcd.formed_with) = (None, None)
        }
        ["cluster", "speaks", version] => {
            for_each_status(scene, |status| status.cluster_version = Some(version.to_owned()));
        }
        ["etcd", "cannot", "serve:", ..] => {
            let why = line.strip_prefix("etcd cannot serve: ").unwrap_or_default();
            scene.brought.dcs = Some(Err(why.to_owned()));
        }
        ["fixtures", "unseen"] => {
            scene.seen.fixtures =
                Seen::Unreachable { since: scene.seen.now, why: String::from("AWS refused to read the load balancer") };
        }
        _ if happen_to_fixture(scene, line) => {}
        [member, ..] if scene::postgres::happen(scene, &member.into(), &words[1..]) => {}
        [member, ..] => happen(scene, &member.into(), &words[1..]),
        [] => {}
    }
}

/// `NAME is changed: WHY`, `NAME is pending: WHY` or `NAME is taken: WHAT`.
fn happen_to_fixture(scene: &mut Scene, line: &str) -> bool {
    let Some((name, (what, why))) =
        line.split_once(" is ").and_then(|(name, rest)| Some((name, rest.split_once(": ")?)))
    else {
        return false;
    };
    let wished = scene.desired().fixtures.into_iter().find(|wish| wish.id.to_string() == name);
    let (Some(wish), Seen::At(_, fixtures)) = (wished, &mut scene.seen.fixtures) else { return false };
    let why = why.to_owned();
    match (fixtures.iter_mut().find(|there| there.id == wish.id), what) {
        (Some(there), "changed") => there.fault = Some(why),
        (Some(there), "pending") => there.pending = Some(why),
        (None, "taken") => fixtures.push(FixtureSeen {
            id: wish.id,
            is_ours: false,
            obstacle: Some(Obstacle { what: why, remedy: String::from("choose another `dns.name`") }),
            fixed: BTreeMap::new(),
            leads_to: BTreeMap::new(),
            to_balancer: false,
            names: BTreeSet::new(),
            fault: None,
            pending: None,
        }),
        _ => return false,
    }
    true
}

fn until(scene: &mut Scene, step: &str) {
    scene.ask_who_reaches();
    let outcome = scene.run_until(|s| s.action.to_string() == step);
    let found = outcome.end.steps.iter().any(|s| s.action.to_string() == step);
    assert!(found, "there is no step `{step}`; in the end: {:?}", outcome.end);
    scene.go_on_from(&outcome);
}

fn operator(scene: &mut Scene, words: &[&str]) {
    let now = scene.seen.now;
    let consent = || Consent { at: now, by: String::from("alice"), shown: String::from("the plan") };
    match words {
        ["wants", "it", "down"] => scene.ledger.power = Power::Off,
        ["wants", "it", "up"] => scene.ledger.power = Power::On,
        ["says", "that", "the", "unseen", "are", "dead"] => scene.ledger.without_grace = Some(consent()),
        ["takes", "the", "word", "back"] => scene.ledger.etcd.recovery = None,
        ["says", "recover"] => {
            let of = requests::lost_majority(&scene.ledger, &scene.seen);
            scene.ledger.etcd.recovery = Some(RecoveryRequest { consent: consent(), of });
        }
        ["wants", "PostgreSQL", version] => scene::postgres::want_version(scene, version),
        ["goes", "back", "to", "before", "the", "upgrade"] => scene::postgres::go_back(scene, consent()),
        ["discards", "what", "was", "replaced"] => scene.ledger.postgres.discard = Some(consent()),
        ["takes", "the", "downtime", "back"] => scene.ledger.downtime = None,
        ["restores", label] if scene.spec.postgres.is_some() => {
            crate::scene::postgres::restore(scene, label, consent())
        }
        ["restores", snapshot] => scene.restore(snapshot),
        ["takes", "the", "restore", "back"] if scene.spec.postgres.is_some() => {
            scene.ledger.postgres.withdraw_restore();
        }
        ["takes", "the", "restore", "back"] => scene.ledger.etcd.restore = None,
        ["replaces", member] => {
            let member = MemberName::from(*member);
            let incarnation = scene.ledger.members[&member].incarnation;
            raise_incarnation(&mut scene.ledger, &member);
            scene.rename(&member, &member.former(incarnation));
        }
        ["renews", member] => {
            let member = MemberName::from(*member);
            let incarnation = scene.ledger.members[&member].incarnation;
            renew(&mut scene.ledger, &member, incarnation + 1);
        }
        ["takes", "the", "replacement", "of", member, "back"] => {
            scene.ledger.members.get_mut(&MemberName::from(*member)).expect("a member").renewing = None;
        }
        ["reboots", members @ ..] => {
            let (members, upgrade_packages) = match members {
                [members @ .., "with", "packages"] => (members, true),
                members => (members, false),
            };
            for member in members {
                let record = scene.ledger.members.get_mut(&MemberName::from(*member)).expect("a member");
                record.reboot = Some(Reboot { consent: consent(), upgrade_packages, ordered: None });
            }
        }
        ["changes", "the", "passwords", "of", users @ ..] => scene::postgres::rotate(scene, consent(), users),
        ["has", "Patroni", "log", "in", "as", user] => scene::postgres::rotate_dcs(scene, consent(), user),
        ["takes", "the", "passwords", "back"] => scene.ledger.postgres.rotation = None,
        ["switches", "over", to @ ..] => scene::postgres::switch_over(scene, consent(), to),
        ["allows", "downtime"] => scene.ledger.downtime = Some(consent()),
        ["says", "destroy"] => scene.ledger.destroy = Some(consent()),
        ["says", "destroy", "without", "backup"] => {
            scene.ledger.destroy = Some(consent());
            scene.ledger.without_backup = Some(consent());
        }
        _ => panic!("the operator does not say: {words:?}"),
    }
}

fn pin(scene: &mut Scene, member: &str, address: IpAddr) {
    let member = scene.spec.members.iter_mut().find(|m| m.name.as_str() == member);
    member.expect("a member").address = Some(address);
}

/// Somebody added a member with another tool.
fn add_by_hand(scene: &mut Scene, address: &str, is_learner: bool) {
    let entry =
        MemberEntry { id: 0xabc, name: String::new(), peer_urls: vec![format!("https://{address}:2380")], is_learner };
    for_each_status(scene, |status| status.members.push(entry.clone()));
}

fn for_each_status(scene: &mut Scene, change: impl Fn(&mut EtcdStatus)) {
    for agent in scene.seen.agents.values_mut() {
        if let Seen::At(_, AgentSeen::Enrolled(facts)) = agent
            && let Some(status) = &mut facts.etcd.status
        {
            change(status);
        }
    }
}

fn look_at_auth(scene: &mut Scene, change: impl Fn(&mut AuthLook)) {
    for agent in scene.seen.agents.values_mut() {
        if let Seen::At(_, AgentSeen::Enrolled(facts)) = agent
            && let Some(status) = &mut facts.etcd.status
        {
            change(&mut status.auth);
        }
    }
}

fn change_auth(scene: &mut Scene, change: impl Fn(&mut AuthSeen)) {
    look_at_auth(scene, |look| match look {
        AuthLook::Seen(auth) => change(auth),
        other => panic!("users and roles were not seen: {other:?}"),
    });
}

fn bring_certificates(scene: &mut Scene, mark: &str) {
    let of = |member: &MemberName| (member.clone(), format!("{mark} of {member}"));
    let members: BTreeMap<MemberName, String> =
        scene.spec.members.iter().map(|m| of(&m.name.as_str().into())).collect();
    scene.brought.members = Some(members);
    scene.brought.root = Some(format!("{mark} of root"));
}
