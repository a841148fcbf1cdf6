//! What real machines are created from: images of `quorate image build`, and quorate as a static program, which each machine
//! takes from its seed disk. So the image depends only on the code that reads that disk, and is not rebuilt for every change
//! of the program.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::host;
use crate::lab::Lab;
use crate::labs::image;
use crate::postgres;
use crate::static_build::lab_program;

const IMAGE: &str = "machine.qcow2";
const CLOUD_INIT_IMAGE: &str = "cloud-init.qcow2";
const POSTGRES_IMAGE: &str = "postgres.qcow2";
/// What machines with cloud-init need of packages: they have nowhere to fetch them from.
const CLOUD_INIT_PACKAGES: [&str; 5] = ["etcd-server", "etcd-client", "chrony", "prometheus-node-exporter", "nftables"];
/// quorate itself puts this program on seed disks.
pub const PROGRAM_VARIABLE: &str = "QUORATE_AGENT_PROGRAM";
/// Says to what runs inside where the images are.
pub(super) const IMAGE_VARIABLE: &str = "QUORATE_LAB_MACHINE_IMAGE";
pub(super) const CLOUD_INIT_VARIABLE: &str = "QUORATE_LAB_CLOUD_INIT_IMAGE";
pub(super) const POSTGRES_VARIABLE: &str = "QUORATE_LAB_POSTGRES_IMAGE";

/// What of it is wanted.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub cloud_init: bool,
    pub postgres: bool,
}

pub struct Machine {
    /// quorate as a static program.
    pub program: PathBuf,
    pub image: PathBuf,
    /// As clouds have it.
    pub cloud_init: Option<PathBuf>,
    /// With PostgreSQL.
    postgres: Option<PathBuf>,
}

impl Machine {
    /// Builds what is not there yet. It needs the network, so it is done outside of the lab's namespaces.
    pub fn prepare(lab: &Lab, wanted: Wanted) -> Result<Self> {
        let program = lab_program::build()?;
        let image = image::build(lab, &program, IMAGE, &[])?;
        let packages: Vec<&str> = CLOUD_INIT_PACKAGES.iter().flat_map(|name| ["--package", name]).collect();
        let options = [&["--cloud-init"], &packages[..]].concat();
        let cloud_init =
            wanted.cloud_init.then(|| image::build(lab, &program, CLOUD_INIT_IMAGE, &options)).transpose()?;
        let with_postgres = || {
            // Its client, on this host.
            host::install_missing(&[postgres::SERVER])?;
            image::build(lab, &program, POSTGRES_IMAGE, &["--postgres", "15"])
        };
        let postgres = wanted.postgres.then(with_postgres).transpose()?;
        Ok(Self { program, image, cloud_init, postgres })
    }

    /// The same as what runs inside gets it.
    pub fn tell(&self, command: &mut Command) {
        command.env(PROGRAM_VARIABLE, &self.program).env(IMAGE_VARIABLE, &self.image);
        command.envs(self.cloud_init.iter().map(|image| (CLOUD_INIT_VARIABLE, image)));
        command.envs(self.postgres.iter().map(|image| (POSTGRES_VARIABLE, image)));
    }
}
