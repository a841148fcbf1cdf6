//! Acting: first the ledger records what it must know. Then the steps of each machine run in order, machines in parallel. Then the
//! ledger records the results. Each step is tried once; after a failure, the next observation decides again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use quorate_agent::api::{Bootstrap, Envelope, EtcdOrder, Order};
use quorate_core::Secret;
use quorate_core::kinds::etcd::AuthOp;
use quorate_core::kinds::postgres::DcsUser;
use quorate_core::model::{Data, DataSeen, Desired, Enrolment, Ledger, MachineId, MemberName, NodeConfig, Observation};
use quorate_core::planner::{Action, Step, remember};
use quorate_core::providers::MachineKind;
use quorate_providers::NewMachine;

use crate::kinds::etcd::front;
use crate::kinds::etcd::orders::membership;
use crate::kinds::{etcd, postgres};
use crate::run::certificates::{Answers, Signed};
use crate::run::controller::Controller;
use crate::run::error::ControlError;
use crate::run::event::{Event, Reporter};
use crate::secrets;

/// How long a new machine has to come up and enrol.
const ENROLMENT_TIME: SignedDuration = SignedDuration::from_hours(1);
/// The time limit for notifying a front about a member that is about to be stopped.
const TELLING: Duration = Duration::from_secs(3);
/// How long a member still runs after a front was notified. Fronts look for it every 100 ms; until then they open connections to it.
const NOTICED: Duration = Duration::from_millis(300);

impl Controller {
    /// Carries out the steps of one decision.
    pub(crate) async fn act(
        &self,
        desired: &Desired,
        seen: &Observation,
        steps: &[Step],
        reporter: &dyn Reporter,
    ) -> Result<(), ControlError> {
        // Ledger-only steps are done by writing it.
        let of_the_ledger = || steps.iter().filter(|s| s.action.is_recorded());
        of_the_ledger().for_each(|step| reporter.report(Event::Begins(step)));
        self.remember_before(desired, steps)?;
        of_the_ledger().for_each(|step| reporter.report(Event::Done(step)));
        let answers = self.enrolments(steps).await?;
        let signed = self.sign(desired, seen, steps, &answers)?;
        // The controller's own steps come first, so that their errors do.
        let mut by_place: BTreeMap<Option<&MemberName>, Vec<&Step>> = BTreeMap::new();
        for step in steps.iter().filter(|s| !s.action.is_recorded()) {
            by_place.entry(step.action.member()).or_default().push(step);
        }
        let (answers, signed) = (&answers, &signed);
        let lines = by_place.into_values().map(async |steps| {
            let mut done = Vec::new();
            for step in steps {
                reporter.report(Event::Begins(step));
                let draining = self.drain(step, Some(front::LONGEST_HINT)).await;
                let performed = self.perform(desired, seen, step, answers, signed).await;
                if draining {
                    self.drain(step, None).await;
                }
                if let Err(source) = performed {
                    let action = step.action.to_string();
                    let error = ControlError::Step { action, source: Box::new(source) };
                    reporter.report(Event::Failed(step, &error));
                    return (done, Some(error));
                }
                reporter.report(Event::Done(step));
                done.push(step);
            }
            (done, None)
        });
        let ended = join_all(lines).await;
        self.remember_after(desired, ended.iter().flat_map(|(done, _)| done.iter().copied()))?;
        ended.into_iter().find_map(|(_, error)| error).map_or(Ok(()), Err)
    }

    fn remember_before(&self, desired: &Desired, steps: &[Step]) -> Result<(), ControlError> {
        let now = Timestamp::now();
        let mut ledger = Ledger::clone(&self.held.ledger());
        let mut changed = false;
        for step in steps {
            changed |= remember::before(&mut ledger, desired, &step.action, now);
            match &step.action {
                Action::MakeSecrets { kinds } => {
                    let spec = ledger.spec.clone();
                    secrets::make(&mut ledger, kinds, &spec, &self.brought, now)?;
                    changed = true;
                }
                Action::CreateMachine { member, .. } => {
                    let record = ledger.members.entry(member.clone()).or_default();
                    record.enrolment = Some(enrolment(record.enrolment.take(), now));
                }
                _ => {}
            }
        }
        if steps.iter().any(|s| matches!(s.action, Action::RevokeUser { .. } | Action::RevokeMachine { .. })) {
            secrets::sign_lists(&mut ledger, now)?;
        }
        if changed {
            self.held.write(now, |l| *l = Ledger { lock: l.lock.clone(), ..ledger })?;
        }
        Ok(())
    }

