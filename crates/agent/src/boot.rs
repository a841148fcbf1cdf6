//! What a machine does when it boots, before its agent starts: it applies its seed disk. Hostname, addresses, who may log in, the disk
//! for etcd's data, and the units of the agent. It is repeated at each boot and changes only what differs. Next to cloud-init, it leaves
//! hostname and addresses to cloud-init. On an image for EC2, and on one for OpenStack without config drives, the metadata service replaces
//! the seed disk, and addresses come from DHCP.

mod admin;
mod check;
mod disk;
mod metadata;
mod render;
mod seed;
mod tools;

use std::path::{Path, PathBuf};

use crate::AgentError;
use crate::api::boot::{CHANNEL_PORT, Machine};
use crate::files;
use crate::layout::Layout;
pub use metadata::user_data;
use tools::{Tools, system_tools};

/// The program's path on a machine.
pub const PROGRAM: &str = "usr/lib/quorate/quorate";
/// The directory for the files of a seed disk, for providers that write files into a machine.
pub const PLACED_SEED: &str = "var/lib/quorate/seed";
const BOOT_UNIT: &str = "quorate-boot.service";
const AGENT_UNIT: &str = "quorate-agent.service";

#[derive(Clone, Debug)]
pub struct BootOptions {
    /// `/` on a machine. Elsewhere files are written below it, and no program is run.
    pub root: PathBuf,
    /// A directory to read instead of the seed disk.
    pub seed_from: Option<PathBuf>,
    pub with: With,
}

/// The other tool that sets a machine up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum With {
    /// Nothing: everything is on the seed disk.
    #[default]
    Nothing,
    /// cloud-init, or Ignition, which has set hostname and addresses.
    CloudInit,
    /// EC2: its metadata service has the seed, and its DHCP the address.
    Ec2,
    /// OpenStack without config drives: Nova's metadata service has the seed, and Neutron's DHCP the address.
    Nova,
}

/// The units with which an image's machines read their seed themselves: path below the root, and content.
pub fn image_units(with: With) -> Vec<(String, String)> {
    [(BOOT_UNIT, render::boot_unit(with)), (AGENT_UNIT, render::agent_unit())]
        .map(|(name, text)| (format!("etc/systemd/system/{name}"), text))
        .to_vec()
}

/// The unit that a stock image needs for the same, in addition to its own tools: name and content.
pub fn stock_unit() -> (&'static str, String) {
    (BOOT_UNIT, render::boot_unit(With::CloudInit))
}

/// The additional file of an image whose machines get their addresses by DHCP: path below the root, and content.
pub fn dhcp_network(with: With) -> Option<(&'static str, &'static str)> {
    match with {
        With::Ec2 => Some(("etc/systemd/network/90-quorate-ec2.network", render::DHCP_NETWORK)),
        With::Nova => Some(("etc/systemd/network/90-quorate-nova.network", render::DHCP_NETWORK)),
        With::Nothing | With::CloudInit => None,
    }
}

/// Applies the machine's seed, and starts its agent.
pub fn boot(options: &BootOptions) -> Result<(), AgentError> {
    let layout = Layout::new(&options.root).map_err(AgentError::file("find", &options.root))?;
    let tools = system_tools(layout.root());
    Boot { layout, tools: tools.as_ref(), with: options.with }.run(options.seed_from.as_deref())
}

struct Boot<'a> {
    layout: Layout,
    tools: &'a dyn Tools,
    with: With,
}

impl Boot<'_> {
    fn run(&self, seed_from: Option<&Path>) -> Result<(), AgentError> {
        let machine = self.read_seed(seed_from)?;
        if self.with != With::CloudInit {
            self.set_hostname(&machine.hostname)?;
        }
        if self.with == With::Nothing {
            self.set_network(&machine)?;
        }
        self.set_admin(machine.admin.as_ref())?;
        if let Some(disk) = &machine.data_disk {
            self.mount_data(&disk.serial)?;
        }
        self.put("etc/profile.d/quorate.sh", &render::profile(machine.interfaces[0].address), 0o644)?;
        self.put("run/quorate/agent.env", &render::agent_environment(&machine), 0o644)?;
        self.start_agent()
    }

    fn path(&self, below: &str) -> PathBuf {
        self.layout.root().join(below)
    }

    fn put(&self, below: &str, content: &str, mode: u32) -> Result<(), AgentError> {
        files::ensure(&self.path(below), content.as_bytes(), mode, None)
    }

    fn set_hostname(&self, hostname: &str) -> Result<(), AgentError> {
        self.put("etc/hostname", &format!("{hostname}\n"), 0o644)?;
        let path = self.path("etc/hosts");
        let hosts = std::fs::read_to_string(&path).unwrap_or_default();
        self.put("etc/hosts", &render::hosts(&hosts, hostname), 0o644)?;
        self.tools.run("hostname", &[hostname], None).map(drop)
    }

    /// networkd starts after this, so nothing has to be reloaded. Files of a longer earlier list are removed.
    fn set_network(&self, machine: &Machine) -> Result<(), AgentError> {
        let directory = self.path("etc/systemd/network");
        let wanted: Vec<String> = (0..machine.interfaces.len()).map(render::network_file).collect();
        for (at, interface) in machine.interfaces.iter().enumerate() {
            let text = render::network(interface, at);
            self.put(&format!("etc/systemd/network/{}", wanted[at]), &text, 0o644)?;
        }
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if render::is_network_file(&name) && !wanted.contains(&name) {
                files::remove(&entry.path())?;
            }
        }
        match render::resolv_conf(machine) {
            Some(text) => self.put("etc/resolv.conf", &text, 0o644),
            None => Ok(()),
        }
    }

    fn start_agent(&self) -> Result<(), AgentError> {
        let units = [(BOOT_UNIT, render::boot_unit(self.with)), (AGENT_UNIT, render::agent_unit())];
        let mut changed = false;
        for (name, text) in &units {
            let below = format!("etc/systemd/system/{name}");
            changed |= std::fs::read_to_string(self.path(&below)).ok().as_ref() != Some(text);
            self.put(&below, text, 0o644)?;
            let wants = self.path("etc/systemd/system/multi-user.target.wants");
            files::make_dir(&wants, 0o755)?;
            files::link(&wants.join(name), &format!("../{name}"))?;
        }
        if changed {
            self.tools.run("systemctl", &["daemon-reload"], None)?;
        }
        self.tools.run("systemctl", &["start", "--no-block", AGENT_UNIT], None).map(drop)
    }
}

/// The device of the virtio-serial port.
fn channel_device() -> String {
    format!("/dev/virtio-ports/{CHANNEL_PORT}")
}

#[cfg(test)]
mod tests;
