//! Open requests in a ledger: what was confirmed, by whom, and whether it can still be withdrawn. A request that has begun to
//! change the cluster cannot be withdrawn, because that would leave it half done.

use jiff::Timestamp;
use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::postgres::{Rotation, RotationStage};
use quorate_core::model::{Consent, Ledger, MachineId, MemberName, MemberRecord};
use serde::Serialize;

use crate::home::Home;
use crate::ledger::LedgerError;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Destroy,
    Recover,
    Restore,
    Replace,
    /// Machines reboot, one after another.
    Reboot,
    /// Another member of a PostgreSQL cluster becomes the primary.
    Switchover,
    Passwords,
    /// Data that a restore or an upgrade has replaced is deleted.
    Discard,
    /// Consent to restarts that cause downtime.
    Downtime,
    /// Consent to treat unreachable machines as dead.
    Now,
}

#[derive(Clone, Debug, Serialize)]
pub struct Open {
    pub request: Kind,
    /// The request, in words.
    pub what: String,
    /// Who confirmed it. Absent for a replacement, whose ledger entry names nobody, because quorate may have decided it; the history does.
    pub by: Option<String>,
    pub at: Option<Timestamp>,
    /// Whether it has begun: then it can be completed and not withdrawn. So is a restore of a cluster that has no other data.
    pub begun: bool,
}

/// The requests of a ledger that are open, those with the largest effect first.
pub fn open(ledger: &Ledger) -> Vec<Open> {
    let confirmed = |request, what: &str, consent: &Consent, begun| Open {
        request,
        what: what.to_owned(),
        by: Some(consent.by.clone()),
        at: Some(consent.at),
        begun,
    };
    let recovering = matches!(ledger.etcd.formation, Formation::Recovering { .. });
    let restoring = matches!(ledger.etcd.formation, Formation::Restoring { .. });
    let mut open = Vec::new();
    // Machines may be deleted already: only the destroying run knows.
    open.extend(ledger.destroy.iter().map(|c| confirmed(Kind::Destroy, "delete the cluster and its data", c, true)));
    let recovery = ledger.etcd.recovery.iter();
    open.extend(recovery.map(|r| confirmed(Kind::Recover, "rebuild it from a survivor", &r.consent, recovering)));
    let restore = ledger.etcd.restore.iter();
    open.extend(restore.map(|r| confirmed(Kind::Restore, &format!("restore {}", r.source), &r.consent, restoring)));
    let restore = ledger.postgres.restore.iter();
    open.extend(restore.map(|r| {
        confirmed(Kind::Restore, &format!("restore {}", r.source), &r.consent, ledger.postgres.restore_must_complete())
    }));
    open.extend(replacements(ledger));
    open.extend([false, true].into_iter().filter_map(|begun| reboots(ledger, begun)));
    open.extend(ledger.postgres.switchover.iter().map(|request| {
        let to = request.to.as_ref().map_or_else(|| String::from("another member"), ToString::to_string);
        let what = format!("switch the primary from {} to {to}", request.from);
        confirmed(Kind::Switchover, &what, &request.consent, false)
    }));
    open.extend(ledger.postgres.rotation.iter().map(|rotation| {
        let users: Vec<&str> = rotation.next.keys().map(String::as_str).collect();
        let what = match rotation.dcs {
            true => String::from("log in to etcd as another user"),
            false => format!("change the passwords of {}", users.join(", ")),
        };
        confirmed(Kind::Passwords, &what, &rotation.consent, rotation.stage != RotationStage::Opening)
    }));
    let discard = ledger.postgres.discard.iter();
    open.extend(discard.map(|c| confirmed(Kind::Discard, "delete replaced data", c, false)));
    open.extend(ledger.downtime.iter().map(|c| confirmed(Kind::Downtime, "allow downtime", c, false)));
    let now = ledger.without_grace.iter();
    open.extend(now.map(|c| confirmed(Kind::Now, "treat unreachable machines as dead", c, false)));
    open
}

