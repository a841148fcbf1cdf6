//! Where PostgreSQL and Patroni have their files, below the agent's root.

use std::net::IpAddr;
use std::path::PathBuf;

use quorate_core::kinds::postgres::{desire, repository};
use quorate_core::model::ROOT;

use crate::layout::Layout;

/// Next to the data, with the token of a bootstrap after it.
pub(super) const RESTORED_TABLESPACES: &str = "tablespaces.";

impl Layout {
    /// Everything that belongs to PostgreSQL's data: on the separate disk, if there is one, so that it stays with that disk.
    pub(crate) fn postgres_home(&self) -> PathBuf {
        let disk = self.data_disk();
        if disk.is_dir() { disk.join("postgresql") } else { self.root().join(desire::HOME_DIRECTORY) }
    }

    /// A configuration of PostgreSQL's programs, completed for this machine.
    pub(crate) fn fill_in_postgres(&self, text: &str, address: IpAddr) -> String {
        let home = self.postgres_home().display().to_string();
        self.fill_in(&text.replace(&format!("{ROOT}/{}", desire::HOME_DIRECTORY), &home), address)
    }

    pub(crate) fn postgres_data(&self) -> PathBuf {
        self.postgres_home().join("data")
    }

    /// The file with a standby's password.
    pub(crate) fn standby_password(&self) -> PathBuf {
        self.postgres_home().join("pgpass")
    }

    pub(crate) fn postgres_stamp(&self) -> PathBuf {
        self.postgres_home().join("data.stamp")
    }

    /// The directory where the first data of a cluster is created.
    pub(crate) fn postgres_draft(&self) -> PathBuf {
        self.postgres_home().join("data.new")
    }

    /// Leftovers of an interrupted clone, put aside before the next.
    pub(crate) fn postgres_remnant(&self) -> PathBuf {
        self.postgres_home().join("data.remnant")
    }

    /// A backup, restored next to the data.
    pub(crate) fn postgres_restored(&self) -> PathBuf {
        self.postgres_home().join("data.restored")
    }

    /// Marks it as complete, with its bootstrap.
    pub(crate) fn postgres_restored_stamp(&self) -> PathBuf {
        self.postgres_home().join("data.restored.stamp")
    }

    /// The data that a restore has replaced.
    pub(crate) fn postgres_replaced(&self) -> PathBuf {
        self.postgres_home().join("data.replaced")
    }

    /// Whose that is.
    pub(crate) fn postgres_replaced_stamp(&self) -> PathBuf {
        self.postgres_home().join("data.replaced.stamp")
    }

    /// The copy for the rehearsal of an upgrade, and its result.
    pub(crate) fn postgres_rehearsed(&self) -> PathBuf {
        self.postgres_home().join("data.rehearsed")
    }

    pub(crate) fn postgres_rehearsed_new(&self) -> PathBuf {
        self.postgres_home().join("data.rehearsed.new")
    }

    /// A backup that is being verified.
    pub(crate) fn postgres_verified(&self) -> PathBuf {
        self.postgres_home().join("data.verified")
    }

    /// Of data that was restored for a bootstrap.
    pub(crate) fn postgres_tablespaces(&self, token: &str) -> PathBuf {
        self.postgres_home().join(format!("{RESTORED_TABLESPACES}{token}"))
    }

    pub(crate) fn pgbackrest_config(&self) -> PathBuf {
        self.root().join(repository::CONFIG_FILE)
    }

    pub(crate) fn pgbackrest_work(&self) -> PathBuf {
        self.postgres_home().join("pgbackrest")
    }

    pub(crate) fn patroni_config(&self) -> PathBuf {
        self.root().join(desire::CONFIG_FILE)
    }

    pub(crate) fn haproxy_config(&self) -> PathBuf {
        self.root().join(super::haproxy::CONFIG_FILE)
    }

    /// A link to the set of certificates of Patroni and PostgreSQL.
    pub(crate) fn patroni_certificates(&self) -> PathBuf {
        self.root().join(desire::PKI_DIRECTORY)
    }

    /// The agent's own login for PostgreSQL.
    pub(crate) fn password_file(&self) -> PathBuf {
        self.state_dir().join("postgres.pgpass")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_a_separate_disk_all_that_belongs_to_the_data_is_on_it() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path()).unwrap();
        let filled = |layout: &Layout| {
            layout.fill_in_postgres("{root}/var/lib/postgresql/data {root}/etc", [10, 0, 0, 1].into())
        };
        let shown = root.path().display();
        assert_eq!(filled(&layout), format!("{shown}/var/lib/postgresql/data {shown}/etc"));
        std::fs::create_dir_all(layout.data_disk()).unwrap();
        assert_eq!(filled(&layout), format!("{shown}/var/lib/etcd.disk/postgresql/data {shown}/etc"));
        for path in
            [layout.postgres_data(), layout.postgres_stamp(), layout.postgres_restored(), layout.pgbackrest_work()]
        {
            assert!(path.starts_with(layout.data_disk()), "{}", path.display());
        }
    }
}
