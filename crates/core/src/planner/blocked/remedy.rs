//! What the operator can do about each refusal.

use super::UnsafeBecause;
use crate::kinds::postgres::Unfit;
use crate::text::list;

impl UnsafeBecause {
    /// What the operator can do. Commands in it name the cluster `NAME`.
    pub fn remedy(&self) -> String {
        match self {
            UnsafeBecause::ForeignMachine { member, .. } => format!(
                "if it is this cluster's and its ledger was lost, bring the ledger back with `quorate ledger import`; \
                 if nobody needs it, remove the machine of {member} manually; otherwise choose another cluster name"
            ),
            UnsafeBecause::FixtureObstructed { remedy, .. } => remedy.clone(),
            UnsafeBecause::SecondKey { member } => format!(
                "find out who answers at the address of {member} before anything else; if its machine was only \
                 recreated outside quorate and holds no data, remove it manually"
            ),
            UnsafeBecause::OlderLedger { member, .. } => format!(
                "bring back the newer ledger with `quorate ledger import`; if it is permanently lost, `quorate apply NAME \
                 --accept-older-ledger` continues above what the agents remember; if only {member} says so, its state \
                 may be \
                 damaged or someone else may control it: `quorate replace NAME {member}` moves it to a new machine"
            ),
            UnsafeBecause::Untrusted { member, .. } => format!(
                "the state on that machine is damaged, or someone else controls it: find out which, then move the \
                 member to a \
                 new machine with `quorate replace NAME {member}`; the other members are operated as usual"
            ),
            UnsafeBecause::NewerAgent { member, runs, .. } => format!(
                "operate this cluster with {runs} or newer; if only {member} reports it, its state may be damaged or someone \
                 else may control it: move the member to a new machine with `quorate replace NAME {member}`"
            ),
            UnsafeBecause::UpgradeFailed { member, .. } => format!(
                "see `quorate logs NAME {member} --agent`; `quorate apply NAME` tries the upgrade again; until then the \
                 agent continues to run its present program"
            ),
            UnsafeBecause::CommitsWait { .. } => String::from(
                "add a member, or lower `postgres.synchronous.nodes`; or allow the interruption with `--allow-downtime`",
            ),
            UnsafeBecause::MajorDowngrade { back: true, .. } => String::from(
                "`quorate restore NAME --before-upgrade` returns to the data from before the upgrade; everything written since is lost",
            ),
            UnsafeBecause::MajorDowngrade { from, .. } => format!("set `postgres.version` to {from}"),
            UnsafeBecause::UpgradeKept { .. } => {
                String::from("when it is not needed any more, `quorate discard NAME` deletes it; then apply again")
            }
            UnsafeBecause::UpgradeAlone { from, .. } => format!(
                "set `postgres.version` back to {from} and apply the other changes first; `quorate requests NAME` lists requests"
            ),
            UnsafeBecause::UpgradeStops { .. } => String::from(
                "take a backup, and allow it with `--allow-downtime`; the upgrade is rehearsed on a copy before any member is stopped",
            ),
            UnsafeBecause::RehearsalFailed { from, .. } => {
                format!("fix what PostgreSQL reports and apply again, or set `postgres.version` to {from}")
            }
            UnsafeBecause::MajorUpgradeFailed { from, .. } => format!(
                "fix what PostgreSQL reports and apply again with `--allow-downtime`, or set `postgres.version` to {from}"
            ),
            UnsafeBecause::NoWayBack { .. } => String::from(
                "set `postgres.version` to what the cluster runs, and withdraw the request with `quorate requests NAME --withdraw restore`; \
                 or restore a backup",
            ),
            UnsafeBecause::RestoreFailed { has_data: false, .. } => String::from(
                "restore another backup or to another point with `quorate restore`; for an empty cluster, `quorate destroy NAME` and then \
                 `quorate apply` of its spec",
            ),
            UnsafeBecause::RestoreFailed { has_data: true, .. } => String::from(
                "restore another backup or to another point with `quorate restore`, or withdraw it with `quorate requests NAME --withdraw restore`",
            ),
            UnsafeBecause::NoSuccessor { unfit, .. } if unfit.is_empty() => String::from("add a member to the spec"),
            UnsafeBecause::NoSuccessor { unfit, .. } => match unfit.iter().find_map(|(_, why)| why.other()) {
                Some(other) => format!(
                    "switch over to {other}; or raise `postgres.synchronous.nodes`, so commits wait for more standbys"
                ),
                None if unfit.iter().all(|(_, why)| *why == Unfit::NeverPrimary) => String::from(
                    "change the tags of a standby; or, for a restart of the primary, allow the interruption with `--allow-downtime`",
                ),
                None => {
                    String::from("run `quorate status NAME`, repair the standby with `quorate apply NAME`, then re-run")
                }
            },
            UnsafeBecause::LastProxy { down, .. } if down.is_empty() => {
                String::from("add a proxy to the spec; or allow the interruption with `--allow-downtime`")
            }
            UnsafeBecause::LastProxy { .. } => String::from(
                "run `quorate status NAME`, and apply again when they serve; or allow the interruption with `--allow-downtime`",
            ),
            UnsafeBecause::OtherRole { .. } => {
                String::from("use another name in the spec; this name is free once its machine is removed")
            }
            UnsafeBecause::LimitsBothWays { .. } => {
                String::from("apply the raised limits first, then the lowered ones")
            }
            UnsafeBecause::SwitchoverAlone { .. } => {
                String::from("repair it first with `quorate apply NAME`; or switch over anyway with `--allow-downtime`")
            }
            UnsafeBecause::CommitsUnknown { silent, .. } => format!(
                "bring {} back, even for a moment; if that is impossible, `patronictl failover --candidate MEMBER` promotes a member that may \
                 lack confirmed commits",
                list(silent)
            ),
            UnsafeBecause::FurthestIsBarred { member } => {
                format!("change the tags of {member}, or keep it in the spec")
            }
            UnsafeBecause::DcsUnusable { .. } => {
                String::from("change the etcd cluster as described and apply it, then re-run")
            }
            UnsafeBecause::ForeignData { member, .. } => format!(
                "quorate never removes data that it did not create: move the data directory of {member} away manually"
            ),
            UnsafeBecause::Unseen { majority: Some((there, voters)), .. } => format!(
                "bring back as many as the quorum needs: {} of {voters} voters are missing, so waiting does not replace \
                 them; if they are lost permanently, see `quorate recover NAME`",
                voters.saturating_sub(*there)
            ),
            UnsafeBecause::Unseen { seconds, grace, .. } => format!(
                "bring it back; or run `quorate apply NAME` again in {} s, when it counts as dead and is replaced; or, if it \
                 is dead, confirm that by re-running with `--now`",
                grace.saturating_sub(*seconds)
            ),
            UnsafeBecause::PeersReach { .. } => String::from(
                "find out why this controller does not reach it; quorate does not replace a machine that is alive",
            ),
            UnsafeBecause::PeersUntold { member, untold, .. } => format!(
                "bring back the agents of {}, so they can report; or, if {member} is dead, confirm that \
                 by re-running with `--now`",
                list(untold)
            ),
            UnsafeBecause::MajorityLost { .. } => String::from(
                "bring back as many members as the quorum needs; if they are lost permanently, `quorate recover NAME` \
                 rebuilds the cluster from a survivor and shows what may be lost",
            ),
            UnsafeBecause::NotLost { .. } => {
                String::from("`quorate apply NAME` starts what is off and replaces what is lost")
            }
            UnsafeBecause::Serves { .. } => String::from(
                "find out why this controller does not reach the others: they serve clients, and a recovery would lose \
                 what those have written; `quorate apply NAME` replaces what is lost",
            ),
            UnsafeBecause::NothingSurvives { silent, .. } if !silent.is_empty() => format!(
                "bring back {}, which may still have data, or another machine with its data; or restore a backup",
                list(silent)
            ),
            UnsafeBecause::NothingSurvives { .. } => String::from(
                "bring back at least one machine with its data, or restore a backup; if everything is lost, `quorate \
                 destroy NAME` and then `quorate apply` of its spec create a new cluster",
            ),
            UnsafeBecause::OtherLoss { .. } => {
                String::from("run `quorate recover NAME` again: it shows what is left now, and what would be lost")
            }
            UnsafeBecause::SurvivorGone { .. } => String::from(
                "bring it back; if it is lost permanently, re-run `quorate recover NAME` to choose another survivor",
            ),
            UnsafeBecause::SnapshotGone { .. } => {
                String::from("re-run `quorate restore NAME`: it prepares the snapshot again and continues")
            }
            UnsafeBecause::RestoreUnfinished { .. } => {
                String::from("re-run `quorate restore NAME`, also from another backup: it begins again and completes")
            }
            UnsafeBecause::AwaitsRestore { .. } => String::from(
                "restore it with `quorate restore`, also from another backup; for an empty cluster, `quorate destroy NAME` and then \
                 `quorate apply` of its spec",
            ),
            UnsafeBecause::AddressHeld { by, .. } => {
                format!("pin another address, or move {by} away first")
            }
            UnsafeBecause::JoinFailed { member, .. } => {
                format!("read `quorate logs NAME {member}`; `quorate apply NAME` tries again")
            }
            UnsafeBecause::NotRebooted { member, .. } => format!(
                "read `quorate logs NAME {member} --agent`; when it is repaired, run `quorate reboot NAME` again"
            ),
            UnsafeBecause::StrangerVoter { id, .. } => format!(
                "if it is not needed, remove it with `etcdctl member remove {id}`; quorate changes no membership while \
                 an unknown member votes"
            ),
            UnsafeBecause::Membership { .. } => String::from(
                "wait for the others to be healthy, or run `quorate status NAME` to see why they are unhealthy",
            ),
            UnsafeBecause::LastVoter { member } => format!(
                "unpin the address of {member}, or let its provider have room for another machine, so its new machine can join before it \
                 leaves; or add a member first"
            ),
            UnsafeBecause::JoinVersion { .. } => {
                String::from("let the version change finish first; it continues unless something else is refused")
            }
            UnsafeBecause::OldEntries { runs, .. } => format!(
                "set `etcd.version` back to {runs} and run `quorate apply`; upgrade when all members are healthy"
            ),
            UnsafeBecause::ClientsWrote { .. } => String::from(
                "if there is a newer ledger, bring it back with `quorate ledger import`; if the data is not needed, \
                 `quorate destroy NAME` and then `quorate apply` of its spec create a new cluster",
            ),
            UnsafeBecause::OtherFormation { member, .. } => {
                format!(
                    "stop etcd on {member} where it runs: its data belongs to another cluster and must not be mixed in"
                )
            }
            UnsafeBecause::WrongBinary { remedy, .. }
            | UnsafeBecause::NotReady { remedy, .. }
            | UnsafeBecause::VersionPath { remedy, .. } => remedy.clone(),
            UnsafeBecause::VersionUnknown { member, .. } => format!(
                "start etcd on {member} from a release so it reports its version; or move it to a new machine with \
                 `quorate replace NAME {member}`"
            ),
            UnsafeBecause::Quorum { .. } => String::from(
                "wait for the others to be healthy, or run `quorate status NAME` to see why they are unhealthy",
            ),
            UnsafeBecause::Outage { .. } => {
                String::from("re-run the command with `--allow-downtime` to allow the downtime")
            }
            UnsafeBecause::AuthUnseen { .. } => String::from(
                "if another tool changed the user root or its password, give quorate a user root that it can use again; \
                 everything else continues",
            ),
            UnsafeBecause::UnknownFormation { .. } => String::from(
                "bring back the newer ledger with `quorate ledger import`. If it is lost and the data is not needed, \
                 remove the data directory manually: quorate only deletes data that no client has written to",
            ),
            UnsafeBecause::FixedAtFormation { field, was, .. } => {
                format!("set `{field}` back to {was}: this version of quorate does not change it on a running cluster")
            }
            UnsafeBecause::AuthorityDiffers { .. } => String::from(
                "name the CA that the cluster was created with: this version of quorate does not change the CA of a \
                 running cluster",
            ),
            UnsafeBecause::RootPasswordDiffers => String::from(
                "put the password that the cluster was created with back into `auth.root_password_file`: this version of \
                 quorate does not change it",
            ),
            UnsafeBecause::NoBackup => {
                String::from("if none is needed, `quorate destroy NAME --without-backup` deletes the data permanently")
            }
            UnsafeBecause::BackupOlder { data: None, .. } => String::from(
                "bring back a majority of the members so they can report it; or confirm that \
                 later changes may be lost with `quorate destroy NAME --without-backup`",
            ),
            UnsafeBecause::BackupBehind { data: None, .. } => String::from(
                "bring back the primary so it can report it; or confirm that later changes may be lost with `quorate \
                 destroy NAME --without-backup`",
            ),
            UnsafeBecause::BackupOlder { .. }
            | UnsafeBecause::BackupBehind { .. }
            | UnsafeBecause::BackupOfOtherHistory { .. } => String::from(
                "take and verify another with `quorate backup create NAME`; or confirm that later changes may be \
                 lost with `quorate destroy NAME --without-backup`",
            ),
        }
    }
}
