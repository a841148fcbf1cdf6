//! What a stage must know about etcd: the leader, learners, and what a recovery or a restore needs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::etcd::limits::MARGIN;
use quorate_core::model::address_in;
use quorate_etcd::{Client, Error};
use tokio::time::sleep;

use super::history::TakenBack;
use super::settle::checks;
use super::workload::Access;
use crate::command::Progress;
use crate::faults::Fault;
use crate::machine::Machine;
use crate::mark::{Clock, Mark, MarkKind};
use crate::scenario::Target;
use crate::stage::{APPEARANCE, LOOK_AGAIN, Scene, Struck};
use crate::{Check, DrillError, Site};

/// How long a learner that nobody answers for stays before the change begins.
const GHOST_STAYS: Duration = Duration::from_secs(30);
const GHOST: &str = "https://127.255.255.254:2380";

pub(super) struct EtcdScene<'a> {
    site: &'a Site,
    access: Access,
    /// As it was when the drill began.
    formation: Formation,
    /// The revision that a restore goes back to.
    backed_up: Option<i64>,
    /// By endpoint. A login by password costs a member much, so that one who logs in again for each look slows all others down.
    clients: RefCell<BTreeMap<String, Client>>,
}

impl<'a> EtcdScene<'a> {
    pub(super) fn new(site: &'a Site, access: Access) -> Result<Self, DrillError> {
        let formation = site.ledger()?.etcd.formation;
        Ok(EtcdScene { site, access, formation, backed_up: None, clients: RefCell::default() })
    }

    fn is_another_formation(&self) -> bool {
        let ledger = self.site.ledger();
        ledger
            .is_ok_and(|l| matches!(&l.etcd.formation, Formation::Formed { .. }) && l.etcd.formation != self.formation)
    }

    fn restore_is_noted(&self) -> bool {
        self.site.ledger().is_ok_and(|ledger| ledger.etcd.restore.is_some())
    }

    /// What the restore took back: all after the backup. Revisions continue so far above that no earlier one comes near.
    pub(super) fn taken_back(&self) -> Option<TakenBack> {
        let after = self.backed_up.filter(|_| self.is_another_formation())?;
        let room = i64::try_from(MARGIN / 2).unwrap_or(i64::MAX);
        Some(TakenBack { after, until: after.saturating_add(room) })
    }

    /// As the others report: a learner itself logs nobody in.
    async fn still_learns(&self, machine: &Machine) -> bool {
        let others = self.site.every_machine().into_iter().filter(|other| other != machine);
        for other in others {
            let Ok(client) = self.client(&other) else { continue };
            if let Ok(listed) = client.members(true).await {
                let is_its = |url: &String| address_in(url) == Some(machine.address);
                return listed.iter().any(|m| m.is_learner && m.peer_urls.iter().any(is_its));
            }
        }
        false
    }

    /// What a join leaves whose machine never came. etcd takes nobody in for some seconds after a start, so it may take a while.
    async fn add_ghost(&self, clock: Clock, tell: &dyn Fn(&str)) -> Result<Mark, DrillError> {
        let text = Fault::Ghost.text(GHOST, "etcd");
        tell(&text);
        let deadline = Instant::now() + APPEARANCE;
        let mut why = String::from("there is no leader");
        while Instant::now() < deadline {
            let from = clock.now();
            let leader = self.roles().await.into_iter().find(|(_, role)| *role == Role::Leader);
            if let Some(client) = leader.and_then(|(leader, _)| self.client(&leader).ok()) {
                match client.member_add(vec![String::from(GHOST)], true).await {
                    Ok(_) => {
                        sleep(GHOST_STAYS).await;
                        return Ok(Mark { kind: MarkKind::Fault, text, from, to: clock.now() });
                    }
                    Err(error) => why = error.to_string(),
                }
            }
            sleep(LOOK_AGAIN).await;
        }
        Err(DrillError::NoGhost { why })
    }

    fn struck(&self, machine: Machine) -> Struck {
        Struck { cluster: self.site.cluster.clone(), machine }
    }

    fn client(&self, machine: &Machine) -> Result<Client, Error> {
        let endpoint = machine.endpoint();
        if let Some(known) = self.clients.borrow().get(&endpoint) {
            return Ok(known.clone());
        }
        let client = self.access.client(&endpoint)?;
        self.clients.borrow_mut().insert(endpoint, client.clone());
        Ok(client)
    }

    /// The roles of the members that answer.
    async fn roles(&self) -> Vec<(Machine, Role)> {
        let mut roles = Vec::new();
        for machine in self.site.every_machine() {
            let Ok(client) = self.client(&machine) else { continue };
            let Ok(status) = client.status().await else { continue };
            let role = match () {
                () if status.is_learner => Role::Learner,
                () if status.leader == status.member_id => Role::Leader,
                () => Role::Follower,
            };
            roles.push((machine, role));
        }
        roles
    }
}

