//! PostgreSQL in the simulated cluster: the primary, the streaming members and the DCS.

use std::collections::{BTreeMap, BTreeSet};

use super::parameters;
use super::{
    Catalog, CatalogOp, ControlSeen, DataState, Passwords, PatroniStatus, PostgresFacts, ReplacedSeen, RestoreSeen,
    RestoreState, Role, Standby, TaskSeen, Wish,
};
use crate::Secret;
use crate::model::{BinarySeen, DataSeen, Desired, MemberName, ServiceState, Stamp};
use crate::planner::Action;
use crate::planner::simulate::{World, running};

/// A machine that has its configuration, and nothing else.
pub(crate) fn blank(wish: &Wish) -> PostgresFacts {
    PostgresFacts {
        postgres: BinarySeen::Version(wish.form_with.version.clone()),
        patroni: BinarySeen::Version(String::new()),
        service: ServiceState::Stopped,
        data: DataSeen::Empty,
        last_started: None,
        system_id: None,
        status: None,
        applied: None,
        rotation: None,
        pgbackrest: BinarySeen::Unasked,
        repository: None,
        archive: None,
        restored: None,
        catalog: None,
        transaction: None,
        next: BinarySeen::Unasked,
        control: None,
        replaced: None,
        task: None,
    }
}

/// What was missing is found, as in the configuration of a new machine.
pub(crate) fn find_programs(found: &mut PostgresFacts, wish: &Wish) {
    let as_new = blank(wish);
    let find = |program: &mut BinarySeen, version: BinarySeen| {
        if let BinarySeen::Missing { .. } = program {
            *program = version;
        }
    };
    find(&mut found.postgres, as_new.postgres);
    find(&mut found.patroni, as_new.patroni);
    find(&mut found.pgbackrest, as_new.pgbackrest);
}

fn control(state: DataState) -> ControlSeen {
    ControlSeen { state, timeline: 1, checkpoint: 1 }
}

/// What is put aside is kept.
fn keep(found: &mut PostgresFacts) {
    if let DataSeen::Stamped(stamp) = &found.data {
        found.replaced = found.control.map(|control| ReplacedSeen { stamp: stamp.clone(), control });
    }
}

/// The same, with data that outlived another machine.
pub(crate) fn with_data(wish: &Wish, data: DataSeen) -> PostgresFacts {
    PostgresFacts { data, system_id: Some(String::from("1")), ..blank(wish) }
}

impl World {
    pub(crate) fn make_postgres_passwords(&mut self, desired: &Desired) {
        let secret = || Secret::new("");
        let users = desired.postgres().users.keys().map(|user| (user.clone(), secret())).collect();
        let passwords = Passwords {
            superuser: secret(),
            replicator: secret(),
            rewinder: secret(),
            users,
            repository: Some(secret()),
        };
        self.ledger.postgres.passwords = Some(passwords);
    }

