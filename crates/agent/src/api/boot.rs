//! What a machine reads from its seed disk when it boots: `seed.json` for the agent, and `machine.json` for the machine
//! itself. The provider writes both. The only secret in `machine.json` is a password hash for the console.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The label of the seed disk, by which cloud-init's NoCloud finds it as well.
pub const SEED_LABEL: &str = "cidata";
/// Files on the seed disk.
pub const SEED_FILE: &str = "seed.json";
pub const MACHINE_FILE: &str = "machine.json";
/// The static program, for images without it.
pub const PROGRAM_FILE: &str = "quorate";
/// The virtio-serial port of the agent, for machines that cannot be reached by network.
pub const CHANNEL_PORT: &str = "io.quorate.agent";

/// `machine.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub hostname: String,
    /// In order; etcd and the agent listen on the address of the first.
    pub interfaces: Vec<Interface>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<Admin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_disk: Option<DataDisk>,
    /// Whether the agent also answers on the virtio-serial port.
    #[serde(default)]
    pub channel: bool,
}

/// A network interface, known by its MAC address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Interface {
    /// In lower case, with colons.
    pub mac: String,
    pub address: IpAddr,
    pub prefix: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Addresses besides the first, each with the length of its prefix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_addresses: Vec<(IpAddr, u8)>,
}

/// The user who may log in. Root cannot, and ssh accepts no passwords.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Admin {
    pub user: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// In `crypt` format, such as `$6$…`; for the console only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console_password_hash: Option<String>,
}

/// The disk that holds etcd's data, and outlives the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataDisk {
    /// Of the virtio or NVMe disk: at most 20 characters.
    pub serial: String,
}
