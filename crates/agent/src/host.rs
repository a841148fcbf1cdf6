//! Services that a machine runs next to etcd: time, the node exporter, the firewall and log forwarding. Their configurations are
//! rendered from the machine's configuration and checked by each program before they are put in place; a service restarts only
//! when its configuration has changed.

mod chrony;
pub(crate) mod firewall;
mod fluent_bit;
mod log_forwarding;
mod node_exporter;

use std::path::{Path, PathBuf};

use quorate_core::kinds::openings;
use quorate_core::model::{HostConfig, NodeConfig};
use tokio::process::Command;

use crate::agent::Agent;

use crate::services::systemd::{run, systemctl};
use crate::{AgentError, files};

/// A program of the machine that something needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Need {
    program: &'static str,
    package: &'static str,
    what_for: &'static str,
}

const CHRONY: Need = Need { program: "chronyd", package: "chrony", what_for: "host.chrony" };
const NFT: Need = Need { program: "nft", package: "nftables", what_for: "host.firewall" };
const NODE_EXPORTER: Need =
    Need { program: "prometheus-node-exporter", package: "prometheus-node-exporter", what_for: "host.node_exporter" };
const FLUENT_BIT: Need = Need { program: "fluent-bit", package: "fluent-bit", what_for: "host.log_forwarding" };

/// The user that fluent-bit runs as. It may read etcd's log and the journal.
pub(crate) const LOG_READER: &str = "quorate-logs";

/// Where programs of a system are; an agent's own PATH may be shorter. fluent-bit's own packages put it elsewhere.
const PLACES: [&str; 6] = ["usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "opt/fluent-bit/bin"];

impl Agent {
    /// The firewall comes last: whatever fails before it leaves the machine reachable.
    pub(crate) async fn put_host(&self, all: &NodeConfig) -> Result<(), AgentError> {
        let Some(config) = all.host.as_deref().filter(|_| self.keeps_host) else { return Ok(()) };
        let host = Host { root: self.layout.root().to_owned() };
        host.supply(config).await?;
        let address = self.state.get().address;
        host.put_chrony(config).await?;
        host.put_node_exporter(config, address).await?;
        host.put_log_forwarding(config).await?;
        host.put_firewall(openings(all).map(|openings| firewall::render(&openings))).await
    }
}

struct Host {
    root: PathBuf,
}

impl Host {
    /// Installs missing packages, or reports them.
    async fn supply(&self, config: &HostConfig) -> Result<(), AgentError> {
        let missing: Vec<Need> = needs(config).into_iter().filter(|need| find(need.program).is_none()).collect();
        let Some(first) = missing.first() else { return Ok(()) };
        if !config.install_dependencies {
            return Err(AgentError::NoProgram {
                program: first.program,
                package: first.package,
                what_for: first.what_for,
            });
        }
        tracing::info!(packages = ?missing.iter().map(|need| need.package).collect::<Vec<_>>(), "installing");
        let apt_get = || {
            let mut command = Command::new("apt-get");
            command.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-o", "DPkg::Lock::Timeout=120"]);
            command
        };
        run(apt_get().arg("update")).await?;
        let packages = missing.iter().map(|need| need.package);
        run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages)).await.map(drop)
    }

    async fn put_chrony(&self, config: &HostConfig) -> Result<(), AgentError> {
        let Some(chrony) = &config.chrony else { return Ok(()) };
        let text = chrony::render(chrony);
        let path = self.root.join("etc/chrony/chrony.conf");
        if self.is_in_place(&path, &text) {
            return Ok(());
        }
        let draft = self.draft("chrony.conf", &text)?;
        run(Command::new(program(&CHRONY)).arg("-p").arg("-f").arg(&draft)).await?;
        files::write(&path, text.as_bytes(), 0o644, None)?;
        self.restart("chrony.service").await
    }

    async fn put_node_exporter(&self, config: &HostConfig, address: std::net::IpAddr) -> Result<(), AgentError> {
        let unit = "prometheus-node-exporter.service";
        if !config.node_exporter {
            // If it is not installed, there is nothing to stop.
            return match find(NODE_EXPORTER.program) {
                Some(_) => systemctl(&["disable", "--quiet", "--now", unit]).await.map(drop),
                None => Ok(()),
            };
        }
        let text = node_exporter::render(address);
        let path = self.root.join("etc/default/prometheus-node-exporter");
        let in_place = self.is_in_place(&path, &text);
        files::ensure(&path, text.as_bytes(), 0o644, None)?;
        if in_place && systemctl(&["is-active", "--quiet", unit]).await.is_ok() {
            Ok(())
        } else {
            self.restart(unit).await
        }
    }

    /// Other tables of the machine belong to others, and stay.
    async fn put_firewall(&self, rules: Option<String>) -> Result<(), AgentError> {
        let path = self.root.join("etc/nftables.conf");
        let ours = std::fs::read_to_string(&path).is_ok_and(|text| firewall::is_ours(&text));
        let text = match rules {
            Some(rules) => rules,
            None if ours => firewall::none(),
            None => return Ok(()),
        };
        let draft = self.draft("nftables.conf", &text)?;
        // All of it or nothing. Each time: somebody may have changed it, and to load what is there changes nothing.
        run(Command::new(program(&NFT)).arg("-f").arg(&draft)).await?;
        files::ensure(&path, text.as_bytes(), 0o644, None)?;
        self.start_at_boot("nftables.service", "sysinit.target")
    }

    /// What `systemctl enable` does, which first has scripts of another age look at it, and systemd read all units again.
    fn start_at_boot(&self, unit: &str, target: &str) -> Result<(), AgentError> {
        let own = |directory: &&str| self.root.join(directory).join(unit).exists();
        let directory = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"].into_iter().find(own);
        let directory = directory.ok_or_else(|| AgentError::Command {
            command: format!("systemctl enable {unit}"),
            said: String::from("there is no such unit on this machine"),
        })?;
        let wants = self.root.join(format!("etc/systemd/system/{target}.wants"));
        files::make_dir(&wants, 0o755)?;
        files::link(&wants.join(unit), &format!("/{directory}/{unit}"))
    }

    async fn restart(&self, unit: &str) -> Result<(), AgentError> {
        self.start_at_boot(unit, "multi-user.target")?;
        systemctl(&["restart", "--no-block", unit]).await.map(drop)
    }

    fn is_in_place(&self, path: &Path, text: &str) -> bool {
        std::fs::read_to_string(path).is_ok_and(|found| found == text)
    }

    /// For the program that checks it.
    fn draft(&self, name: &str, text: &str) -> Result<PathBuf, AgentError> {
        let path = self.root.join("run/quorate/drafts").join(name);
        files::write(&path, text.as_bytes(), 0o644, None)?;
        Ok(path)
    }
}

