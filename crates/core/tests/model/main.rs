//! The model check of formation: the real planner against an adversary, in every order of events.
//!
//! Two controllers run `decide` against the simulated world. The adversary switches machines off and destroys them, loses
//! disks, ends etcds, kills a controller at work, lets the second take the lock from the first while that one still acts,
//! hides agents from a look and delivers an order late; each only as often as the budget says. Agents and ledger refuse
//! as the real ones do (`agent.rs`), providers are asked only under the lock. A killed controller is also one that is
//! taken over from and never moves again, so every run with a takeover has all of its deaths; killing one on top of
//! that makes a third.
//!
//! All runs are exhaustive. To end in seconds, one or two members begin with nothing, and three where all machines
//! are enrolled and configured and the formation is about to begin; a machine that is lost goes the whole way again.
//! Certificates never end and the spec never changes: stories and property tests have those.
//!
//! That the check can fail was tried by breaking one rule at a time:
//!
//! | broken on purpose | caught by |
//! | --- | --- |
//! | the planner takes lost data for a fresh disk | it settles when faults stop (the agent refuses) |
//! | the planner and the agent do | no member begins twice under one token |
//! | a machine made anew goes on in the formation | a formation stays on its machines; no member begins twice |
//! | a member of a formed cluster that lost its data begins as `new` | it settles when faults stop (the agent refuses) |
//! | what is left of a formed cluster's member is wiped | nothing is wiped after the formation |
//! | `Formed` is recorded before all are healthy | nothing begins after the formation |
//! | users are made before `Formed` is recorded | clients write after the formation |
//! | abandoned data is not wiped | it settles when faults stop |
//! | a formation's token is used again | no member begins twice under one token |
//! | agents ignore fences | no older fence is obeyed; without that property, no member begins twice |
//! | agents do not look at the data before a start | no member begins twice under one token |
//! | agents wipe whatever they find | it settles when faults stop |
//! | agents begin as `new` on a disk that lost another formation | nothing begins after the formation |
//! | the ledger takes writes of a stale controller | a formed cluster is not mixed |
//! | providers are asked without a look at the lock | no machine of the formation is destroyed |

mod agent;
mod formation;
mod settling;
mod shared;

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use formation::{Budget, FormationModel, Move, State, Wrong, token};
use quorate_core::desire::Wish;
use quorate_core::model::{Brought, DataSeen, Formation, Ledger, ServiceState};
use quorate_core::planner::simulate::World;
use quorate_core::planner::{Action, decide};
use quorate_core::spec::{ClientAuth, ClusterSpec, generated};
use stateright::{Checker, HasDiscoveries, Model, Property};

impl Model for FormationModel {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Move>) {
        self.moves(state, actions);
    }

    fn next_state(&self, last: &State, action: Move) -> Option<State> {
        self.after(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no member begins twice under one token", |_, s| never(s, Wrong::NewTwice)),
            Property::always("a formation stays on its machines", |_, s| never(s, Wrong::NewElsewhere)),
            Property::always("nothing begins after the formation", |_, s| never(s, Wrong::NewAfterFormed)),
            Property::always("nothing is wiped after the formation", |_, s| never(s, Wrong::WipedAfterFormed)),
            Property::always("no machine of the formation is destroyed", |_, s| never(s, Wrong::DestroyedAfterFormed)),
            Property::always("clients write after the formation", |_, s| never(s, Wrong::WroteBeforeFormed)),
            Property::always("clients write to one formation", |_, s: &State| s.past.written.len() <= 1),
            Property::always("no older fence is obeyed", |_, s| never(s, Wrong::OlderFenceObeyed)),
            Property::always("a formed cluster is not mixed", |_, s: &State| is_not_mixed(&s.world)),
            Property::always("it settles when faults stop", FormationModel::settles),
        ]
    }
}

fn never(state: &State, wrong: Wrong) -> bool {
    !state.past.wrongs.contains(&wrong)
}

fn is_not_mixed(world: &World) -> bool {
    let Formation::Formed { .. } = &world.ledger.formation else { return true };
    let formed = token(&world.ledger.formation);
    let running =
        world.machines.values().filter_map(|m| m.facts()).filter_map(|f| match (&f.etcd.data, &f.etcd.service) {
            (DataSeen::Stamped(stamp), ServiceState::Running { .. }) => Some(Some(stamp.token.clone())),
            _ => None,
        });
    running.into_iter().all(|t| t == formed)
}

