//! The truth about the simulated etcd members, independent of what anyone sees: which run, which hold the data, and which may start.

use jiff::Timestamp;
use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::etcd::simulate::SimListed;
use quorate_core::model::{
    CertificateUse, DataSeen, Exit, Facts, PEER_PORT, PowerState, ServiceState, TrustPlane, https_url,
};
use quorate_core::planner::simulate::{SimAgent, SimMachine, World};

/// How an etcd ended: by a fault, or since we restarted it.
pub const KILLED: &str = "killed";
pub const RESTARTED: &str = "restarted";

/// The voters of the formed cluster as they really are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Voters {
    pub all: usize,
    pub running: usize,
    /// With their data, whether they run or not.
    pub holding: usize,
}

impl Voters {
    pub fn of(world: &World) -> Self {
        let voters = || world.listed.iter().filter(|l| !l.is_learner);
        Voters {
            all: voters().count(),
            running: voters().filter(|l| runs(world, l)).count(),
            holding: voters()
                .filter(|l| machine_of(world, l).is_some_and(|m| holds(world, m)) || is_kept(world, l))
                .count(),
        }
    }

    pub fn quorate(self) -> bool {
        self.running >= quorum(self.all)
    }

    /// Whether no majority will ever agree again, unless the operator confirms.
    pub fn lost(self) -> bool {
        self.holding < quorum(self.all)
    }
}

pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

pub fn url_of(machine: &SimMachine) -> String {
    https_url(machine.seen.address.expect("an address"), PEER_PORT)
}

pub fn machine_of<'a>(world: &'a World, listed: &SimListed) -> Option<&'a SimMachine> {
    world.machines.values().find(|m| m.is_at(&listed.peer_url))
}

/// Whether data of the present formation is there, and as it was.
pub fn holds(world: &World, machine: &SimMachine) -> bool {
    let token = world.ledger.etcd.formation.token();
    machine.facts().is_some_and(|f| {
        f.etcd.older.is_none() && matches!(&f.etcd.data, DataSeen::Stamped(s) if Some(s.token.as_str()) == token)
    })
}

/// Whether the data of one that is listed waits for its next machine, or is there before its agent is enrolled.
pub fn is_kept(world: &World, listed: &SimListed) -> bool {
    let present =
        |data: &DataSeen| matches!(data, DataSeen::Stamped(s) if world.ledger.etcd.formation.token() == Some(&s.token));
    match machine_of(world, listed) {
        None => world.kept.get(&listed.name).is_some_and(present),
        Some(SimMachine { agent: SimAgent::Fresh { data, .. }, .. }) => present(data),
        Some(_) => false,
    }
}

pub fn runs(world: &World, listed: &SimListed) -> bool {
    machine_of(world, listed).is_some_and(|m| {
        let service = m.facts().map(|f| &f.etcd.service);
        m.seen.power == PowerState::On && holds(world, m) && matches!(service, Some(ServiceState::Running { .. }))
    })
}

/// An etcd that was removed, or never added, ends whenever it is started; so does one that would vote twice.
pub fn may_run(world: &World, url: &str, machine: &SimMachine) -> bool {
    let Some(facts) = machine.facts() else { return false };
    let present =
        matches!(&facts.etcd.data, DataSeen::Stamped(s) if world.ledger.etcd.formation.token() == Some(&s.token));
    let formed = matches!(world.ledger.etcd.formation, Formation::Formed { .. });
    let listed = world.listed.iter().any(|l| l.peer_url == url);
    facts.etcd.older.is_none() && (!present || !formed || listed)
}

/// Whether the etcd there is down by our own doing, and comes back by itself.
pub fn is_restarting(machine: &SimMachine) -> bool {
    let service = machine.facts().map(|f| &f.etcd.service);
    matches!(service, Some(ServiceState::BackingOff { last_exit, .. }) if last_exit.how == RESTARTED)
}

pub fn backing_off(how: &str) -> ServiceState {
    let last_exit = Exit { at: Timestamp::UNIX_EPOCH, how: how.to_owned(), last_words: String::new() };
    ServiceState::BackingOff { restarts: 1, last_exit }
}

/// Whether one running member would refuse another's certificate.
pub fn peers_refuse_each_other(world: &World) -> bool {
    let running = |l: &&SimListed| runs(world, l);
    let members = world.listed.iter().filter(running).filter_map(|l| machine_of(world, l)?.facts());
    let members: Vec<&Facts> = members.collect();
    let clients = world.ledger.authorities.client.as_ref().map(|a| a.key_id.as_str());
    let own = |facts: &Facts| facts.etcd.trust.get(&TrustPlane::Peer).filter(|t| !t.running.is_empty()).cloned();
    let shows = |facts: &Facts| {
        let of = if own(facts).is_some() { CertificateUse::Peer } else { CertificateUse::Member };
        facts.certificates.get(&of).and_then(|certificate| certificate.authority_key_id.clone())
    };
    let trusts = |facts: &Facts, shown: &str| match own(facts) {
        Some(trust) => trust.running.contains(shown),
        None => Some(shown) == clients,
    };
    let untrusted = members.iter().any(|shown_by| {
        let shown = shows(shown_by).unwrap_or_default();
        members.iter().any(|facts| !trusts(facts, &shown))
    });
    untrusted || world.listed.iter().filter(running).any(|l| is_revoked(world, l))
}

/// Whether a list refuses what this member's machine was given.
fn is_revoked(world: &World, listed: &SimListed) -> bool {
    let Some(incarnation) = machine_of(world, listed).map(|machine| machine.seen.incarnation) else { return false };
    let mut revoked = world.ledger.issued.machines.iter().filter(|given| given.revoked);
    revoked.any(|given| given.member.seat() == listed.name.seat() && given.incarnation == incarnation)
}
