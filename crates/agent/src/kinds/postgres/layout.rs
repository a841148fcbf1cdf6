//! Where PostgreSQL and Patroni have their files, below the agent's root.

use std::path::PathBuf;

use quorate_core::kinds::postgres::desire;

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

    pub(crate) fn patroni_config(&self) -> PathBuf {
        self.root().join(desire::CONFIG_FILE)
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
