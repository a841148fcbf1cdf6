//! Text from machines and files is shown on a terminal, which must not interpret it.

use std::fs::OpenOptions;
use std::io::Write;

use crate::common::{Sandbox, newest, spec};

const TRICKS: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}dlrow";

fn is_harmless(text: &str) -> bool {
    !text.contains(|c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{202e}')
}

#[test]
fn escape_sequences_in_machine_logs_cannot_control_the_terminal() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "", ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    let log = sandbox.home().join("machines/c/etcd-1/root/var/log/etcd.log");
    writeln!(OpenOptions::new().append(true).open(log).expect("its log"), "{TRICKS}").expect("a line");
    let shown = sandbox.quorate(&["logs", "c", "etcd-1", "--lines", "20"]).ok().stdout;
    assert!(is_harmless(&shown) && shown.contains(r"\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}dlrow"), "{shown:?}");
    let json = sandbox.quorate(&["logs", "c", "etcd-1", "--lines", "20", "--output", "json"]).ok();
    assert!(is_harmless(&json.stdout), "{:?}", json.stdout);
    let lines = json.json()["lines"].as_array().cloned().expect("lines");
    assert!(lines.iter().any(|line| line == TRICKS), "scripts read what was written: {lines:?}");
}

#[test]
fn escape_sequences_in_a_spec_cannot_control_the_terminal() {
    let sandbox = Sandbox::new(&newest());
    let tricky = TRICKS.replace('\u{1b}', r"\e").replace('\u{7}', r"\a");
    sandbox
        .file("c.yaml", &format!("quorate: 1\nclusters:\n  - name: \"{tricky}\"\n    members: [{{name: etcd-1}}]\n"));
    let refused = sandbox.quorate(&["validate", "c.yaml"]).fails();
    assert!(is_harmless(&refused.text()), "{:?}", refused.text());
    let refused = sandbox.quorate(&["plan", "c.yaml"]).fails();
    assert!(is_harmless(&refused.text()), "{:?}", refused.text());
}