/// Members that get another machine, those first whose current machine is still theirs.
fn replacements(ledger: &Ledger) -> Vec<Open> {
    let open = |what, begun| Open { request: Kind::Replace, what, by: None, at: None, begun };
    let renewed = ledger.members.iter().filter(|(_, record)| record.renewing.is_some());
    let renewed = renewed.map(|(member, record)| {
        open(format!("move {member} to a new machine with its data"), renewal_has_begun(record))
    });
    let replaced = ledger.joined().filter(|member| member.is_former()).filter_map(|former| {
        let seat = MemberName::from(former.seat());
        let is_wanted = ledger.spec.members.iter().any(|member| member.name.as_str() == seat.as_str());
        let next = ledger.members.get(&seat).filter(|_| is_wanted)?.incarnation;
        Some(open(format!("replace machine {former} with {}", MachineId::new(&seat, next)), true))
    });
    let mut all: Vec<Open> = renewed.chain(replaced).collect();
    all.sort_by_key(|open| open.begun);
    all
}

/// Whether the machine has been deleted, and with it what the ledger knew of its configuration. If only that was not recorded any more, the
/// machine is missing like a lost one, and its data stays all the same.
fn renewal_has_begun(record: &MemberRecord) -> bool {
    record.generation == 0 || record.renewing.is_some_and(|next| next <= record.incarnation.max(1))
}

/// The machines that should reboot, or were ordered to.
fn reboots(ledger: &Ledger, begun: bool) -> Option<Open> {
    let open = ledger.members.iter().filter_map(|(member, record)| Some((member, record.reboot.as_ref()?)));
    let open: Vec<_> = open.filter(|(_, reboot)| reboot.ordered.is_some() == begun).collect();
    let members: Vec<String> = open.iter().map(|(member, _)| member.to_string()).collect();
    let (_, reboot) = open.first()?;
    let before = if reboot.upgrade_packages { "upgrade the packages and " } else { "" };
    Some(Open {
        request: Kind::Reboot,
        what: format!("{before}reboot the machines of {}", members.join(", ")),
        by: Some(reboot.consent.by.clone()),
        at: Some(reboot.consent.at),
        begun,
    })
}

