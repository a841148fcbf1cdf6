//! Arguments of the roles that run on a machine, and of `image`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use quorate_core::spec::{Millis, Size};

use super::{Global, PreferredMember};

/// `quorate agent` without the other commands.
#[derive(Parser, Debug)]
#[command(name = "quorate agent", version)]
pub struct AgentAlone {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub options: Agent,
}

/// `quorate agent boot`.
#[derive(Parser, Debug)]
#[command(name = "quorate agent boot", version)]
pub struct AgentBootAlone {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub options: AgentBoot,
}

/// `quorate agent follow`.
#[derive(Parser, Debug)]
#[command(name = "quorate agent follow", version)]
pub struct AgentFollowAlone {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub options: AgentFollow,
}

/// `quorate agent front`.
#[derive(Parser, Debug)]
#[command(name = "quorate agent front", version)]
pub struct AgentFrontAlone {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub options: AgentFront,
}

/// `quorate agent check`.
#[derive(Parser, Debug)]
#[command(name = "quorate agent check", version)]
pub struct AgentCheckAlone {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub options: AgentCheck,
}

#[derive(Subcommand, Debug)]
pub enum Image {
    /// Build a small Debian image with everything a member needs
    ///
    /// Needs root, mmdebstrap, extlinux and qemu-utils. Its machines read their seed disk themselves, without cloud-init.
    Build(ImageBuild),
    /// Import an image into Incus or OpenStack, and delete unused old ones
    ///
    /// The image is called `quorate-ETCD-IMAGE`, or `quorate-ETCD-pgN-IMAGE`, with the versions from its manifest.
    /// Name it in the spec: a cluster whose spec names another image gets new machines, one member at a time.
    Import(ImageImport),
}

#[derive(Args, Debug)]
pub struct ImageImport {
    /// An image that `quorate image build` built, with its manifest next to it: of a container or, as qcow2, of a virtual machine
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where to import it
    #[arg(long, value_enum, default_value_t)]
    pub to: ImageStore,
    /// Incus: the server, as in `incus remote list`; by default the one on this host
    #[arg(long, value_name = "NAME")]
    pub remote: Option<String>,
    /// Incus: the project on that server
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// OpenStack: the cloud, as in clouds.yaml; by default that of `OS_CLOUD` or of the other variables
    #[arg(long, value_name = "NAME")]
    pub cloud: Option<String>,
    /// OpenStack: the region; by default that of the cloud
    #[arg(long, value_name = "NAME")]
    pub region: Option<String>,
    /// How many imported images to keep, apart from those in use
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub keep: usize,
}

/// What keeps images.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageStore {
    #[default]
    Incus,
    /// Glance
    Openstack,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, Default)]
pub enum ImageFormat {
    #[default]
    Qcow2,
    Incus,
}

#[derive(Args, Debug)]
pub struct ImageBuild {
    /// Write the image to FILE, and a manifest of its contents next to it
    #[arg(value_name = "FILE")]
    pub output: PathBuf,
    /// A disk in qcow2, or a system container for `incus image import`
    #[arg(long, value_enum, default_value_t)]
    pub format: ImageFormat,
    /// The static quorate that becomes the machines' agent; by default this program
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// A generic cloud image: cloud-init, no agent, no etcd
    #[arg(long, conflicts_with = "program")]
    pub cloud_init: bool,
    /// The release of Debian
    #[arg(long, value_name = "NAME", default_value = "bookworm")]
    pub suite: String,
    /// A mirror, or a file with sources for apt, instead of Debian's own
    #[arg(long, value_name = "URL|FILE")]
    pub sources: Option<String>,
    /// For `seed: quorate` of the provider aws: machines read the metadata service of EC2 instead of a seed disk
    #[arg(long, conflicts_with = "cloud_init")]
    pub ec2: bool,
    /// For `seed: quorate` of the provider openstack: machines read the metadata service instead of a config drive
    #[arg(long, conflicts_with_all = ["cloud_init", "ec2"])]
    pub openstack: bool,
    /// An additional package; can be repeated
    #[arg(long = "package", value_name = "NAME")]
    pub packages: Vec<String>,
    /// Add PostgreSQL of this major version, Patroni, pgBackRest, HAProxy and PgBouncer
    #[arg(long, value_name = "VERSION", conflicts_with = "cloud_init", value_parser = clap::value_parser!(u16).range(13..=18))]
    pub postgres: Option<u16>,
    /// Size of the disk; a larger root disk is used completely
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub size: Size,
}

#[derive(Args, Debug)]
pub struct Agent {
    /// The directory that holds everything of the machine
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
    /// The seed that the provider wrote when it created the machine
    #[arg(long, value_name = "FILE")]
    pub seed: PathBuf,
    /// Where etcd's programs are kept; by default below the root
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Let systemd keep etcd running
    #[arg(long)]
    pub systemd: bool,
    /// Also answer on this virtio-serial port, for controllers that cannot reach the machine by network
    #[arg(long, value_name = "DEVICE")]
    pub channel: Option<PathBuf>,
    /// Run in place of an older agent until a controller has been here, and go back if none comes
    #[arg(long, hide = true)]
    pub trial: bool,
}

#[derive(Args, Debug)]
pub struct AgentCheck {
    /// The directory that holds everything of the machine
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
}

#[derive(Args, Debug)]
pub struct AgentBoot {
    /// Directory below which the machine's files are written; no program is run unless it is /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Read this directory instead of the seed disk
    #[arg(long, value_name = "DIR")]
    pub seed_from: Option<PathBuf>,
    /// Leave hostname and addresses to cloud-init
    #[arg(long)]
    pub beside_cloud_init: bool,
    /// Read the seed from the metadata service of EC2 (IMDSv2), and leave addresses to DHCP
    #[arg(long, conflicts_with_all = ["beside_cloud_init", "seed_from"])]
    pub ec2: bool,
    /// Read the seed from the metadata service of OpenStack, and leave addresses to DHCP
    #[arg(long, conflicts_with_all = ["beside_cloud_init", "seed_from", "ec2"])]
    pub openstack: bool,
}

#[derive(Args, Debug)]
pub struct AgentFront {
    /// Directory of the front's settings, which the agent writes
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Where new connections go
    #[arg(long, value_enum, default_value_t = PreferredMember::Spread)]
    pub prefer: PreferredMember,
    /// How many connections may be open at the same time
    #[arg(long, value_name = "N")]
    pub max_connections: u32,
    /// How many of them may come from one address; by default half
    #[arg(long, value_name = "N")]
    pub max_per_address: Option<u32>,
    /// How long open connections may last after SIGTERM
    #[arg(long, value_name = "TIME")]
    pub drain_time: Millis,
}

#[derive(Args, Debug)]
pub struct AgentFollow {
    /// The directory that holds everything of the machine
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
}
