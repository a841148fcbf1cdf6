//! Properties of the planner in every situation: some story reaches every action and refusal, and random specs in
//! random states never lead to a panic, to an endless plan or to a step that breaks a rule.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use quorate_core::kinds::etcd::AuthLook;
use quorate_core::model::{
    AgentSeen, CertificateUse, DataSeen, Exit, MemberName, PowerState, Seen, ServiceState, Stamp,
};
use quorate_core::planner::plan;
use quorate_core::planner::{Action, UnsafeBecause};
use quorate_core::spec::ClusterSpec;

use crate::scene::{self, Scene};

#[test]
fn stories_reach_every_action_and_every_refusal() {
    let mut reached = crate::story::Reached::default();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories")).expect("stories") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("a story");
        crate::story::retell(&text, &mut reached);
    }
    assert_eq!(reached.actions, BTreeSet::from(Action::KINDS));
    assert_eq!(reached.refusals, BTreeSet::from(UnsafeBecause::KINDS));
}

/// Something that may go wrong, or that somebody does, to the member of this number.
#[derive(Clone, Copy, Debug)]
enum Event {
    Unseen,
    MachineOff,
    MachineGone,
    MachineReplaced,
    DiskLost,
    DataUnstamped,
    DataOfAnother,
    EtcdStopped,
    EtcdCrashing,
    EtcdUnhealthy,
    CertificateEnding,
    AgentNewer,
    AgentStranger,
    UsersUnseen,
    UserFromElsewhere,
}

const EVENTS: [Event; 15] = [
    Event::Unseen,
    Event::MachineOff,
    Event::MachineGone,
    Event::MachineReplaced,
    Event::DiskLost,
    Event::DataUnstamped,
    Event::DataOfAnother,
    Event::EtcdStopped,
    Event::EtcdCrashing,
    Event::EtcdUnhealthy,
    Event::CertificateEnding,
    Event::AgentNewer,
    Event::AgentStranger,
    Event::UsersUnseen,
    Event::UserFromElsewhere,
];

/// Lets it happen where it can.
fn happen(scene: &mut Scene, event: Event, member: &MemberName) {
    let now = scene.seen.now;
    match event {
        Event::Unseen if scene.seen.agents.contains_key(member) => scene.hide(member, "no answer"),
        Event::MachineOff => {
            if let Seen::At(_, machines) = &mut scene.seen.machines
                && let Some(machine) = machines.get_mut(member)
            {
                machine.power = PowerState::Off;
                scene.hide(member, "its machine is off");
            }
        }
        Event::MachineGone => {
            if let Seen::At(_, machines) = &mut scene.seen.machines {
                machines.remove(member);
                scene.seen.agents.remove(member);
            }
        }
        Event::AgentStranger if scene.seen.agents.contains_key(member) => {
            let stranger = AgentSeen::Unenrolled { public_key: String::from("another") };
            scene.seen.agents.insert(member.clone(), Seen::At(now, stranger));
        }
        _ if scene.seen.facts(member).is_some() => happen_to_facts(scene, event, member),
        _ => {}
    }
}

fn happen_to_facts(scene: &mut Scene, event: Event, member: &MemberName) {
    let now = scene.seen.now;
    let facts = scene.facts_mut(member);
    let etcd = &mut facts.etcd;
    match event {
        Event::MachineReplaced => {
            facts.machine_id = String::from("another");
            (etcd.data, etcd.last_started) = (DataSeen::Empty, None);
            (etcd.service, etcd.status) = (ServiceState::Stopped, None);
        }
        Event::DiskLost => {
            etcd.data = DataSeen::Empty;
            (etcd.service, etcd.status) = (ServiceState::Stopped, None);
        }
        Event::DataUnstamped => etcd.data = DataSeen::Unstamped,
        Event::DataOfAnother => {
            let token = String::from("another");
            let (cluster_id, member) = (scene::CLUSTER_ID.to_owned(), member.clone());
            etcd.data = DataSeen::Stamped(Stamp { cluster_id, token, member, incarnation: 1 });
        }
        Event::EtcdStopped => (etcd.service, etcd.status) = (ServiceState::Stopped, None),
        Event::EtcdCrashing => {
            let last_exit = Exit { at: now, how: String::from("killed"), last_words: String::new() };
            etcd.service = ServiceState::BackingOff { restarts: 1, last_exit };
            etcd.status = None;
        }
        Event::EtcdUnhealthy => {
            if let Some(status) = &mut etcd.status {
                (status.healthy, status.leader) = (false, 0);
            }
        }
        Event::CertificateEnding => {
            if let Some(certificate) = facts.certificates.get_mut(&CertificateUse::Member) {
                certificate.not_after = now;
            }
        }
        Event::AgentNewer => facts.fence = 7,
        Event::UsersUnseen => {
            if let Some(status) = &mut etcd.status {
                status.auth = AuthLook::Failed { why: String::from("denied") };
            }
        }
        Event::UserFromElsewhere => {
            if let Some(AuthLook::Seen(auth)) = etcd.status.as_mut().map(|s| &mut s.auth) {
                auth.users.entry(String::from("elsewhere")).or_default();
            }
        }
        Event::Unseen | Event::MachineOff | Event::MachineGone | Event::AgentStranger => {}
    }
}

