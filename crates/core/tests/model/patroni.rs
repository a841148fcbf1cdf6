//! The members of a PostgreSQL cluster in the model: Patroni's own actions, client commits, and the effect of faults.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::kinds::postgres::desire::patroni_name;
use quorate_core::kinds::postgres::{PatroniStatus, PostgresFacts, RestoreState, Role, Standby};
use quorate_core::model::{DataSeen, MemberName, ServiceState};
use quorate_core::planner::Step;
use quorate_core::planner::simulate::{SimAgent, SimMachine, World};

use crate::shared::Shared;

/// How many commits there are at most: one is enough for a member that has it and one that lacks it.
const MOST_COMMITS: u8 = 1;

/// A machine as Patroni knows it: the member's name, and the number of the machine that its data was created on.
pub type Machine = (String, u64);

#[derive(Clone, PartialEq, Hash, Debug)]
pub struct State {
    pub world: Shared<World>,
    pub patroni: Patroni,
    /// What the controller has decided and not done yet.
    pub steps: Vec<Step>,
    /// A fault came after the look that led to these. What a step then does is not its fault.
    pub surprised: bool,
    pub faults: u8,
    pub crashes: u8,
    pub wrongs: BTreeSet<Wrong>,
}

/// What is true of all members, whether anybody sees it or not.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Patroni {
    /// Holds the lease, or held it last.
    pub leader: Option<Machine>,
    /// The standbys that may take over, as the DCS has it.
    pub synchronous: BTreeSet<Machine>,
    /// How many commits clients were told of.
    pub confirmed: u8,
    /// How many each has on its disk.
    pub written: BTreeMap<Machine, u8>,
    /// How many are in the data that was upgraded, restored from a backup, or taken back.
    pub prepared: u8,
    /// How many are in data that was put aside.
    pub aside: BTreeMap<Machine, u8>,
    /// How many clients were told of on data that a restore has replaced.
    pub given_up: Option<u8>,
    /// How many the data from before an upgrade must have.
    pub before_upgrade: u8,
    /// What the configuration in place says of a rotation of passwords.
    pub configured: BTreeMap<Machine, Configured>,
    /// Whether PostgreSQL has the new passwords.
    pub has_new_passwords: bool,
    /// What those that are away will report when they return.
    pub away: BTreeMap<Machine, PatroniStatus>,
}

/// Patroni takes it up when it runs.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Configured {
    pub mark: Option<String>,
    pub has_new_passwords: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wrong {
    CommitLost,
    ReplacedDataGone,
    LockedOut,
    NobodyTakesOver,
    TwoPrimaries,
    ClientsWait,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    Dies,
    Disconnects,
    LosesData,
    IsDestroyed,
}

impl State {
    pub fn machines(&self) -> BTreeMap<Machine, MemberName> {
        let machines = self.world.machines.iter();
        let known = |(name, machine): (&MemberName, &SimMachine)| {
            ((name.seat().to_owned(), self.number(name).unwrap_or(machine.seen.incarnation)), name.clone())
        };
        machines.map(known).collect()
    }

    fn number(&self, member: &MemberName) -> Option<u64> {
        self.world.ledger.postgres.formation.members()?.get(member)?.number
    }

    /// Data that outlived its machine, or is on one that has no configuration yet.
    fn kept(&self) -> BTreeSet<Machine> {
        let fresh = self.world.machines.iter().filter_map(|(name, machine)| match &machine.agent {
            SimAgent::Fresh { data, .. } => Some((name, data)),
            _ => None,
        });
        let token = self.world.ledger.postgres.formation.token();
        let ours = |data: &DataSeen| matches!(data, DataSeen::Stamped(stamp) if Some(stamp.token.as_str()) == token);
        let all = self.world.kept.iter().chain(fresh).filter(|(_, data)| ours(data));
        all.filter_map(|(name, _)| Some((name.seat().to_owned(), self.number(name)?))).collect()
    }

    pub fn postgres(&self, machine: &Machine) -> Option<&PostgresFacts> {
        self.world.machines[self.machines().get(machine)?].facts()?.postgres.as_deref()
    }

    pub fn status(&self, machine: &Machine) -> Option<&PatroniStatus> {
        self.postgres(machine)?.status.as_ref()
    }

