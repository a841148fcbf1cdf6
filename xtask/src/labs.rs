//! `cargo xtask lab NAME`: a real system that machines are made on, for as long as a provider's tests take: its conformance
//! suite, and stories of clusters on it.

pub mod libvirt;

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
}

pub fn run(lab: &Lab, which: &Which) -> Result<()> {
    match which {
        Which::Libvirt { prepare: true, options, .. } => libvirt::prepare(lab, options.wanted()).map(drop),
        Which::Libvirt { options, inside: false, .. } => libvirt::run(lab, options),
        Which::Libvirt { options, inside: true, .. } => libvirt::inside(options),
    }
}
