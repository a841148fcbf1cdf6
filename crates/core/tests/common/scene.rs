//! A cluster as a test sees it: the spec, the ledger, the last observation, and a way to carry out plans with every
//! step audited. The audit states the safety rules independently, so that a mistake in the planner is not repeated in
//! the audit.

#[path = "postgres.rs"]
pub mod postgres;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use quorate_core::desire::Wish;
use quorate_core::kinds::etcd::front::FRONT;
use quorate_core::kinds::etcd::{AuthLook, AuthOp, Formation, RestoreWish};
use quorate_core::model::{
    AgentSeen, Brought, CertificateUse, ConfigAttempt, Consent, Data, DataSeen, Desired, Facts, Ledger, MemberName,
    Observation, Power, PowerState, Seen, ServiceState,
};
use quorate_core::planner::simulate::World;
use quorate_core::planner::{Action, Decision, Precondition, Step, decide};
use quorate_core::spec::{ClusterSpec, Document, HostFacts};

/// More than any plan of these tests needs.
const MOST_ROUNDS: usize = 100;
pub const CLUSTER_ID: &str = "c1";

/// Noon of the first day of the tests.
pub fn the_present() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

#[derive(Clone)]
pub struct Scene {
    pub spec: ClusterSpec,
    pub brought: Brought,
    pub ledger: Ledger,
    pub seen: Observation,
    /// Whose agents do not say whom they reach.
    pub mute: BTreeSet<MemberName>,
    /// Agents that did not take the program when this run tried.
    pub not_upgraded: BTreeMap<MemberName, String>,
    /// Members for whose machines there was no room when this run tried.
    pub no_room: BTreeMap<MemberName, String>,
    /// How many plans were carried out; it ends the tokens of the next one.
    applied: u32,
}

/// What came of carrying out a plan.
pub struct Outcome {
    pub steps: Vec<Step>,
    pub end: Decision,
    pub world: World,
    pub rounds: Vec<Decision>,
}

impl Scene {
    /// A cluster that was declared just now; nothing of it exists.
    pub fn nothing(spec: ClusterSpec) -> Self {
        let ledger = Ledger::new(CLUSTER_ID.to_owned(), spec.clone());
        let seen = World::empty(ledger.clone(), the_present()).observe();
        Scene {
            spec,
            brought: Brought::default(),
            ledger,
            seen,
            mute: BTreeSet::new(),
            not_upgraded: BTreeMap::new(),
            no_room: BTreeMap::new(),
            applied: 0,
        }
    }

