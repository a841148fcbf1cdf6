//! The effect of each action on the simulated cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};

use super::certificates::{certificate, take_up_trust, trusted};
use super::world::{SimMachine, World, running};
use crate::Secret;
use crate::kinds::etcd::simulate::SimListed;
use crate::kinds::etcd::{self, AuthLook, JwtKeys, OldEntries, Staged};
use crate::kinds::postgres::{self, DcsCertificate};
use crate::model::{
    AuthorityRecord, BackupSigning, BinarySeen, CertificateUse, Data, DataSeen, Desired, Facts, FixtureId, FixtureKind,
    FixtureSeen, MemberName, PackagesSeen, Plane, PowerState, SecretKind, Seen, ServiceState, Stamp,
};
use crate::planner::{Action, remember};
use crate::providers::MachineKind;
use crate::spec::Signer;

/// The name of a load balancer that does not exist yet.
const IMAGINED_NAME: &str = "the name of the load balancer";

impl World {
    /// Carries out one action as a healthy cluster would.
    pub fn perform(&mut self, desired: &Desired, action: &Action) {
        remember::before(&mut self.ledger, desired, action, self.now);
        if let Action::InstallCertificates { member, uses } = action {
            self.record_leaves(desired, member, uses);
        }
        self.effect(desired, action);
        remember::after(&mut self.ledger, desired, action, self.now);
        self.look_again();
    }

    /// The changes that a new observation shows: time has passed, machines have the ledger's current names, and members that all
    /// run a newer version have raised the cluster version.
    pub fn look_again(&mut self) {
        if let Some(changed) = self.ledger.etcd.last_change.filter(|at| *at >= self.now) {
            self.now = changed + SignedDuration::from_secs(1);
        }
        let wanted = |member: &MemberName| self.ledger.members.get(member).map_or(1, |r| r.incarnation.max(1));
        let machines = std::mem::take(&mut self.machines);
        self.machines = machines
            .into_iter()
            .filter_map(|(name, machine)| {
                let seat = MemberName::from(name.seat());
                let incarnation = machine.seen.incarnation;
                let current = incarnation == wanted(&seat) || machine.seen.cluster_id != self.ledger.cluster_id;
                // Of machines that its provider cannot look at, only those that members have are known of.
                let is_shown = current || machine.seen.power != PowerState::Unknown;
                is_shown.then(|| (if current { seat } else { seat.former(incarnation) }, machine))
            })
            .collect();
        remember::note_fixtures(&mut self.ledger, self.fixtures.get().into_iter().flatten());
        remember::note_proxies(&mut self.ledger, self.machines.iter().map(|(name, machine)| (name, &machine.seen)));
        self.agree();
    }

