//! fluent-bit's configuration, in pieces at places of their own, so that a configuration from elsewhere can include them.

use quorate_core::model::{ForwardConfig, LogForwardingConfig};

use crate::follow;

const OUTPUT: &str = "etc/fluent-bit-customization/default-config/fluent-bit-output.conf";
const SERVICE: &str = "etc/fluent-bit-customization/default-config/fluent-bit-service.conf";
pub(super) const INPUTS: &str = "etc/fluent-bit-customization/default-config/fluent-bit-inputs.conf";
const CA: &str = "etc/fluent-bit-customization/forward-ca.crt";
/// Where fluent-bit's own packages look.
const MAIN: &str = "etc/fluent-bit/fluent-bit.conf";
/// All that may be written.
pub(super) const PIECES: [&str; 5] = [SERVICE, INPUTS, CA, OUTPUT, MAIN];
const MARK: &str = "# Written by quorate; changes are lost.\n";

pub(super) struct Piece {
    pub(super) path: &'static str,
    pub(super) content: String,
    pub(super) mode: u32,
}

/// The output holds the shared key: it is root's alone.
pub(super) fn render(config: &LogForwardingConfig) -> Vec<Piece> {
    let piece = |path, content: String, mode| Piece { path, content, mode };
    let mut pieces = vec![
        piece(SERVICE, section("SERVICE", &[("Flush", "1"), ("Daemon", "off"), ("Log_Level", "info")]), 0o644),
        piece(INPUTS, inputs(config), 0o644),
        piece(MAIN, main(config), 0o644),
    ];
    if let Some(forward) = &config.forward {
        pieces.push(piece(CA, forward.ca.clone(), 0o644));
        pieces.push(piece(OUTPUT, output(forward), 0o600));
    }
    pieces
}

/// A configuration that is kept elsewhere includes of the pieces what it likes.
fn main(config: &LogForwardingConfig) -> String {
    match config.from_etcd {
        Some(_) => format!("{MARK}@INCLUDE /{}/{}\n", follow::DIRECTORY, follow::INDEX),
        None => format!("{MARK}@INCLUDE /{SERVICE}\n@INCLUDE /{INPUTS}\n@INCLUDE /{OUTPUT}\n"),
    }
}

/// etcd logs to a file; the node exporter to the journal.
fn inputs(config: &LogForwardingConfig) -> String {
    let etcd = section(
        "INPUT",
        &[
            ("Name", "tail"),
            ("Tag", &config.etcd_tag),
            ("Path", "/var/log/etcd.log"),
            ("DB", "/var/lib/fluent-bit-etcd.db"),
            ("Read_from_Head", "off"),
        ],
    );
    let exporter = section(
        "INPUT",
        &[
            ("Name", "systemd"),
            ("Tag", &config.node_exporter_tag),
            ("Systemd_Filter", "_SYSTEMD_UNIT=prometheus-node-exporter.service"),
            ("DB", "/var/lib/fluent-bit-node-exporter.db"),
        ],
    );
    format!("{etcd}\n{exporter}")
}

fn output(config: &ForwardConfig) -> String {
    section(
        "OUTPUT",
        &[
            ("Name", "forward"),
            ("Match", "*"),
            ("Host", &config.host),
            ("Port", &config.port.to_string()),
            ("Self_Hostname", &config.hostname),
            ("Shared_Key", config.shared_key.expose()),
            ("tls", "on"),
            ("tls.verify", "on"),
            ("tls.ca_file", &format!("/{CA}")),
        ],
    )
}

fn section(name: &str, entries: &[(&str, &str)]) -> String {
    let lines: String = entries.iter().map(|(key, value)| format!("    {key} {value}\n")).collect();
    format!("{MARK}[{name}]\n{lines}")
}

#[cfg(test)]
mod tests {
    use quorate_core::Secret;
    use quorate_core::model::{LogSourceConfig, SourceLogin};

    use super::*;

    fn config() -> LogForwardingConfig {
        LogForwardingConfig {
            etcd_tag: String::from("etcd"),
            node_exporter_tag: String::from("exporter"),
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

    #[test]
    fn what_is_kept_elsewhere_comes_instead_of_the_pieces_and_they_stay_to_be_included() {
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
    fn the_shared_key_is_in_one_private_file() {
        for piece in render(&config()).iter().filter(|piece| piece.content.contains("s3cret")) {
            assert_eq!((piece.path, piece.mode), (OUTPUT, 0o600));
        }
    }
}