    pub fn wish(&self) -> Wish<'_> {
        Wish { spec: &self.spec, brought: &self.brought, arch: "amd64" }
    }

    pub fn desired(&self) -> Desired {
        let (not_upgraded, no_room) = (self.not_upgraded.clone(), self.no_room.clone());
        Desired { not_upgraded, no_room, ..self.wish().desire(&self.ledger, &self.token_suffix()) }
    }

    pub fn decide(&self) -> Decision {
        decide(&self.desired(), &self.seen)
    }

    /// Carries out all that is decided until nothing is left to do, and audits each step. Does not change the scene.
    pub fn run(&self) -> Outcome {
        self.run_until(|_| false)
    }

    /// The same, but stops before the first step for which `stop` holds.
    pub fn run_until(&self, stop: impl Fn(&Step) -> bool) -> Outcome {
        let mut world = World::imagine(self.ledger.clone(), self.seen.clone());
        let (mut steps, mut rounds) = (Vec::new(), Vec::new());
        for _ in 0..MOST_ROUNDS {
            let desired = self.wish().desire(&world.ledger, &self.token_suffix());
            let desired = Desired { no_room: self.no_room.clone(), ..desired };
            let seen = world.observe();
            let decision = decide(&desired, &seen);
            rounds.push(decision.clone());
            audit_decision(&desired, &seen, &decision);
            if decision.steps.is_empty() || steps.last().is_some_and(forgets) {
                return Outcome { steps, end: decision, world, rounds };
            }
            for step in decision.steps.clone() {
                if stop(&step) {
                    return Outcome { steps, end: decision, world, rounds };
                }
                audit_step(&desired, &world, &step);
                world.perform(&desired, &step.action);
                steps.push(step);
            }
        }
        panic!("no end after {MOST_ROUNDS} rounds; the last steps: {}", last_words(&steps));
    }

    /// Makes what came of a plan the present state.
    pub fn go_on_from(&mut self, outcome: &Outcome) {
        self.applied += 1;
        self.ledger = outcome.world.ledger.clone();
        self.seen = outcome.world.observe();
    }

    pub fn settle(&mut self) {
        let outcome = self.run();
        assert!(outcome.end.settled(), "not settled: {:?}", outcome.end);
        self.go_on_from(&outcome);
    }

    /// Random in earnest; here a letter per plan, so that two formations are distinguished.
    fn token_suffix(&self) -> String {
        char::from(b'a' + u8::try_from(self.applied % 26).expect("a letter")).to_string()
    }

    /// Its agent did not take the config that is wanted now.
    pub fn not_ready(&mut self, member: &MemberName) {
        let digest = self.desired().members[member].digest.clone();
        let (why, remedy) = (String::from("/a exists and was not written by quorate"), String::from("move it away"));
        self.facts_mut(member).etcd.attempt = ConfigAttempt::NotReady { digest, why, remedy };
    }

    pub fn facts_mut(&mut self, member: &MemberName) -> &mut Facts {
        match self.seen.agents.get_mut(member) {
            Some(Seen::At(_, AgentSeen::Enrolled(facts))) => facts,
            other => panic!("{member} has no enrolled agent: {other:?}"),
        }
    }

    /// Those that answer are asked whether they reach the machines of those that do not. What a story told already stays.
    pub fn ask_who_reaches(&mut self) {
        let answers = |m: &MemberName| enrolled(&self.seen, m).is_some();
        let members = self.ledger.etcd.formation.members().into_iter().flatten();
        let joined = members.filter(|(m, _)| !answers(m)).filter_map(|(_, known)| known.address());
        let members = self.ledger.postgres.formation.members().into_iter().flatten();
        let proxies = self.ledger.members.iter().filter(|(m, _)| !answers(m)).filter_map(|(_, r)| r.proxy.as_ref());
        let joined = joined.chain(proxies.flat_map(|proxy| proxy.addresses.iter().copied()));
        let joined = joined.chain(members.filter(|(m, _)| !answers(m)).filter_map(|(_, known)| known.address));
        let machines = self.seen.machines.get().into_iter().flatten();
        let shown = machines.filter(|(m, _)| !answers(m)).filter_map(|(_, machine)| machine.address);
        let silent: BTreeSet<_> = joined.chain(shown).collect();
        for (member, agent) in &mut self.seen.agents {
            if let (Seen::At(_, AgentSeen::Enrolled(facts)), false) = (agent, self.mute.contains(member)) {
                for address in &silent {
                    facts.reaches.entry(*address).or_insert(false);
                }
            }
        }
    }

    /// The operator confirms that all data is replaced by this snapshot, which is ready.
    pub fn restore(&mut self, snapshot: &str) {
        let consent = Consent { at: self.seen.now, by: String::from("alice"), shown: String::from("the plan") };
        let (sha256, source) = (snapshot.to_owned(), format!("backup {snapshot}"));
        self.brought.snapshot = Some(sha256.clone());
        self.ledger.etcd.request_restore(RestoreWish {
            consent,
            sha256,
            bytes: 4096,
            revision: 700,
            keys: None,
            source,
            epoch: 0,
            bump_revision: None,
        });
    }

    /// The cluster is one that was made before peers had a separate CA.
    pub fn share_ca(&mut self) {
        self.ledger.authorities.peer = None;
        let desired = self.desired();
        for (member, wish) in desired.machines() {
            let record = self.ledger.members.get_mut(member).expect("a member that the ledger knows");
            record.digest.clone_from(&wish.digest);
            let generation = record.generation;
            let facts = self.facts_mut(member);
            facts.node_config = Some((generation, wish.digest.clone()));
            facts.certificates.remove(&CertificateUse::Peer);
            facts.etcd.trust.clear();
            if let ServiceState::Running { digest, .. } = &mut facts.etcd.service {
                digest.clone_from(&wish.service_digest);
            }
        }
    }

    /// A machine is called otherwise from now on.
    pub fn rename(&mut self, from: &MemberName, to: &MemberName) {
        if let Seen::At(_, machines) = &mut self.seen.machines
            && let Some(machine) = machines.remove(from)
        {
            machines.insert(to.clone(), machine);
        }
        if let Some(agent) = self.seen.agents.remove(from) {
            self.seen.agents.insert(to.clone(), agent);
        }
    }

    pub fn hide(&mut self, member: &MemberName, why: &str) {
        let unseen = Seen::Unreachable { since: self.seen.now, why: why.to_owned() };
        self.seen.agents.insert(member.clone(), unseen);
    }
}

