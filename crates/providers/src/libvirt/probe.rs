//! Checks whether machines can use KVM. libvirt offers it if `/dev/kvm` can be opened, which is not enough: on virtual hosts KVM may open
//! and then fail at the first modern instruction. So a trial machine is booted.

use std::fs;
use std::time::{Duration, Instant};

use quorate_core::providers::libvirt::{Acceleration, LibvirtSettings, is_here};
use quorate_pki::Sha256;

use super::domain::Volume;
use super::hypervisor::{Hypervisor, uuid};
use super::virsh::{LibvirtError, STDIN};
use crate::ProviderError;
use quorate_agent::private_directory;
use quorate_agent::process;

/// See `probe.s`.
const BOOT_SECTOR: &[u8; 512] = include_bytes!("probe.bin");
const DISK_BYTES: usize = 1 << 20;
/// It takes a tenth of a second where it works.
const PATIENCE: Duration = Duration::from_secs(10);

impl Hypervisor {
    /// Whether machines are made with KVM. Found out once for each boot of this host.
    pub(super) async fn uses_kvm(&self, settings: &LibvirtSettings) -> Result<bool, ProviderError> {
        match settings.acceleration {
            Acceleration::Kvm => return Ok(true),
            Acceleration::Emulation => return Ok(false),
            Acceleration::Probe => {}
        }
        let known_by = Sha256::digest(format!("{}\n{}", settings.uri, process::boot_id()));
        let known_by = quorate_core::text::hex(&known_by[..8]);
        let memory = self.cache.join(format!("kvm-{known_by}"));
        if let Ok(found) = fs::read_to_string(&memory) {
            return Ok(found.trim() == "works");
        }
        let works = self.try_kvm(&settings.pool).await?;
        // Without this memory the next run tries again.
        if private_directory(&self.cache).is_ok() {
            let _ = fs::write(&memory, if works { "works\n" } else { "fails\n" });
        }
        Ok(works)
    }

    /// What is known of it from here.
    pub(super) fn why_no_kvm(&self) -> &'static str {
        match fs::File::open("/dev/kvm") {
            Ok(_) if is_here(&self.settings.uri) => "though /dev/kvm opens on this host",
            Err(_) if is_here(&self.settings.uri) => "and /dev/kvm does not open on this host",
            _ => "on the host of libvirt",
        }
    }

    /// Boots a machine that does nothing but power itself off. All of it has the cluster's name, which is known before the cluster is
    /// made, so that what a crash left is removed by the next trial.
    async fn try_kvm(&self, pool: &str) -> Result<bool, ProviderError> {
        let name = format!("quorate-probe-{}", self.spec.name);
        let volume = Volume { pool: pool.to_owned(), name: format!("{name}.img") };
        self.remove_probe(&name, &volume).await?;
        let mut disk = vec![0; DISK_BYTES];
        disk[..BOOT_SECTOR.len()].copy_from_slice(BOOT_SECTOR);
        self.virsh.make_raw(&volume, &disk).await?;
        let works = self.boots(&name, &volume).await;
        self.remove_probe(&name, &volume).await?;
        works
    }

    async fn boots(&self, name: &str, volume: &Volume) -> Result<bool, ProviderError> {
        let description = format!(
            "<domain type='kvm'><name>{name}</name><uuid>{}</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os><features><acpi/></features>\
             <on_crash>destroy</on_crash><devices><disk type='volume' device='disk'><driver name='qemu' type='raw'/>\
             <source pool='{}' volume='{}'/><target dev='vda' bus='virtio'/></disk><memballoon model='none'/></devices></domain>",
            uuid(),
            super::domain::escaped(&volume.pool),
            super::domain::escaped(&volume.name),
        );
        // Where libvirt does not even offer KVM, it says so here.
        match self.virsh.tell(&["define", STDIN], &description).await {
            Err(LibvirtError::Failed { .. }) => return Ok(false),
            defined => defined?,
        };
        match self.virsh.run(&["start", name]).await {
            Err(LibvirtError::Failed { .. }) => return Ok(false),
            started => started?,
        };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let state = self.virsh.run(&["domstate", "--reason", name]).await?;
            match state.trim() {
                "shut off (shutdown)" => return Ok(true),
                running if running.starts_with("running") => tokio::time::sleep(Duration::from_millis(100)).await,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    async fn remove_probe(&self, name: &str, volume: &Volume) -> Result<(), ProviderError> {
        if let Some(found) = self.domain(name).await? {
            self.power_off(&found).await?;
            self.undefine(&found).await?;
        }
        Ok(self.virsh.delete_volume(volume).await?)
    }
}
