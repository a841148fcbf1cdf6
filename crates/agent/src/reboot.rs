//! Reboots this machine, optionally after upgrading its packages. The order is answered at once and carried out in the background, because
//! an upgrade takes minutes; facts report its progress. If anything fails before the machine goes down, it stays up.
//!
//! etcd keeps running until systemd stops it with everything else when the machine goes down. The upgrade must not restart it earlier, so
//! it starts and stops no service.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_core::model::{LONGEST_PACKAGE_UPGRADE, PackagesSeen, RebootSeen};
use quorate_core::text::cut;
use tokio::process::Command;

use crate::agent::Agent;
use crate::api::Refusal;
use crate::services::systemd::{run, systemctl};
use crate::{AgentError, files, process};

/// For the answer to reach the controller before the network goes.
const ANSWER: Duration = Duration::from_millis(500);
/// How many lines of a failed command's output are reported.
const LAST_LINES: usize = 4;
const LONGEST_COMPLAINT: usize = 600;

/// Asked by every package that wants to start, restart or stop a service, if it is there.
const POLICY: &str = "usr/sbin/policy-rc.d";
/// Forbids it.
const FORBIDS: &str =
    "#!/bin/sh\n# Written by quorate while it upgrades packages: the machine reboots afterwards.\nexit 101\n";

/// The reboot that was ordered since this agent started.
#[derive(Default)]
pub(crate) struct Reboots(Mutex<Option<Ordered>>);

struct Ordered {
    fence: u64,
    stage: Stage,
}

enum Stage {
    Upgrading { since: Instant },
    Leaving,
    Failed { why: String },
}

impl Reboots {
    /// Says whether one is to be carried out that is not under way yet. One that is continues for the controller that asks again.
    fn begin(&self, fence: u64, upgrade_packages: bool) -> bool {
        let mut ordered = self.0.lock().expect("no holder panics");
        if let Some(under_way) = ordered.as_mut().filter(|known| !matches!(known.stage, Stage::Failed { .. })) {
            under_way.fence = fence;
            return false;
        }
        let stage = if upgrade_packages { Stage::Upgrading { since: Instant::now() } } else { Stage::Leaving };
        *ordered = Some(Ordered { fence, stage });
        true
    }

    /// A later controller decides again.
    fn leave(&self, obeyed: u64) -> Result<(), String> {
        match &mut *self.0.lock().expect("no holder panics") {
            Some(ordered) if ordered.fence >= obeyed => {
                ordered.stage = Stage::Leaving;
                Ok(())
            }
            _ => Err(String::from("another controller took over before the machine was rebooted")),
        }
    }

    fn fail(&self, why: String) {
        if let Some(ordered) = &mut *self.0.lock().expect("no holder panics") {
            ordered.stage = Stage::Failed { why };
        }
    }

    /// The report for the controller with this fencing number.
    pub(crate) fn seen(&self, asking: Option<u64>) -> Option<RebootSeen> {
        let ordered = self.0.lock().expect("no holder panics");
        let Ordered { fence, stage } = ordered.as_ref()?;
        match stage {
            Stage::Upgrading { since } => Some(RebootSeen::UpgradingPackages { seconds: since.elapsed().as_secs() }),
            Stage::Leaving => Some(RebootSeen::Leaving),
            Stage::Failed { why } if Some(*fence) == asking => Some(RebootSeen::Failed { why: why.clone() }),
            Stage::Failed { .. } => None,
        }
    }
}

impl Agent {
    /// In which boot this machine is. A container shares the kernel of its host, and with it the kernel's own name for a boot; but its first
    /// process is another one each time. An agent that shares its machine with others reports none.
    pub(crate) fn boot(&self) -> Option<String> {
        let first = process::start_ticks(1)?;
        self.keeps_host.then(|| format!("{}-{first}", process::boot_id()))
    }

    /// Reboots the machine if it is still in this boot.
    pub(crate) fn reboot(self: &Arc<Self>, fence: u64, boot: String, upgrade_packages: bool) -> Result<(), Refusal> {
        let Some(now) = self.boot() else {
            let why =
                String::from("this agent is a process on a machine that it shares with others, so it reboots nothing");
            return Err(Refusal::Failed { why });
        };
        // The machine has rebooted since; or it is about to.
        if now != boot || !self.reboots.begin(fence, upgrade_packages) {
            return Ok(());
        }
        let agent = self.clone();
        tokio::spawn(async move {
            if let Err(why) = agent.carry_out_reboot(boot, upgrade_packages).await {
                tracing::error!(why, "the machine is not rebooted");
                agent.reboots.fail(why);
            }
        });
        Ok(())
    }

    async fn carry_out_reboot(&self, boot: String, upgrade_packages: bool) -> Result<(), String> {
        if upgrade_packages {
            let summary = self.upgrade_packages().await?;
            tracing::info!(summary, "packages were upgraded");
            let seen = PackagesSeen { boot, summary };
            self.state.update(|state| state.packages = Some(seen)).await.map_err(|error| error.in_full())?;
        }
        tokio::time::sleep(ANSWER).await;
        let _no_order_is_under_way = self.orders.lock().await;
        self.reboots.leave(self.state.get().fence)?;
        tracing::info!("the machine reboots");
        systemctl(&["reboot"]).await.map(drop).map_err(|error| error.in_full())
    }

