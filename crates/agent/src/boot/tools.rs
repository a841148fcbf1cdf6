//! System programs that a boot uses. None of them runs when the root is not `/`, because it would change the wrong system.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::AgentError;

pub(super) struct Said {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
}

pub(super) trait Tools {
    /// Runs a program, gives it `input` to read, and returns how it ended.
    fn ask(&self, program: &str, args: &[&str], input: Option<&str>) -> Result<Said, AgentError>;

    /// Runs a program that must succeed, and returns what it wrote.
    fn run(&self, program: &str, args: &[&str], input: Option<&str>) -> Result<String, AgentError> {
        let said = self.ask(program, args, input)?;
        if said.code == Some(0) {
            return Ok(said.out);
        }
        let command = format!("{program} {}", args.join(" "));
        Err(AgentError::Command { command, said: said.err.trim().to_owned() })
    }
}

pub(super) fn system_tools(root: &Path) -> Box<dyn Tools> {
    if root == Path::new("/") { Box::new(OfThisSystem) } else { Box::new(NoSystem) }
}

struct OfThisSystem;

impl Tools for OfThisSystem {
    fn ask(&self, program: &str, args: &[&str], input: Option<&str>) -> Result<Said, AgentError> {
        let failed = |source| AgentError::Spawn { program: program.to_owned(), source };
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut command = Command::new(program);
        let mut child =
            command.args(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // If it exits without reading, its exit code says so.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) })
    }
}

/// No system at all.
struct NoSystem;

impl Tools for NoSystem {
    fn ask(&self, program: &str, args: &[&str], _: Option<&str>) -> Result<Said, AgentError> {
        tracing::info!(program, args = args.join(" "), "not run, as the root is not /");
        Ok(Said { code: Some(0), out: String::new(), err: String::new() })
    }
}