fn specs() -> impl Strategy<Value = ClusterSpec> {
    let users = prop::sample::subsequence(vec!["app", "backup", "metrics"], 0..=3);
    let roles = prop::sample::subsequence(vec!["reader", "writer"], 0..=2);
    let choices = (any::<bool>(), any::<bool>(), any::<bool>(), prop::sample::select(vec![4u32, 8]));
    (1usize..=7, users, roles, choices).prop_map(|(members, users, roles, (password, jwt, bootstrap, quota))| {
        let mut text =
            format!("    etcd: {{quota: {quota}GiB, client_auth: {}}}\n", kind(password, "password", "certificate"));
        let token = kind(jwt, "jwt", "simple");
        text += &format!("    auth:\n      token: {token}\n      bootstrap: {bootstrap}\n");
        if bootstrap {
            let roles_of_users = roles.join(", ");
            let roles = roles.iter().map(|r| format!("{{name: {r}, permissions: [{{prefix: /{r}/, access: read}}]}}"));
            text += &format!("      roles: [{}]\n", roles.collect::<Vec<_>>().join(", "));
            let file = if password { ", password_file: p" } else { "" };
            let users = users.iter().map(|u| format!("{{name: {u}, roles: [{roles_of_users}]{file}}}"));
            text += &format!("      users: [{}]\n", users.collect::<Vec<_>>().join(", "));
        }
        scene::cluster("demo", members, &text)
    })
}

fn kind(yes: bool, then: &'static str, otherwise: &'static str) -> &'static str {
    if yes { then } else { otherwise }
}

fn events() -> impl Strategy<Value = Vec<(Event, usize)>> {
    prop::collection::vec((prop::sample::select(EVENTS.to_vec()), 1usize..=7), 0..4)
}

/// Carries out the first `cut` steps and stops there, as a controller does that is killed.
fn cut_after(scene: &mut Scene, cut: usize) {
    let left = std::cell::Cell::new(cut);
    let outcome = scene.run_until(|_| left.replace(left.get().saturating_sub(1)) == 0);
    scene.go_on_from(&outcome);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn from_nothing_every_spec_converges(spec in specs()) {
        let scene = Scene::nothing(spec);
        let outcome = scene.run();
        prop_assert!(outcome.end.settled(), "{:?}", outcome.end);
        scene::audit_end(&scene, &outcome);
    }

    #[test]
    fn an_interrupted_run_continues(spec in specs(), cut in 0usize..60) {
        let mut scene = Scene::nothing(spec);
        cut_after(&mut scene, cut);
        let outcome = scene.run();
        prop_assert!(outcome.end.settled(), "{:?}", outcome.end);
        scene::audit_end(&scene, &outcome);
    }

    #[test]
    fn whatever_happens_plans_end_and_keep_the_rules(spec in specs(), cut in 0usize..80, events in events()) {
        let mut scene = Scene::nothing(spec);
        cut_after(&mut scene, cut);
        for (event, number) in events {
            happen(&mut scene, event, &format!("etcd-{number}").into());
        }
        let outcome = scene.run();
        scene::audit_end(&scene, &outcome);
        let planned = || plan(scene.wish(), scene.wish().configs(&scene.ledger), &scene.ledger, &scene.seen);
        let shown = planned();
        prop_assert_eq!(&shown, &planned());
        prop_assert_eq!(shown.steps.len(), outcome.steps.len());
    }

    #[test]
    fn an_interrupted_restore_continues(before in specs(), after in 1usize..=5, cut in 0usize..60, again in 0usize..60) {
        let mut scene = Scene::nothing(before.clone());
        scene.settle();
        scene.spec.members = scene::cluster("demo", after, "").members;
        scene.restore("b1");
        cut_after(&mut scene, cut);
        cut_after(&mut scene, again);
        let outcome = scene.run();
        prop_assert!(outcome.end.settled(), "{:?}", outcome.end);
        prop_assert!(outcome.world.ledger.etcd.restore.is_none());
        scene::audit_end(&scene, &outcome);
    }

    #[test]
    fn whatever_happens_a_restore_ends_and_keeps_the_rules(spec in specs(), cut in 0usize..60, events in events()) {
        let mut scene = Scene::nothing(spec);
        scene.settle();
        scene.restore("b1");
        cut_after(&mut scene, cut);
        for (event, number) in events {
            happen(&mut scene, event, &format!("etcd-{number}").into());
        }
        let outcome = scene.run();
        scene::audit_end(&scene, &outcome);
    }

    #[test]
    fn an_edited_spec_converges_or_is_refused(before in specs(), after in specs(), cut in 0usize..80) {
        let mut scene = Scene::nothing(before);
        cut_after(&mut scene, cut);
        scene.spec = after;
        let outcome = scene.run();
        prop_assert!(outcome.end.waiting.is_empty(), "{:?}", outcome.end);
        scene::audit_end(&scene, &outcome);
    }

    #[test]
    fn users_made_elsewhere_are_never_removed(before in specs(), after in specs()) {
        let mut scene = Scene::nothing(before);
        scene.settle();
        for number in 1..=7 {
            happen(&mut scene, Event::UserFromElsewhere, &format!("etcd-{number}").into());
        }
        scene.spec = after;
        let steps = scene.run().steps;
        prop_assert!(steps.iter().all(|s| scene::removed_user(s) != Some("elsewhere")));
    }
}