/// Addresses are pinned, so that a machine that was made anew differs from the one before in nothing but itself.
fn spec(members: usize) -> ClusterSpec {
    let version = "3.6.14".parse().expect("a version");
    let mut spec = generated("demo", members, version, ClientAuth::Certificate).expect("a spec").clusters.remove(0);
    for (member, number) in spec.members.iter_mut().zip(1..) {
        member.address = Some(Ipv4Addr::new(127, 64, 1, number).into());
    }
    spec
}

/// Nothing exists but the declaration.
fn nothing(spec: &ClusterSpec) -> World {
    let now = "2026-01-01T12:00:00Z".parse().expect("a time");
    World::empty(Ledger::new(String::from("c1"), spec.clone()), now)
}

/// All that comes before the formation is done.
fn ready_to_form(spec: &ClusterSpec) -> World {
    let mut world = nothing(spec);
    let brought = Brought::default();
    let wish = Wish { spec, brought: &brought, arch: "amd64" };
    loop {
        let desired = wish.desire(&world.ledger, "1");
        let steps = decide(&desired, &world.observe()).steps;
        if steps.iter().any(|s| matches!(s.action, Action::RecordForming { .. })) {
            return world;
        }
        steps.iter().for_each(|s| world.perform(&desired, &s.action));
    }
}

/// Explores every order of events, and asks that what the adversary may do was really met.
fn check(name: &str, members: usize, start: fn(&ClusterSpec) -> World, budget: Budget) {
    let began = Instant::now();
    let spec = spec(members);
    let model = FormationModel::new(spec.clone(), start(&spec), budget);
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!("{name}: {states} states, {depth} moves deep, {:.1?}", began.elapsed());
    checker.assert_properties();
    let reached = &checker.model().reached;
    let takeover = budget.takeovers > 0;
    let expected = [
        ("a formation abandoned", true, &reached.abandoned),
        ("an order of a stale controller refused", takeover, &reached.stale_order_refused),
        ("a write of a stale controller refused", takeover, &reached.stale_write_refused),
        ("an order refused since the data was not as expected", takeover, &reached.not_as_expected),
        ("an order that came late and was obeyed", budget.delays > 0, &reached.delivered_late),
        ("a controller killed at work", budget.crashes > 0, &reached.killed_at_work),
        ("a settled end", true, &reached.settled),
        ("an end with data lost for good", true, &reached.lost_for_good),
    ];
    for (what, expected, counter) in expected {
        let times = counter.load(Ordering::Relaxed);
        eprintln!("  {what}: {times} times");
        assert!(!expected || times > 0, "never reached: {what}");
    }
}

const PEACE: Budget = Budget { faults: 0, crashes: 0, takeovers: 0, hidden: 0, delays: 0 };

#[test]
fn one_member_from_nothing() {
    check("one member from nothing", 1, nothing, Budget { faults: 2, takeovers: 1, ..PEACE });
}

#[test]
fn two_members_from_nothing() {
    check("two members from nothing", 2, nothing, Budget { faults: 1, takeovers: 1, ..PEACE });
}

#[test]
fn two_members_ready_to_form() {
    check("two members ready to form", 2, ready_to_form, Budget { faults: 2, takeovers: 1, ..PEACE });
}

#[test]
fn three_members_and_two_faults() {
    check("three members and two faults", 3, ready_to_form, Budget { faults: 2, crashes: 1, ..PEACE });
}

#[test]
fn three_members_and_a_second_controller() {
    check(
        "three members and a second controller",
        3,
        ready_to_form,
        Budget { faults: 1, takeovers: 1, hidden: 1, ..PEACE },
    );
}

#[test]
fn three_members_and_three_controllers() {
    check(
        "three members and three controllers",
        3,
        ready_to_form,
        Budget { faults: 1, crashes: 1, takeovers: 1, ..PEACE },
    );
}

#[test]
fn two_members_and_a_late_order() {
    let budget = Budget { faults: 2, delays: 1, ..PEACE };
    check("two members and a late order", 2, ready_to_form, budget);
}

#[test]
fn three_members_and_a_late_order() {
    let budget = Budget { faults: 1, crashes: 1, delays: 1, ..PEACE };
    check("three members and a late order", 3, ready_to_form, budget);
}
