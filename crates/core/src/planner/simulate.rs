//! The simulated world: machines, agents and etcds as far as the planner can tell them apart from real ones.
//!
//! `plan` runs `decide` against it until it settles. The model check lets an adversary loose in it. It promises nothing about time or data, only about what the planner looks at.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use jiff::{SignedDuration, Timestamp};

use super::{Action, remember, safety};
use crate::Secret;
use crate::desire::AGENT_VALIDITY;
use crate::model::{
    AgentSeen, AuthLook, AuthOp, AuthSeen, AuthWish, AuthorityRecord, BinarySeen, CertificateSeen, CertificateUse,
    DataSeen, Desired, Enrolment, EtcdFacts, EtcdStatus, Exit, Facts, Formation, Host, JwtKeys, Ledger, LogEnd,
    MachineSeen, MemberEntry, MemberName, Observation, PEER_PORT, Power, SecretKind, Seen, ServiceState, Stamp,
};
use crate::versions::Version;

/// An imagined cluster: the truth of each machine, whether it can be seen or not.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub ledger: Ledger,
    pub now: Timestamp,
    pub machines: BTreeMap<MemberName, SimMachine>,
    /// What a healthy member would tell of users and roles.
    pub auth: AuthLook,
    /// Set while the provider does not answer.
    provider_away: Option<String>,
    /// Whether anything was done to an etcd here, so that what each of them says must be imagined too.
    touched: bool,
    /// etcd's number of the member that leads.
    leader: Option<u64>,
    /// Who belongs to the formed cluster.
    pub listed: Vec<SimListed>,
    /// What all members have agreed to speak.
    agreed: Option<Version>,
    /// What they have agreed to go down to, until all have.
    going_down: Option<Version>,
    /// The version of each etcd that was started, which is not always that of the program beside it.
    versions: BTreeMap<String, String>,
    /// The number of the machine that was made last.
    made: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimMachine {
    pub seen: MachineSeen,
    pub agent: SimAgent,
}

/// A member as the imagined etcd lists it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimListed {
    pub id: u64,
    pub name: MemberName,
    pub peer_url: String,
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SimAgent {
    Fresh {
        public_key: String,
    },
    Enrolled(Box<Facts>),
    /// It was not seen, so nothing is imagined of it.
    Unknown {
        since: Timestamp,
        why: String,
    },
}

impl World {
    /// The world as it was seen. What was not seen stays unknown.
    pub fn imagine(ledger: Ledger, seen: Observation) -> Self {
        let now = seen.now;
        let mut world = World::empty(ledger, now);
        match seen.machines {
            Seen::Unreachable { why, .. } => world.provider_away = Some(why),
            Seen::At(_, machines) => {
                for (member, machine) in machines {
                    let agent = match seen.agents.get(&member) {
                        Some(Seen::At(_, AgentSeen::Unenrolled { public_key })) => {
                            SimAgent::Fresh { public_key: public_key.clone() }
                        }
                        Some(Seen::At(_, AgentSeen::Enrolled(facts))) => SimAgent::Enrolled(facts.clone()),
                        Some(Seen::Unreachable { since, why }) => SimAgent::Unknown { since: *since, why: why.clone() },
                        None => SimAgent::Unknown { since: now, why: String::from("it was not asked") },
                    };
                    world.machines.insert(member, SimMachine { seen: machine, agent });
                }
            }
        }
        world.take_up_etcd();
        world
    }

