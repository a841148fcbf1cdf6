//! fluent-bit's configuration, in separate files at fixed paths, so that a configuration from another etcd can include them.

use std::collections::BTreeSet;

use quorate_core::model::{ForwardConfig, LogForwardingConfig};

use crate::follow;
use crate::units::SHUT_IN;

use super::LOG_READER;

const OUTPUT: &str = "etc/fluent-bit-customization/default-config/fluent-bit-output.conf";
const SERVICE: &str = "etc/fluent-bit-customization/default-config/fluent-bit-service.conf";
pub(super) const INPUTS: &str = "etc/fluent-bit-customization/default-config/fluent-bit-inputs.conf";
const CA: &str = "etc/fluent-bit-customization/forward-ca.crt";
/// The directory of fluent-bit's packages.
const MAIN: &str = "etc/fluent-bit/fluent-bit.conf";
pub(super) const UNIT: &str = "etc/systemd/system/fluent-bit.service.d/quorate.conf";
/// All that may be written.
pub(super) const PIECES: [&str; 5] = [SERVICE, INPUTS, CA, OUTPUT, MAIN];
const BUFFER: &str = "/var/lib/quorate-logs/buffer";
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
        piece(SERVICE, service(config), 0o644),
        piece(INPUTS, inputs(config), 0o644),
        piece(MAIN, main(config), 0o644),
    ];
    if let Some(forward) = &config.forward {
        pieces.push(piece(CA, forward.ca.clone(), 0o644));
        pieces.push(piece(OUTPUT, output(forward), 0o640));
    }
    pieces
}

/// A configuration in another etcd includes any of these files.
fn main(config: &LogForwardingConfig) -> String {
    match config.from_etcd {
        Some(_) => format!("{MARK}@INCLUDE /{}/{}\n", follow::DIRECTORY, follow::INDEX),
        None => format!("{MARK}@INCLUDE /{SERVICE}\n@INCLUDE /{INPUTS}\n@INCLUDE /{OUTPUT}\n"),
    }
}

fn buffer(config: &LogForwardingConfig) -> Option<u64> {
    config.forward.as_ref()?.buffer
}

fn service(config: &LogForwardingConfig) -> String {
    let storage = buffer(config).map(|_| ("storage.path", BUFFER));
    let entries: Vec<_> =
        [("Flush", "1"), ("Daemon", "off"), ("Log_Level", "info")].into_iter().chain(storage).collect();
    section("SERVICE", &entries)
}

/// Services log to files; the node exporter to the journal.
fn inputs(config: &LogForwardingConfig) -> String {
    let storage = buffer(config).map(|_| ("storage.type", "filesystem"));
    let input = |entries: &[(&str, &str)]| {
        let entries: Vec<_> = entries.iter().copied().chain(storage).collect();
        section("INPUT", &entries)
    };
    let tail = |name: &str, tag: &str| {
        let (path, db) = (format!("/var/log/{name}.log"), format!("/var/lib/quorate-logs/{name}.db"));
        input(&[("Name", "tail"), ("Tag", tag), ("Path", &path), ("DB", &db), ("Read_from_Head", "off")])
    };
    let exporter = input(&[
        ("Name", "systemd"),
        ("Tag", &config.node_exporter_tag),
        ("Systemd_Filter", "_SYSTEMD_UNIT=prometheus-node-exporter.service"),
        ("DB", "/var/lib/quorate-logs/node-exporter.db"),
    ]);
    let mut sections: Vec<String> = match config.services.is_empty() {
        true => vec![tail("etcd", &config.etcd_tag)],
        false => config.services.iter().map(|log| tail(&log.service, &log.tag)).collect(),
    };
    sections.push(exporter);
    sections.join("\n")
}

/// Logs on disk are sent eventually, however long the receiver is unavailable.
fn output(config: &ForwardConfig) -> String {
    let (port, ca) = (config.port.to_string(), format!("/{CA}"));
    let most = config.buffer.map(|bytes| bytes.to_string());
    let kept = most.iter().flat_map(|most| [("storage.total_limit_size", most.as_str()), ("Retry_Limit", "no_limits")]);
    let entries: Vec<_> = [
        ("Name", "forward"),
        ("Match", "*"),
        ("Host", &*config.host),
        ("Port", &*port),
        ("Self_Hostname", &*config.hostname),
        ("Shared_Key", config.shared_key.expose()),
        ("tls", "on"),
        ("tls.verify", "on"),
        ("tls.ca_file", &*ca),
    ]
    .into_iter()
    .chain(kept)
    .collect();
    section("OUTPUT", &entries)
}

/// What is added to the unit that fluent-bit's package brings, which would be root.
pub(super) fn unit(config: &LogForwardingConfig) -> String {
    let mut groups: BTreeSet<&str> = config.services.iter().map(|log| log.user.as_str()).collect();
    if groups.is_empty() {
        groups.insert("etcd");
    }
    let readers = groups.into_iter().collect::<Vec<_>>().join(" ");
    format!(
        "{MARK}\
         [Service]\n\
         User={LOG_READER}\n\
         Group={LOG_READER}\n\
         SupplementaryGroups={readers} systemd-journal\n\
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
