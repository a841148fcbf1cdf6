//! fluent-bit's configuration, in pieces at fixed places, so that a configuration from elsewhere can include them.

use quorate_core::model::{ForwardConfig, LogForwardingConfig};

use crate::follow;
use crate::units::SHUT_IN;

use super::LOG_READER;

const OUTPUT: &str = "etc/fluent-bit-customization/default-config/fluent-bit-output.conf";
const SERVICE: &str = "etc/fluent-bit-customization/default-config/fluent-bit-service.conf";
pub(super) const INPUTS: &str = "etc/fluent-bit-customization/default-config/fluent-bit-inputs.conf";
const CA: &str = "etc/fluent-bit-customization/forward-ca.crt";
/// Where fluent-bit's own packages look.
const MAIN: &str = "etc/fluent-bit/fluent-bit.conf";
pub(super) const UNIT: &str = "etc/systemd/system/fluent-bit.service.d/quorate.conf";
/// All that may be written.
pub(super) const PIECES: [&str; 5] = [SERVICE, INPUTS, CA, OUTPUT, MAIN];
const MARK: &str = "# Written by quorate; changes are lost.\n";

pub(super) struct Piece {
    pub(super) path: &'static str,
    pub(super) content: String,
    pub(super) mode: u32,
}

/// The output holds the shared key: besides root, fluent-bit's own user alone reads it.
pub(super) fn render(config: &LogForwardingConfig) -> Vec<Piece> {
    let piece = |path, content: String, mode| Piece { path, content, mode };
    let mut pieces = vec![
        piece(SERVICE, section("SERVICE", &[("Flush", "1"), ("Daemon", "off"), ("Log_Level", "info")]), 0o644),
        piece(INPUTS, inputs(config), 0o644),
        piece(MAIN, main(config), 0o644),
    ];
    if let Some(forward) = &config.forward {
        pieces.push(piece(CA, forward.ca.clone(), 0o644));
        pieces.push(piece(OUTPUT, output(forward), 0o640));
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
            ("DB", "/var/lib/quorate-logs/etcd.db"),
            ("Read_from_Head", "off"),
        ],
    );
    let exporter = section(
        "INPUT",
        &[
            ("Name", "systemd"),
            ("Tag", &config.node_exporter_tag),
            ("Systemd_Filter", "_SYSTEMD_UNIT=prometheus-node-exporter.service"),
            ("DB", "/var/lib/quorate-logs/node-exporter.db"),
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

/// What is added to the unit that fluent-bit's package brings, which would be root.
pub(super) fn unit() -> String {
    format!(
        "{MARK}\
         [Service]\n\
         User={LOG_READER}\n\
         Group={LOG_READER}\n\
         SupplementaryGroups=etcd systemd-journal\n\
         StateDirectory={LOG_READER}\n\
         StateDirectoryMode=0700\n\
         {SHUT_IN}"
    )
}

fn section(name: &str, entries: &[(&str, &str)]) -> String {
    let lines: String = entries.iter().map(|(key, value)| format!("    {key} {value}\n")).collect();
    format!("{MARK}[{name}]\n{lines}")
}

#[cfg(test)]
mod tests;