    /// What the etcds that answered tell of the cluster as a whole.
    fn take_up_etcd(&mut self) {
        let answers = self.machines.iter().filter_map(|(name, m)| Some((name, m.facts()?.etcd.status.as_ref()?)));
        let answers: Vec<(&MemberName, &EtcdStatus)> = answers.collect();
        let leader = answers.iter().find(|(_, s)| s.leader == s.member_id).map(|(_, s)| s.member_id);
        let versions = self.machines.values().filter_map(|m| {
            let status = m.facts()?.etcd.status.as_ref()?;
            Some((m.peer_url(), status.version.clone()))
        });
        let versions = versions.collect();
        let told = answers.iter().filter(|(_, s)| s.healthy && !s.is_learner && !s.members.is_empty());
        let told = told.max_by_key(|(_, s)| s.raft_applied_index).map(|(_, s)| *s);
        let agreed = told.and_then(|s| s.cluster_version.as_ref()?.parse().ok());
        let going_down = told.and_then(|s| {
            let line: String = s.downgrade_target.as_ref()?.split('.').take(2).map(|part| format!("{part}.")).collect();
            format!("{line}0").parse().ok()
        });
        let listed = match told {
            Some(status) => status.members.iter().map(SimListed::told).collect(),
            None => self.as_recorded(),
        };
        let looks = || answers.iter().map(|(_, s)| &s.auth);
        let seen = looks().find(|look| matches!(look, AuthLook::Seen(_)));
        let look = seen.or_else(|| looks().find(|look| matches!(look, AuthLook::Failed { .. }))).cloned();
        let unseen = match self.ledger.formation {
            Formation::Formed { .. } => AuthLook::NotAsked,
            Formation::Recovering { .. } => AuthLook::NotAsked,
            Formation::Unformed | Formation::Forming { .. } => AuthLook::Seen(AuthSeen::default()),
        };
        self.auth = look.unwrap_or(unseen);
        self.leader = leader;
        self.versions = versions;
        self.agreed = agreed;
        self.going_down = going_down;
        self.listed = listed;
    }

    /// A world with nothing in it.
    pub fn empty(ledger: Ledger, now: Timestamp) -> Self {
        World {
            ledger,
            now,
            machines: BTreeMap::new(),
            auth: AuthLook::Seen(AuthSeen::default()),
            provider_away: None,
            touched: false,
            leader: None,
            listed: Vec::new(),
            agreed: None,
            going_down: None,
            versions: BTreeMap::new(),
            made: 0,
        }
    }

    pub fn observe(&self) -> Observation {
        let now = self.now;
        if let Some(why) = &self.provider_away {
            let machines = Seen::Unreachable { since: now, why: why.clone() };
            return Observation { now, machines, agents: BTreeMap::new() };
        }
        let machines = self.machines.iter().map(|(member, m)| (member.clone(), m.seen.clone())).collect();
        let agents = self.machines.iter().map(|(member, m)| (member.clone(), self.look(member, m))).collect();
        Observation { now, machines: Seen::At(now, machines), agents }
    }

    fn look(&self, member: &MemberName, machine: &SimMachine) -> Seen<AgentSeen> {
        if machine.seen.power == Power::Off {
            return Seen::Unreachable { since: self.now, why: String::from("its machine is off") };
        }
        match &machine.agent {
            SimAgent::Unknown { since, why } => Seen::Unreachable { since: *since, why: why.clone() },
            SimAgent::Fresh { public_key } => {
                Seen::At(self.now, AgentSeen::Unenrolled { public_key: public_key.clone() })
            }
            SimAgent::Enrolled(facts) => {
                let mut facts = facts.clone();
                if self.touched || facts.etcd.status.is_none() {
                    facts.etcd.status = self.status(member, &facts);
                }
                Seen::At(self.now, AgentSeen::Enrolled(facts))
            }
        }
    }

    /// What an etcd that runs here would say of itself.
    fn status(&self, member: &MemberName, facts: &Facts) -> Option<EtcdStatus> {
        let (ServiceState::Running { .. }, DataSeen::Stamped(stamp)) = (&facts.etcd.service, &facts.etcd.data) else {
            return None;
        };
        let machine = self.machines.get(member)?;
        let list = self.list(&stamp.token);
        let own = list.iter().find(|l| l.peer_url == machine.peer_url())?;
        let voters: Vec<&SimListed> = list.iter().filter(|l| !l.is_learner).collect();
        let running: Vec<u64> = voters.iter().filter(|l| self.runs(l, &stamp.token)).map(|l| l.id).collect();
        let quorate = running.len() >= safety::quorum(voters.len());
        let leads = self.leader.filter(|l| running.contains(l)).or(running.first().copied());
        Some(EtcdStatus {
            member_id: own.id,
            cluster_id: self.cluster_id(&stamp.token),
            leader: leads.filter(|_| quorate).unwrap_or(0),
            is_learner: own.is_learner,
            healthy: quorate && !own.is_learner,
            version: self.versions.get(&own.peer_url).cloned().unwrap_or_else(|| facts.version_there()),
            cluster_version: self.agreed.map(|v| v.to_string()),
            downgrade_target: self.going_down.map(|v| v.line()),
            storage_version: None,
            db_size: 0,
            db_size_in_use: 0,
            raft_term: 2,
            raft_index: 10,
            raft_applied_index: 10,
            revision: 1,
            members: list.iter().map(SimListed::entry).collect(),
            alarms: Vec::new(),
            auth: self.auth.clone(),
        })
    }

