//! The etcd members of the simulated cluster: who is a member, who leads, and what each reports.

use std::collections::BTreeSet;

pub(crate) mod auth;
mod listed;

use listed::number_for;

pub use listed::SimListed;

use crate::kinds::etcd::planner::is_silent;
use crate::kinds::etcd::planner::version::FORMAT_TOLD;
use crate::kinds::etcd::safety;
use crate::kinds::etcd::{AuthLook, AuthSeen, EtcdStatus, Formation, LogEnd};
use crate::model::Version;
use crate::model::{DataSeen, Exit, Facts, MemberName, PowerState, ServiceState};
use crate::planner::simulate::{SimMachine, World};

impl World {
    /// What the etcds that answered report about the cluster as a whole.
    pub(crate) fn take_up_etcd(&mut self) {
        // Without a quorum no etcd answers clients. That is no fault of one that answers its peers, and ends when others are started.
        let is_served = |facts: &Facts| facts.etcd.status.as_ref().is_some_and(|status| status.healthy);
        let serves = self.machines.values().filter_map(SimMachine::facts).any(is_served);
        for machine in self.machines.values_mut() {
            let is_silent = |f: &Facts| f.etcd.status.is_none() && is_silent(&f.etcd.service, self.now).is_some();
            let hangs = |facts: &Facts| is_silent(facts) && (serves || !facts.etcd.peer_serving);
            machine.hangs = machine.facts().is_some_and(hangs);
        }
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
        let unseen = match self.ledger.etcd.formation {
            Formation::Formed { .. } => AuthLook::NotAsked,
            Formation::Recovering { .. } | Formation::Restoring { .. } => AuthLook::NotAsked,
            Formation::Unformed | Formation::Forming { .. } => AuthLook::Seen(AuthSeen::default()),
        };
        self.auth = look.unwrap_or(unseen);
        self.leader = leader;
        self.versions = versions;
        self.agreed = agreed;
        self.going_down = going_down;
        self.listed = listed;
    }

    /// The report of an etcd that runs here.
    pub(crate) fn status(&self, member: &MemberName, facts: &Facts) -> Option<EtcdStatus> {
        let (ServiceState::Running { .. }, DataSeen::Stamped(stamp)) = (&facts.etcd.service, &facts.etcd.data) else {
            return None;
        };
        let machine = self.machines.get(member).filter(|machine| !machine.hangs)?;
        let list = self.list(&stamp.token);
        let own = list.iter().find(|l| machine.is_at(&l.peer_url))?;
        let voters: Vec<&SimListed> = list.iter().filter(|l| !l.is_learner).collect();
        let running: Vec<u64> = voters.iter().filter(|l| self.runs(l, &stamp.token)).map(|l| l.id).collect();
        let quorate = running.len() >= safety::quorum(voters.len());
        let leads = self.leader.filter(|l| running.contains(l)).or(running.first().copied());
        let version = self.versions.get(&own.peer_url).cloned();
        let version = version.or_else(|| facts.version_there()).or_else(|| self.settled_version()).unwrap_or_default();
        // The format of its data follows what the cluster speaks.
        let tells_format = version.parse::<Version>().is_ok_and(|v| v >= FORMAT_TOLD);
        Some(EtcdStatus {
            member_id: own.id,
            cluster_id: self.cluster_id(&stamp.token),
            leader: leads.filter(|_| quorate).unwrap_or(0),
            is_learner: own.is_learner,
            healthy: quorate && !own.is_learner,
            version: version.clone(),
            cluster_version: self.agreed.map(|v| v.to_string()),
            downgrade_target: self.going_down.map(|v| v.line()),
            storage_version: self.agreed.filter(|_| tells_format).map(|v| v.to_string()),
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

    /// What all ran when all were observed; an unobserved machine that comes up runs the same.
    fn settled_version(&self) -> Option<String> {
        self.ledger.etcd.formed_with.as_ref().map(|formed| formed.version.clone())
    }

    fn cluster_id(&self, token: &str) -> u64 {
        match &self.ledger.etcd.formation {
            Formation::Formed { token: formed, etcd_cluster_id, .. } if formed == token => *etcd_cluster_id,
            _ => number_for(token),
        }
    }

    /// Who belongs to the cluster of this token.
    fn list(&self, token: &str) -> Vec<SimListed> {
        match &self.ledger.etcd.formation {
            Formation::Forming { token: t, .. }
            | Formation::Recovering { token: t, .. }
            | Formation::Restoring { token: t, .. }
                if t == token =>
            {
                self.as_recorded()
            }
            Formation::Formed { token: t, .. } if t == token => self.listed.clone(),
            _ => Vec::new(),
        }
    }

    /// From the ledger: if no etcd can be asked, or none has a report yet.
    pub(crate) fn as_recorded(&self) -> Vec<SimListed> {
        let only = match &self.ledger.etcd.formation {
            Formation::Recovering { from, .. } => Some(from),
            _ => None,
        };
        let members = self.ledger.etcd.formation.members().into_iter().flatten();
        let members = members.filter(|(name, _)| only.is_none_or(|only| only == *name));
        members.map(|(name, known)| SimListed::new(name, &known.peer_url)).collect()
    }

    /// Whether the etcd of this member runs on data of this formation.
    fn runs(&self, member: &SimListed, token: &str) -> bool {
        let machine = self.machines.values().find(|m| m.is_at(&member.peer_url));
        machine.is_some_and(|m| {
            m.seen.power == PowerState::On
                && !m.hangs
                && m.facts().is_some_and(|f| {
                    matches!(&f.etcd.data, DataSeen::Stamped(s) if s.token == token)
                        && matches!(f.etcd.service, ServiceState::Running { .. })
                })
        })
    }

    pub(crate) fn agree(&mut self) {
        let Some(token) = self.ledger.etcd.formation.token().map(str::to_owned) else { return };
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

    /// The reported end of a running etcd's log. If it is not reported, it becomes known when the log is read.
    pub(crate) fn log_end(&self, member: &MemberName) -> LogEnd {
        let seen = self.observe();
        match seen.facts(member).and_then(|f| f.etcd.status.as_ref()) {
            Some(s) => LogEnd { term: s.raft_term, index: s.raft_index, commit: s.raft_applied_index },
            None => LogEnd::UNREAD,
        }
    }

    /// The etcd of a removed member exits by itself, and exits again whenever it is started.
    pub(crate) fn remove_member(&mut self, id: u64) {
        self.touched = true;
        let Some(at) = self.listed.iter().position(|l| l.id == id) else { return };
        let gone = self.listed.remove(at);
        let now = self.now;
        let machine = self.machines.values_mut().find(|m| m.is_at(&gone.peer_url));
        if let Some(facts) = machine.and_then(SimMachine::facts_mut)
            && matches!(facts.etcd.service, ServiceState::Running { .. })
        {
            let last_exit = Exit { at: now, how: String::from("exit status 0"), last_words: String::new() };
            facts.etcd.service = ServiceState::BackingOff { restarts: 1, last_exit };
            facts.etcd.peer_serving = false;
        }
    }
}