    fn remember_after<'a>(&self, desired: &Desired, steps: impl Iterator<Item = &'a Step>) -> Result<(), ControlError> {
        let now = Timestamp::now();
        let mut ledger = Ledger::clone(&self.held.ledger());
        let changed = steps.fold(false, |changed, s| remember::after(&mut ledger, desired, &s.action, now) | changed);
        if changed {
            self.held.write(now, |l| *l = Ledger { lock: l.lock.clone(), ..ledger })?;
        }
        Ok(())
    }

    async fn perform(
        &self,
        desired: &Desired,
        seen: &Observation,
        step: &Step,
        answers: &Answers,
        signed: &Signed,
    ) -> Result<(), ControlError> {
        if is_for_the_provider(&step.action) {
            // Providers have no fencing.
            self.held.confirm(Timestamp::now())?;
        }
        match &step.action {
            Action::CreateMachine { member, incarnation, data } => {
                let made = self.create(desired, member, *incarnation, *data).await;
                // A failure may be caused by another controller that has removed this one's drafts.
                if let Err(error) = &made {
                    self.held.confirm(Timestamp::now())?;
                    // The next decision may remove a former machine first.
                    let told = error.no_room().map(|why| (member.clone(), why));
                    self.no_room.borrow_mut().extend(told);
                }
                made
            }
            Action::StartMachine { member } => Ok(self.sight.provider().start(&machine_of(seen, member)).await?),
            Action::StopMachine { member } => Ok(self.sight.provider().stop(&machine_of(seen, member)).await?),
            Action::DestroyMachine { member, data } => {
                Ok(self.sight.provider().destroy(&machine_of(seen, member), *data).await?)
            }
            Action::PutFixture { fixture, leads_to, .. } => {
                Ok(self.sight.provider().put_fixture(fixture, leads_to).await?)
            }
            Action::DropFixture { fixture } => Ok(self.sight.provider().drop_fixture(fixture).await?),
            Action::Enrol { member } => self.enrol(member, answers).await,
            Action::InstallCertificates { member, .. } => {
                let unsigned = || format!("nothing was signed for {member}");
                let order = signed.get(member).cloned().unwrap_or_else(|| Err(unsigned()));
                self.order(member, order.map_err(ControlError::Enrolment)?).await
            }
            Action::UpgradeAgent { member, .. } => self.upgrade_agent(member).await,
            Action::PushConfig { member, generation } => {
                let Some(wish) = desired.machine(member) else { return Ok(()) };
                // Local agents are processes of this machine, and live for long: what they were started with may be out of date.
                let is_local = self.held.ledger().spec.provider.settings().machines() == MachineKind::Process;
                let search = is_local.then(|| std::env::var("PATH").ok()).flatten();
                let order = Order::converge(*generation, NodeConfig::clone(&wish.config), search);
                self.order(member, order).await
            }
            Action::StartEtcd { member, bootstrap } => {
                let order = etcd::orders::start(&self.held.ledger(), member, &step.expects, bootstrap.as_ref());
                self.order(member, order).await
            }
            Action::StopEtcd { member } => self.order(member, etcd::orders::stop(&desired.etcd.formation)).await,
            Action::RestartEtcd { member } => self.order(member, Order::Etcd(EtcdOrder::Restart)).await,
            Action::RebootMachine { member, boot, upgrade_packages } => {
                let order = Order::Reboot { boot: boot.clone(), upgrade_packages: *upgrade_packages };
                self.order(member, order).await
            }
            Action::TakeRaftSnapshot { member } => self.order(member, Order::Etcd(EtcdOrder::TakeRaftSnapshot)).await,
            Action::WipeData { member, stamp } => {
                self.order(member, Order::Etcd(EtcdOrder::WipeData { stamp: stamp.clone() })).await
            }
            Action::MoveLeader { member, to_id, .. } => {
                self.order(member, Order::Etcd(EtcdOrder::MoveLeader { to: *to_id })).await
            }
            Action::Auth { member, op } => {
                let order = Order::Etcd(EtcdOrder::Auth { op: op.clone(), password: self.password(op) });
                self.order(member, order).await
            }
            Action::AddLearner { through, joining, .. } => {
                let peer_url = joining.peer_url.clone();
                self.order(through, Order::Etcd(EtcdOrder::AddLearner { expects: membership(&step.expects), peer_url }))
                    .await
            }
            Action::JoinEtcd { member, stamp, initial_cluster } => {
                let initial_cluster = initial_cluster.clone();
                let bootstrap = Some(Bootstrap { stamp: stamp.clone(), initial_cluster, existing: true });
                self.order(
                    member,
                    Order::Etcd(EtcdOrder::Start { expects: DataSeen::Empty, bootstrap, peers: BTreeSet::new() }),
                )
                .await
            }
            Action::Promote { through, id, .. } => {
                self.order(through, Order::Etcd(EtcdOrder::Promote { expects: membership(&step.expects), id: *id }))
                    .await
            }
            Action::RemoveMember { through, id, .. } => {
                self.order(
                    through,
                    Order::Etcd(EtcdOrder::RemoveMember { expects: membership(&step.expects), id: *id }),
                )
                .await
            }
            Action::EnableDowngrade { through, version } => {
                self.order(through, Order::Etcd(EtcdOrder::Downgrade { version: version.clone() })).await
            }
            Action::CancelDowngrade { through } => self.order(through, Order::Etcd(EtcdOrder::CancelDowngrade)).await,
            Action::Rebuild { member, was, stamp, peer_url, bump_revision } => {
                let (was, stamp, peer_url) = (was.clone(), stamp.clone(), peer_url.clone());
                self.order(
                    member,
                    Order::Etcd(EtcdOrder::Rebuild { was, stamp, peer_url, bump_revision: *bump_revision }),
                )
                .await
            }
            Action::StageSnapshot { member, sha256, bytes } => self.stage(member, sha256, *bytes).await,
            Action::VerifySnapshot { sha256, bump_revision } => self.verify_snapshot(sha256, *bump_revision).await,
            Action::DropSnapshot { member } => self.order(member, Order::Etcd(EtcdOrder::DropStaged)).await,
            Action::RestoreData { member, was, stamp, initial_cluster, peer_url, sha256, bump_revision } => {
                let order = Order::Etcd(EtcdOrder::RestoreData {
                    was: was.clone(),
                    stamp: stamp.clone(),
                    initial_cluster: initial_cluster.clone(),
                    peer_url: peer_url.clone(),
                    sha256: sha256.clone(),
                    bump_revision: *bump_revision,
                });
                self.order(member, order).await
            }
            Action::InitializePostgres { member, .. }
            | Action::StartPatroni { member }
            | Action::StopPatroni { member }
            | Action::RestartPatroni { member }
            | Action::JoinPostgres { member, .. }
            | Action::WipePostgres { member, .. }
            | Action::PrepareRepository { member, .. }
            | Action::RestoreBackup { member, .. }
            | Action::RehearseUpgrade { member, .. }
            | Action::UpgradeData { member, .. }
            | Action::AnalyzePostgres { member, .. }
            | Action::TakeBack { member, .. }
            | Action::DiscardReplaced { member, .. }
            | Action::PutRestored { member, .. }
            | Action::SetAside { member, .. }
            | Action::RestartPostgres { member }
            | Action::LetTakeOver { member, .. }
            | Action::ConfigurePatroni { member, .. }
            | Action::Catalog { member, .. } => match postgres::orders::order(&self.held.ledger(), step) {
                Some(order) => self.order(member, order).await,
                None => Ok(()),
            },
            Action::Switchover { member, to } => self.switch_over(step, member, to).await,
            Action::RecordInitializing { .. }
            | Action::RecordInitialized { .. }
            | Action::RecordRotation { .. }
            | Action::RecordUpgrading { .. }
            | Action::AbandonUpgrade { .. }
            | Action::RecordAnalyzed
            | Action::RecordDiscarded
            | Action::RecordLeft { .. } => Ok(()),
            Action::MakeSecrets { .. }
            | Action::RecordReplacement { .. }
            | Action::RecordRenewal { .. }
            | Action::RecordRecovery { .. }
            | Action::RecordRestoring { .. }
            | Action::RecordForming { .. }
            | Action::AbandonFormation { .. }
            | Action::RecordFormed { .. }
            | Action::RecordSigner { .. }
            | Action::RecordDistrust { .. }
            | Action::RevokeUser { .. }
            | Action::RevokeMachine { .. }
            | Action::ForgetCluster => Ok(()),
        }
    }

    /// Stops every front from opening connections to a member that this step stops, for at most this time; or allows them again. Returns
    /// whether there was a front to notify. One that cannot be notified relies on its probe.
    async fn drain(&self, step: &Step, time: Option<SignedDuration>) -> bool {
        let ledger = self.held.ledger();
        let Some((member, fronts)) = front::to_be_told(&ledger, &step.action) else { return false };
        let for_ms = time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or_default());
        let order = Order::Drain { member: member.clone(), for_ms };
        let there = fronts.iter().filter(|front| self.sight.agent(front).is_some());
        let told = join_all(there.map(|front| tokio::time::timeout(TELLING, self.order(front, order.clone())))).await;
        if time.is_some() && told.iter().any(|told| matches!(told, Ok(Ok(())))) {
            tokio::time::sleep(NOTICED).await;
        }
        !told.is_empty()
    }

    /// With HAProxy, new clients wait in its queue while the primary changes. One that cannot be notified relies on its health checks.
    /// Failed orders do not matter: agents release clients by themselves, and repeat an unconfirmed release.
    async fn switch_over(&self, step: &Step, member: &MemberName, to: &MemberName) -> Result<(), ControlError> {
        let ledger = self.held.ledger();
        let Some(order) = postgres::orders::order(&ledger, step) else { return Ok(()) };
        let Some((proxies, hold, release)) = postgres::orders::holding(&ledger, member, to) else {
            return self.order(member, order).await;
        };
        let tell = async |order: &Order| {
            let there = proxies.iter().filter(|proxy| self.sight.agent(proxy).is_some());
            join_all(there.map(|proxy| self.order(proxy, order.clone()))).await;
        };
        tell(&hold).await;
        let switched = self.order(member, order).await;
        let is_promoted = match (&switched, self.sight.agent(to)) {
            (Ok(()), Some(agent)) => postgres::orders::is_promoted(agent, self.held.fence()).await,
            _ => false,
        };
        tell(&release(is_promoted)).await;
        switched
    }

    async fn order(&self, member: &MemberName, order: Order) -> Result<(), ControlError> {
        let envelope = Envelope { fence: self.held.fence(), order };
        Ok(self.agent(member)?.order(&envelope).await?)
    }

    pub(crate) fn agent(&self, member: &MemberName) -> Result<&quorate_agent::client::AgentClient, ControlError> {
        let unseen = || ControlError::Enrolment(format!("the agent of {member} was not seen"));
        self.sight.agent(member).ok_or_else(unseen)
    }

    async fn create(
        &self,
        desired: &Desired,
        member: &MemberName,
        incarnation: u64,
        data: Data,
    ) -> Result<(), ControlError> {
        let ledger = self.held.ledger();
        let (Some(wish), Some(record)) = (desired.machine(member), ledger.members.get(member)) else {
            return Ok(());
        };
        let (Some(enrolment), Some(control)) = (&record.enrolment, &ledger.authorities.control) else { return Ok(()) };
        // A member that keeps its membership is at the address where the others know it.
        let known = desired.joined(member).filter(|_| data == Data::Stays);
        let address = known.and_then(|known| known.address).or(wish.address);
        let machine = ledger.spec.machine_name(member.seat(), incarnation);
        let new = NewMachine {
            name: &machine,
            id: MachineId::new(member, incarnation),
            address,
            data,
            fence: self.held.fence(),
            control_ca: &control.certificate,
            token: &enrolment.token,
            token_expires: enrolment.expires,
        };
        Ok(self.sight.provider().create(&new).await?)
    }

    fn password(&self, op: &AuthOp) -> Option<Secret> {
        let (AuthOp::AddUser { user } | AuthOp::SetPassword { user }) = op else { return None };
        if user == "root" {
            return self.held.ledger().etcd.auth.root_password.clone();
        }
        let ledger = self.held.ledger();
        let mut logins = ledger.etcd.used_by.values().flat_map(DcsUser::logins);
        let of_patroni = logins.find(|(name, _)| *name == user).map(|(_, password)| password.clone());
        of_patroni.or_else(|| self.brought.passwords.get(user).cloned())
    }
}