/// Withdraws a request that has not begun, if no controller is running.
pub fn withdraw(home: &Home, name: &str, kind: Kind, now: Timestamp) -> Result<(), LedgerError> {
    let store = home.store(name);
    let done = store.amend(now, |ledger| match kind {
        Kind::Recover if !matches!(ledger.etcd.formation, Formation::Recovering { .. }) => ledger.etcd.recovery = None,
        Kind::Restore => {
            let restoring = matches!(ledger.etcd.formation, Formation::Restoring { .. });
            ledger.etcd.restore = ledger.etcd.restore.take().filter(|_| restoring);
            ledger.postgres.withdraw_restore();
        }
        Kind::Reboot => {
            for record in ledger.members.values_mut() {
                record.reboot = record.reboot.take().filter(|reboot| reboot.ordered.is_some());
            }
        }
        Kind::Switchover => ledger.postgres.switchover = None,
        Kind::Discard => ledger.postgres.discard = None,
        Kind::Passwords => {
            let begun = |rotation: &Rotation| rotation.stage != RotationStage::Opening;
            ledger.postgres.rotation = ledger.postgres.rotation.take().filter(begun);
        }
        Kind::Replace => {
            for record in ledger.members.values_mut() {
                let begun = renewal_has_begun(record);
                record.renewing = record.renewing.filter(|_| begun);
            }
        }
        Kind::Downtime => ledger.downtime = None,
        Kind::Now => ledger.without_grace = None,
        Kind::Destroy | Kind::Recover => {}
    })?;
    match (done, store.read()?.and_then(|ledger| ledger.lock)) {
        (false, Some(lock)) => Err(LedgerError::Locked { holder: Box::new(lock) }),
        (false, None) => Err(LedgerError::Lost { by: None }),
        (true, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::kinds::etcd::{FormingMember, RecoveryRequest, RestoreWish};
    use quorate_core::kinds::postgres;
    use quorate_core::planner::remember;
    use quorate_core::spec::generated;

    use super::*;
    use crate::verbs::consent;

    fn ledger() -> Ledger {
        let mut spec = generated("demo", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        ledger.etcd.recovery = Some(RecoveryRequest { consent: consent(String::new()), of: None });
        ledger.etcd.restore = Some(RestoreWish {
            consent: consent(String::new()),
            sha256: String::new(),
            bytes: 1,
            revision: 1,
            keys: None,
            source: String::from("snapshot s.db"),
            epoch: 1,
            bump_revision: None,
        });
        ledger.downtime = Some(consent(String::new()));
        ledger
    }

    #[test]
    fn a_request_is_withdrawn_until_it_has_begun() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        let mut ledger = ledger();
        home.store("demo").write(&mut ledger).unwrap();
        let kinds = |ledger: &Ledger| open(ledger).iter().map(|open| open.request).collect::<Vec<_>>();
        assert_eq!(kinds(&ledger), [Kind::Recover, Kind::Restore, Kind::Downtime]);
        for kind in [Kind::Restore, Kind::Downtime] {
            withdraw(&home, "demo", kind, Timestamp::now()).unwrap();
        }
        let left = home.store("demo").read().unwrap().unwrap();
        assert_eq!(kinds(&left), [Kind::Recover]);
        assert!(open(&left)[0].by.is_some() && !open(&left)[0].begun);
    }

    /// A cluster of three, with its members in the ledger.
    fn bootstrapped() -> Ledger {
        let mut ledger = ledger();
        (ledger.etcd.recovery, ledger.etcd.restore, ledger.downtime) = (None, None, None);
        let known = || FormingMember { machine_id: String::new(), peer_url: String::new(), learner: false };
        let names: Vec<MemberName> = ledger.spec.members.iter().map(|m| m.name.as_str().into()).collect();
        let members = names.iter().map(|name| (name.clone(), known())).collect();
        ledger.etcd.formation = Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members };
        let record = MemberRecord { incarnation: 1, generation: 3, ..MemberRecord::default() };
        ledger.members = names.into_iter().map(|name| (name, record.clone())).collect();
        ledger
    }

    #[test]
    fn a_replacement_is_listed_and_is_withdrawn_while_the_member_has_its_machine() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        let mut ledger = bootstrapped();
        assert!(open(&ledger).is_empty());
        remember::renew(&mut ledger, &"etcd-1".into(), 2);
        remember::renew(&mut ledger, &"etcd-2".into(), 2);
        remember::raise_incarnation(&mut ledger, &"etcd-3".into());
        // The machine of etcd-1 was deleted.
        ledger.members.get_mut(&MemberName::from("etcd-1")).unwrap().generation = 0;
        let listed = |ledger: &Ledger| {
            let told = open(ledger).into_iter().map(|open| (open.what, open.begun));
            told.collect::<Vec<_>>()
        };
        let renewed = |member: &str| format!("move {member} to a new machine with its data");
        let begun = [(renewed("etcd-1"), true), (String::from("replace machine etcd-3.1 with etcd-3.2"), true)];
        assert_eq!(listed(&ledger)[0], (renewed("etcd-2"), false));
        assert_eq!(listed(&ledger)[1..], begun);
        home.store("demo").write(&mut ledger).unwrap();
        withdraw(&home, "demo", Kind::Replace, Timestamp::now()).unwrap();
        assert_eq!(listed(&home.store("demo").read().unwrap().unwrap()), begun);
    }

    #[test]
    fn a_restore_is_not_withdrawn_where_only_an_empty_cluster_could_follow() {
        let withdrawn = |formation: postgres::Formation| {
            let directory = tempfile::tempdir().unwrap();
            let home = Home::new(directory.path());
            let mut ledger = ledger();
            (ledger.etcd.recovery, ledger.etcd.restore, ledger.downtime) = (None, None, None);
            ledger.postgres.formation = formation;
            ledger.postgres.restore = Some(postgres::RestoreWish {
                consent: consent(String::new()),
                token: String::from("b"),
                target: None,
                source: String::from("backup b1"),
            });
            home.store("demo").write(&mut ledger).unwrap();
            withdraw(&home, "demo", Kind::Restore, Timestamp::now()).unwrap();
            let is_gone = home.store("demo").read().unwrap().unwrap().postgres.restore.is_none();
            assert_ne!(is_gone, open(&ledger)[0].begun, "what is refused is not done");
            is_gone
        };
        // The first attempt was abandoned, or there never was any data.
        assert!(!withdrawn(postgres::Formation::Unformed));
        let (token, system_id, members) = (String::from("a"), String::from("1"), BTreeMap::new());
        assert!(withdrawn(postgres::Formation::Formed { token, system_id, members }));
    }
}
