use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use quorate_core::kinds::etcd::spec::Metrics;
use quorate_core::kinds::openings;
use quorate_core::spec::{AddressRange, Firewall};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use quorate_core::model::{
    AGENT_PORT, CLIENT_PORT, FirewallConfig, HEALTH_PORT, HostConfig, NODE_EXPORTER_PORT, NodeConfig, PEER_PORT,
};

use super::*;

fn text_of(config: &FirewallConfig, node_exporter: bool) -> String {
    let host = HostConfig {
        chrony: None,
        node_exporter,
        firewall: Some(config.clone()),
        install_dependencies: false,
        log_forwarding: None,
    };
    let config = NodeConfig { files: Vec::new(), services: Vec::new(), host: Some(Box::new(host)) };
    render(&openings(&config).expect("its firewall is on"))
}

fn ranges(text: &[&str]) -> Vec<AddressRange> {
    text.iter().map(|range| range.parse().unwrap()).collect()
}

fn full() -> FirewallConfig {
    let rules = Firewall {
        peers_from: Some(ranges(&["10.0.0.0/24", "10.0.1.7"])),
        clients_from: Some(ranges(&["10.0.0.0/8", "fd00::/8"])),
        ssh_from: Some(Vec::new()),
        ..Firewall::default()
    };
    FirewallConfig { rules, scrape_from: ranges(&["10.9.0.0/16"]), metrics: None }
}

#[test]
fn each_port_is_open_to_those_who_are_named() {
    let text = text_of(&full(), true);
    let rules: Vec<&str> = text.lines().map(str::trim).filter(|line| line.contains("tcp dport")).collect();
    let client = format!("{{ {CLIENT_PORT}, {HEALTH_PORT} }}");
    let expected = [
        String::from("ip saddr { 10.0.0.0/24, 10.0.1.7/32 } tcp dport 2380 accept"),
        format!("ip saddr {{ 10.0.0.0/8 }} tcp dport {client} accept"),
        format!("ip6 saddr {{ fd00::/8 }} tcp dport {client} accept"),
        format!("tcp dport {AGENT_PORT} accept"),
        String::from("ip saddr { 10.9.0.0/16 } tcp dport 9100 accept"),
    ];
    assert_eq!(rules, expected);
    assert!(!text_of(&full(), false).contains("9100"), "an exporter that does not run has no open port");
    let open = text_of(&FirewallConfig { rules: Firewall::default(), scrape_from: Vec::new(), metrics: None }, true);
    assert!(open.contains("\n    tcp dport 22 accept\n") && !open.contains("9100"));
    let metrics = Some(Metrics { port: 2381, scrape_from: ranges(&["10.9.0.0/16"]) });
    let with_metrics = text_of(&FirewallConfig { metrics, ..full() }, true);
    assert!(with_metrics.contains("    ip saddr { 10.9.0.0/16 } tcp dport 2381 accept\n"), "{with_metrics}");
    assert!(!text.contains("2381"), "who is not asked to show metrics has no open port");
    assert!(is_ours(&text) && is_ours(&none()) && !is_ours("flush ruleset\n"));
}

