mod receiver;

use std::process::Command;

use quorate_core::Secret;
use quorate_core::model::{LogSourceConfig, ServiceLog, SourceLogin};

use super::*;
use receiver::{Heard, Receiver};

fn config() -> LogForwardingConfig {
    LogForwardingConfig {
        etcd_tag: String::from("etcd"),
        node_exporter_tag: String::from("exporter"),
        services: Vec::new(),
        forward: Some(forward()),
        from_etcd: None,
    }
}

fn forward() -> ForwardConfig {
    ForwardConfig {
        host: String::from("logs.example.org"),
        port: 24284,
        hostname: String::from("etcd-1"),
        shared_key: Secret::new(String::from("s3cret")),
        ca: String::from("-----BEGIN CERTIFICATE-----\n"),
        buffer: None,
    }
}

/// fluent-bit's classic grammar: comments, commands that begin with @, sections in brackets, and entries below them that are
/// indented by spaces, a key and a value with a space between.
fn parse(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut sections: Vec<(String, Vec<(String, String)>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '@'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            sections.push((name.to_owned(), Vec::new()));
            continue;
        }
        let (key, value) = line.strip_prefix("    ").and_then(|line| line.split_once(' ')).expect(line);
        sections.last_mut().expect("an entry is in a section").1.push((key.to_owned(), value.to_owned()));
    }
    sections
}

#[test]
fn every_piece_is_of_fluent_bits_grammar_and_at_its_place() {
    let pieces = render(&config());
    let of = |path: &str| &pieces.iter().find(|piece| piece.path == path).unwrap().content;
    let inputs = parse(of(INPUTS));
    let tags: Vec<&str> = inputs.iter().map(|(_, entries)| entries[1].1.as_str()).collect();
    assert_eq!(tags, ["etcd", "exporter"]);
    let output = parse(of(OUTPUT)).remove(0);
    let get = |key: &str| output.1.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_str());
    assert_eq!((get("Host"), get("Port")), (Some("logs.example.org"), Some("24284")));
    assert_eq!((get("Shared_Key"), get("tls.verify")), (Some("s3cret"), Some("on")));
    for piece in [SERVICE, INPUTS, OUTPUT] {
        assert!(of(MAIN).contains(&format!("@INCLUDE /{piece}\n")));
    }
}

/// Of a machine of PostgreSQL, with a buffer on disk.
fn of_postgres() -> LogForwardingConfig {
    let services = [("haproxy", "proxies"), ("patroni", "shop")].map(|(service, tag)| ServiceLog {
        service: service.to_owned(),
        user: String::from("postgres"),
        tag: tag.to_owned(),
    });
    let forward = ForwardConfig { buffer: Some(64 << 20), ..forward() };
    LogForwardingConfig { services: services.into(), forward: Some(forward), ..config() }
}

