//! The node config: all that one machine must hold and run. It names no path and no address of a particular machine:
//! in a flag, `{root}` stands for the place where the agent keeps everything and `{address}` for the machine's address.

use crate::text::hex;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HostConfig;
use crate::Secret;

/// Replaced by the agent with its own root directory.
pub const ROOT: &str = "{root}";
/// Replaced by the agent with its machine's address.
pub const ADDRESS: &str = "{address}";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    pub files: Vec<ConfigFile>,
    pub etcd: EtcdService,
    /// What the machine runs beside etcd; absent where it is none of our affair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Box<HostConfig>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Below the root, without a leading slash.
    pub path: String,
    pub mode: u32,
    pub content: Secret,
    /// Whether the content is hexadecimal, for what is no text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hex: bool,
}

impl ConfigFile {
    pub fn text(path: &str, mode: u32, content: Secret) -> Self {
        ConfigFile { path: path.to_owned(), mode, content, hex: false }
    }

    /// What the file holds; none where it is said to be hexadecimal and is not.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let text = self.content.expose();
        if !self.hex {
            return Some(text.as_bytes().to_vec());
        }
        let digits = |at| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        (0..text.len()).step_by(2).map(digits).collect()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EtcdService {
    pub version: String,
    pub binary: BinarySource,
    /// Flags without their dashes. Those that matter only at the first start are not here.
    pub flags: BTreeMap<String, String>,
    /// Files of this config that etcd reads only when it starts.
    pub inputs: BTreeSet<String>,
}

/// Where a machine takes etcd from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinarySource {
    /// The `etcd` on the agent's PATH; where none of the right version is there, this archive.
    Search {
        otherwise: Option<Archive>,
    },
    /// A program, or a directory that holds it.
    Path(String),
    /// Debian's package, unpacked beside the agent and not installed.
    DebianPackage,
    Archive(Archive),
}

/// A release archive, and what its bytes must add up to.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Archive {
    pub url: String,
    pub sha256: String,
}

impl NodeConfig {
    /// Tells two node configs apart.
    pub fn digest(&self) -> String {
        digest_of(self)
    }

    /// Changes exactly when etcd must be restarted for this config to take effect. Where the program comes from does
    /// not matter to a running process, only its version.
    pub fn etcd_digest(&self) -> String {
        let inputs: Vec<&ConfigFile> = self.files.iter().filter(|f| self.etcd.inputs.contains(&f.path)).collect();
        digest_of(&(&self.etcd.version, &self.etcd.flags, inputs))
    }
}

fn digest_of(value: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(value).expect("plain data serializes");
    hex(&Sha256::digest(bytes)[..16])
}
