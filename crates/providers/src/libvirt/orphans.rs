//! Seed disks without a domain: someone undefined it manually, and no mark names them any more. The operator chooses their names,
//! so their content decides whose they are.

use super::domain::Volume;
use super::hypervisor::{Hypervisor, PREFIX};
use super::virsh::LibvirtError;
use crate::ProviderError;

/// Where a domain's name stands in a seed disk's.
const DOMAIN: &str = "<name>";
/// The first file begins within, however large the disk is.
const HEAD: &str = "1048576";

impl Hypervisor {
    /// Volumes that are named as seed disks of this cluster are, and the domains that they would be of.
    pub(super) async fn seeds_by_name(&self) -> Result<Vec<(Volume, String)>, LibvirtError> {
        let Some((before, after)) = self.settings.cloud_init.name.split_once(DOMAIN) else { return Ok(Vec::new()) };
        let pool = self.settings.cloud_init.pool.as_ref().unwrap_or(&self.settings.pool);
        let names = match self.virsh.volumes(pool).await {
            Err(error) if error.is_absent() => Vec::new(),
            names => names?,
        };
        let beginning = format!("{PREFIX}{}-", self.spec.name);
        let seeds = names.into_iter().filter_map(|name| {
            let domain = name.strip_prefix(before)?.strip_suffix(after)?.to_owned();
            domain.starts_with(&beginning).then_some((Volume { pool: pool.clone(), name }, domain))
        });
        Ok(seeds.collect())
    }

    /// Removes a seed disk that no mark names, and what its domain said on the console, if it was this cluster's.
    pub(super) async fn remove_orphan(&self, seed: &Volume, domain: &str) -> Result<(), ProviderError> {
        if self.domain(domain).await?.is_some() || !self.is_own_seed(seed).await? {
            return Ok(());
        }
        self.virsh.delete_volume(seed).await?;
        self.remove_console(&self.console_file(domain))
    }

    async fn is_own_seed(&self, seed: &Volume) -> Result<bool, ProviderError> {
        let failed = |source| ProviderError::Io { what: "read", path: std::env::temp_dir(), source };
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        let path = file.path().to_string_lossy().into_owned();
        let words = ["vol-download", "--pool", &seed.pool, &seed.name, &path, "--length", HEAD];
        match self.virsh.run(&words).await {
            Err(error) if error.is_absent() => return Ok(false),
            done => done?,
        };
        let head = std::fs::read(file.path()).map_err(failed)?;
        let own = format!("\"cluster_id\": \"{}\"", self.cluster_id);
        Ok(head.windows(own.len()).any(|part| part == own.as_bytes()))
    }
}
