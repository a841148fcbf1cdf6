//! Where PostgreSQL and Patroni have their files, below the agent's root.

use std::path::PathBuf;

use quorate_core::kinds::postgres::{desire, repository};

use crate::layout::Layout;

impl Layout {
    /// All that belongs to PostgreSQL's data.
    pub(crate) fn postgres_home(&self) -> PathBuf {
        self.root().join("var/lib/postgresql")
    }

    pub(crate) fn postgres_data(&self) -> PathBuf {
        self.root().join(desire::DATA_DIRECTORY)
    }

    pub(crate) fn postgres_stamp(&self) -> PathBuf {
        self.postgres_home().join("data.stamp")
    }

    /// Where the first data of a cluster is created.
    pub(crate) fn postgres_draft(&self) -> PathBuf {
        self.postgres_home().join("data.new")
    }

    /// What an interrupted clone left, put aside before the next.
    pub(crate) fn postgres_remnant(&self) -> PathBuf {
        self.postgres_home().join("data.remnant")
    }

    /// A backup, restored next to the data.
    pub(crate) fn postgres_restored(&self) -> PathBuf {
        self.postgres_home().join("data.restored")
    }

    /// Says that it is complete, and for which bootstrap.
    pub(crate) fn postgres_restored_stamp(&self) -> PathBuf {
        self.postgres_home().join("data.restored.stamp")
    }

    /// What a restore has replaced.
    pub(crate) fn postgres_replaced(&self) -> PathBuf {
        self.postgres_home().join("data.replaced")
    }

    /// A backup that is being verified.
    pub(crate) fn postgres_verified(&self) -> PathBuf {
        self.postgres_home().join("data.verified")
    }

    pub(crate) fn pgbackrest_config(&self) -> PathBuf {
        self.root().join(repository::CONFIG_FILE)
    }

    pub(crate) fn pgbackrest_work(&self) -> PathBuf {
        self.root().join(repository::WORK_DIRECTORY)
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

    /// With what the agent itself logs in to PostgreSQL.
    pub(crate) fn password_file(&self) -> PathBuf {
        self.state_dir().join("postgres.pgpass")
    }
}
