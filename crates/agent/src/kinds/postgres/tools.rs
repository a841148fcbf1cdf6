//! Runs PostgreSQL's own programs, with SQL over standard input, because any user can read arguments.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::AgentError;

/// What the program prints, if it succeeds in time. One that takes longer is killed.
pub(super) async fn run(mut command: Command, input: &str, time: Duration) -> Result<String, AgentError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let args: Vec<String> = command.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    // The one behind `unshare` is of interest.
    let name = args.iter().find(|word| program == "unshare" && word.starts_with('/')).unwrap_or(&program).clone();
    let not_run = |source| AgentError::Spawn { program: name.clone(), source };
    let failed = |said: String| AgentError::Command { command: name.clone(), said };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(not_run)?;
    let mut stdin = child.stdin.take();
    let fed = async {
        if let Some(stdin) = stdin.as_mut() {
            // It may end before it has read all; then it says why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        drop(stdin);
    };
    let done = timeout(time, async { tokio::join!(fed, child.wait_with_output()).1 }).await;
    let output = done.map_err(|_| failed(format!("not finished within {} s", time.as_secs())))?.map_err(not_run)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(complaint(&String::from_utf8_lossy(&output.stderr), &output.status.to_string())))
}

/// The lines that name an error, or else the last one.
fn complaint(text: &str, status: &str) -> String {
    let errors =
        text.lines().filter(|line| ["ERROR:", "FATAL:", "PANIC:", "error:"].iter().any(|word| line.contains(word)));
    let errors: Vec<&str> = errors.map(str::trim).collect();
    match (errors.is_empty(), text.lines().rfind(|line| !line.trim().is_empty())) {
        (false, _) => format!("{}{}", errors.join("; "), store_error(text).unwrap_or_default()),
        (true, Some(last)) => last.trim().to_owned(),
        (true, None) => status.to_owned(),
    }
}

/// pgBackRest quotes the whole answer of a store. The name of the error is what helps; not every answer has it.
fn store_error(text: &str) -> Option<String> {
    let answer = text.split_once("<Code>").and_then(|(_, answer)| answer.split_once("</Code>"));
    match answer {
        Some((code, _)) => Some(format!(" {code}")),
        None => text.contains("failed with 403 (").then(|| String::from(" the store refuses the keys")),
    }
}

/// A name in SQL.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in SQL, under `standard_conforming_strings`.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_a_quotation_in_sql() {
        assert_eq!(identifier(r#"a"b"#), r#""a""b""#);
        assert_eq!(literal("it's \\"), "'it''s \\'");
    }

    #[tokio::test]
    async fn a_program_that_fails_is_quoted_with_its_error_alone() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat >&2; exit 3"]);
        let said = run(command, "NOTICE: x\nERROR:  no such role\nmore\n", Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(said.in_full(), "sh failed: ERROR:  no such role");
        let refused = "P00 ERROR: [039]: HTTP request failed with 403 (Forbidden):\n host: s3\n <Error><Code>AccessDenied</Code></Error>";
        assert_eq!(complaint(refused, ""), "P00 ERROR: [039]: HTTP request failed with 403 (Forbidden): AccessDenied");
        let mut slow = Command::new("sleep");
        slow.arg("60");
        let late = run(slow, "", Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(late.in_full(), "sleep failed: not finished within 0 s");
    }
}