fn needs(config: &HostConfig) -> Vec<Need> {
    let needs = [
        (config.chrony.is_some(), CHRONY),
        (config.firewall.is_some(), NFT),
        (config.node_exporter, NODE_EXPORTER),
        (config.log_forwarding.is_some(), FLUENT_BIT),
    ];
    needs.into_iter().filter(|(wanted, _)| *wanted).map(|(_, need)| need).collect()
}

fn find(program: &str) -> Option<PathBuf> {
    find_below(Path::new("/"), program)
}

/// A program of the system that begins at this root.
pub(crate) fn find_below(root: &Path, program: &str) -> Option<PathBuf> {
    PLACES.iter().map(|place| root.join(place).join(program)).find(|path| path.exists())
}

fn program(need: &Need) -> PathBuf {
    find(need.program).unwrap_or_else(|| PathBuf::from(need.program))
}

/// xtask's directory of test programs.
#[cfg(test)]
fn lab() -> PathBuf {
    let lab = std::env::var_os("QUORATE_LAB").map(PathBuf::from);
    lab.unwrap_or_else(|| std::env::home_dir().expect("a home").join(".cache/quorate-lab"))
}

/// A program of the lab, or of this machine.
#[cfg(test)]
fn of_the_lab(need: &Need) -> PathBuf {
    let there = find_below(&lab().join(need.package), need.program).or_else(|| find(need.program));
    there.unwrap_or_else(|| panic!("{} is needed: `cargo xtask test` brings it", need.program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_needed() {
        let none = HostConfig {
            chrony: None,
            node_exporter: false,
            firewall: None,
            install_dependencies: true,
            log_forwarding: None,
        };
        assert_eq!(needs(&none), []);
        let some = HostConfig { chrony: Some(Default::default()), node_exporter: true, ..none };
        assert_eq!(needs(&some), [CHRONY, NODE_EXPORTER]);
    }
}
