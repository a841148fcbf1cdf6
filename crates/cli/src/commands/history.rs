//! `quorate history`: every step ever taken. Reads only the history, not the cluster.

use jiff::Timestamp;
use quorate_control::ledger::seems_held;
use quorate_control::run::history::{Entry, History};
use serde::Serialize;

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

#[derive(Serialize)]
struct HistoryJson<'a> {
    cluster: &'a str,
    steps: &'a [Entry],
}

pub fn run(context: &Context, options: cli::History) -> Result<Exit, Error> {
    let name = options.name.as_str();
    let ledger = load::ledger(&context.home, name)?;
    let lock = ledger.lock.as_ref().filter(|lock| seems_held(lock, Timestamp::now()));
    let history = History::new(context.home.history(name));
    let steps = history.entries(lock.map(|lock| lock.fence))?;
    if let Some((lines, first)) = history.damage()? {
        let path = history.path().display();
        let these = if lines == 1 { String::from("1 line") } else { format!("{lines} lines") };
        output::talk(&format!(
            "warning: {these} of {path} cannot be read (the first is line {first}); steps may be missing here\n"
        ));
    }
    let first = options.last.map_or(0, |last| steps.len().saturating_sub(last));
    let steps = &steps[first..];
    match options.output.format {
        Format::Json => output::print_json(&HistoryJson { cluster: name, steps })?,
        Format::Text if steps.is_empty() => output::talk(&format!("cluster {name} has no recorded steps\n")),
        Format::Text => output::show(&output::history::page(steps))?,
    }
    Ok(Exit::Done)
}
