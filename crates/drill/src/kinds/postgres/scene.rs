//! What a stage must know about PostgreSQL: the primary, the synchronous standbys, members that are being cloned, and the etcd cluster
//! below.

use std::time::{Duration, Instant};

use quorate_core::kinds::etcd::Formation;
use quorate_core::spec::Kind;
use tokio::time::sleep;

use super::settle::{checks, members_of, status};
use crate::command::Progress;
use crate::machine::{Machine, every_machine, machines};
use crate::mark::{Clock, Mark, MarkKind};
use crate::scenario::Target;
use crate::settle::nothing_to_do;
use crate::stage::{APPEARANCE, LOOK_AGAIN, Scene, Struck};
use crate::{Check, DrillError, Site};

/// Until a member is the primary that commits did not wait for.
const SWITCHOVERS: usize = 4;

pub(super) struct PostgresScene<'a> {
    site: &'a Site,
    /// The etcd cluster that Patroni uses.
    dcs: Site,
    /// Its formation when the drill began.
    formation: Formation,
}

impl<'a> PostgresScene<'a> {
    pub(super) fn new(site: &'a Site, dcs: &str) -> Result<Self, DrillError> {
        let dcs = Site { cluster: dcs.to_owned(), kind: Kind::Etcd, ..site.clone() };
        let formation = dcs.ledger()?.etcd.formation;
        Ok(PostgresScene { site, dcs, formation })
    }

    /// Whether the change restores the etcd cluster below from a backup.
    fn restores_dcs(&self, during: &[String]) -> bool {
        during.first().is_some_and(|verb| verb == "restore") && during.contains(&self.dcs.cluster)
    }

    fn restore_has_begun(&self) -> bool {
        let ledger = self.dcs.ledger();
        ledger.is_ok_and(|ledger| ledger.etcd.restore.is_some() || ledger.etcd.formation != self.formation)
    }

    /// Runs a command to its end; the reason why it failed otherwise.
    async fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let output = self.site.program.output(arguments).await.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    fn struck(&self, machine: Machine) -> Struck {
        Struck { cluster: self.site.cluster.clone(), machine }
    }

    fn of_dcs(&self, machine: Machine) -> Struck {
        Struck { cluster: self.dcs.cluster.clone(), machine }
    }

    fn dcs_machines(&self) -> Vec<Machine> {
        machines(&self.site.home, &self.dcs.cluster, Kind::Etcd)
    }

    /// The newest machines of the members with one of these roles; the first role that anybody has counts.
    async fn with_role(&self, roles: &[&str]) -> Vec<Machine> {
        let Ok(status) = status(self.site).await else { return Vec::new() };
        let machines = self.site.machines();
        let with = |role: &&str| -> Vec<Machine> {
            let members = members_of(&status).iter().filter(|member| member["role"] == **role);
            let names: Vec<&str> = members.filter_map(|member| member["member"].as_str()).collect();
            machines.iter().filter(|machine| names.contains(&machine.member.as_str())).cloned().collect()
        };
        roles.iter().map(with).find(|found| !found.is_empty()).unwrap_or_default()
    }
}