    /// The effect of the action on the machines; `remember` has the ledger's part.
    pub fn effect(&mut self, desired: &Desired, action: &Action) {
        match action {
            Action::MakeSecrets { kinds } => {
                let shared = self.ledger.authorities.client.clone();
                kinds.iter().for_each(|kind| self.make_secret(desired, *kind, shared.as_ref()));
            }
            Action::CreateMachine { member, incarnation, data } => self.create(desired, member, *incarnation, *data),
            Action::StartMachine { member } => self.start(desired, member),
            Action::StopMachine { member } => {
                self.touched = true;
                self.power(member, PowerState::Off);
            }
            Action::DestroyMachine { member, data } => {
                self.touched = true;
                if *data == Data::Stays {
                    self.keep(member);
                }
                self.machines.remove(member);
            }
            Action::Enrol { member } => self.enrol(desired, member),
            Action::InstallCertificates { member, uses } => self.install(desired, member, uses),
            Action::UpgradeAgent { member, to, .. } => self.upgrade_agent(desired, member, to),
            Action::PushConfig { member, generation } => self.push(desired, member, *generation),
            Action::StartEtcd { member, bootstrap } => self.start_etcd(desired, member, bootstrap.as_ref()),
            Action::RestartEtcd { member } => self.start_etcd(desired, member, None),
            Action::RebootMachine { member, boot, upgrade_packages } => {
                self.reboot(desired, member, boot, *upgrade_packages)
            }
            Action::TakeRaftSnapshot { member } => {
                self.touched = true;
                self.machines.get_mut(member).into_iter().for_each(|machine| machine.hangs = false);
                self.on(member, |facts| {
                    if let OldEntries::Until { index, snapshot, due } = &mut facts.etcd.old_entries {
                        (*snapshot, *due) = (*index + 1, true);
                    }
                });
            }
            Action::StopEtcd { member } => {
                let log = self.log_end(member);
                self.touched = true;
                self.on(member, |facts| {
                    facts.etcd.service = ServiceState::Stopped;
                    facts.etcd.peer_serving = false;
                    facts.etcd.log = Some(log);
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
            Action::StageSnapshot { member, sha256, bytes } => self.on(member, |facts| {
                facts.etcd.staged = Some(Staged { sha256: sha256.clone(), bytes: *bytes });
            }),
            Action::DropSnapshot { member } => self.on(member, |facts| facts.etcd.staged = None),
            Action::RestoreData { member, stamp, .. } => self.restore_data(desired, member, stamp),
            Action::RecordFormed { .. } => {
                self.touched = true;
                self.listed = self.as_recorded();
            }
            Action::Auth { op, .. } => {
                self.touched = true;
                if let AuthLook::Seen(auth) = &mut self.auth {
                    etcd::simulate::auth::change(auth, op);
                }
            }
            Action::PutFixture { fixture, leads_to, .. } => self.put_fixture(desired, fixture, leads_to),
            Action::DropFixture { fixture } => {
                if let Seen::At(_, fixtures) = &mut self.fixtures {
                    fixtures.retain(|there| there.id != *fixture);
                }
            }
            Action::RecordForming { .. }
            | Action::AbandonFormation { .. }
            | Action::RecordReplacement { .. }
            | Action::RecordRenewal { .. }
            | Action::RecordRecovery { .. }
            | Action::VerifySnapshot { .. }
            | Action::RecordRestoring { .. }
            | Action::RecordSigner { .. }
            | Action::RecordDistrust { .. }
            | Action::ForgetCluster => {}
            Action::RevokeUser { .. } | Action::RevokeMachine { .. } => self.make_lists(),
            Action::RecordInitializing { .. }
            | Action::RecordInitialized { .. }
            | Action::RecordRotation { .. }
            | Action::RecordUpgrading { .. }
            | Action::AbandonUpgrade { .. }
            | Action::RecordAnalyzed
            | Action::RecordDiscarded
            | Action::InitializePostgres { .. }
            | Action::StartPatroni { .. }
            | Action::StopPatroni { .. }
            | Action::RestartPatroni { .. }
            | Action::JoinPostgres { .. }
            | Action::RecordLeft { .. }
            | Action::WipePostgres { .. }
            | Action::PrepareRepository { .. }
            | Action::RestoreBackup { .. }
            | Action::RehearseUpgrade { .. }
            | Action::UpgradeData { .. }
            | Action::AnalyzePostgres { .. }
            | Action::TakeBack { .. }
            | Action::DiscardReplaced { .. }
            | Action::PutRestored { .. }
            | Action::SetAside { .. }
            | Action::RestartPostgres { .. }
            | Action::Switchover { .. }
            | Action::LetTakeOver { .. }
            | Action::ConfigurePatroni { .. }
            | Action::Catalog { .. } => self.effect_on_postgres(desired, action),
        }
    }

    /// It serves at once, and a load balancer has a name of its provider's choice.
    fn put_fixture(&mut self, desired: &Desired, id: &FixtureId, leads_to: &BTreeMap<MemberName, IpAddr>) {
        let Some(wish) = desired.fixtures.iter().find(|wish| wish.id == *id) else { return };
        let is_balancer = id.kind == FixtureKind::LoadBalancer;
        let has_name = |member: &MemberName| Some(member.clone()).filter(|_| !is_balancer);
        let known = self.fixtures.get().into_iter().flatten().find(|there| there.id == *id && !there.names.is_empty());
        let imagined = || is_balancer.then(|| String::from(IMAGINED_NAME)).into_iter().collect();
        let names = known.map_or_else(imagined, |there| there.names.clone());
        let made = FixtureSeen {
            id: id.clone(),
            is_ours: true,
            obstacle: None,
            fixed: wish.fixed.clone(),
            leads_to: leads_to.iter().map(|(member, address)| (*address, has_name(member))).collect(),
            to_balancer: wish.to_balancer,
            names,
            fault: None,
            pending: None,
        };
        if let Seen::At(_, fixtures) = &mut self.fixtures {
            fixtures.retain(|there| there.id != *id);
            fixtures.push(made);
        }
    }

    /// `shared` is the CA that peers share with clients, in a cluster that was created so.
    fn make_secret(&mut self, desired: &Desired, kind: SecretKind, shared: Option<&AuthorityRecord>) {
        let authority = |key_id: &str| AuthorityRecord {
            epoch: 1,
            // A bundle with one more CA must differ from the previous one.
            certificate: format!("{key_id}\n"),
            key: Some(Secret::new("")),
            key_id: key_id.to_owned(),
            not_after: Timestamp::MAX,
        };
        match kind {
            SecretKind::ClientAuthority => {
                let brought = desired.certificates.brought_authority.as_deref();
                self.ledger.authorities.client = Some(authority(brought.unwrap_or("etcd")));
            }
            SecretKind::PeerAuthority => {
                let own = authority("peer");
                self.ledger.authorities.peer = Some(match shared {
                    Some(shared) => Plane::new(shared.clone()).and_trusts(own),
                    None => Plane::new(own),
                });
            }
            SecretKind::ControlAuthority => self.ledger.authorities.control = Some(authority("control")),
            SecretKind::Revocations => self.make_lists(),
            SecretKind::RootPassword => self.ledger.etcd.auth.root_password = Some(Secret::new("")),
            SecretKind::JwtKeys => {
                self.ledger.etcd.auth.jwt = Some(JwtKeys { private: Secret::new(""), public: String::new() });
            }
            SecretKind::PostgresPasswords => self.make_postgres_passwords(desired),
            SecretKind::PatroniCertificates => {
                let signer = self.ledger.authorities.client.as_ref().map(|clients| clients.key_id.clone());
                let certificate = DcsCertificate {
                    chain: String::new(),
                    key: Secret::new(""),
                    authority_key_id: signer.unwrap_or_default(),
                    not_before: self.now,
                    not_after: Timestamp::MAX,
                };
                let users = self.ledger.etcd.used_by.values_mut();
                users.for_each(|used| used.certificate = Some(certificate.clone()));
            }
            SecretKind::BackupSigning => {
                let (key, public) = (Secret::new(""), Signer::new([0; 32]));
                self.ledger.backup_signing = Some(BackupSigning { key, public, since: self.now });
            }
        }
    }

    /// Users and roles come back with the data; what is in it is not known before, so they are assumed to be as wished.
    fn restore_data(&mut self, desired: &Desired, member: &MemberName, stamp: &Stamp) {
        self.touched = true;
        (self.agreed, self.going_down) = (None, None);
        if let Some(wish) = &desired.etcd.auth {
            self.auth = AuthLook::Seen(etcd::simulate::auth::as_wished(wish));
        }
        self.on(member, |facts| {
            facts.etcd.data = DataSeen::Stamped(stamp.clone());
            facts.etcd.last_started = Some(stamp.clone());
            (facts.etcd.log, facts.etcd.log_damage, facts.etcd.older) = (None, None, None);
        });
    }

    /// Users and roles of a formed cluster that could not be asked: taken to be as they were left, that is, as wished.
    pub(super) fn remember_auth(&mut self, desired: &Desired) {
        if let (AuthLook::NotAsked, Some(wish)) = (&self.auth, &desired.etcd.auth) {
            self.auth = AuthLook::Seen(etcd::simulate::auth::as_wished(wish));
        }
    }

    fn install(&mut self, desired: &Desired, member: &MemberName, uses: &BTreeSet<CertificateUse>) {
        let Some(machine) = self.machines.get(member) else { return };
        let made: Vec<_> = uses.iter().map(|of| (*of, certificate(desired, self.now, member, machine, *of))).collect();
        self.on(member, |facts| facts.certificates.extend(made));
    }

    fn push(&mut self, desired: &Desired, member: &MemberName, generation: u64) {
        let Some(wish) = desired.machine(member) else { return };
        if desired.proxies.contains_key(member) {
            let services = wish.config.services.iter().map(|service| (service.name.clone(), running(String::new())));
            let (digest, services) = (wish.digest.clone(), services.collect());
            return self.on(member, |facts| {
                (facts.node_config, facts.services) = (Some((generation, digest)), services);
            });
        }
        let (digest, version) = (wish.digest.clone(), wish.etcd_version.clone());
        self.on(member, |facts| {
            facts.node_config = Some((generation, digest));
            facts.etcd.binary = BinarySeen::Version(version);
            if let Some(wish) = &desired.postgres {
                let found = facts.postgres.get_or_insert_with(|| Box::new(postgres::simulate::blank(wish)));
                if desired.machines == MachineKind::Process {
                    postgres::simulate::find_programs(found, wish);
                }
                found.rotation = wish.rotation.as_ref().and_then(|rotation| rotation.mark.clone());
            }
            for (plane, trust) in trusted(desired) {
                facts.etcd.trust.entry(plane).or_default().on_disk = trust.on_disk;
            }
        });
    }

    fn start_etcd(&mut self, desired: &Desired, member: &MemberName, bootstrap: Option<&Stamp>) {
        self.touched = true;
        self.remember_auth(desired);
        let wish = desired.members.get(member);
        let digest = wish.map(|m| m.service_digest.clone()).unwrap_or_default();
        if let Some(machine) = self.machines.get_mut(member) {
            machine.hangs = false;
            if let Some(wish) = wish {
                self.versions.insert(machine.peer_url(), wish.etcd_version.clone());
            }
        }
        self.on(member, |facts| {
            facts.etcd.service = running(digest);
            facts.etcd.peer_serving = true;
            take_up_trust(facts);
            if let Some(stamp) = bootstrap {
                facts.etcd.data = DataSeen::Stamped(stamp.clone());
            }
            if let DataSeen::Stamped(stamp) = &facts.etcd.data {
                facts.etcd.last_started = Some(stamp.clone());
            }
        });
    }

    /// What it ran starts together with its machine.
    fn reboot(&mut self, desired: &Desired, member: &MemberName, boot: &str, upgrade_packages: bool) {
        match desired.postgres {
            _ if desired.is_proxy(member) => {}
            None => self.start_etcd(desired, member, None),
            Some(_) => self.effect_on_postgres(desired, &Action::RestartPatroni { member: member.clone() }),
        }
        self.on(member, |facts| {
            facts.host.boot = Some(next_boot(boot));
            if upgrade_packages {
                facts.host.packages = Some(PackagesSeen { boot: boot.to_owned(), summary: String::from("upgraded") });
            }
        });
    }

    /// An etcd that comes up by itself has the version of the program on its disk.
    pub fn take_up_program(&mut self, member: &MemberName) {
        let Some(machine) = self.machines.get(member) else { return };
        if let Some(version) = machine.facts().and_then(Facts::version_there) {
            self.versions.insert(machine.peer_url(), version);
        }
    }

    pub(crate) fn on(&mut self, member: &MemberName, change: impl FnOnce(&mut Facts)) {
        if let Some(facts) = self.machines.get_mut(member).and_then(SimMachine::facts_mut) {
            change(facts);
        }
    }
}

/// Boots are counted here.
fn next_boot(boot: &str) -> String {
    boot.parse().map_or_else(|_| format!("after {boot}"), |number: u64| number.saturating_add(1).to_string())
}
