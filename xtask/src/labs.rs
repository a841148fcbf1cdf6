//! `cargo xtask lab NAME`: a real system for tests that need more than this checkout. Machines of a provider, for its conformance suite and
//! for stories of clusters on it; an older quorate, for upgrades.

pub mod libvirt;
mod upgrade;

use anyhow::Result;
use clap::Subcommand;

use crate::lab::Lab;

#[derive(Subcommand)]
pub enum Which {
    /// libvirt with software emulation, in namespaces of its own: nothing of it is left when the verb ends
    Libvirt {
        #[command(flatten)]
        options: libvirt::Options,
        /// Build the image and the programs, and run nothing
        #[arg(long)]
        prepare: bool,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// An older quorate, built from its commit: clusters that it made are upgraded under load
    Upgrade {
        #[command(flatten)]
        options: upgrade::Options,
    },
}

pub fn run(lab: &Lab, which: &Which) -> Result<()> {
    match which {
        Which::Libvirt { prepare: true, options, .. } => libvirt::prepare(lab, options.wanted()).map(drop),
        Which::Libvirt { options, inside: false, .. } => libvirt::run(lab, options),
        Which::Libvirt { options, inside: true, .. } => libvirt::inside(options),
        Which::Upgrade { options } => upgrade::run(lab, options),
    }
}