impl Scene for PostgresScene<'_> {
    fn site(&self) -> &Site {
        self.site
    }

    async fn checks(&self) -> Vec<Check> {
        checks(self.site).await
    }

    fn all_machines(&self) -> Vec<Struck> {
        let of_dcs = every_machine(&self.site.home, &self.dcs.cluster, Kind::Etcd).into_iter();
        let of_dcs = of_dcs.map(|machine| self.of_dcs(machine));
        self.site.every_machine().into_iter().map(|machine| self.struck(machine)).chain(of_dcs).collect()
    }

    async fn targets(&self, target: Target) -> Result<Vec<Struck>, DrillError> {
        let (role, roles): (_, &[&str]) = match target {
            Target::Dcs => return Ok(self.dcs_machines().into_iter().map(|machine| self.of_dcs(machine)).collect()),
            Target::DcsMajority => {
                let all = self.dcs_machines();
                let majority = all.len() / 2 + 1;
                return Ok(all.into_iter().take(majority).map(|machine| self.of_dcs(machine)).collect());
            }
            Target::All => {
                return Ok(self.site.machines().into_iter().map(|machine| self.struck(machine)).collect());
            }
            Target::Leader => ("primary", &["primary"]),
            Target::Synchronous => ("synchronous standby", &["sync standby"]),
            _ => ("replica", &["replica", "sync standby"]),
        };
        let deadline = Instant::now() + APPEARANCE;
        loop {
            if let Some(machine) = self.with_role(roles).await.into_iter().next() {
                return Ok(vec![self.struck(machine)]);
            }
            if Instant::now() > deadline {
                let why = format!("none was seen for {} s", APPEARANCE.as_secs());
                return Err(DrillError::NoTarget { role, why });
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// It stays the primary if its machine is back before the lease runs out. If commits wait for the third member by then, that one comes
    /// first: only a standby that they wait for takes over, and each switchover makes them wait for another.
    async fn make_leader(&self, machine: &Machine) -> Result<(), DrillError> {
        let mut why = format!("{} is not the primary after {SWITCHOVERS} switchovers", machine.member);
        for _ in 0..SWITCHOVERS {
            if self.with_role(&["primary"]).await.first() == Some(machine) {
                return Ok(());
            }
            let standbys = self.with_role(&["sync standby"]).await;
            let its_turn = standbys.is_empty() || standbys.contains(machine);
            let to = if its_turn { machine } else { &standbys[0] };
            let arguments = ["switchover", &self.site.cluster, "--to", to.member.as_str(), "--yes"];
            if let Err(refusal) = self.run(&arguments).await {
                why = refusal;
                sleep(LOOK_AGAIN).await;
            }
        }
        match self.with_role(&["primary"]).await.first() == Some(machine) {
            true => Ok(()),
            false => Err(DrillError::NoTarget { role: "primary", why }),
        }
    }

    fn joined<'b>(&self, progress: &'b Progress) -> Option<&'b str> {
        progress.started_clone()
    }

    /// While the copy is made there is no server yet.
    async fn joining(&self, member: &str) -> Option<Machine> {
        let deadline = Instant::now() + APPEARANCE;
        while Instant::now() < deadline {
            let newest = self.site.machines().into_iter().find(|machine| machine.member.as_str() == member);
            if let Some(machine) = newest.filter(|machine| machine.patroni().is_some()) {
                return Some(machine);
            }
            sleep(Duration::from_millis(5)).await;
        }
        None
    }

    fn must_repeat(&self, during: &[String]) -> bool {
        if self.restores_dcs(during) {
            return !self.restore_has_begun();
        }
        during.first().is_some_and(|verb| verb == "apply") || during.iter().any(|word| word == "--dcs")
    }

    /// A restore of the etcd cluster is completed before anything else.
    async fn interrupted(&self, during: &[String]) -> String {
        let is_behind = self.restores_dcs(during) && nothing_to_do(&self.dcs).await.is_err();
        if is_behind { self.dcs.cluster.clone() } else { self.site.cluster.clone() }
    }

    /// The primary moves between the backup of the etcd cluster and its restore, so what is restored names another member as the leader.
    async fn before_change(&mut self, during: &[String], clock: Clock) -> Result<Option<Mark>, DrillError> {
        if !self.restores_dcs(during) {
            return Ok(None);
        }
        let from = clock.now();
        let (dcs, cluster) = (self.dcs.cluster.as_str(), self.site.cluster.as_str());
        self.run(&["backup", "create", dcs]).await.map_err(|why| DrillError::NoBackup { why })?;
        self.run(&["switchover", cluster, "--yes"]).await.map_err(|why| DrillError::NoSwitchover { why })?;
        let text = format!("quorate backup create {dcs}, then quorate switchover {cluster} --yes");
        Ok(Some(Mark { kind: MarkKind::Command, text, from, to: clock.now() }))
    }
}