    pub fn change(&mut self, machine: &Machine, change: impl FnOnce(&mut PostgresFacts)) {
        let Some(name) = self.machines().remove(machine) else { return };
        self.world.change(|world| {
            let machine = world.machines.get_mut(&name).and_then(|machine| machine.facts_mut());
            if let Some(postgres) = machine.and_then(|facts| facts.postgres.as_mut()) {
                change(postgres);
            }
        });
    }

    pub fn set_status(&mut self, machine: &Machine, change: impl FnOnce(&mut PatroniStatus)) {
        self.change(machine, |postgres| {
            if let Some(status) = &mut postgres.status {
                change(status);
            }
        });
    }

    pub fn with_role(&self, role: Role) -> Vec<Machine> {
        self.machines().into_keys().filter(|machine| self.status(machine).is_some_and(|s| s.role == role)).collect()
    }

    pub fn primary(&self) -> Option<Machine> {
        self.with_role(Role::Primary).into_iter().next()
    }

    pub fn streams(&self, machine: &Machine) -> bool {
        self.status(machine).is_some_and(|status| status.role == Role::Replica && status.streaming)
    }

    pub fn holds_data(&self, machine: &Machine) -> bool {
        let record = &self.world.ledger.postgres;
        let data = self.postgres(machine).map(|postgres| &postgres.data);
        // Until upgraded data serves, what there was before can be gone back to.
        let before = record.upgrade.as_ref().and_then(|upgrade| upgrade.was.as_ref()?.token());
        let begins = !record.formation.is_formed();
        let is_held = |token: &str| {
            record.formation.token() == Some(token)
                || before == Some(token)
                || (begins && record.replaced.contains(token))
        };
        matches!(data, Some(DataSeen::Stamped(stamp)) if is_held(&stamp.token))
    }

    fn holds_replaced(&self, machine: &Machine) -> bool {
        let replaced = &self.world.ledger.postgres.replaced;
        let data = self.postgres(machine).map(|postgres| &postgres.data);
        matches!(data, Some(DataSeen::Stamped(stamp)) if replaced.contains(&stamp.token))
    }

    /// Whether every commit that a restore has replaced is on a disk.
    pub fn keeps_what_was_replaced(&self) -> bool {
        let given_up = self.patroni.given_up.unwrap_or_default();
        let mut there = self.machines().into_keys().filter(|machine| self.holds_replaced(machine));
        given_up == 0
            || self.patroni.aside.values().any(|aside| *aside >= given_up)
            || there.any(|machine| self.patroni.written.get(&machine).is_some_and(|written| *written >= given_up))
    }

    /// Whether what replaces all data, by consent, is ready.
    pub fn restores(&self) -> bool {
        let Some(wish) = &self.world.ledger.postgres.restore else { return false };
        let restored = |machine: &Machine| self.postgres(machine).and_then(|postgres| postgres.restored.clone());
        let mut all = self.machines().into_keys().filter_map(|machine| restored(&machine));
        let begun = self.world.ledger.postgres.formation.token() == Some(&wish.token);
        begun || all.any(|restored| restored.token == wish.token && restored.state == RestoreState::Ready)
    }

    /// A member that follows the primary logs in to it: with a password, or by certificate alone where the primary's rules say so.
    fn somebody_is_locked_out(&self) -> bool {
        let Some(primary) = self.primary() else { return false };
        let is_open = self.postgres(&primary).is_some_and(|postgres| postgres.rotation.is_some());
        let has_other = |machine: &Machine| {
            let configured = self.patroni.configured.get(machine);
            configured.is_some_and(|found| found.has_new_passwords) != self.patroni.has_new_passwords
        };
        !is_open && self.with_role(Role::Replica).iter().any(has_other)
    }

    pub fn may_lead(&self, machine: &Machine) -> bool {
        let Patroni { leader, synchronous, .. } = &self.patroni;
        leader.as_ref() == Some(machine) || synchronous.contains(machine)
    }

    /// Whether anybody is left that leads, or can be promoted.
    pub fn somebody_takes_over(&self) -> bool {
        let kept = self.kept();
        let mut holders = self.machines().into_keys().filter(|machine| self.holds_data(machine)).chain(kept);
        holders.any(|machine| self.may_lead(&machine))
    }