    /// The effect of an action on PostgreSQL; `remember` has the ledger's part.
    pub(crate) fn effect_on_postgres(&mut self, desired: &Desired, action: &Action) {
        let digest = |member: &MemberName| desired.members.get(member).map(|m| m.service_digest.clone());
        match action {
            Action::InitializePostgres { member, stamp } => self.on_postgres(member, |found| {
                found.data = DataSeen::Stamped(stamp.clone());
                found.system_id = Some(String::from("1"));
                found.control = Some(control(DataState::ShutDown));
            }),
            Action::StartPatroni { member } | Action::RestartPatroni { member } => {
                self.start_patroni(member, digest(member).unwrap_or_default(), None);
            }
            Action::JoinPostgres { member, stamp, .. } => {
                self.start_patroni(member, digest(member).unwrap_or_default(), Some(stamp));
            }
            Action::StopPatroni { member } => {
                self.on_postgres(member, |found| {
                    let led = found.status.as_ref().is_some_and(|status| status.role == Role::Primary);
                    let state = if led { DataState::ShutDown } else { DataState::ShutDownInRecovery };
                    found.control = Some(control(state));
                    (found.service, found.status) = (ServiceState::Stopped, None);
                });
                self.elect();
            }
            Action::WipePostgres { member, .. } => self.on_postgres(member, |found| {
                (found.data, found.last_started, found.system_id) = (DataSeen::Empty, None, None);
            }),
            Action::PrepareRepository { member, place } => {
                self.on_postgres(member, |found| found.repository = Some(place.clone()));
            }
            Action::RestoreBackup { member, stamp, .. } => self.on_postgres(member, |found| {
                found.restored = Some(RestoreSeen { token: stamp.token.clone(), state: RestoreState::Ready });
            }),
            Action::UpgradeData { member, stamp, .. } | Action::TakeBack { member, stamp, .. } => {
                let back = matches!(action, Action::TakeBack { .. });
                self.on_postgres(member, |found| {
                    found.replaced = found.replaced.take().filter(|_| !back);
                    found.restored = Some(RestoreSeen { token: stamp.token.clone(), state: RestoreState::Ready });
                });
            }
            Action::DiscardReplaced { member, .. } => self.on_postgres(member, |found| found.replaced = None),
            Action::RehearseUpgrade { member, id, .. } | Action::AnalyzePostgres { member, id } => {
                self.on_postgres(member, |found| {
                    found.task = Some(TaskSeen { id: id.clone(), state: RestoreState::Ready, seconds: Some(1) });
                });
            }
            Action::PutRestored { member, stamp, .. } => self.on_postgres(member, |found| {
                keep(found);
                (found.control, found.repository) = (Some(control(DataState::ShutDown)), None);
                (found.data, found.last_started, found.restored) = (DataSeen::Stamped(stamp.clone()), None, None);
                found.system_id = Some(String::from("1"));
            }),
            Action::SetAside { member, .. } => self.on_postgres(member, |found| {
                keep(found);
                (found.control, found.repository) = (None, None);
                (found.data, found.last_started, found.system_id) = (DataSeen::Empty, None, None);
            }),
            Action::RestartPostgres { member } => self.on_postgres(member, |found| {
                let installed = found.other_release().map(|(_, installed)| installed.to_owned());
                let Some(status) = &mut found.status else { return };
                status.pending_restart = false;
                status.pending.clear();
                status.server_version = installed.or_else(|| status.server_version.take());
            }),
            Action::Switchover { member, to } => {
                let config = self.config_in_dcs();
                self.on_status(member, |status| (status.role, status.streaming) = (Role::Replica, true));
                self.on_status(to, |status| (status.role, status.config) = (Role::Primary, config));
            }
            Action::LetTakeOver { member, .. } => {
                for other in self.names() {
                    self.on_status(&other, |status| (status.held, status.streaming) = (None, true));
                }
                self.on_status(member, |status| (status.role, status.streaming) = (Role::Primary, false));
            }
            Action::ConfigurePatroni { config, .. } => {
                let version = desired.postgres().form_with.version.parse().unwrap_or_default();
                for member in self.names() {
                    self.on_status(&member, |status| {
                        let before = status.config.replace(config.clone());
                        // The first configuration is the one that they were started with.
                        let pending = before.map(|before| parameters::restarts(version, &before, config));
                        status.pending.extend(pending.unwrap_or_default());
                        status.pending_restart |= !status.pending.is_empty();
                    });
                    self.on_postgres(&member, |found| found.applied = Some(config.clone()));
                }
            }
            Action::Catalog { member, op } => self.on_postgres(member, |found| {
                change(found.catalog.get_or_insert_default(), desired.postgres(), op);
            }),
            _ => {}
        }
        self.connect(desired);
    }

