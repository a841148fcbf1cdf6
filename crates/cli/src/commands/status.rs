//! `quorate status`: looks, without the lock, and tells.

use quorate_control::status::{self, Status, Verdict, known_clusters};

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, options: cli::Status) -> Result<Exit, Error> {
    let names = match &options.name {
        Some(name) => vec![name.clone()],
        None => known_clusters(&context.home),
    };
    let mut worst = Exit::Done;
    let mut statuses = Vec::new();
    for name in &names {
        match look(context, name).await {
            Ok(status) => {
                worst = worst.max(exit(status.verdict));
                statuses.push(status);
            }
            Err(error) if options.name.is_some() => return Err(error),
            Err(error) => {
                output::talk(&error.render(Some(name)));
                worst = worst.max(error.exit());
            }
        }
    }
    match (options.output.format, options.name, statuses.as_slice()) {
        (Format::Json, Some(_), [status]) => output::print_json(status)?,
        (Format::Json, ..) => output::print_json(&statuses)?,
        (Format::Text, _, [status]) => output::print(&output::status::full(status))?,
        (Format::Text, _, []) if names.is_empty() => {
            let make = context.command("up");
            output::talk(&format!("no cluster is known in {}; `{make}` makes one\n", context.home.root().display()));
        }
        (Format::Text, _, many) => output::print(&output::status::brief(many.iter()))?,
    }
    Ok(worst)
}

async fn look(context: &Context, name: &str) -> Result<Status, Error> {
    let ledger = load::ledger(&context.home, name)?;
    // A file that is missing by now must not hide how the cluster is.
    let brought = load::brought_files(&ledger).unwrap_or_else(|error| {
        output::talk(&format!("warning: {error}\n"));
        Default::default()
    });
    Ok(status::status(&context.home, &ledger, &brought).await?)
}

fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Healthy | Verdict::Off => Exit::Done,
        Verdict::Degraded => Exit::Degraded,
        Verdict::Down | Verdict::Unformed => Exit::Down,
    }
}
