//! Machines and their agents in the simulated cluster.

use std::sync::Arc;

use jiff::SignedDuration;

use super::certificates::{certificate, take_up_trust, trusted};
use super::world::{SimAgent, SimMachine, World, blank, imagined_address, imagined_machine, running};
use crate::Secret;
use crate::kinds::etcd::Formation;
use crate::kinds::postgres;
use crate::model::{
    BinarySeen, CertificateUse, Data, DataSeen, Desired, Enrolment, Facts, MachineSeen, MemberName, PowerState,
    Program, ProgramSeen, Stamp,
};

impl World {
    pub(super) fn create(&mut self, desired: &Desired, member: &MemberName, incarnation: u64, data: Data) {
        let number = self.free_number();
        let wish = desired.machine(member);
        let known = desired.joined(member).filter(|_| data == Data::Stays);
        let had = known.and_then(|known| known.address);
        let pinned = had.or_else(|| wish.and_then(|m| m.address));
        let kept = self.kept.remove(member).filter(|_| data == Data::Stays);
        let seen = MachineSeen {
            cluster_id: desired.cluster_id.clone(),
            incarnation,
            power: PowerState::On,
            headless: false,
            outdated: false,
            address: Some(pinned.unwrap_or(imagined_address(number))),
            build: wish.and_then(|m| m.build.clone()),
            data: wish.and_then(|m| m.data.clone()),
            place: wish.and_then(|m| m.place.clone()),
        };
        let agent = SimAgent::Fresh { public_key: format!("key-{number}"), data: kept.unwrap_or(DataSeen::Empty) };
        self.machines.insert(member.clone(), SimMachine { seen, agent, hangs: false });
        let expires = self.now + SignedDuration::from_hours(1);
        let record = self.ledger.members.entry(member.clone()).or_default();
        record.enrolment = Some(Enrolment { token: Secret::new(""), expires, bound_key: None });
    }

    /// The data of a machine outlives it.
    pub(super) fn keep(&mut self, member: &MemberName) {
        let Some(machine) = self.machines.get(member) else { return };
        let data = match &machine.agent {
            // Outdated data is useless to the next machine too.
            SimAgent::Enrolled(facts) if facts.etcd.older.is_some() => DataSeen::Empty,
            SimAgent::Enrolled(facts) => facts.postgres.as_ref().map_or(&facts.etcd.data, |found| &found.data).clone(),
            SimAgent::Fresh { data, .. } => data.clone(),
            SimAgent::Unknown { .. } | SimAgent::Untrusted(_) | SimAgent::OtherProtocol(_) => {
                self.expected_data(member)
            }
        };
        self.kept.insert(member.seat().into(), data);
    }

    /// The data of an unobserved member: if the ledger counts on it, data of the current bootstrap.
    pub(super) fn expected_data(&self, member: &MemberName) -> DataSeen {
        let Some(token) = self.ledger.token_with(member) else { return DataSeen::Empty };
        let cluster_id = self.ledger.cluster_id.clone();
        let incarnation = self.ledger.members.get(member).map_or(1, |record| record.incarnation.max(1));
        DataSeen::Stamped(Stamp { cluster_id, token, member: member.seat().into(), incarnation })
    }

    /// A number for a new machine that no machine had before, neither here nor in the present formation.
    fn free_number(&mut self) -> u8 {
        let begun = self.ledger.etcd.formation.members();
        let formed = |n: u8| begun.is_some_and(|m| m.values().any(|m| m.machine_id == imagined_machine(n)));
        let there = |n: u8| self.machines.values().any(|m| m.seen.address == Some(imagined_address(n)));
        self.made = (self.made.saturating_add(1)..=u8::MAX).find(|n| !formed(*n) && !there(*n)).unwrap_or(u8::MAX);
        self.made
    }

    /// A machine that was off starts in its last state; if that was not observed, in the ledger's.
    pub(super) fn start(&mut self, desired: &Desired, member: &MemberName) {
        self.touched = true;
        self.power(member, PowerState::On);
        // An agent of this program has a key for peers.
        self.on(member, |facts| {
            facts.requests.entry(CertificateUse::Peer).or_default();
        });
        self.remember_auth(desired);
        let remembered = self.remembered(desired, member);
        // During a restore the ledger does not say how far each member has come.
        let restoring = matches!(self.ledger.etcd.formation, Formation::Restoring { .. });
        let known = !restoring && self.ledger.etcd.formation.members().is_some_and(|m| m.contains_key(member));
        let now = self.now;
        let Some(machine) = self.machines.get_mut(member) else { return };
        if let SimAgent::Unknown { .. } = machine.agent {
            machine.agent = if known {
                SimAgent::Enrolled(Arc::new(remembered))
            } else {
                let why = String::from("its data is known once its machine runs");
                SimAgent::Unknown { since: now, why }
            };
        }
    }

