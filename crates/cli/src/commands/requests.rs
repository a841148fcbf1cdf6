//! `quorate requests`: lists what was confirmed and is not carried out yet, and withdraws it.

use jiff::Timestamp;
use quorate_control::requests::{self, Kind, Open};

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub fn run(context: &Context, options: cli::Requests) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let open = requests::open(&ledger);
    let Some(withdrawn) = options.withdraw else {
        return list(context, &options, &open);
    };
    let kind = withdrawn.kind();
    let Some(request) = open.iter().find(|open| open.request == kind) else {
        let what = format!("cluster {} has no such request", options.name);
        return Err(Error::refused(
            what,
            format!("`{}` lists them", context.command(&format!("requests {}", options.name))),
        ));
    };
    if request.begun {
        let completes = format!("`{}` completes it", context.command(&completes(kind, &options.name)));
        let (what, hint) = match kind {
            Kind::Restore => {
                let other = context.command(&format!("restore {}", options.name));
                ("the cluster has no other data", format!("{completes}; `{other}` restores something else instead"))
            }
            Kind::Replace => ("the machine has been given up for a new one", completes),
            _ => ("it has begun", completes),
        };
        return Err(Error::refused(format!("{what}, so it cannot be withdrawn: {}", request.what), hint));
    }
    requests::withdraw(&context.home, &options.name, kind, Timestamp::now())?;
    for withdrawn in open.iter().filter(|open| open.request == kind && !open.begun) {
        output::talk(&format!("withdrawn: {}\n", withdrawn.what));
    }
    Ok(Exit::Done)
}

fn list(context: &Context, options: &cli::Requests, open: &[Open]) -> Result<Exit, Error> {
    match options.output.format {
        Format::Json => output::print_json(&open)?,
        Format::Text if open.is_empty() => output::talk(&format!("cluster {} has no open requests\n", options.name)),
        Format::Text => {
            for request in open {
                output::print(&line(context, &options.name, request))?;
            }
        }
    }
    Ok(Exit::Done)
}

fn line(context: &Context, name: &str, request: &Open) -> String {
    let by = request.by.as_ref().map(|by| format!(", confirmed by {by}")).unwrap_or_default();
    let at = request.at.map(|at| format!(" at {}", at.strftime("%Y-%m-%d %H:%M:%S UTC"))).unwrap_or_default();
    let next = match (request.begun, word(request.request)) {
        (false, Some(word)) => {
            let command = format!("requests {name} --withdraw {word}");
            format!("not begun; `{}` withdraws it", context.command(&command))
        }
        _ => format!("begun; `{}` completes it", context.command(&completes(request.request, name))),
    };
    format!("{}{by}{at}\n  {next}\n", request.what)
}

fn word(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Recover => Some("recover"),
        Kind::Restore => Some("restore"),
        Kind::Replace => Some("replace"),
        Kind::Reboot => Some("reboot"),
        Kind::Switchover => Some("switchover"),
        Kind::Passwords => Some("passwords"),
        Kind::Discard => Some("discard"),
        Kind::Downtime => Some("downtime"),
        Kind::Now => Some("now"),
        Kind::Destroy => None,
    }
}

fn completes(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Destroy => format!("destroy {name}"),
        Kind::Recover => format!("recover {name}"),
        _ => format!("apply {name}"),
    }
}
