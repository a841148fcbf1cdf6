//! `quorate logs`: a member's log, read by its agent.

use std::path::Path;
use std::time::Duration;

use quorate_agent::api::{LogOf, LogRequest};
use quorate_control::run::observe::Observer;
use quorate_core::model::{MachineId, MemberName, Observation, Seen};

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

/// How often a followed log is asked for more.
const POLL: Duration = Duration::from_millis(300);

pub async fn run(context: &Context, options: cli::Logs) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let members: Vec<String> = ledger.spec.machines().map(|m| m.name.to_string()).collect();
    if !members.contains(&options.member) {
        return Err(Error::UnknownMember { cluster: options.name, member: options.member, members });
    }
    let member = MemberName::from(options.member.as_str());
    let (is_proxy, kind) = (ledger.spec.proxies().any(|proxy| proxy.name.as_str() == options.member), ledger.spec.kind);
    let service = if is_proxy { kind.proxy_service() } else { kind.service() };
    let of = if options.agent { LogOf::Agent } else { LogOf::Service(service.to_owned()) };
    let provider = context.home.provider(&ledger);
    let mut sight = Observer::new(provider.clone());
    let seen = sight.glance(&ledger, None).await?;
    let Some(agent) = sight.agent(&member).filter(|_| answered(&seen, &member)) else {
        let incarnation = ledger.members.get(&member).map_or(1, |record| record.incarnation.max(1));
        let file = provider.log_file(&MachineId::new(&member, incarnation), &of);
        return Err(no_answer(&seen, &member, &of, file.as_deref()));
    };
    let mut request = LogRequest { of, from: None, lines: options.lines };
    loop {
        let answer = agent.logs(&request).await?;
        let is_read = match options.output.format == Format::Json {
            true => output::stream(&output::plain::json(&as_json(&options, name(&request.of), &answer.text)))?,
            false => output::stream(&output::plain::text(&answer.text))?,
        };
        if !options.follow || !is_read {
            return Ok(Exit::Done);
        }
        request.from = Some(answer.next);
        tokio::time::sleep(POLL).await;
    }
}

/// One object for each answer that has lines; a followed log is a line of JSON for each.
fn as_json(options: &cli::Logs, log: &str, text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    if options.follow && lines.is_empty() {
        return String::new();
    }
    let value = serde_json::json!({
        "cluster": options.name, "member": options.member, "log": log, "lines": lines,
    });
    format!("{value}\n")
}

fn name(of: &LogOf) -> &str {
    match of {
        LogOf::Agent => "agent",
        LogOf::Service(name) => name,
    }
}

fn answered(seen: &Observation, member: &MemberName) -> bool {
    seen.agents.get(member).is_some_and(|agent| agent.get().is_some())
}

fn no_answer(seen: &Observation, member: &MemberName, of: &LogOf, file: Option<&Path>) -> Error {
    let why = match seen.agents.get(member) {
        Some(Seen::Unreachable { why, .. }) => why.clone(),
        _ => String::from("its machine is off or not there"),
    };
    let unit = match of {
        LogOf::Agent => "quorate-agent",
        LogOf::Service(name) => name.as_str(),
    };
    let hint = match file {
        Some(file) => format!("its log is the file {}", file.display()),
        None => format!("its log is on its machine: log in there and run `journalctl -u {unit}`"),
    };
    Error::refused(format!("the agent of {member} does not answer: {why}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_the_log_that_was_read() {
        let options = cli::Logs {
            name: String::from("shop"),
            member: String::from("pg-1"),
            agent: false,
            follow: false,
            lines: 1,
            output: cli::Output { format: Format::Json },
        };
        let said = |of: &LogOf| as_json(&options, name(of), "a line\n");
        let expected =
            |log: &str| format!(r#"{{"cluster":"shop","lines":["a line"],"log":"{log}","member":"pg-1"}}"#) + "\n";
        assert_eq!(said(&LogOf::Service(String::from("patroni"))), expected("patroni"));
        assert_eq!(said(&LogOf::Agent), expected("agent"));
    }
}
