//! Why etcd exited: the message of its last fatal or panic line. etcd prints much more when it exits, such as Go's stack or its usage,
//! which does not help in a status line.

use std::path::Path;

use serde_json::Value;

use crate::logs;

/// Usage alone has 20 KiB.
const LAST_BYTES: u64 = 64 << 10;
const LONGEST: usize = 300;
/// etcd's first message. What stands before it is of an earlier run.
const BEGINNINGS: [&str; 2] = ["Running:", "starting etcd"];
/// Told as a warning, and the reason for the end all the same.
const FLAGS: &str = "failed to verify flags";

/// Empty where the log names no reason.
pub(crate) fn last_complaint(log: &Path) -> String {
    complaint_in(&logs::last_bytes(log, LAST_BYTES)).unwrap_or_default()
}

pub(super) fn complaint_in(text: &str) -> Option<String> {
    let (mut weaker, mut panicked) = (None, None);
    for line in text.lines().rev().map(str::trim) {
        let Some(Entry { level, message, error }) = Entry::of(line) else {
            panicked = panicked.or_else(|| plain(line));
            continue;
        };
        let told = if error.is_empty() { message.clone() } else { format!("{message}: {error}") };
        match level.as_str() {
            "fatal" | "panic" | "dpanic" => return Some(shortened(&told)),
            "error" => weaker = weaker.or(Some(told)),
            _ if message.starts_with(FLAGS) => weaker = weaker.or(Some(told)),
            _ => {}
        }
        // A panic that only Go reports came after all that etcd itself had to say.
        if panicked.is_some() || BEGINNINGS.iter().any(|beginning| message.starts_with(beginning)) {
            break;
        }
    }
    panicked.or(weaker).map(|told| shortened(&told))
}

/// A line of etcd's log.
struct Entry {
    level: String,
    message: String,
    error: String,
}

impl Entry {
    fn of(line: &str) -> Option<Self> {
        let fields: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(|text| text.trim().to_owned());
        Some(Entry { level: text("level")?, message: text("msg")?, error: text("error").unwrap_or_default() })
    }
}

/// What Go prints before a stack, and what the reader of flags prints before the usage.
fn plain(line: &str) -> Option<String> {
    let after = |prefix: &str| line.strip_prefix(prefix).map(|rest| rest.trim_end_matches(" [recovered]").to_owned());
    let whole = |prefix: &str| line.starts_with(prefix).then(|| line.to_owned());
    after("panic: ")
        .or_else(|| whole("fatal error: "))
        .or_else(|| whole("invalid value "))
        .or_else(|| whole("invalid boolean value "))
        .or_else(|| whole("flag provided but not defined"))
        .or_else(|| whole("flag needs an argument"))
}

fn shortened(told: &str) -> String {
    let clean: String = told.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: &str = r#"{"level":"info","ts":"t","msg":"Running: ","args":["etcd"]}"#;

    fn told(lines: &[&str]) -> String {
        complaint_in(&lines.join("\n")).unwrap_or_default()
    }

    #[test]
    fn the_last_fatal_line_is_reported_with_its_error_and_without_the_stack() {
        let fatal = r#"{"level":"fatal","ts":"t","caller":"c","msg":"failed to save","error":"write: no space left on device","stacktrace":"go.etcd.io/x\n\t/a.go:1"}"#;
        let stack = ["goroutine 1 [running]:", "go.etcd.io/etcd/server/v3/main.go:129 +0xf85", "\t/src/etcd.go:129"];
        let lines: Vec<&str> = [BEGUN, fatal].into_iter().chain(stack).collect();
        assert_eq!(told(&lines), "failed to save: write: no space left on device");
        let panics = r#"{"level":"panic","ts":"t","msg":"tocommit(9) is out of range"}"#;
        let lines = [BEGUN, panics, "panic: tocommit(9) is out of range", "", "goroutine 9 [running]:"];
        assert_eq!(told(&lines), "tocommit(9) is out of range");
        assert_eq!(told(&[BEGUN, "panic: freepages: failed [recovered]", "goroutine 1:"]), "freepages: failed");
    }

    #[test]
    fn a_wrong_flag_is_reported_without_the_usage() {
        let usage =
            ["Usage:", "", "  etcd [flags]", "    Start an etcd server.", "Experimental feature:", "  --x 'false'"];
        let wrong = r#"invalid value "abc" for flag -max-txn-ops: parse error"#;
        let lines: Vec<&str> = [wrong].into_iter().chain(usage).collect();
        assert_eq!(told(&lines), wrong);
        let verify = r#"{"level":"warn","ts":"t","msg":"failed to verify flags","error":"conflicting environment"}"#;
        assert_eq!(told(&[verify]), "failed to verify flags: conflicting environment");
    }

    #[test]
    fn errors_of_an_earlier_run_are_not_repeated() {
        let fatal = r#"{"level":"fatal","ts":"t","msg":"listen tcp: address already in use"}"#;
        let warning = r#"{"level":"warn","ts":"t","msg":"apply request took too long"}"#;
        assert_eq!(told(&[BEGUN, fatal, BEGUN, warning]), "");
        let error = r#"{"level":"error","ts":"t","msg":"cannot reach\u001b[31m"}"#;
        assert_eq!(told(&[BEGUN, error, warning]), "cannot reach [31m");
        assert_eq!(told(&[]), "");
        assert!(told(&[&format!("panic: {}", "x".repeat(5000))]).chars().count() <= LONGEST + 1);
    }
}