    /// Whether every confirmed commit is on a disk.
    pub fn has_every_commit(&self) -> bool {
        let written = |machine: &Machine| self.patroni.written.get(machine).copied().unwrap_or_default();
        let confirmed = self.patroni.confirmed;
        let mut holders = self.machines().into_keys().filter(|machine| self.holds_data(machine)).chain(self.kept());
        holders.any(|machine| written(&machine) >= confirmed)
    }

    /// Its processes end. What it would report is kept for its return.
    pub fn goes_away(&mut self, machine: &Machine) {
        let Some(status) = self.status(machine).cloned() else { return };
        self.patroni.away.insert(machine.clone(), status);
        self.change(machine, |postgres| postgres.status = None);
    }

    pub fn can_return(&self, machine: &Machine) -> bool {
        let runs = self.postgres(machine).is_some_and(|found| matches!(found.service, ServiceState::Running { .. }));
        runs && self.patroni.away.contains_key(machine)
    }

    /// It follows the primary, if there is one: what only it had is rewound.
    pub fn returns(&mut self, machine: &Machine) {
        let Some(status) = self.patroni.away.remove(machine) else { return };
        let primary = self.primary();
        let timeline = primary.as_ref().and_then(|primary| self.status(primary)?.timeline);
        self.change(machine, |postgres| {
            let (role, streaming) = (Role::Replica, primary.is_some());
            let timeline = timeline.or(status.timeline);
            postgres.status = Some(PatroniStatus { role, streaming, timeline, standbys: BTreeMap::new(), ..status });
        });
        if let Some(primary) = primary {
            let end = self.patroni.written[&primary];
            self.patroni.written.insert(machine.clone(), end);
        }
    }

    pub fn can_be_promoted(&self, machine: &Machine) -> bool {
        self.primary().is_none() && self.status(machine).is_some() && self.may_lead(machine) && self.holds_data(machine)
    }

    /// The others follow it, from where they are.
    pub fn is_promoted(&mut self, machine: &Machine) {
        let end = self.patroni.written.get(machine).copied().unwrap_or_default();
        if end < self.patroni.confirmed {
            self.wrongs.insert(Wrong::CommitLost);
        }
        let timeline = self.status(machine).and_then(|status| status.timeline).unwrap_or(1);
        let again = self.patroni.leader.as_ref() == Some(machine);
        let timeline = Some(if again { timeline } else { timeline + 1 });
        self.set_status(machine, |status| {
            (status.role, status.streaming, status.timeline) = (Role::Primary, false, timeline);
        });
        for other in self.with_role(Role::Replica) {
            self.set_status(&other, |status| (status.streaming, status.timeline) = (true, timeline));
            let has = self.patroni.written.entry(other).or_default();
            *has = end.min(*has);
        }
        if !again {
            self.patroni.synchronous.clear();
        }
        self.patroni.leader = Some(machine.clone());
    }

    /// A synchronous standby that streams is kept; else another takes its place.
    pub fn can_be_chosen(&self, machine: &Machine) -> bool {
        let chosen = &self.patroni.synchronous;
        self.primary().is_some() && self.streams(machine) && !chosen.iter().any(|chosen| self.streams(chosen))
    }

    pub fn is_chosen(&mut self, machine: &Machine) {
        let Some(primary) = self.primary() else { return };
        let end = self.patroni.written[&primary];
        self.patroni.written.insert(machine.clone(), end);
        self.patroni.synchronous = BTreeSet::from([machine.clone()]);
    }

    pub fn confirming(&self) -> Vec<Machine> {
        self.patroni.synchronous.iter().filter(|machine| self.streams(machine)).cloned().collect()
    }

    pub fn commits_are_confirmed(&self) -> bool {
        self.primary().is_some() && !self.confirming().is_empty()
    }

    /// None where clients wait: there is no primary, or no standby that confirms.
    pub fn commit(&mut self) -> Option<()> {
        let primary = self.primary()?;
        let confirming = self.confirming();
        let end = self.patroni.written.get(&primary).copied().unwrap_or_default() + 1;
        if confirming.is_empty() || end > MOST_COMMITS {
            return None;
        }
        for machine in confirming.into_iter().chain([primary]) {
            self.patroni.written.insert(machine, end);
        }
        self.patroni.confirmed = self.patroni.confirmed.max(end);
        Some(())
    }

