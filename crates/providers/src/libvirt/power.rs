//! Switches machines on and off, and sets whether they start with their host.

use std::time::{Duration, Instant};

use super::domain::{Found, Mark, State};
use super::hypervisor::Hypervisor;
use super::virsh::LibvirtError;

const PAUSE: Duration = Duration::from_millis(200);

impl Hypervisor {
    pub(super) async fn power_off(&self, found: &Found) -> Result<(), LibvirtError> {
        match self.virsh.run(&["destroy", &found.uuid]).await {
            Err(error) if error.is_absent() => Ok(()),
            Err(error @ LibvirtError::Failed { .. }) => match self.domain(&found.uuid).await? {
                Some(now) if now.on => Err(error),
                _ => Ok(()),
            },
            done => done.map(drop),
        }
    }

    /// From now on it also comes up with its host.
    pub(super) async fn power_on(&self, found_by: &str) -> Result<(), LibvirtError> {
        match self.virsh.run(&["start", found_by]).await {
            Err(error @ LibvirtError::Failed { .. }) => match self.domain(found_by).await? {
                Some(now) if now.on => {}
                _ => return Err(error),
            },
            done => drop(done?),
        }
        self.virsh.run(&["autostart", found_by]).await.map(drop)
    }

    pub(super) async fn undefine(&self, found: &Found) -> Result<(), LibvirtError> {
        match self.virsh.run(&["undefine", &found.uuid, "--managed-save", "--snapshots-metadata"]).await {
            Err(error) if error.is_absent() => Ok(()),
            done => done.map(drop),
        }
    }

    /// Lets a machine shut down, up to a bound.
    pub(super) async fn shut_down(&self, found: &Found) -> Result<(), LibvirtError> {
        let begun = Instant::now();
        let mut asked = false;
        while begun.elapsed() < self.stop_patience {
            match self.domain(&found.uuid).await? {
                Some(now) if now.on => {}
                _ => return Ok(()),
            }
            if !asked {
                // One that is paused or still in its firmware cannot hear it.
                let _ = self.virsh.run(&["shutdown", &found.uuid, "--mode", "acpi"]).await;
                asked = true;
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.power_off(found).await
    }

    /// Shuts a machine down. It is to stay off, also when its host is booted.
    pub(super) async fn keep_off(&self, found: &Found) -> Result<(), LibvirtError> {
        match self.virsh.run(&["autostart", &found.uuid, "--disable"]).await {
            Err(error) if error.is_absent() => return Ok(()),
            done => drop(done?),
        }
        if found.on { self.shut_down(found).await } else { Ok(()) }
    }

    /// Machines that earlier versions made do not come up with their host. Those that are on are to.
    pub(super) async fn let_start_with_host(&self) -> Result<(), LibvirtError> {
        let start = self.virsh.names(&["list", "--all", "--autostart", "--name"]).await?;
        let on = |(found, mark): &(Found, Mark)| found.on && mark.state == State::Whole && !start.contains(&found.name);
        for (found, _) in self.ours().await?.into_iter().filter(on) {
            match self.virsh.run(&["autostart", &found.uuid]).await {
                Err(error) if error.is_absent() => {}
                done => drop(done?),
            }
        }
        Ok(())
    }
}
