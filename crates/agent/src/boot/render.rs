//! Renders the files of a machine as text. Reads and writes nothing.

use std::net::IpAddr;

use quorate_core::model::{CLIENT_PORT, https_url};

use super::{PROGRAM, With, channel_device};
use crate::api::boot::{Interface, Machine};
use crate::units::AGENT;

const PREFIX: &str = "05-quorate-";
const SUFFIX: &str = ".network";
const WRITTEN: &str = "# Written by quorate at each boot; changes are lost.\n";

/// The file of systemd-networkd for the interface at this place of the list; it comes before those of an image.
pub(super) fn network_file(at: usize) -> String {
    format!("{PREFIX}{at:02}{SUFFIX}")
}

pub(super) fn is_network_file(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// A gateway has a lower priority the later its interface is in the list.
pub(super) fn network(interface: &Interface, at: usize) -> String {
    let Interface { mac, address, prefix, gateway, dns, more_addresses } = interface;
    let more: String = more_addresses.iter().map(|(address, prefix)| format!("Address={address}/{prefix}\n")).collect();
    let dns: String = dns.iter().map(|server| format!("DNS={server}\n")).collect();
    let route = gateway.map(|gateway| {
        let metric = 100 * (at + 1);
        format!("\n[Route]\nGateway={gateway}\nGatewayOnLink=yes\nMetric={metric}\n")
    });
    format!(
        "{WRITTEN}\
         [Match]\n\
         MACAddress={mac}\n\
         \n\
         [Network]\n\
         DHCP=no\n\
         IPv6AcceptRA=no\n\
         LLMNR=no\n\
         MulticastDNS=no\n\
         Address={address}/{prefix}\n\
         {more}{dns}{}",
        route.unwrap_or_default(),
    )
}

/// For images without a resolver. None where the machine has no name server: an image's own setting stays.
pub(super) fn resolv_conf(machine: &Machine) -> Option<String> {
    let servers: Vec<&IpAddr> = machine.interfaces.iter().flat_map(|interface| &interface.dns).collect();
    let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    (!servers.is_empty()).then(|| format!("{WRITTEN}{lines}"))
}

/// Adds the machine's own name; all other lines stay.
pub(super) fn hosts(found: &str, hostname: &str) -> String {
    let own = |line: &&str| line.split_whitespace().next() != Some("127.0.1.1");
    let mut lines: Vec<&str> = found.lines().filter(own).collect();
    if !lines.iter().any(|line| line.split_whitespace().next() == Some("127.0.0.1")) {
        lines.insert(0, "127.0.0.1 localhost");
    }
    format!("{}\n127.0.1.1 {hostname}\n", lines.join("\n"))
}

/// ssh accepts only keys, and never root. sshd uses the first value that it reads, so this file comes early.
pub(super) fn sshd() -> String {
    format!(
        "{WRITTEN}\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         PermitRootLogin no\n\
         AuthorizedKeysFile .ssh/authorized_keys /{KEYS}/%u\n"
    )
}

/// Below the root: a file for each user, which the user cannot change. Keys that users add themselves are kept elsewhere.
pub(super) const KEYS: &str = "etc/ssh/quorate-keys";

pub(super) fn sudoers(user: &str) -> String {
    format!("{WRITTEN}{user} ALL=(ALL:ALL) NOPASSWD:ALL\n")
}

/// Where the metadata service has the seed, an interface has one address, which DHCP knows.
pub(super) const DHCP_NETWORK: &str = "[Match]\n\
                                      Type=ether\n\
                                      \n\
                                      [Network]\n\
                                      DHCP=ipv4\n\
                                      IPv6AcceptRA=no\n\
                                      LLMNR=no\n\
                                      MulticastDNS=no\n";

/// The unit that reads the seed. On our own image it comes before the network, and is all that sets it up; a metadata service is reached by
/// the network alone.
pub(super) fn boot_unit(with: With) -> String {
    const AFTER_NETWORK: &str = "Wants=systemd-networkd.service\nAfter=network.target systemd-networkd.service\n";
    let (order, flag) = match with {
        With::CloudInit => ("After=network.target cloud-init.service\n", " --beside-cloud-init"),
        With::Ec2 => (AFTER_NETWORK, " --ec2"),
        With::Nova => (AFTER_NETWORK, " --openstack"),
        With::Nothing => (
            "DefaultDependencies=no\n\
             Requires=local-fs.target\n\
             After=local-fs.target systemd-udev-trigger.service\n\
             Before=network-pre.target systemd-networkd.service ssh.service shutdown.target\n\
             Wants=network-pre.target\n\
             Conflicts=shutdown.target\n",
            "",
        ),
    };
    format!(
        "{WRITTEN}\
         [Unit]\n\
         Description=Sets this machine up from its seed\n\
         {order}\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart=/{PROGRAM} agent boot{flag}\n\
         TimeoutStartSec=300\n\
         CPUWeight=1000\n\
         StandardOutput=journal+console\n\
         StandardError=inherit\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

/// The agent's unit. It runs as root, since it writes units and other users' files; etcd has another unit and user, and
/// runs on when this one ends. It waits for nothing but its disk: a temporary directory of its own would have it wait for those.
pub(super) fn agent_unit() -> String {
    format!(
        "{WRITTEN}\
         [Unit]\n\
         Description=quorate's agent\n\
         DefaultDependencies=no\n\
         Requires=quorate-boot.service\n\
         After=quorate-boot.service local-fs.target\n\
         Before=shutdown.target\n\
         Conflicts=shutdown.target\n\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         Type=exec\n\
         Environment=QUORATE_AGENT_ARGS=\n\
         EnvironmentFile=-/run/quorate/agent.env\n\
         ExecStart=/{PROGRAM} agent --root / --seed /run/quorate/seed.json --systemd $QUORATE_AGENT_ARGS\n\
         Restart=always\n\
         RestartSec=500ms\n\
         StandardOutput=append:/var/log/agent.log\n\
         StandardError=inherit\n\
         LimitNOFILE=65536\n\
         OOMScoreAdjust=-900\n\
         CPUWeight=1000\n\
         {AGENT}\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

/// The settings of the agent's unit that differ between machines.
pub(super) fn agent_environment(machine: &Machine) -> String {
    let arguments = if machine.channel { format!("--channel {}", channel_device()) } else { String::new() };
    format!("QUORATE_AGENT_ARGS=\"{arguments}\"\n")
}

/// Makes `etcdctl` work at once in root's shell. Only root can read the keys.
pub(super) fn profile(address: IpAddr) -> String {
    let endpoint = https_url(address, CLIENT_PORT);
    format!(
        "{WRITTEN}\
         if [ \"$(id -u)\" = 0 ]; then\n\
         \x20 export ETCDCTL_ENDPOINTS={endpoint} ETCDCTL_CACERT=/etc/etcd/pki/ca.crt\n\
         \x20 if [ -e /etc/etcd/pki/root.key ]; then\n\
         \x20   export ETCDCTL_CERT=/etc/etcd/pki/root.crt ETCDCTL_KEY=/etc/etcd/pki/root.key\n\
         \x20 elif [ -r /etc/quorate/root-password ]; then\n\
         \x20   export ETCDCTL_USER=\"root:$(cat /etc/quorate/root-password)\"\n\
         \x20 fi\n\
         \x20 # The one that came with the etcd that runs.\n\
         \x20 quorate_etcd=$(sed -n 's/^ExecStart=\"\\([^\"]*\\)\\/etcd\" .*/\\1/p' /etc/systemd/system/etcd.service 2>/dev/null)\n\
         \x20 if [ -n \"$quorate_etcd\" ] && [ -x \"$quorate_etcd/etcdctl\" ]; then PATH=\"$quorate_etcd:$PATH\"; fi\n\
         \x20 unset quorate_etcd\n\
         fi\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface() -> Interface {
        Interface {
            mac: String::from("52:54:00:00:00:01"),
            address: "192.168.122.11".parse().unwrap(),
            prefix: 24,
            gateway: Some("192.168.122.1".parse().unwrap()),
            dns: vec!["192.168.122.1".parse().unwrap(), "9.9.9.9".parse().unwrap()],
            more_addresses: Vec::new(),
        }
    }

    fn lines(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    }

    #[test]
    fn an_interface_is_known_by_its_mac_and_gets_nothing_but_what_is_said() {
        let expected = [
            "[Match]",
            "MACAddress=52:54:00:00:00:01",
            "[Network]",
            "DHCP=no",
            "IPv6AcceptRA=no",
            "LLMNR=no",
            "MulticastDNS=no",
            "Address=192.168.122.11/24",
            "DNS=192.168.122.1",
            "DNS=9.9.9.9",
            "[Route]",
            "Gateway=192.168.122.1",
            "GatewayOnLink=yes",
            "Metric=200",
        ];
        assert_eq!(lines(&network(&interface(), 1)), expected);
        let alone = Interface { gateway: None, dns: Vec::new(), ..interface() };
        assert!(!network(&alone, 0).contains("[Route]"));
    }

    #[test]
    fn a_machine_knows_its_own_name_and_keeps_the_others() {
        let found = "127.0.0.1 localhost\n127.0.1.1 old\n10.0.0.9 store\n";
        let expected = "127.0.0.1 localhost\n10.0.0.9 store\n127.0.1.1 etcd-1\n";
        assert_eq!(hosts(found, "etcd-1"), expected);
        assert_eq!(hosts(expected, "etcd-1"), expected);
        assert_eq!(hosts("", "etcd-1"), "127.0.0.1 localhost\n127.0.1.1 etcd-1\n");
    }

    #[test]
    fn nobody_logs_in_by_password_over_ssh() {
        let text = sshd();
        for line in ["PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin no"] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn the_agent_comes_after_the_seed_disk_was_read_and_comes_back_always() {
        let unit = agent_unit();
        let needed = ["Requires=quorate-boot.service", "Restart=always", "StartLimitIntervalSec=0"];
        // Without the usual dependencies, these make it stop before the disks are unmounted.
        let ends =
            ["After=quorate-boot.service local-fs.target", "Before=shutdown.target", "Conflicts=shutdown.target"];
        for line in needed.into_iter().chain(ends) {
            assert!(unit.lines().any(|found| found == line), "{line} is not in\n{unit}");
        }
        assert!(boot_unit(With::Nothing).contains("Before=network-pre.target systemd-networkd.service"));
        for (with, flag) in [(With::Ec2, "--ec2"), (With::Nova, "--openstack")] {
            let unit = boot_unit(with);
            assert!(
                unit.contains(&format!("agent boot {flag}\n")) && !unit.contains("Before=network-pre.target"),
                "{unit}"
            );
        }
        let beside = boot_unit(With::CloudInit);
        assert!(beside.contains("agent boot --beside-cloud-init\n") && !beside.contains("DefaultDependencies=no"));
    }

    #[test]
    fn roots_shell_speaks_to_this_member() {
        assert!(profile("10.0.0.1".parse().unwrap()).contains("ETCDCTL_ENDPOINTS=https://10.0.0.1:2379 "));
        let text = profile("fd00::1".parse().unwrap());
        assert!(text.contains("ETCDCTL_ENDPOINTS=https://[fd00::1]:2379 "));
        // A shell reads it without an error.
        let checked = std::process::Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
        assert!(checked.success(), "{text}");
    }
}