impl Scene for EtcdScene<'_> {
    fn site(&self) -> &Site {
        self.site
    }

    async fn checks(&self) -> Vec<Check> {
        checks(self.site, &self.access).await
    }

    fn all_machines(&self) -> Vec<Struck> {
        self.site.every_machine().into_iter().map(|machine| self.struck(machine)).collect()
    }

    fn joined<'b>(&self, progress: &'b Progress) -> Option<&'b str> {
        progress.started_learner()
    }

    /// The word that the majority is lost ends with its run, so that it is given until there is a cluster again; that to restore, until the
    /// ledger has it.
    fn must_repeat(&self, during: &[String]) -> bool {
        match during.first().map(String::as_str) {
            Some("apply") => true,
            Some("recover") => !self.is_another_formation(),
            Some("restore") => !self.is_another_formation() && !self.restore_is_noted(),
            _ => false,
        }
    }

    /// So that a restore has something to bring back of what the clients wrote, and something to take back.
    async fn before_change(&mut self, during: &[String], clock: Clock) -> Result<Option<Mark>, DrillError> {
        if during.first().is_none_or(|verb| verb != "restore") {
            return Ok(None);
        }
        let arguments = ["backup", "create", &self.site.cluster, "--output", "json"];
        let text = format!("quorate {}", arguments.join(" "));
        let from = clock.now();
        let output = self.site.program.output(&arguments).await.map_err(DrillError::Program)?;
        let told: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        let revision = told.and_then(|told| told["verification"]["revision"].as_i64());
        let why = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        self.backed_up = Some(revision.ok_or_else(|| DrillError::NoBackup { why: why() })?);
        Ok(Some(Mark { kind: MarkKind::Command, text, from, to: clock.now() }))
    }

    async fn strike_no_machine(
        &self,
        fault: Fault,
        clock: Clock,
        tell: &dyn Fn(&str),
    ) -> Option<Result<Mark, DrillError>> {
        match fault {
            Fault::Ghost => Some(self.add_ghost(clock, tell).await),
            _ => None,
        }
    }

    async fn joining(&self, member: &str) -> Option<Machine> {
        let deadline = Instant::now() + APPEARANCE;
        while Instant::now() < deadline {
            let newest = self.site.machines().into_iter().find(|m| m.member.as_str() == member);
            if let Some(machine) = newest.filter(|m| m.server().is_some() && m.data().join("member").exists()) {
                return self.still_learns(&machine).await.then_some(machine);
            }
            sleep(Duration::from_millis(5)).await;
        }
        None
    }

    async fn targets(&self, target: Target) -> Result<Vec<Struck>, DrillError> {
        let role = match target {
            Target::Leader => "leader",
            Target::Learner => "learner",
            _ => "follower",
        };
        let fits = |found: &Role| match target {
            Target::Leader => *found == Role::Leader,
            Target::Learner => *found == Role::Learner,
            _ => *found == Role::Follower,
        };
        let deadline = Instant::now() + APPEARANCE;
        loop {
            let mut roles = self.roles().await;
            let newest = self.site.machines();
            // A former machine may lead to the last; one that only follows may be gone before it is struck.
            let stays = |machine: &Machine| target == Target::Leader || newest.contains(machine);
            let fitting = roles.iter().filter(|(machine, role)| fits(role) && stays(machine));
            let fitting = fitting.map(|(machine, _)| machine.clone());
            // The majority is known only when all but the leader answer.
            let found: Vec<Machine> = match target {
                Target::Majority => fitting.collect(),
                _ => fitting.take(1).collect(),
            };
            let least = if target == Target::Majority { newest.len().saturating_sub(1) } else { 1 };
            if !found.is_empty() && found.len() >= least {
                return Ok(found.into_iter().map(|machine| self.struck(machine)).collect());
            }
            // A cluster of one has no follower: its only member is what there is to strike.
            if role == "follower" && roles.len() == 1 && newest.len() == 1 {
                return Ok(vec![self.struck(roles.swap_remove(0).0)]);
            }
            if Instant::now() > deadline {
                return Err(DrillError::NoTarget {
                    role,
                    why: format!("none was seen for {} s", APPEARANCE.as_secs()),
                });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn make_leader(&self, machine: &Machine) -> Result<(), DrillError> {
        let deadline = Instant::now() + APPEARANCE;
        loop {
            let roles = self.roles().await;
            let leader = roles.iter().find(|(_, role)| *role == Role::Leader);
            match leader {
                Some((leader, _)) if leader == machine => return Ok(()),
                Some((leader, _)) => {
                    if let (Ok(own), Ok(leading)) = (self.client(machine), self.client(leader))
                        && let Ok(status) = own.status().await
                    {
                        // The next look shows whether it succeeded.
                        let _ = leading.move_leader(status.member_id).await;
                    }
                }
                None => {}
            }
            if Instant::now() > deadline {
                let why = format!("{} would not lead", machine.member);
                return Err(DrillError::NoTarget { role: "leader", why });
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Leader,
    Follower,
    Learner,
}