    fn cluster_id(&self, token: &str) -> u64 {
        match &self.ledger.formation {
            Formation::Formed { token: formed, etcd_cluster_id, .. } if formed == token => *etcd_cluster_id,
            _ => number_for(token),
        }
    }

    /// Who belongs to the cluster of this token.
    fn list(&self, token: &str) -> Vec<SimListed> {
        match &self.ledger.formation {
            Formation::Forming { token: t, .. } | Formation::Recovering { token: t, .. } if t == token => {
                self.as_recorded()
            }
            Formation::Formed { token: t, .. } if t == token => self.listed.clone(),
            _ => Vec::new(),
        }
    }

    /// As the ledger has it: where no etcd can be asked, or it has nothing to tell yet.
    fn as_recorded(&self) -> Vec<SimListed> {
        let only = match &self.ledger.formation {
            Formation::Recovering { from, .. } => Some(from),
            _ => None,
        };
        let members = self.ledger.formation.members().into_iter().flatten();
        let members = members.filter(|(name, _)| only.is_none_or(|only| only == *name));
        members.map(|(name, known)| SimListed::new(name, &known.peer_url)).collect()
    }

    /// Whether the etcd of this member runs on data of this formation.
    fn runs(&self, member: &SimListed, token: &str) -> bool {
        let machine = self.machines.values().find(|m| m.peer_url() == member.peer_url);
        machine.is_some_and(|m| {
            m.seen.power == Power::On
                && m.facts().is_some_and(|f| {
                    matches!(&f.etcd.data, DataSeen::Stamped(s) if s.token == token)
                        && matches!(f.etcd.service, ServiceState::Running { .. })
                })
        })
    }

    /// Carries out one action as a healthy world would.
    pub fn perform(&mut self, desired: &Desired, action: &Action) {
        remember::before(&mut self.ledger, desired, action, self.now);
        self.effect(desired, action);
        remember::after(&mut self.ledger, desired, action, self.now);
        self.look_again();
    }

    /// What a new look brings: time has passed, machines are called as the ledger has it by now, and members that all run a newer
    /// version have agreed to speak it.
    pub fn look_again(&mut self) {
        if let Some(changed) = self.ledger.last_change.filter(|at| *at >= self.now) {
            self.now = changed + SignedDuration::from_secs(1);
        }
        let wanted = |member: &MemberName| self.ledger.members.get(member).map_or(1, |r| r.incarnation.max(1));
        let machines = std::mem::take(&mut self.machines);
        self.machines = machines
            .into_iter()
            .map(|(name, machine)| {
                let seat = MemberName::from(name.seat());
                let incarnation = machine.seen.incarnation;
                let current = incarnation == wanted(&seat) || machine.seen.cluster_id != self.ledger.cluster_id;
                (if current { seat } else { seat.former(incarnation) }, machine)
            })
            .collect();
        self.agree();
    }

    fn agree(&mut self) {
        let Some(token) = self.ledger.formation.token().map(str::to_owned) else { return };
        let voters = self.list(&token).into_iter().filter(|l| !l.is_learner);
        let lines: BTreeSet<Option<Version>> = voters
            .map(|l| self.versions.get(&l.peer_url)?.parse::<Version>().ok().map(|v| Version { patch: 0, ..v }))
            .collect();
        if let [Some(line)] = lines.into_iter().collect::<Vec<_>>().as_slice()
            && self.going_down.is_none_or(|to| to == *line)
        {
            self.going_down = None;
            self.agreed = self.agreed.max(Some(*line));
        }
    }