    /// Every standby that runs streams from the primary, and Patroni chooses as many as commits wait for.
    fn connect(&mut self, desired: &Desired) {
        let status = |world: &World, member: &MemberName| {
            world.machines.get(member)?.facts()?.postgres.as_ref()?.status.as_ref().map(|status| status.role)
        };
        let incarnation = |member: &MemberName| desired.members.get(member).map_or(1, |wish| wish.incarnation);
        let roles: Vec<(MemberName, Role)> =
            self.names().into_iter().filter_map(|member| Some((member.clone(), status(self, &member)?))).collect();
        let needed = desired.postgres().synchronous.unwrap_or(0);
        let standbys =
            roles.iter().filter(|(_, role)| *role == Role::Replica).enumerate().map(|(number, (member, _))| {
                let name = desired.postgres().formation.patroni_name(member, incarnation(member));
                (name, Standby { state: String::from("streaming"), synchronous: number < needed })
            });
        let standbys: BTreeMap<String, Standby> = standbys.collect();
        for (member, _) in roles.iter().filter(|(_, role)| *role == Role::Primary) {
            self.on_status(member, |status| status.standbys.clone_from(&standbys));
        }
    }

    fn names(&self) -> Vec<MemberName> {
        self.machines.keys().cloned().collect()
    }

    fn on_postgres(&mut self, member: &MemberName, change: impl FnOnce(&mut PostgresFacts)) {
        self.on(member, |facts| {
            if let Some(found) = &mut facts.postgres {
                change(found);
            }
        });
    }

    fn on_status(&mut self, member: &MemberName, change: impl FnOnce(&mut PatroniStatus)) {
        self.on_postgres(member, |found| {
            if let Some(status) = &mut found.status {
                change(status);
            }
        });
    }

    fn config_in_dcs(&self) -> Option<String> {
        let statuses = self.machines.values().filter_map(|m| m.facts()?.postgres.as_ref()?.status.as_ref());
        statuses.filter_map(|status| status.config.clone()).next()
    }

    fn start_patroni(&mut self, member: &MemberName, digest: String, joins: Option<&Stamp>) {
        let config = self.config_in_dcs();
        self.on_postgres(member, |found| {
            if let Some(stamp) = joins {
                found.data = DataSeen::Stamped(stamp.clone());
                found.system_id = Some(String::from("1"));
            }
            if let DataSeen::Stamped(stamp) = &found.data {
                found.last_started = Some(stamp.clone());
            }
            found.service = running(digest);
            found.control = Some(control(DataState::InUse));
            found.catalog.get_or_insert_default();
            found.applied.clone_from(&config);
            found.status = Some(replica(found.system_id.clone(), config));
        });
        self.elect();
    }

    /// The first one that runs is the primary, as long as there is none.
    fn elect(&mut self) {
        let role = |world: &World, member: &MemberName| {
            Some(world.machines.get(member)?.facts()?.postgres.as_ref()?.status.as_ref()?.role)
        };
        let roles: Vec<(MemberName, Role)> =
            self.names().into_iter().filter_map(|member| Some((member.clone(), role(self, &member)?))).collect();
        if roles.iter().any(|(_, role)| *role == Role::Primary) {
            return;
        }
        if let Some((member, _)) = roles.first() {
            self.on_status(member, |status| (status.role, status.streaming) = (Role::Primary, false));
        }
    }
}

fn replica(system_id: Option<String>, config: Option<String>) -> PatroniStatus {
    PatroniStatus {
        role: Role::Replica,
        state: String::from("running"),
        streaming: true,
        timeline: Some(1),
        location: Some(1),
        replayed: Some(1),
        replayed_at: None,
        system_id,
        server_version: None,
        patroni_version: None,
        pending_restart: false,
        pending: BTreeMap::new(),
        paused: false,
        standbys: BTreeMap::new(),
        config,
        dcs: true,
        held: None,
    }
}

fn change(catalog: &mut Catalog, wish: &Wish, op: &CatalogOp) {
    match op {
        CatalogOp::SetUser { user } => {
            catalog.users.insert(user.clone(), wish.users.get(user).cloned());
        }
        CatalogOp::CreateDatabase { database, owner } | CatalogOp::SetOwner { database, owner } => {
            catalog.databases.insert(database.clone(), owner.clone());
        }
        CatalogOp::CreateExtension { database, extension } => {
            let extensions: &mut BTreeSet<String> = catalog.extensions.entry(database.clone()).or_default();
            extensions.insert(extension.clone());
        }
    }
}