    pub fn strike(&mut self, fault: Fault, machine: &Machine) {
        match fault {
            Fault::Dies => self.goes_away(machine),
            Fault::Disconnects => self.set_status(machine, |status| status.streaming = false),
            Fault::LosesData => {
                self.patroni.away.remove(machine);
                self.change(machine, |postgres| {
                    (postgres.data, postgres.service, postgres.status) = (DataSeen::Empty, ServiceState::Stopped, None);
                    (postgres.restored, postgres.replaced) = (None, None);
                });
                self.patroni.aside.remove(machine);
            }
            Fault::IsDestroyed => {
                let name = self.machines().remove(machine);
                self.world.change(|world| name.and_then(|name| world.machines.remove(&name)));
            }
        }
    }

    pub fn can_strike(&self, fault: Fault, machine: &Machine) -> bool {
        match fault {
            Fault::Dies => self.status(machine).is_some(),
            Fault::Disconnects => self.streams(machine),
            Fault::LosesData | Fault::IsDestroyed => self.holds_data(machine),
        }
    }

    /// What is gone is forgotten, and the primary reports who streams from it and whom commits wait for.
    pub fn report(&mut self) {
        let there: BTreeSet<Machine> = self.machines().into_keys().filter(|machine| self.holds_data(machine)).collect();
        let kept = self.kept();
        let replaced: BTreeSet<Machine> =
            self.machines().into_keys().filter(|machine| self.holds_replaced(machine)).collect();
        let has_data =
            |machine: &Machine| there.contains(machine) || kept.contains(machine) || replaced.contains(machine);
        self.patroni.written.retain(|machine, _| has_data(machine));
        let machines = self.machines();
        self.patroni.aside.retain(|machine, _| machines.contains_key(machine));
        self.patroni.configured.retain(|machine, _| machines.contains_key(machine));
        self.take_up_rules();
        self.patroni.away.retain(|machine, _| there.contains(machine));
        let standby = |machine: &Machine| {
            let synchronous = self.patroni.synchronous.contains(machine);
            (patroni_name(&machine.0, machine.1), Standby { state: String::from("streaming"), synchronous })
        };
        let streaming = there.iter().filter(|machine| self.streams(machine));
        let standbys: BTreeMap<String, Standby> = streaming.map(standby).collect();
        let primaries = self.with_role(Role::Primary);
        if primaries.len() > 1 {
            self.wrongs.insert(Wrong::TwoPrimaries);
        }
        for primary in primaries {
            self.set_status(&primary, |status| status.standbys.clone_from(&standbys));
        }
        if self.somebody_is_locked_out() {
            self.wrongs.insert(Wrong::LockedOut);
        }
    }

    /// Patroni that runs writes the rules of its configuration. Users are data: standbys have them too.
    fn take_up_rules(&mut self) {
        for (machine, configured) in self.patroni.configured.clone() {
            let is_behind =
                |postgres: &PostgresFacts| postgres.status.is_some() && postgres.rotation != configured.mark;
            if self.postgres(&machine).is_some_and(is_behind) {
                self.change(&machine, |postgres| postgres.rotation.clone_from(&configured.mark));
            }
        }
        let Some(primary) = self.primary() else { return };
        let catalog = self.postgres(&primary).and_then(|postgres| postgres.catalog.clone());
        for machine in self.with_role(Role::Replica) {
            if self.streams(&machine) && self.postgres(&machine).is_some_and(|postgres| postgres.catalog != catalog) {
                self.change(&machine, |postgres| postgres.catalog.clone_from(&catalog));
            }
        }
    }

    /// Who leads is Patroni's to say, and no side effect of a step.
    pub fn keep_roles(&mut self, primary: Option<&Machine>) {
        for machine in self.with_role(Role::Primary).into_iter().filter(|machine| Some(machine) != primary) {
            self.set_status(&machine, |status| (status.role, status.streaming) = (Role::Replica, primary.is_some()));
        }
        if let Some(primary) = primary {
            self.set_status(primary, |status| (status.role, status.streaming) = (Role::Primary, false));
        }
    }

    pub fn streams_again(&mut self, machine: &Machine) {
        let timeline = self.primary().and_then(|primary| self.status(&primary)?.timeline);
        self.set_status(machine, |status| {
            (status.streaming, status.timeline) = (status.role == Role::Replica, timeline);
        });
    }
}