    /// What the action does to the machines; the ledger's part is in `remember`.
    pub fn effect(&mut self, desired: &Desired, action: &Action) {
        match action {
            Action::MakeSecrets { kinds } => kinds.iter().for_each(|kind| self.make_secret(desired, *kind)),
            Action::CreateMachine { member, incarnation } => self.create(desired, member, *incarnation),
            Action::StartMachine { member } => self.start(desired, member),
            Action::StopMachine { member } => {
                self.touched = true;
                self.power(member, Power::Off);
            }
            Action::DestroyMachine { member } => {
                self.touched = true;
                self.machines.remove(member);
            }
            Action::Enrol { member } => self.enrol(desired, member),
            Action::InstallCertificates { member, uses } => self.install(desired, member, uses),
            Action::PushConfig { member, generation } => self.push(desired, member, *generation),
            Action::StartEtcd { member, bootstrap } => self.start_etcd(desired, member, bootstrap.as_ref()),
            Action::RestartEtcd { member } => self.start_etcd(desired, member, None),
            Action::StopEtcd { member } => {
                let log = self.log_end(member);
                self.touched = true;
                self.on(member, |facts| {
                    facts.etcd.service = ServiceState::Stopped;
                    facts.etcd.peer_serving = false;
                    facts.etcd.log = log;
                });
            }
            Action::WipeData { member, .. } => self.on(member, |facts| {
                facts.etcd.data = DataSeen::Empty;
                facts.etcd.last_started = None;
            }),
            Action::MoveLeader { to_id, .. } => {
                self.touched = true;
                self.leader = Some(*to_id);
            }
            Action::AddLearner { member, joining, .. } => {
                self.touched = true;
                let joins = SimListed { is_learner: true, ..SimListed::new(member, &joining.peer_url) };
                self.listed.retain(|l| l.peer_url != joins.peer_url);
                self.listed.push(joins);
            }
            Action::JoinEtcd { member, stamp, .. } => self.start_etcd(desired, member, Some(stamp)),
            Action::Promote { id, .. } => {
                self.touched = true;
                self.listed.iter_mut().filter(|l| l.id == *id).for_each(|l| l.is_learner = false);
            }
            Action::RemoveMember { id, .. } => self.remove_member(*id),
            Action::EnableDowngrade { version, .. } => {
                self.touched = true;
                self.going_down = version.parse().ok();
                self.agreed = self.going_down;
            }
            Action::CancelDowngrade { .. } => {
                self.touched = true;
                self.going_down = None;
            }
            Action::Rebuild { member, stamp, .. } => self.on(member, |facts| {
                facts.etcd.data = DataSeen::Stamped(stamp.clone());
                facts.etcd.last_started = Some(stamp.clone());
                facts.etcd.log = None;
            }),
            Action::RecordFormed { .. } => {
                self.touched = true;
                self.listed = self.as_recorded();
            }
            Action::Auth { op, .. } => {
                self.touched = true;
                if let AuthLook::Seen(auth) = &mut self.auth {
                    change_auth(auth, op);
                }
            }
            Action::RecordForming { .. }
            | Action::AbandonFormation { .. }
            | Action::RecordReplacement { .. }
            | Action::RecordRecovery { .. }
            | Action::ForgetCluster => {}
        }
    }

    /// How far the log of an etcd that runs goes, as it tells.
    fn log_end(&self, member: &MemberName) -> Option<LogEnd> {
        let seen = self.observe();
        let status = seen.facts(member)?.etcd.status.as_ref()?;
        Some(LogEnd { term: status.raft_term, index: status.raft_index, commit: status.raft_applied_index })
    }

    /// The etcd of a member that was removed ends by itself, and ends again whenever it is started.
    fn remove_member(&mut self, id: u64) {
        self.touched = true;
        let Some(at) = self.listed.iter().position(|l| l.id == id) else { return };
        let gone = self.listed.remove(at);
        let now = self.now;
        let machine = self.machines.values_mut().find(|m| m.peer_url() == gone.peer_url);
        if let Some(SimMachine { agent: SimAgent::Enrolled(facts), .. }) = machine
            && matches!(facts.etcd.service, ServiceState::Running { .. })
        {
            let last_exit = Exit { at: now, how: String::from("exit status 0"), last_words: String::new() };
            facts.etcd.service = ServiceState::BackingOff { restarts: 1, last_exit };
            facts.etcd.peer_serving = false;
        }
    }

