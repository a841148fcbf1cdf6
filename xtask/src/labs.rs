//! `cargo xtask lab NAME`: a real system that machines are made on, for as long as a provider's conformance suite takes.

mod libvirt;

use anyhow::Result;
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Which {
    /// libvirt with software emulation, in namespaces of its own: nothing of it is left when the verb ends
    Libvirt {
        /// Run only what has this in its name
        filter: Option<String>,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
    },
}

pub fn run(which: &Which) -> Result<()> {
    match which {
        Which::Libvirt { filter, inside: false } => libvirt::run(filter.as_deref()),
        Which::Libvirt { filter, inside: true } => libvirt::inside(filter.as_deref()),
    }
}