#[test]
fn postgresql_has_its_own_logs_and_what_the_receiver_misses_is_kept_on_disk() {
    let pieces = render(&of_postgres());
    let of = |path: &str| parse(&pieces.iter().find(|piece| piece.path == path).unwrap().content);
    let get = |entries: &[(String, String)], key: &str| {
        entries.iter().find(|(found, _)| found == key).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let inputs = of(INPUTS);
    let shown: Vec<[String; 3]> =
        inputs.iter().map(|(_, e)| ["Tag", "Path", "storage.type"].map(|k| get(e, k))).collect();
    let expected = [
        ["proxies", "/var/log/haproxy.log", "filesystem"],
        ["shop", "/var/log/patroni.log", "filesystem"],
        ["exporter", "", "filesystem"],
    ];
    assert_eq!(shown, expected.map(|row| row.map(str::to_owned)));
    assert_eq!(get(&of(SERVICE)[0].1, "storage.path"), "/var/lib/quorate-logs/buffer");
    assert_eq!(get(&of(OUTPUT)[0].1, "storage.total_limit_size"), (64 << 20).to_string());
    assert!(unit(&of_postgres()).contains("SupplementaryGroups=postgres systemd-journal\n"));
    assert!(unit(&config()).contains("SupplementaryGroups=etcd systemd-journal\n"));
}

#[test]
fn a_configuration_from_etcd_replaces_the_default_includes_and_the_pieces_remain() {
    let login = SourceLogin::Password { user: String::from("u"), password: Secret::new("p") };
    let source = LogSourceConfig { prefix: String::from("/l/"), endpoints: Vec::new(), ca: String::new(), login };
    let pieces = render(&LogForwardingConfig { from_etcd: Some(source), ..config() });
    let of = |path: &str| pieces.iter().find(|piece| piece.path == path).map(|piece| piece.content.as_str());
    let main: Vec<&str> = of(MAIN).unwrap().lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(main, ["@INCLUDE /etc/fluent-bit-customization/dynamic-config/index.conf"]);
    assert!([SERVICE, INPUTS, OUTPUT].iter().all(|path| of(path).is_some()));
    let none = render(&LogForwardingConfig { forward: None, ..config() });
    assert!(!none.iter().any(|piece| piece.path == OUTPUT || piece.path == CA));
}

#[test]
fn nothing_in_the_pieces_is_refused_to_a_configuration_from_elsewhere() {
    for config in [config(), of_postgres()] {
        let configuration = render(&config).into_iter().filter(|piece| piece.path != CA);
        let files = configuration.map(|piece| (piece.path.to_owned(), piece.content.into_bytes())).collect();
        assert_eq!(follow::allowed::check(&files), Ok(()));
    }
}

#[test]
fn fluent_bit_is_not_root_and_writes_only_to_its_own_directory() {
    let text = unit(&config());
    let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    has("User=quorate-logs");
    has("ProtectSystem=strict");
    has("CapabilityBoundingSet=");
    has("StateDirectory=quorate-logs");
    assert!(!text.contains("ReadWritePaths"), "{text}");
    let places = parse(&inputs(&config())).into_iter().flat_map(|(_, entries)| entries);
    let kept: Vec<String> = places.filter(|(key, _)| key == "DB").map(|(_, path)| path).collect();
    assert!(kept.len() == 2 && kept.iter().all(|path| path.starts_with("/var/lib/quorate-logs/")), "{kept:?}");
}

#[test]
fn the_shared_key_is_in_one_private_file() {
    for piece in render(&config()).iter().filter(|piece| piece.content.contains("s3cret")) {
        assert_eq!((piece.path, piece.mode), (OUTPUT, 0o640));
    }
}

/// What fluent-bit would read, read by another sender of the same protocol: it is let in, and its record arrives.
#[test]
fn a_receiver_takes_what_is_sent_as_the_output_says() {
    let sender = crate::host::lab().join("forward/sender");
    assert!(sender.exists(), "a sender of logs is needed: `cargo xtask test` brings it");
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::new("s3cret");
    let send = |shared_key: &str, ca: &str| {
        let mut forward = ForwardConfig { port: receiver.address.port(), ca: ca.to_owned(), ..forward() };
        forward.host = receiver.address.ip().to_string();
        forward.shared_key = Secret::new(shared_key);
        let pieces = render(&LogForwardingConfig { forward: Some(forward), ..of_postgres() });
        let of = |path: &str| &pieces.iter().find(|piece| piece.path == path).unwrap().content;
        let (output, ca) = (directory.path().join("output.conf"), directory.path().join("ca.crt"));
        std::fs::write(&ca, of(CA)).unwrap();
        std::fs::write(&output, of(OUTPUT).replace(&format!("/{CA}"), &ca.display().to_string())).unwrap();
        Command::new(&sender).arg(&output).args(["shop", "ready to serve"]).output().unwrap()
    };
    let sent = send("s3cret", receiver.ca());
    let heard = receiver.heard();
    assert!(sent.status.success(), "{}\n{heard:?}", String::from_utf8_lossy(&sent.stderr));
    let expected =
        Heard { hostname: String::from("etcd-1"), tag: String::from("shop"), log: String::from("ready to serve") };
    assert_eq!(heard, Ok(expected));

    assert!(!send("another", receiver.ca()).status.success());
    assert_eq!(receiver.heard(), Err(String::from("the shared key is wrong")));
    let other = Receiver::new("s3cret");
    assert!(!send("s3cret", other.ca()).status.success(), "a receiver of another CA is not trusted");
    assert!(receiver.heard().is_err());
}