    fn make_secret(&mut self, desired: &Desired, kind: SecretKind) {
        let authority = |key_id: &str| AuthorityRecord {
            epoch: 1,
            certificate: String::new(),
            key: None,
            key_id: key_id.to_owned(),
            not_after: Timestamp::MAX,
        };
        match kind {
            SecretKind::EtcdAuthority => {
                let brought = desired.certificates.brought_authority.as_deref();
                self.ledger.authorities.etcd = Some(authority(brought.unwrap_or("etcd")));
            }
            SecretKind::ControlAuthority => self.ledger.authorities.control = Some(authority("control")),
            SecretKind::RootPassword => self.ledger.auth.root_password = Some(Secret::new("")),
            SecretKind::JwtKeys => {
                self.ledger.auth.jwt = Some(JwtKeys { private: Secret::new(""), public: String::new() });
            }
        }
    }

    fn create(&mut self, desired: &Desired, member: &MemberName, incarnation: u64) {
        let number = self.free_number();
        let pinned = desired.members.get(member).and_then(|m| m.address);
        let seen = MachineSeen {
            cluster_id: desired.cluster_id.clone(),
            incarnation,
            power: Power::On,
            headless: false,
            address: pinned.unwrap_or(imagined_address(number)),
        };
        let agent = SimAgent::Fresh { public_key: format!("key-{number}") };
        self.machines.insert(member.clone(), SimMachine { seen, agent });
        let expires = self.now + SignedDuration::from_hours(1);
        let record = self.ledger.members.entry(member.clone()).or_default();
        record.enrolment = Some(Enrolment { token: Secret::new(""), expires, bound_key: None });
    }

    /// A number for a new machine that no machine had before, neither here nor in the present formation.
    fn free_number(&mut self) -> u8 {
        let begun = self.ledger.formation.members();
        let formed = |n: u8| begun.is_some_and(|m| m.values().any(|m| m.machine_id == imagined_machine(n)));
        let there = |n: u8| self.machines.values().any(|m| m.seen.address == imagined_address(n));
        self.made = (self.made.saturating_add(1)..=u8::MAX).find(|n| !formed(*n) && !there(*n)).unwrap_or(u8::MAX);
        self.made
    }

    /// A machine that was off comes up as it was left; where that was not seen, as the ledger remembers it.
    fn start(&mut self, desired: &Desired, member: &MemberName) {
        self.touched = true;
        self.power(member, Power::On);
        self.remember_auth(desired);
        let remembered = self.remembered(desired, member);
        let known = self.ledger.formation.members().is_some_and(|m| m.contains_key(member));
        let now = self.now;
        let Some(machine) = self.machines.get_mut(member) else { return };
        if let SimAgent::Unknown { .. } = machine.agent {
            machine.agent = if known {
                SimAgent::Enrolled(Box::new(remembered))
            } else {
                let why = String::from("what it holds is seen when its machine runs");
                SimAgent::Unknown { since: now, why }
            };
        }
    }

    /// Users and roles of a formed cluster that could not be asked: taken to be as they were left, that is, as wished.
    fn remember_auth(&mut self, desired: &Desired) {
        if let (AuthLook::NotAsked, Some(wish)) = (&self.auth, &desired.auth) {
            self.auth = AuthLook::Seen(as_wished(wish));
        }
    }

    fn remembered(&self, desired: &Desired, member: &MemberName) -> Facts {
        let mut facts = blank("");
        let Some(wish) = desired.members.get(&member.seat().into()) else { return facts };
        let record = self.ledger.members.get(member).cloned().unwrap_or_default();
        if record.generation > 0 {
            facts.node_config = Some((record.generation, record.digest.clone()));
            facts.etcd.binary = BinarySeen::Version(wish.config.etcd.version.clone());
        }
        if let Some(machine) = self.machines.get(member) {
            let uses = [CertificateUse::Member, CertificateUse::Root, CertificateUse::Agent];
            facts.certificates =
                uses.into_iter().map(|of| (of, certificate(desired, self.now, member, machine, of))).collect();
        }
        let (Some(token), Some(members)) = (self.ledger.formation.token(), self.ledger.formation.members()) else {
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
            facts.etcd.service = running(wish.etcd_digest.clone());
            facts.etcd.peer_serving = true;
        }
        facts
    }