    pub(super) fn remembered(&self, desired: &Desired, member: &MemberName) -> Facts {
        let mut facts = blank("");
        let Some(wish) = desired.machine(&member.seat().into()) else { return facts };
        let record = self.ledger.members.get(member).cloned().unwrap_or_default();
        if record.generation > 0 {
            facts.node_config = Some((record.generation, record.digest.clone()));
            facts.etcd.binary = BinarySeen::Version(wish.etcd_version.clone());
        }
        if let Some(machine) = self.machines.get(member) {
            let known = [
                (CertificateUse::Member, true),
                (CertificateUse::Peer, desired.certificates.peer.is_some()),
                (CertificateUse::Root, true),
                (CertificateUse::Agent, true),
                (CertificateUse::Health, desired.certificates.health),
                (CertificateUse::Front, desired.certificates.fronts.contains(member)),
            ];
            let known = known.into_iter().filter(|(_, is_there)| *is_there).map(|(of, _)| of);
            facts.certificates = known.map(|of| (of, certificate(desired, self.now, member, machine, of))).collect();
        }
        let (Some(token), Some(members)) = (self.ledger.etcd.formation.token(), self.ledger.etcd.formation.members())
        else {
            return facts;
        };
        if let Some(began) = members.get(member) {
            facts.machine_id.clone_from(&began.machine_id);
            let stamp = Stamp {
                cluster_id: desired.cluster_id.clone(),
                token: token.to_owned(),
                member: member.seat().into(),
                incarnation: self.machines.get(member).map_or(wish.incarnation, |m| m.seen.incarnation),
            };
            facts.etcd.data = DataSeen::Stamped(stamp.clone());
            facts.etcd.last_started = Some(stamp);
            facts.etcd.service = running(wish.service_digest.clone());
            facts.etcd.peer_serving = true;
            facts.etcd.trust = trusted(desired);
            take_up_trust(&mut facts);
        }
        facts
    }

    pub(super) fn power(&mut self, member: &MemberName, power: PowerState) {
        if let Some(machine) = self.machines.get_mut(member) {
            machine.hangs &= machine.seen.power == power;
            machine.seen.power = power;
            (machine.seen.headless, machine.seen.outdated) = (false, false);
        }
    }

    pub(super) fn enrol(&mut self, desired: &Desired, member: &MemberName) {
        let Some(machine) = self.machines.get_mut(member) else { return };
        let own = certificate(desired, self.now, member, machine, CertificateUse::Agent);
        if let SimAgent::Fresh { public_key, data } = &machine.agent {
            let record = self.ledger.members.entry(member.clone()).or_default();
            if let Some(enrolment) = &mut record.enrolment {
                enrolment.bound_key = Some(public_key.clone());
            }
            let mut facts = blank(&format!("machine-of-{public_key}"));
            match desired.postgres.as_deref().filter(|_| *data != DataSeen::Empty) {
                Some(wish) => facts.postgres = Some(Box::new(postgres::simulate::with_data(wish, data.clone()))),
                None => facts.etcd.data = data.clone(),
            }
            facts.certificates.insert(CertificateUse::Agent, own);
            machine.agent = SimAgent::Enrolled(Arc::new(facts));
        }
    }

    /// The state of an agent with another protocol is taken from the ledger.
    pub(super) fn upgrade_agent(&mut self, desired: &Desired, member: &MemberName, to: &Program) {
        let remembered = self.remembered(desired, member);
        let Some(machine) = self.machines.get_mut(member) else { return };
        if matches!(machine.agent, SimAgent::OtherProtocol(_)) {
            machine.agent = SimAgent::Enrolled(Arc::new(remembered));
            self.touched = true;
            self.remember_auth(desired);
        }
        self.on(member, |facts| facts.program = ProgramSeen { runs: to.clone(), failed: None });
    }
}