/// The token of a new machine. An unused token is used again: an earlier attempt may have created the machine after all, and it knows
/// no other.
fn enrolment(known: Option<Enrolment>, now: Timestamp) -> Enrolment {
    let has_time = |known: &Enrolment| known.expires.duration_since(now) > ENROLMENT_TIME / 2;
    let fresh = || Enrolment { token: quorate_pki::random_token(), expires: now + ENROLMENT_TIME, bound_key: None };
    known.filter(|known| known.bound_key.is_none() && has_time(known)).unwrap_or_else(fresh)
}

/// The machine as the provider knows it.
fn machine_of(seen: &Observation, member: &MemberName) -> MachineId {
    let machine = seen.machines.get().and_then(|machines| machines.get(member));
    MachineId::new(member, machine.map_or(1, |m| m.incarnation))
}

fn is_for_the_provider(action: &Action) -> bool {
    use Action::{CreateMachine, DestroyMachine, DropFixture, PutFixture, StartMachine, StopMachine};
    let is_machine =
        matches!(action, CreateMachine { .. } | StartMachine { .. } | StopMachine { .. } | DestroyMachine { .. });
    is_machine || matches!(action, PutFixture { .. } | DropFixture { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_token_is_reused_while_there_is_time() {
        let now = Timestamp::now();
        let first = enrolment(None, now);
        assert_eq!(enrolment(Some(first.clone()), now + SignedDuration::from_mins(20)), first);
        let late = enrolment(Some(first.clone()), now + SignedDuration::from_mins(40));
        assert_ne!(late.token, first.token);
        let bound = Enrolment { bound_key: Some(String::from("key")), ..first.clone() };
        assert_ne!(enrolment(Some(bound), now).token, first.token);
    }
}