    fn power(&mut self, member: &MemberName, power: Power) {
        if let Some(machine) = self.machines.get_mut(member) {
            machine.seen.power = power;
            machine.seen.headless = false;
        }
    }

    fn enrol(&mut self, desired: &Desired, member: &MemberName) {
        let Some(machine) = self.machines.get_mut(member) else { return };
        let own = certificate(desired, self.now, member, machine, CertificateUse::Agent);
        if let SimAgent::Fresh { public_key } = &machine.agent {
            let record = self.ledger.members.entry(member.clone()).or_default();
            if let Some(enrolment) = &mut record.enrolment {
                enrolment.bound_key = Some(public_key.clone());
            }
            let mut facts = blank(&format!("machine-of-{public_key}"));
            facts.certificates.insert(CertificateUse::Agent, own);
            machine.agent = SimAgent::Enrolled(Box::new(facts));
        }
    }

    fn install(&mut self, desired: &Desired, member: &MemberName, uses: &BTreeSet<CertificateUse>) {
        let Some(machine) = self.machines.get(member) else { return };
        let made: Vec<_> = uses.iter().map(|of| (*of, certificate(desired, self.now, member, machine, *of))).collect();
        self.on(member, |facts| facts.certificates.extend(made));
    }

    fn push(&mut self, desired: &Desired, member: &MemberName, generation: u64) {
        let Some(wish) = desired.members.get(member) else { return };
        let (digest, version) = (wish.digest.clone(), wish.config.etcd.version.clone());
        self.on(member, |facts| {
            facts.node_config = Some((generation, digest));
            facts.etcd.binary = BinarySeen::Version(version);
        });
    }

    fn start_etcd(&mut self, desired: &Desired, member: &MemberName, bootstrap: Option<&Stamp>) {
        self.touched = true;
        self.remember_auth(desired);
        let wish = desired.members.get(member);
        let digest = wish.map(|m| m.etcd_digest.clone()).unwrap_or_default();
        if let (Some(wish), Some(machine)) = (wish, self.machines.get(member)) {
            self.versions.insert(machine.peer_url(), wish.config.etcd.version.clone());
        }
        self.on(member, |facts| {
            facts.etcd.service = running(digest);
            facts.etcd.peer_serving = true;
            if let Some(stamp) = bootstrap {
                facts.etcd.data = DataSeen::Stamped(stamp.clone());
                facts.etcd.last_started = Some(stamp.clone());
            }
        });
    }

    fn on(&mut self, member: &MemberName, change: impl FnOnce(&mut Facts)) {
        if let Some(SimMachine { agent: SimAgent::Enrolled(facts), .. }) = self.machines.get_mut(member) {
            change(facts);
        }
    }
}

impl SimListed {
    fn new(name: &MemberName, peer_url: &str) -> Self {
        let (name, peer_url) = (name.seat().into(), peer_url.to_owned());
        SimListed { id: number_for(&format!("{name} at {peer_url}")), name, peer_url, is_learner: false }
    }

    fn told(entry: &MemberEntry) -> Self {
        let peer_url = entry.peer_urls.first().cloned().unwrap_or_default();
        SimListed { id: entry.id, name: entry.name.as_str().into(), peer_url, is_learner: entry.is_learner }
    }

    fn entry(&self) -> MemberEntry {
        let (id, name) = (self.id, self.name.to_string());
        MemberEntry { id, name, peer_urls: vec![self.peer_url.clone()], is_learner: self.is_learner }
    }
}

impl SimMachine {
    fn peer_url(&self) -> String {
        format!("https://{}:{PEER_PORT}", self.seen.address)
    }

    pub fn facts(&self) -> Option<&Facts> {
        match &self.agent {
            SimAgent::Enrolled(facts) => Some(facts),
            SimAgent::Fresh { .. } | SimAgent::Unknown { .. } => None,
        }
    }
}

impl Facts {
    fn version_there(&self) -> String {
        match &self.etcd.binary {
            BinarySeen::Version(version) => version.clone(),
            BinarySeen::Unasked | BinarySeen::Missing { .. } => String::new(),
        }
    }
}

