//! The history that the properties need, and what must never happen.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::kinds::etcd::Formation;
use quorate_core::model::{Data, Desired, MemberName, PowerState, ServiceState};
use quorate_core::planner::simulate::World;
use quorate_core::planner::{Action, Step};

use crate::agent;
use crate::deeds::is_order;
use crate::etcd::{Voters, is_kept, is_restarting, machine_of, peers_refuse_each_other, runs, url_of};

#[derive(Clone, PartialEq, Debug, Default, Hash)]
pub struct Past {
    pub formations: u8,
    /// Who was told `new`, under which token.
    pub told_new: BTreeSet<(String, MemberName)>,
    /// The machines with which each formation began.
    pub began: BTreeMap<String, BTreeMap<MemberName, String>>,
    /// Formations that a client has written to.
    pub written: BTreeSet<String>,
    /// A restore was recorded.
    pub restoring: bool,
    /// Faults alone took the data from a majority.
    pub majority_lost: bool,
    pub wrongs: BTreeSet<Wrong>,
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wrong {
    /// A member began as `new` twice under the ledger's token: it forgot its votes. Where the ledger has continued to another,
    /// no client will ever write to what this begins, and it is cleared away.
    NewTwice,
    /// `new` was said on a machine that the formation did not begin with.
    NewElsewhere,
    NewAfterFormed,
    WipedAfterFormed,
    WroteBeforeFormed,
    OlderFenceObeyed,
    /// Something was decided on facts that do not show what an order under way changes.
    DecidedTooEarly,
    /// The machine of somebody who is a member.
    MemberDestroyed,
    TwoChanges,
    UnguardedChange,
    ChangedOnAnOldList,
    ChangedAmongStrangers,
    TwoLearners,
    JoinedBesideTheUnwell,
    PromotedWhoDoesNotRun,
    VoterWithoutLearning,
    QuorumGivenAway,
    TwoDisturbances,
    LeaderDisturbed,
    GivenUpTooEarly,
    RecoveredWithoutNeed,
    /// The operator was told that the majority is lost, and it was not.
    FalselyLost,
    DataLost,
    /// What was is given up before all have what comes after it.
    GivenUpBeforeStaged,
    /// The same, before the snapshot was verified.
    GivenUpBeforeVerified,
    /// A snapshot is removed that a restore still needs.
    DroppedWhileNeeded,
    /// Restored data is started before all hold theirs.
    StartedBeforeAllHold,
    /// Members run on old and new data at once.
    OldAndNew,
    /// A machine goes and its data stays, and the ledger does not say why.
    UnrecordedRenewal,
    /// A member would refuse the certificate that another shows.
    PeersRefuseEachOther,
    /// A seat is given up whose data waits for its next machine.
    KeptDataGivenUp,
}

/// An order that was carried out, and what was true before.
pub struct Deed<'a> {
    pub before: &'a World,
    pub after: &'a World,
    pub desired: &'a Desired,
    pub formed: bool,
    pub fence: u64,
    pub step: &'a Step,
    /// A fault has happened since the look that led to it.
    pub disturbed: bool,
}