#[test]
fn nft_itself_understands_it() {
    let nft = super::super::find("nft").expect("nft is needed: `cargo xtask test` brings it");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Command::new(&nft).arg("-c").arg("-f").arg(&file).output().unwrap()
    };
    for text in [text_of(&full(), true), none()] {
        let output = check(&text);
        assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Two hosts, a machine and its neighbour, on a wire that leads nowhere else.
struct Hosts {
    names: [String; 2],
}

const MACHINE: [u8; 4] = [10, 78, 0, 1];
/// Addresses of the neighbour: one that is named everywhere, and one that is named nowhere.
const NAMED: [u8; 4] = [10, 78, 0, 2];
const STRANGER: [u8; 4] = [10, 78, 0, 200];

impl Hosts {
    fn new() -> Self {
        let names = ["m", "n"].map(|which| format!("quorate-fw-{}-{which}", std::process::id()));
        let hosts = Hosts { names };
        let [machine, neighbour] = &hosts.names;
        for name in &hosts.names {
            ip(&["netns", "add", name]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        ip(&["-n", machine, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", neighbour]);
        for (name, address) in [(machine, "10.78.0.1/24"), (neighbour, "10.78.0.2/24"), (neighbour, "10.78.0.200/24")] {
            ip(&["-n", name, "address", "add", address, "dev", "eth0"]);
            ip(&["-n", name, "link", "set", "eth0", "up"]);
        }
        hosts
    }

    /// Does something there. A socket stays where it was made.
    fn at<T: Send>(&self, host: usize, what: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        let go = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            what()
        };
        std::thread::scope(|scope| scope.spawn(go).join()).unwrap()
    }

    /// How the machine answers at a port, to anyone who comes from this address.
    fn knock(&self, from: [u8; 4], port: u16) -> Result<(), ErrorKind> {
        let to = SocketAddr::new(IpAddr::from(MACHINE), port);
        self.at(1, || {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::sockopt::set_socket_timeout(
                &socket,
                rustix::net::sockopt::Timeout::Send,
                Some(Duration::from_secs(5)),
            )
            .unwrap();
            bind(&socket, &SocketAddr::new(IpAddr::from(from), 0)).unwrap();
            connect(&socket, &to).map_err(|error| std::io::Error::from(error).kind())
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().unwrap();
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_machine_accepts_the_named_sources_and_rejects_all_others_at_once() {
    let hosts = Hosts::new();
    let nft = super::super::find("nft").expect("nft is needed: `cargo xtask test` brings it");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules");
    let load = |text: String| {
        std::fs::write(&file, text).unwrap();
        let output = hosts.at(0, || Command::new(&nft).arg("-f").arg(&file).output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let named = [PEER_PORT, CLIENT_PORT, HEALTH_PORT, 22, AGENT_PORT, NODE_EXPORTER_PORT];
    let unnamed = 8080;
    let ports = named.into_iter().chain([unnamed]);
    let _listening: Vec<TcpListener> =
        hosts.at(0, || ports.map(|port| TcpListener::bind((IpAddr::from(MACHINE), port)).unwrap()).collect());
    assert_eq!(hosts.knock(STRANGER, unnamed), Ok(()), "nobody is refused before there are rules");

    let only = ranges(&["10.78.0.0/28"]);
    let rules = Firewall {
        peers_from: Some(only.clone()),
        clients_from: Some(only.clone()),
        ssh_from: Some(only.clone()),
        controller_from: Some(only.clone()),
        ..Firewall::default()
    };
    let config = FirewallConfig { rules, scrape_from: only, metrics: None };
    load(text_of(&config, true));
    for port in named {
        assert_eq!(hosts.knock(NAMED, port), Ok(()), "{port}");
        assert_eq!(hosts.knock(STRANGER, port), Err(ErrorKind::ConnectionRefused), "{port}");
    }
    assert_eq!(hosts.knock(NAMED, unnamed), Err(ErrorKind::ConnectionRefused), "what is not named is refused to all");
    let itself = hosts.at(0, || TcpStream::connect((IpAddr::from(MACHINE), unnamed)).map(drop));
    assert!(itself.is_ok(), "the machine reaches itself: {itself:?}");

    load(text_of(&config, false));
    assert_eq!(hosts.knock(NAMED, NODE_EXPORTER_PORT), Err(ErrorKind::ConnectionRefused), "no exporter, no port");
    load(text_of(&FirewallConfig { rules: Firewall::default(), scrape_from: Vec::new(), metrics: None }, true));
    assert_eq!(hosts.knock(STRANGER, CLIENT_PORT), Ok(()), "an absent list lets all in");
    assert_eq!(hosts.knock(STRANGER, NODE_EXPORTER_PORT), Err(ErrorKind::ConnectionRefused), "but to the exporter");
    load(none());
    assert_eq!(hosts.knock(STRANGER, unnamed), Ok(()), "without rules nobody is refused");
}