fn imagined_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 64, 0, number))
}

fn imagined_machine(number: u8) -> String {
    format!("machine-of-key-{number}")
}

fn running(digest: String) -> ServiceState {
    ServiceState::Running { since: Timestamp::UNIX_EPOCH, digest, restarts: 0 }
}

fn blank(machine_id: &str) -> Facts {
    Facts {
        machine_id: machine_id.to_owned(),
        fence: 0,
        node_config: None,
        certificates: BTreeMap::new(),
        requests: BTreeMap::new(),
        etcd: EtcdFacts {
            binary: BinarySeen::Unasked,
            service: ServiceState::Stopped,
            data: DataSeen::Empty,
            last_started: None,
            peer_serving: false,
            status: None,
            log: None,
            log_damage: None,
            older: None,
        },
        host: Host::default(),
        reaches: BTreeMap::new(),
    }
}

fn certificate(
    desired: &Desired,
    now: Timestamp,
    member: &MemberName,
    machine: &SimMachine,
    of: CertificateUse,
) -> CertificateSeen {
    let wish = &desired.certificates;
    let brought = match of {
        CertificateUse::Member => wish.brought.as_ref().and_then(|b| b.get(member)),
        CertificateUse::Root => wish.brought_root.as_ref(),
        CertificateUse::Agent => None,
    };
    let validity = if of == CertificateUse::Agent { AGENT_VALIDITY } else { wish.validity };
    let authority_ends = match of {
        CertificateUse::Agent => wish.control_authority_ends,
        CertificateUse::Member | CertificateUse::Root => wish.etcd_authority_ends,
    };
    let ends = now.saturating_add(validity).unwrap_or(Timestamp::MAX);
    let ends = authority_ends.map_or(ends, |authority| ends.min(authority));
    CertificateSeen {
        fingerprint: brought.cloned().unwrap_or_default(),
        common_name: None,
        organization: wish.organization.clone(),
        authority_key_id: match of {
            CertificateUse::Agent => wish.control_authority.clone(),
            CertificateUse::Member | CertificateUse::Root => wish.etcd_authority.clone(),
        },
        not_before: now,
        not_after: ends,
        sans: super::certificates::sans(desired, member, &machine.seen),
        key_algorithm: String::new(),
    }
}

fn change_auth(auth: &mut AuthSeen, op: &AuthOp) {
    match op.clone() {
        AuthOp::AddUser { user } => {
            auth.users.entry(user).or_default();
        }
        AuthOp::SetPassword { .. } => {}
        AuthOp::GrantRole { user, role } => {
            auth.users.entry(user).or_default().insert(role);
        }
        AuthOp::RevokeRole { user, role } => {
            auth.users.entry(user).or_default().remove(&role);
        }
        AuthOp::DeleteUser { user } => {
            auth.users.remove(&user);
        }
        AuthOp::AddRole { role } => {
            auth.roles.entry(role).or_default();
        }
        AuthOp::GrantPermission { role, permission } => {
            let permissions = auth.roles.entry(role).or_default();
            permissions.retain(|p| p.place() != permission.place());
            permissions.insert(permission);
        }
        AuthOp::RevokePermission { role, permission } => {
            auth.roles.entry(role).or_default().retain(|p| p.place() != permission.place());
        }
        AuthOp::DeleteRole { role } => {
            auth.roles.remove(&role);
            for roles in auth.users.values_mut() {
                roles.remove(&role);
            }
        }
        AuthOp::Enable => auth.enabled = true,
    }
}

fn as_wished(wish: &AuthWish) -> AuthSeen {
    let root = || String::from("root");
    let mut auth = AuthSeen { enabled: true, ..AuthSeen::default() };
    auth.users.insert(root(), BTreeSet::from([root()]));
    auth.roles.insert(root(), BTreeSet::new());
    auth.users.extend(wish.users.iter().map(|(name, user)| (name.clone(), user.roles.clone())));
    auth.roles.extend(wish.roles.clone());
    auth
}

/// A number that stands for a name; never zero, which etcd uses for "none".
fn number_for(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)) | 1
}