/// A spec from the text below `name` and `members` of its only cluster.
pub fn cluster(name: &str, members: usize, rest: &str) -> ClusterSpec {
    let interfaces = |n: usize| match rest.contains("libvirt:") {
        true => format!(", libvirt: {{interfaces: [{{network: default, address: 192.0.2.{n}, prefix: 24}}]}}"),
        false => String::new(),
    };
    let names: Vec<String> = (1..=members).map(|n| format!("{{name: etcd-{n}{}}}", interfaces(n))).collect();
    let head = format!("quorate: 1\nclusters:\n  - name: {name}\n    members: [{}]\n", names.join(", "));
    let text = head + rest;
    let document = Document::parse("cluster.yaml", &text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    let checked = document.spec(&HostFacts::default());
    let mut spec = checked.spec.unwrap_or_else(|| panic!("{:?}\n{text}", checked.problems));
    spec.clusters.remove(0)
}

fn forgets(step: &Step) -> bool {
    step.action == Action::ForgetCluster
}

fn last_words(steps: &[Step]) -> String {
    let last: Vec<String> = steps.iter().rev().take(8).map(|s| s.action.to_string()).collect();
    last.join("; ")
}

/// What must hold of every decision, whatever the state.
pub fn audit_decision(desired: &Desired, seen: &Observation, decision: &Decision) {
    assert_eq!(*decision, decide(desired, seen), "the same look must lead to the same decision");
    let restarts = decision
        .steps
        .iter()
        .filter(|s| {
            matches!(
                s.action,
                Action::RestartEtcd { .. }
                    | Action::TakeRaftSnapshot { .. }
                    | Action::RebootMachine { .. }
                    | Action::RestartPatroni { .. }
                    | Action::RestartPostgres { .. }
                    | Action::Switchover { .. }
            )
        })
        .count();
    assert!(restarts <= 1, "one disturbance at a time: {decision:?}");
    for step in &decision.steps {
        assert!(!step.why.to_string().trim().is_empty(), "no reason: {step:?}");
        if let Some(barred) =
            decision.blocked.iter().find(|b| b.member().is_some() && b.member() == step.action.member())
        {
            let unrelated = matches!(step.action, Action::Auth { .. }) || step.action.about() != barred.member();
            assert!(unrelated, "{step:?} in spite of {barred}");
        }
    }
    for because in &decision.blocked {
        assert!(!because.remedy().is_empty() && !because.to_string().is_empty());
    }
}

/// What must hold of every step when it is done in a world that is as it was seen.
pub fn audit_step(desired: &Desired, world: &World, step: &Step) {
    let formed = matches!(world.ledger.etcd.formation, Formation::Formed { .. });
    if let (Some(member), Precondition::Data(expected)) = (step.action.member(), &step.expects) {
        let facts = world.machines.get(member).and_then(|m| m.facts());
        let found = facts.map(|f| f.postgres.as_ref().map_or(&f.etcd.data, |found| &found.data));
        assert_eq!(found, Some(expected), "{step:?}");
    }
    postgres::audit(desired, world, step);
    match &step.action {
        Action::Auth { .. } => assert!(formed, "a client write before the formation is recorded: {step:?}"),
        Action::WipeData { .. } | Action::RecordForming { .. } | Action::AbandonFormation { .. } => {
            assert!(!formed, "after the formation: {step:?}");
        }
        Action::AddLearner { .. } => {
            let (all, healthy) = voters(world);
            assert_eq!(all, healthy, "joins beside an unhealthy voter: {step:?}");
            assert!(world.listed.iter().all(|l| !l.is_learner), "a second learner: {step:?}");
        }
        Action::JoinEtcd { member, stamp, .. } => {
            let Formation::Formed { token, .. } = &world.ledger.etcd.formation else {
                panic!("joins what is not formed")
            };
            assert_eq!(*token, stamp.token);
            let facts = world.machines[member].facts().expect("an enrolled agent");
            assert_eq!((&facts.etcd.data, &facts.etcd.last_started), (&DataSeen::Empty, &None), "{step:?}");
        }
        Action::Promote { id, .. } => {
            let (all, healthy) = voters(world);
            let learner = world.listed.iter().find(|l| l.id == *id).expect("a learner");
            assert!(learner.is_learner && runs(world, &learner.peer_url), "promotes one that does not run: {step:?}");
            let after = all + 1;
            assert!(healthy + 1 > after / 2, "gives the quorum away: {step:?}");
        }
        Action::RemoveMember { id, .. } => audit_removal(world, *id),
        Action::RecordRecovery { .. } => {
            assert!(desired.etcd.recovery, "recovers without the operator's word");
            assert_eq!(voters(world).1, 0, "recovers a cluster that has its quorum");
        }
        Action::Rebuild { member, .. } => {
            let facts = world.machines[member].facts().expect("an enrolled agent");
            assert_eq!(facts.etcd.service, ServiceState::Stopped, "{step:?}");
        }
        Action::RecordRestoring { sha256, bump_revision, .. } => {
            let restore = desired.etcd.restore.as_ref().expect("a restore is confirmed");
            let mut all = world.machines.values().map(|machine| machine.facts());
            let nothing_to_lose = all.all(|facts| facts.is_some_and(|f| f.etcd.data == DataSeen::Empty));
            assert!(
                restore.bump_revision == Some(*bump_revision) || nothing_to_lose,
                "the snapshot was not verified like this: {step:?}"
            );
            for member in desired.members.keys() {
                let facts = world.machines[member].facts().expect("an enrolled agent");
                let staged = facts.etcd.staged.as_ref().map(|s| &s.sha256);
                assert_eq!(staged, Some(sha256), "{member} has no snapshot when what was is given up");
            }
        }
        Action::DropSnapshot { .. } => {
            assert!(formed && world.ledger.etcd.restore.is_none(), "removes what a restore needs: {step:?}");
        }
        Action::StopEtcd { member } if formed && is_renewed(world, member) => audit_restart(desired, world, member),
        Action::StopEtcd { .. } => {
            assert!(!formed || desired.etcd.recovery, "stops a cluster that is formed: {step:?}")
        }
        Action::DestroyMachine { member, data: Data::Stays } => {
            assert!(is_renewed(world, member), "the ledger does not say why its machine goes: {step:?}");
            if world.machines[member].facts().is_some() {
                audit_restart(desired, world, member);
            }
        }
        Action::RestoreData { stamp, .. } => {
            assert_eq!(world.ledger.etcd.formation.token(), Some(stamp.token.as_str()), "{step:?}");
            assert_eq!(running_tokens(world), BTreeSet::new(), "data is made while an etcd runs: {step:?}");
        }
        Action::StartEtcd { bootstrap: None, member } => audit_restored_start(desired, world, member),
        Action::StartEtcd { bootstrap: Some(stamp), member } => {
            let Formation::Forming { token, .. } = &world.ledger.etcd.formation else {
                panic!("`new` without a formation")
            };
            assert_eq!(desired.etcd.awaits_restore, None, "begins empty instead of restored: {step:?}");
            assert_eq!(*token, stamp.token);
            let facts = world.machines[member].facts().expect("an enrolled agent");
            assert_eq!(facts.etcd.last_started, None, "`new` for the second time: {step:?}");
            assert!(matches!(step.expects, Precondition::Data(DataSeen::Empty)));
        }
        Action::DestroyMachine { member, data: Data::Goes } => {
            let url = format!("https://{}:2380", world.machines[member].seen.address.expect("an address"));
            let listed = formed && world.listed.iter().any(|l| l.peer_url == url);
            let never_enrolled = world.machines[member].facts().is_none();
            assert!(
                desired.destroy.is_some() || never_enrolled || !listed,
                "destroys the machine of a member: {step:?}"
            );
        }
        Action::RestartEtcd { member } | Action::TakeRaftSnapshot { member } | Action::RebootMachine { member, .. } => {
            audit_restart(desired, world, member)
        }
        Action::RevokeMachine { member, incarnation } => {
            let mut machines = world.machines.iter();
            let there = machines.any(|(m, at)| m.seat() == member.seat() && at.seen.incarnation == *incarnation);
            assert!(!there, "refuses the certificates of a machine that is there: {step:?}");
        }
        Action::RevokeUser { user } => {
            assert!(desired.etcd.auth.as_ref().is_none_or(|wish| !wish.users.contains_key(user)), "{user} is declared");
        }
        _ => {}
    }
}

/// Whether the ledger says that its machine goes for another one.
fn is_renewed(world: &World, member: &MemberName) -> bool {
    world.ledger.members.get(&member.seat().into()).is_some_and(|record| record.renewing.is_some())
}

/// The formations in which an etcd runs.
fn running_tokens(world: &World) -> BTreeSet<&str> {
    let on = world.machines.values().filter(|m| m.seen.power == PowerState::On).filter_map(|m| m.facts());
    let running = on.filter(|f| f.etcd.service != ServiceState::Stopped);
    running
        .filter_map(|f| if let DataSeen::Stamped(s) = &f.etcd.data { Some(s.token.as_str()) } else { None })
        .collect()
}

/// Restored data is started only when all that are wanted hold theirs, and nobody runs on anything else.
fn audit_restored_start(desired: &Desired, world: &World, member: &MemberName) {
    let Formation::Restoring { token, .. } = &world.ledger.etcd.formation else { return };
    for wanted in desired.members.keys() {
        let data = world.machines[wanted].facts().map(|f| &f.etcd.data);
        let holds = matches!(data, Some(DataSeen::Stamped(stamp)) if stamp.token == *token);
        assert!(holds, "{member} starts while {wanted} holds {data:?}");
    }
    assert!(running_tokens(world).iter().all(|running| running == token), "old and new data at once");
}

/// How many vote, and how many of them are healthy.
fn voters(world: &World) -> (usize, usize) {
    let seen = world.observe();
    let healthy = seen.agents.keys().filter(|m| status(&seen, m).is_some_and(|s| s.healthy && !s.is_learner));
    (world.listed.iter().filter(|l| !l.is_learner).count(), healthy.count())
}

fn runs(world: &World, peer_url: &str) -> bool {
    let machine = world
        .machines
        .values()
        .find(|m| m.seen.address.is_some_and(|address| format!("https://{address}:2380") == peer_url));
    let facts = machine.and_then(|m| m.facts());
    facts.is_some_and(|f| matches!(f.etcd.service, ServiceState::Running { .. }))
}

/// Those that remain have their quorum, and nobody else is unwell when a healthy voter goes.
fn audit_removal(world: &World, id: u64) {
    let going = world.listed.iter().find(|l| l.id == id).expect("a member that is listed");
    if going.is_learner {
        return;
    }
    let seen = world.observe();
    let is_healthy = |of: u64| {
        seen.agents.keys().any(|m| status(&seen, m).is_some_and(|s| s.member_id == of && s.healthy && !s.is_learner))
    };
    let others: Vec<u64> = world.listed.iter().filter(|l| !l.is_learner && l.id != id).map(|l| l.id).collect();
    let healthy = others.iter().filter(|of| is_healthy(**of)).count();
    assert!(healthy > others.len() / 2, "gives the quorum away");
    assert!(!is_healthy(id) || healthy == others.len(), "a healthy voter goes while another is unwell");
    let leads = seen.agents.keys().any(|m| status(&seen, m).is_some_and(|s| s.member_id == id && s.leader == id));
    assert!(!leads || !is_healthy(id), "the leader goes without handing over");
}

/// A restart takes no healthy member away that the quorum needs, and none that leads while another could.
fn audit_restart(desired: &Desired, world: &World, member: &MemberName) {
    if desired.postgres.is_some() {
        // What holds there is in `postgres::audit`.
        return;
    }
    assert!(matches!(world.ledger.etcd.formation, Formation::Formed { .. }), "a restart before the formation");
    let seen = world.observe();
    let all = world.listed.iter().filter(|l| !l.is_learner).count();
    let healthy: BTreeSet<&MemberName> =
        seen.agents.keys().filter(|m| status(&seen, m).is_some_and(|s| s.healthy)).collect();
    let others = healthy.iter().filter(|m| **m != member).count();
    assert!(others == all - 1, "{member} is restarted while another is unhealthy");
    let outage = healthy.contains(member) && others < all / 2 + 1;
    assert!(!outage || desired.downtime, "an outage that nobody allowed");
    let leads = status(&seen, member).is_some_and(|s| s.healthy && s.leader == s.member_id);
    assert!(!leads || others == 0, "{member} leads and is restarted without handing over");
}

fn status<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a quorate_core::kinds::etcd::EtcdStatus> {
    enrolled(seen, member)?.etcd.status.as_ref()
}

fn enrolled<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a Facts> {
    match seen.agents.get(member)?.get()? {
        AgentSeen::Enrolled(facts) => Some(facts),
        AgentSeen::Unenrolled { .. } | AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_) => None,
    }
}

