//! The initial states of the runs: a spec and a cluster.

use std::net::Ipv4Addr;

use quorate_core::desire::Wish;
use quorate_core::kinds::etcd::safety::requests;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::{OlderData, RecoveryRequest, RestoreWish};
use quorate_core::model::{
    Brought, CertificateUse, Consent, DataSeen, Desired, Ledger, MemberName, Reboot, ServiceState,
};
use quorate_core::planner::remember::{raise_incarnation, renew};
use quorate_core::planner::simulate::{SimAgent, SimMachine, World};
use quorate_core::planner::{Action, Step, decide};
use quorate_core::providers::local::LocalSettings;
use quorate_core::spec::{ClusterSpec, Provider, generated};

use crate::adversary::LONG;
use crate::deeds::prepares;
use crate::names::rename;

/// The snapshot that is prepared where the controllers run.
const SNAPSHOT: &str = "feed";

pub fn brought() -> Brought {
    Brought { snapshot: Some(SNAPSHOT.to_owned()), ..Brought::default() }
}

/// A declaration and the world that it meets.
pub struct Scenario {
    pub spec: ClusterSpec,
    pub world: World,
}

/// What happened to a settled cluster, or what its operator wants of it now.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Nothing,
    Scale(usize),
    Replace(&'static str),
    ReplacePinned(&'static str),
    /// Its machine is to be another one, and its data stays.
    Renew(&'static str),
    /// So is that of each, for the spec makes them of something else.
    Remake,
    Settings,
    /// The machines of all reboot.
    Reboot,
    /// Peers have shared the CA of clients until now.
    OwnPeerCa,
    Upgrade,
    Gone(&'static str),
    /// The machine is gone, and its data is not.
    GoneWithVolume(&'static str),
    Hangs(&'static str),
    HangsWithVolume(&'static str),
    Wiped(&'static str),
    SetBack(&'static str),
    /// All but this one are gone, and the operator confirmed.
    Recover(&'static str),
    /// The word was given, and nothing is lost.
    RecoverNothing,
    /// The loss of others was confirmed, before this one alone was left.
    RecoverOtherwise(&'static str),
    /// The same, and that who is not seen is dead.
    RecoverServing,
    /// The data of all is to be replaced, and so many members are wanted then.
    Restore(usize),
}

impl Scenario {
    /// Nothing exists but the declaration. Addresses are pinned, so that a machine that was recreated differs from the one
    /// before in nothing but itself.
    pub fn nothing(members: usize) -> Self {
        let mut spec = declared(members, "3.6.14");
        pin(&mut spec);
        let world = empty(&spec);
        Scenario { spec, world }
    }

    /// All that comes before the formation is done.
    pub fn ready_to_form(members: usize) -> Self {
        Scenario::nothing(members).made_ready()
    }

    /// So it is on separate machines.
    pub fn machines_ready_to_form(members: usize) -> Self {
        let Scenario { spec, .. } = Scenario::nothing(members);
        let spec = ClusterSpec { provider: machines("4GiB"), ..spec };
        let world = empty(&spec);
        Scenario { spec, world }.made_ready()
    }

    fn made_ready(mut self) -> Self {
        self.run_until(|steps| steps.iter().any(|s| matches!(s.action, Action::RecordForming { .. })));
        self
    }

    /// A settled cluster, and a change. New machines that it needs are there.
    pub fn changed(members: usize, change: Change) -> Self {
        let was = if let Change::Upgrade = change { "3.5.30" } else { "3.6.14" };
        let mut spec = declared(members, was);
        if let Change::ReplacePinned(_) | Change::Remake = change {
            pin(&mut spec);
        }
        if let Change::Remake = change {
            spec.provider = machines("4GiB");
        }
        if matches!(change, Change::Renew(_) | Change::GoneWithVolume(_) | Change::HangsWithVolume(_)) {
            spec.provider = Provider::Local(LocalSettings { keep_data: true, ..LocalSettings::default() });
        }
        let world = empty(&spec);
        let mut scenario = Scenario { spec, world };
        scenario.run_until(<[Step]>::is_empty);
        // To refuse the certificates of a machine that is gone makes every run longer; those of two changes are enough.
        if !matches!(change, Change::Replace(_) | Change::Renew(_)) {
            scenario.world.ledger.issued.machines.clear();
        }
        scenario.meet(change);
        rename(&mut scenario.world);
        scenario.run_until(|steps| !steps.iter().all(|s| prepares(&s.action)) || steps.is_empty());
        scenario
    }

    fn meet(&mut self, change: Change) {
        let Scenario { spec, world } = self;
        let word = Consent { at: world.now, by: String::from("alice"), shown: String::from("the plan") };
        let members = spec.members.len();
        // Nothing that takes a cluster of one or two down is done without the operator's confirmation; no grace for missing members.
        if members < 3 {
            world.ledger.downtime = Some(word.clone());
        }
        match change {
            Change::Nothing => {}
            Change::Scale(to) => *spec = declared(to, "3.6.14"),
            Change::Replace(member) | Change::ReplacePinned(member) => {
                raise_incarnation(&mut world.ledger, &member.into());
            }
            Change::Renew(member) => drop(renew(&mut world.ledger, &member.into(), 2)),
            Change::Remake => spec.provider = machines("8GiB"),
            Change::GoneWithVolume(member) => {
                let machine = world.machines.remove(&MemberName::from(member)).expect("a machine");
                world.kept.insert(member.into(), machine.facts().expect("an agent").etcd.data.clone());
                forget_since_long(world, member);
            }
            Change::Settings => spec.etcd.grpc_gateway = !spec.etcd.grpc_gateway,
            Change::Reboot => {
                let reboot = Reboot { consent: word, upgrade_packages: false, ordered: None };
                world.ledger.members.values_mut().for_each(|record| record.reboot = Some(reboot.clone()));
            }
            Change::OwnPeerCa => share_ca(spec, world),
            Change::Upgrade => *spec = declared(members, "3.6.16"),
            Change::Gone(member) => {
                drop(world.machines.remove(&MemberName::from(member)));
                forget_since_long(world, member);
            }
            Change::Hangs(member) | Change::HangsWithVolume(member) => {
                forget_since_long(world, member);
                let (since, why) = (world.now, String::from("it hangs"));
                world.machines.get_mut(&member.into()).expect("a machine").agent = SimAgent::Unknown { since, why };
            }
            Change::Wiped(member) => {
                let machine = world.machines.get_mut(&member.into()).expect("a machine");
                let etcd = &mut machine.facts_mut().expect("an agent").etcd;
                (etcd.data, etcd.service, etcd.peer_serving) = (DataSeen::Empty, ServiceState::Stopped, false);
            }
            Change::SetBack(member) => {
                let machine = world.machines.get_mut(&member.into()).expect("a machine");
                let etcd = &mut machine.facts_mut().expect("an agent").etcd;
                etcd.older = Some(OlderData { holds: 1, acknowledged: 10, told_by: String::from("its leader") });
                (etcd.service, etcd.peer_serving) = (ServiceState::Stopped, false);
            }
            Change::Recover(survivor) => {
                world.machines.retain(|name, _| name.as_str() == survivor);
                confirm_recovery(world, word);
            }
            Change::RecoverOtherwise(survivor) => {
                let all = world.machines.clone();
                world.machines.retain(|name, _| name.as_str() != survivor);
                confirm_recovery(world, word);
                world.machines = all;
                world.machines.retain(|name, _| name.as_str() == survivor);
            }
            Change::RecoverNothing => confirm_recovery(world, word),
            Change::RecoverServing => {
                world.ledger.without_grace = Some(word.clone());
                confirm_recovery(world, word);
            }
            Change::Restore(to) => {
                *spec = declared(to, "3.6.14");
                let (sha256, source) = (SNAPSHOT.to_owned(), String::from("a backup"));
                let wish = RestoreWish {
                    consent: word,
                    sha256,
                    bytes: 4096,
                    revision: 700,
                    keys: None,
                    source,
                    epoch: 1,
                    bump_revision: None,
                };
                world.ledger.etcd.restore = Some(wish);
            }
        }
        world.ledger.spec = spec.clone();
    }

    pub fn desired(&self) -> Desired {
        Wish { spec: &self.spec, brought: &brought(), arch: "amd64" }.desire(&self.world.ledger, "1")
    }

    pub fn run_until(&mut self, enough: impl Fn(&[Step]) -> bool) {
        loop {
            let desired = self.desired();
            let steps = decide(&desired, &self.world.observe()).steps;
            if enough(&steps) {
                return;
            }
            steps.iter().for_each(|s| self.world.perform(&desired, &s.action));
        }
    }
}

/// Nobody has seen it for longer than the grace time.
fn forget_since_long(world: &mut World, member: &str) {
    let since = world.now - LONG;
    world.ledger.members.get_mut(&MemberName::from(member)).expect("a record").unseen_since = Some(since);
}

/// As it was before peers had a separate CA.
fn share_ca(spec: &ClusterSpec, world: &mut World) {
    world.ledger.authorities.peer = None;
    let desired = Wish { spec, brought: &brought(), arch: "amd64" }.desire(&world.ledger, "1");
    for (member, wish) in &desired.members {
        let record = world.ledger.members.get_mut(member).expect("a record");
        record.digest.clone_from(&wish.digest);
        let generation = record.generation;
        let facts = world.machines.get_mut(member).and_then(SimMachine::facts_mut).expect("an agent");
        facts.node_config = Some((generation, wish.digest.clone()));
        facts.certificates.remove(&CertificateUse::Peer);
        facts.etcd.trust.clear();
        if let ServiceState::Running { digest, .. } = &mut facts.etcd.service {
            digest.clone_from(&wish.service_digest);
        }
    }
}

fn declared(members: usize, version: &str) -> ClusterSpec {
    let version = version.parse().expect("a version");
    generated("demo", members, version, ClientAuth::Certificate).expect("a spec").clusters.remove(0)
}

/// Machines of so much memory, each with a data volume.
fn machines(memory: &str) -> Provider {
    let settings = serde_json::json!({"libvirt": {"pool": "etcd", "memory": memory, "data_size": "20GiB"}});
    serde_json::from_value(settings).expect("a provider")
}

fn pin(spec: &mut ClusterSpec) {
    for (member, number) in spec.members.iter_mut().zip(1..) {
        member.address = Some(Ipv4Addr::new(127, 64, 1, number).into());
    }
}

fn empty(spec: &ClusterSpec) -> World {
    let now = "2026-01-01T12:00:00Z".parse().expect("a time");
    World::empty(Ledger::new(String::from("c1"), spec.clone()), now)
}

/// The operator sees what is left, and confirms.
fn confirm_recovery(world: &mut World, consent: Consent) {
    let of = requests::lost_majority(&world.ledger, &world.observe());
    world.ledger.etcd.recovery = Some(RecoveryRequest { consent, of });
}
