//! What a configuration of fluent-bit that comes from elsewhere may ask for. Whoever writes it is not root on this machine: it may
//! read what fluent-bit's own user can read and send it over the network, and neither run programs nor write files.

use std::collections::BTreeMap;

/// Where included files may lie, besides those that come with it.
const OWN: &str = "/etc/fluent-bit-customization/";

const SECTIONS: [&str; 9] =
    ["service", "input", "filter", "output", "parser", "multiline_parser", "upstream", "node", "stream_task"];
const INPUTS: [&str; 12] = [
    "tail",
    "systemd",
    "cpu",
    "mem",
    "disk",
    "netif",
    "thermal",
    "proc",
    "dummy",
    "fluentbit_metrics",
    "node_exporter_metrics",
    "storage_backlog",
];
const FILTERS: [&str; 14] = [
    "grep",
    "modify",
    "record_modifier",
    "parser",
    "rewrite_tag",
    "nest",
    "throttle",
    "throttle_size",
    "multiline",
    "type_converter",
    "expect",
    "log_to_metrics",
    "sysinfo",
    "stdout",
];
const OUTPUTS: [&str; 24] = [
    "forward",
    "http",
    "tcp",
    "syslog",
    "es",
    "opensearch",
    "loki",
    "splunk",
    "gelf",
    "kafka",
    "kafka-rest",
    "influxdb",
    "datadog",
    "newrelic",
    "nrlogs",
    "s3",
    "cloudwatch_logs",
    "kinesis_firehose",
    "azure",
    "stackdriver",
    "opentelemetry",
    "prometheus_remote_write",
    "stdout",
    "null",
];
/// Entries of SERVICE that name another file to read.
const FILES: [&str; 2] = ["parsers_file", "streams_file"];

/// Every file of a configuration, as each may be included by another.
pub(super) fn check(files: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    for (name, content) in files {
        let said = |what: String| format!("{name}: {what}");
        if [".yaml", ".yml"].iter().any(|ending| name.ends_with(ending)) {
            return Err(said(String::from(
                "configurations in YAML are not taken; write it in fluent-bit's classic form",
            )));
        }
        let text = std::str::from_utf8(content).map_err(|_| said(String::from("it is not text")))?;
        let mut section = String::new();
        for (at, line) in text.lines().enumerate() {
            check_line(line.trim(), &mut section).map_err(|what| said(format!("line {}: {what}", at + 1)))?;
        }
    }
    Ok(())
}

fn check_line(line: &str, section: &mut String) -> Result<(), String> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(());
    }
    let (key, value) = line.split_once(|c: char| c.is_whitespace() || c == '=').unwrap_or((line, ""));
    let (key, value) = (key.to_ascii_lowercase(), value.trim());
    if let Some(command) = key.strip_prefix('@') {
        return match command {
            "include" => check_place(value),
            "set" => Ok(()),
            other => Err(format!("the command `@{other}` is not allowed")),
        };
    }
    if let Some(name) = line.strip_prefix('[') {
        *section = name.split(']').next().unwrap_or_default().trim().to_ascii_lowercase();
        return among(&SECTIONS, section, "section");
    }
    match (section.as_str(), key.as_str()) {
        ("input", "name") => among(&INPUTS, value, "input"),
        ("filter", "name") => among(&FILTERS, value, "filter"),
        ("output", "name") => among(&OUTPUTS, value, "output"),
        (_, "plugins_file") => Err(String::from("other plugins cannot be loaded")),
        (_, key) if FILES.contains(&key) => check_place(value),
        _ => Ok(()),
    }
}

fn among(allowed: &[&str], found: &str, what: &str) -> Result<(), String> {
    if allowed.contains(&found.to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(format!("the {what} `{}` is not allowed; allowed are {}", found.escape_debug(), allowed.join(", ")))
}

/// Files of this very configuration, and our own pieces.
fn check_place(path: &str) -> Result<(), String> {
    let inside = !path.starts_with('/') || path.starts_with(OWN);
    if inside && !path.contains("..") && !path.contains('$') {
        return Ok(());
    }
    Err(format!("`{}` lies outside of {OWN} and is not read", path.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> Result<(), String> {
        check(&BTreeMap::from([(String::from("index.conf"), text.as_bytes().to_vec())]))
    }

    #[test]
    fn what_forwards_logs_is_taken() {
        let text = "@SET env=prod\n@INCLUDE inputs/*.conf\n\
                    @INCLUDE /etc/fluent-bit-customization/default-config/fluent-bit-output.conf\n\
                    [SERVICE]\n    Flush 1\n    Parsers_File parsers.conf\n\
                    # a comment\n[INPUT]\n    Name tail\n    Path /var/log/etcd.log\n\
                    [FILTER]\n    Name grep\n    Match *\n[OUTPUT]\n    name HTTP\n    Host logs.example.org\n\
                    [PARSER]\n    Name json\n    Format json\n";
        assert_eq!(judge(text), Ok(()));
    }

    #[test]
    fn what_runs_programs_loads_code_or_writes_files_is_refused() {
        for (text, said) in [
            (
                "[INPUT]\n    Name exec\n    Command id\n",
                "index.conf: line 2: the input `exec` is not allowed; allowed are",
            ),
            ("[input]\nNAME\texec_wasi\n", "the input `exec_wasi`"),
            ("[ INPUT ]\n name=exec\n", "the input `exec`"),
            ("@SET x=exec\n[INPUT]\n    Name ${x}\n", "the input `${x}`"),
            ("[INPUT]\n    Name tail\n    Name exec\n", "line 3: the input `exec`"),
            ("[FILTER]\n    Name lua\n    Code os.execute()\n", "the filter `lua`"),
            ("[OUTPUT]\n    Name file\n    Path /etc/cron.d\n", "the output `file`"),
            ("[PLUGINS]\n    Path /tmp/a.so\n", "the section `plugins`"),
            ("[SERVICE]\n    Plugins_File p.conf\n", "other plugins cannot be loaded"),
            ("[SERVICE]\n    Parsers_File /tmp/p.conf\n", "`/tmp/p.conf` lies outside"),
            ("@INCLUDE /tmp/other.conf\n", "`/tmp/other.conf` lies outside"),
            ("@include ../../other.conf\n", "lies outside"),
            ("@RUN id\n", "the command `@run`"),
        ] {
            let refused = judge(text).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
        let yaml = BTreeMap::from([(String::from("a.yaml"), Vec::new())]);
        assert!(check(&yaml).is_err());
        assert!(check(&BTreeMap::from([(String::from("a.conf"), vec![0xff])])).is_err());
    }
}