    /// apt-get's summary. One that takes too long is not killed, because that could leave a package half installed.
    async fn upgrade_packages(&self) -> Result<String, String> {
        let policy = self.layout.root().join(POLICY);
        let work = tokio::spawn(upgrade(policy));
        let limit = LONGEST_PACKAGE_UPGRADE.unsigned_abs();
        match tokio::time::timeout(limit, work).await {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("its packages are still being upgraded after {} min", limit.as_secs() / 60)),
        }
    }

    /// Leftovers of a killed upgrade.
    pub(crate) fn allow_services(&self) {
        if let Err(error) = allow(&self.layout.root().join(POLICY)) {
            tracing::warn!(error = error.in_full(), "packages may not start services");
        }
    }
}

async fn upgrade(policy: PathBuf) -> Result<String, String> {
    let is_ours = forbid(&policy).map_err(|error| error.in_full())?;
    let upgraded = async {
        run(apt_get().arg("update")).await.map_err(complaint)?;
        run(apt_get().args(["upgrade", "--with-new-pkgs"])).await.map_err(complaint)
    };
    let upgraded = upgraded.await;
    if is_ours {
        allow(&policy).map_err(|error| error.in_full())?;
    }
    Ok(summary(&upgraded?))
}

/// Runs without questions, and keeps changed configuration files. An index that cannot be fetched is an error.
fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").env("NEEDRESTART_SUSPEND", "1");
    command.args(["-q", "-y", "-o", "DPkg::Lock::Timeout=120", "-o", "APT::Update::Error-Mode=any"]);
    command.args(["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30"]);
    command.args(["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]);
    command.stdin(std::process::Stdio::null());
    command
}

/// Says whether this put it there: somebody's own rule stays.
fn forbid(policy: &std::path::Path) -> Result<bool, AgentError> {
    let own = std::fs::read_to_string(policy).is_ok_and(|text| text == FORBIDS);
    if policy.exists() && !own {
        return Ok(false);
    }
    files::write(policy, FORBIDS.as_bytes(), 0o755, None)?;
    Ok(true)
}

fn allow(policy: &std::path::Path) -> Result<(), AgentError> {
    match std::fs::read_to_string(policy) {
        Ok(text) if text == FORBIDS => files::remove(policy),
        _ => Ok(()),
    }
}

/// The command and the last lines that it wrote.
fn complaint(error: AgentError) -> String {
    let AgentError::Command { command, said } = &error else { return error.in_full() };
    let name = if command.contains(" update") { "apt-get update" } else { "apt-get upgrade" };
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
    format!("{name} failed: {}", cut(&last, LONGEST_COMPLAINT))
}

/// The line in which apt-get counts what it did.
fn summary(printed: &str) -> String {
    let counts = |line: &&str| line.contains(" upgraded, ") && line.contains(" newly installed, ");
    let line = printed.lines().rev().find(counts).unwrap_or("apt-get did not say what it upgraded");
    cut(line.trim().trim_end_matches('.'), LONGEST_COMPLAINT).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_controller_that_ordered_a_reboot_hears_that_it_failed() {
        let reboots = Reboots::default();
        assert_eq!(reboots.seen(Some(3)), None);
        assert!(reboots.begin(3, true) && !reboots.begin(3, true), "it is carried out once");
        assert!(matches!(reboots.seen(None), Some(RebootSeen::UpgradingPackages { .. })));
        reboots.fail(String::from("no room"));
        assert_eq!(reboots.seen(Some(3)), Some(RebootSeen::Failed { why: String::from("no room") }));
        assert_eq!((reboots.seen(Some(4)), reboots.seen(None)), (None, None));
        assert!(reboots.begin(4, false), "a later one tries again");
        assert_eq!(reboots.seen(None), Some(RebootSeen::Leaving));
    }

    #[test]
    fn a_machine_stays_up_if_another_controller_came_meanwhile() {
        let reboots = Reboots::default();
        reboots.begin(3, true);
        assert!(reboots.leave(4).is_err());
        reboots.begin(4, true);
        reboots.leave(4).unwrap();
        assert_eq!(reboots.seen(None), Some(RebootSeen::Leaving));
    }

    #[test]
    fn apts_output_is_reported_unchanged() {
        let printed = "Reading package lists...\nCalculating upgrade...\n3 upgraded, 1 newly installed, 0 to remove and 2 not upgraded.\n\
                       Setting up libc6 (2.36-9) ...\n";
        assert_eq!(summary(printed), "3 upgraded, 1 newly installed, 0 to remove and 2 not upgraded");
        assert_eq!(summary(""), "apt-get did not say what it upgraded");
        let said = "W: one\n\nE: Failed to fetch http://deb/x\nE: Some index files failed to download\n".to_owned();
        let error = AgentError::Command { command: String::from("apt-get -q update"), said };
        let told =
            "apt-get update failed: W: one; E: Failed to fetch http://deb/x; E: Some index files failed to download";
        assert_eq!(complaint(error), told);
    }

    #[test]
    fn the_rule_for_services_is_removed_unless_it_is_somebody_elses() {
        let root = tempfile::tempdir().unwrap();
        let policy = root.path().join("policy-rc.d");
        assert!(forbid(&policy).unwrap() && forbid(&policy).unwrap());
        allow(&policy).unwrap();
        assert!(!policy.exists());
        std::fs::write(&policy, "#!/bin/sh\nexit 0\n").unwrap();
        assert!(!forbid(&policy).unwrap());
        allow(&policy).unwrap();
        assert_eq!(std::fs::read_to_string(&policy).unwrap(), "#!/bin/sh\nexit 0\n");
    }
}