/// What must hold where a plan ended: planning again changes nothing, and what is called settled is as declared.
pub fn audit_end(scene: &Scene, outcome: &Outcome) {
    if outcome.steps.last().is_some_and(forgets) {
        assert!(outcome.world.machines.is_empty(), "forgotten with machines left");
        return;
    }
    let mut after = scene.clone();
    after.go_on_from(outcome);
    let again = after.run();
    assert!(again.steps.is_empty(), "planning again changes something: {}", last_words(&again.steps));
    assert_eq!(again.end, outcome.end, "planning again ends elsewhere");
    audit_tokens(outcome);
    if outcome.end.settled() {
        audit_settled(scene, &after);
    }
}

/// Rule 6: data that runs together is of one formation, or the operator is told whose is not. While a restore is refused, that is not
/// told of data which it replaces.
fn audit_tokens(outcome: &Outcome) {
    if outcome.world.ledger.etcd.restore.is_some() {
        return;
    }
    let Formation::Formed { token, .. } = &outcome.world.ledger.etcd.formation else { return };
    let told = |member: &MemberName| outcome.end.blocked.iter().any(|b| b.member() == Some(member));
    for (member, machine) in outcome.world.machines.iter().filter(|(member, _)| !told(member)) {
        let Some(facts) = machine.facts() else { continue };
        if let (DataSeen::Stamped(stamp), ServiceState::Running { .. }) = (&facts.etcd.data, &facts.etcd.service) {
            assert_eq!(stamp.token, *token, "{member} runs in another formation");
        }
    }
}