impl Past {
    /// Notes what a step means that was carried out, seen from the world in which it was. Names are as its controller knows them.
    pub fn judge(&mut self, deed: &Deed<'_>) {
        let Deed { before, after, desired, formed, fence, step, disturbed } = *deed;
        let mut wrong = |happened: bool, wrong: Wrong| {
            if happened {
                self.wrongs.insert(wrong);
            }
        };
        let Some(member) = step.action.member() else { return };
        let facts = before.machines.get(member).and_then(|m| m.facts());
        wrong(is_order(&step.action) && facts.is_some_and(|f| f.fence > fence), Wrong::OlderFenceObeyed);
        if formed {
            let (was, is) = (Voters::of(before), Voters::of(after));
            // An order to stop says nothing of what it means to stop: one that comes too late stops what came after. No decision
            // asks for it without need, and the next look starts etcd again.
            let late_stop = matches!(step.action, Action::StopEtcd { .. });
            let allowed = desired.downtime || desired.etcd.recovery || late_stop;
            wrong(was.quorate() && !is.quorate() && !disturbed && !allowed, Wrong::QuorumGivenAway);
        }
        match &step.action {
            Action::StartEtcd { bootstrap: Some(stamp), .. } => {
                let began_on = self.began.get(&stamp.token).and_then(|m| m.get(member));
                wrong(began_on != facts.map(|f| &f.machine_id), Wrong::NewElsewhere);
                wrong(formed, Wrong::NewAfterFormed);
                let again = !self.told_new.insert((stamp.token.clone(), member.clone()));
                let present = before.ledger.etcd.formation.token() == Some(&stamp.token);
                if again && present {
                    self.wrongs.insert(Wrong::NewTwice);
                }
            }
            Action::StartEtcd { bootstrap: None, .. } => {
                wrong(!disturbed && starts_too_early(before, desired, member), Wrong::StartedBeforeAllHold);
            }
            Action::RestoreData { .. } => {
                let restoring = matches!(before.ledger.etcd.formation, Formation::Restoring { .. });
                wrong(!restoring, Wrong::GivenUpBeforeStaged);
            }
            Action::WipeData { .. } => wrong(formed, Wrong::WipedAfterFormed),
            Action::DestroyMachine { data: Data::Stays, .. } => {
                let record = before.ledger.members.get(&member.seat().into());
                wrong(record.is_none_or(|record| record.renewing.is_none()), Wrong::UnrecordedRenewal);
            }
            Action::DestroyMachine { .. } if formed => {
                let url = before.machines.get(member).map(url_of);
                // An order to add a learner may come as late as that; a learner has no vote, and is taken out again.
                let votes = before.listed.iter().any(|l| !l.is_learner && Some(&l.peer_url) == url.as_ref());
                wrong(votes, Wrong::MemberDestroyed);
            }
            Action::Promote { id, .. } => {
                let learner = before.listed.iter().find(|l| l.id == *id);
                wrong(!learner.is_some_and(|l| runs(before, l)), Wrong::PromotedWhoDoesNotRun);
            }
            Action::RestartEtcd { .. } | Action::TakeRaftSnapshot { .. } | Action::RebootMachine { .. } => {
                let own = before.machines.get(member).map(url_of);
                let others = before.listed.iter().filter(|l| !l.is_learner && Some(&l.peer_url) != own.as_ref());
                let down = others.filter_map(|l| machine_of(before, l)).any(is_restarting);
                wrong(down && !disturbed, Wrong::TwoDisturbances);
            }
            Action::Auth { .. } => {
                let written = agent::token_on_disk(before, member);
                let token = before.ledger.etcd.formation.token();
                wrong(!formed || written.as_deref() != token, Wrong::WroteBeforeFormed);
                self.written.extend(written);
            }
            _ => {}
        }
    }

    /// A seat is given up. Where all data is replaced, none of it waits for a machine.
    pub fn judge_given_up(&mut self, world: &World, member: &MemberName) {
        let waits = world.listed.iter().any(|l| l.name.as_str() == member.seat() && is_kept(world, l));
        if waits && world.ledger.etcd.restore.is_none() {
            self.wrongs.insert(Wrong::KeptDataGivenUp);
        }
    }

    /// Notes what is true after a move, whichever side made it.
    pub fn weigh(&mut self, before: &World, after: &World, fault: bool) {
        self.restoring |= matches!(after.ledger.etcd.formation, Formation::Restoring { .. });
        if self.restoring && running_tokens(after).len() > 1 {
            self.wrongs.insert(Wrong::OldAndNew);
        }
        if !after.ledger.etcd.formation.is_formed() {
            return;
        }
        let same = before.ledger.etcd.formation.token() == after.ledger.etcd.formation.token()
            && before.ledger.etcd.formation.is_formed();
        // What was lost before it was recorded as formed, no step of ours took.
        if !same {
            self.majority_lost = Voters::of(after).lost();
        }
        if !self.majority_lost && Voters::of(after).lost() {
            self.majority_lost = true;
            if !fault {
                self.wrongs.insert(Wrong::DataLost);
            }
        }
        if peers_refuse_each_other(after) {
            self.wrongs.insert(Wrong::PeersRefuseEachOther);
        }
        if after.listed.iter().filter(|l| l.is_learner).count() > 1 {
            self.wrongs.insert(Wrong::TwoLearners);
        }
        if same && before.listed != after.listed {
            let known = |id: u64| before.listed.iter().any(|l| l.id == id);
            if !after.listed.iter().all(|l| l.is_learner || known(l.id)) {
                self.wrongs.insert(Wrong::VoterWithoutLearning);
            }
        }
    }
}

/// The formations in which an etcd runs.
fn running_tokens(world: &World) -> BTreeSet<String> {
    let runs = |name: &&MemberName| {
        let machine = &world.machines[*name];
        let service = machine.facts().map(|f| &f.etcd.service);
        machine.seen.power == PowerState::On && matches!(service, Some(ServiceState::Running { .. }))
    };
    world.machines.keys().filter(runs).filter_map(|name| agent::token_on_disk(world, name)).collect()
}

/// Whether this starts data of a restore while somebody who is wanted holds other data.
fn starts_too_early(world: &World, desired: &Desired, member: &MemberName) -> bool {
    let Formation::Restoring { token, .. } = &world.ledger.etcd.formation else { return false };
    let holds = |m: &MemberName| agent::token_on_disk(world, m).as_ref() == Some(token);
    holds(member) && !desired.members.keys().all(holds)
}