fn audit_settled(scene: &Scene, after: &Scene) {
    let machines = after.seen.machines.get().expect("the provider answers where a cluster is settled");
    if after.ledger.power == Power::Off {
        assert!(machines.values().all(|m| m.power == PowerState::Off));
        return;
    }
    if scene.spec.postgres.is_some() {
        return postgres::audit_settled(after);
    }
    assert!(matches!(after.ledger.etcd.formation, Formation::Formed { .. }), "settled without a formation");
    assert_eq!(machines.len(), scene.spec.machines().count(), "a machine too many or too few");
    let desired = after.desired();
    let voters = after.ledger.etcd.formation.members().map(|m| m.keys().collect::<Vec<_>>());
    assert_eq!(voters, Some(desired.members.keys().collect()), "others than the declared belong to the cluster");
    for (member, wish) in &desired.members {
        let facts = enrolled(&after.seen, member).expect("an enrolled agent");
        assert_eq!(facts.node_config, Some((wish.generation, wish.digest.clone())));
        assert!(
            matches!(&facts.etcd.service, ServiceState::Running { digest, .. } if *digest == wish.service_digest),
            "{member} does not run what was declared: {:?}",
            facts.etcd.service
        );
        assert!(status(&after.seen, member).is_some_and(|s| s.healthy && !s.is_learner), "{member} is not healthy");
        let soon = after.seen.now + SignedDuration::from_hours(1);
        assert!(facts.certificates[&CertificateUse::Member].not_after > soon);
    }
    for proxy in desired.proxies.keys() {
        let facts = after.seen.facts(proxy).expect("a front that answers");
        assert!(matches!(facts.services.get(FRONT), Some(ServiceState::Running { .. })), "{proxy} does not serve");
        let given: Vec<_> = facts.certificates.keys().collect();
        assert_eq!(
            given,
            [&CertificateUse::Agent, &CertificateUse::Front],
            "{proxy} passes for a member, or shows nothing"
        );
    }
    if desired.etcd.auth.is_some() {
        audit_auth(scene, &after.seen);
    }
}

fn audit_auth(scene: &Scene, seen: &Observation) {
    let looks = seen.agents.keys().filter_map(|m| Some(&status(seen, m)?.auth));
    let found = looks.filter_map(|look| if let AuthLook::Seen(auth) = look { Some(auth) } else { None }).next();
    let found = found.expect("settled without sight of the users");
    assert!(found.enabled);
    assert!(found.users["root"].contains("root"));
    for user in &scene.spec.auth.users {
        let roles: BTreeSet<String> = user.roles.iter().map(ToString::to_string).collect();
        assert_eq!(found.users[user.name.as_str()], roles);
    }
    for role in &scene.spec.auth.roles {
        assert_eq!(found.roles[role.name.as_str()].len(), role.permissions.len());
    }
}

/// The user that a step removes, if it removes one.
pub fn removed_user(step: &Step) -> Option<&str> {
    match &step.action {
        Action::Auth { op: AuthOp::DeleteUser { user }, .. } => Some(user),
        _ => None,
    }
}
