//! `quorate status`: observes without the lock, and reports.

use std::io::{self, IsTerminal};
use std::time::Duration;

use jiff::Timestamp;
use quorate_control::kinds::status::{Status, Verdict};
use quorate_control::verbs;

use super::{Context, stop_signal};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output::page::{Page, Style};
use crate::output::{self, terminal};

const BETWEEN: Duration = Duration::from_secs(2);

pub async fn run(context: &Context, options: cli::Status) -> Result<Exit, Error> {
    if options.watch {
        return watch(context, &options).await;
    }
    let Observed { statuses, failed, worst } = observe(context, &options).await?;
    for (name, error) in &failed {
        output::talk(&error.render(Some(name)));
    }
    match (options.output.format, &options.name, statuses.as_slice()) {
        (Format::Json, Some(_), [status]) => output::print_json(status)?,
        (Format::Json, ..) => output::print_json(&statuses)?,
        (Format::Text, _, []) if failed.is_empty() => output::talk(&nothing_known(context)),
        (Format::Text, _, statuses) => output::show(&page(statuses))?,
    }
    Ok(worst)
}

/// Redraws the page repeatedly, from the first line of the screen. Ctrl-C is how it ends, and nothing to report.
async fn watch(context: &Context, options: &cli::Status) -> Result<Exit, Error> {
    if !io::stdout().is_terminal() {
        return Err(Error::refused("--watch needs a terminal", "leave it out, or use --output json in a loop"));
    }
    let mut stopped = std::pin::pin!(stop_signal());
    let mut clear = "\x1b[2J";
    loop {
        let shown = tokio::select! {
            shown = frame(context, options) => shown?,
            stopped = &mut stopped => return Ok(stopped.exit()),
        };
        let lines = shown.render(terminal::of_stdout()).replace('\n', "\x1b[K\n");
        output::print_exactly(&format!("{clear}\x1b[H{lines}\x1b[J"))?;
        clear = "";
        tokio::select! {
            () = tokio::time::sleep(BETWEEN) => {}
            stopped = &mut stopped => return Ok(stopped.exit()),
        }
    }
}

async fn frame(context: &Context, options: &cli::Status) -> Result<Page, Error> {
    let Observed { statuses, failed, .. } = observe(context, options).await?;
    let mut shown = match statuses.is_empty() && failed.is_empty() {
        true => Page::written(&nothing_known(context)),
        false => page(&statuses),
    };
    failed.iter().for_each(|(name, error)| shown.append(Page::written(&error.render(Some(name)))));
    let now = Timestamp::now().strftime("%H:%M:%S UTC");
    shown.line(0, [(Style::Dim, format!("{now}, every {} s; Ctrl-C to stop", BETWEEN.as_secs()).as_str())]);
    Ok(shown)
}

struct Observed {
    statuses: Vec<Status>,
    failed: Vec<(String, Error)>,
    worst: Exit,
}

async fn observe(context: &Context, options: &cli::Status) -> Result<Observed, Error> {
    let names = match &options.name {
        Some(name) => vec![name.clone()],
        None => context.home.known_clusters(),
    };
    let mut observed = Observed { statuses: Vec::new(), failed: Vec::new(), worst: Exit::Done };
    for name in names {
        match look(context, &name).await {
            Ok(status) => {
                observed.worst = observed.worst.max(exit(status.verdict));
                observed.statuses.push(status);
            }
            Err(error) if options.name.is_some() => return Err(error),
            Err(error) => {
                observed.worst = observed.worst.max(error.exit());
                observed.failed.push((name, error));
            }
        }
    }
    Ok(observed)
}

fn page(statuses: &[Status]) -> Page {
    match statuses {
        [status] => output::status::page(status, terminal::of_stdout()),
        many => output::status::brief(many.iter()),
    }
}

fn nothing_known(context: &Context) -> String {
    let make = context.command("up");
    format!("no cluster is known in {}; `{make}` creates one\n", context.home.root().display())
}

async fn look(context: &Context, name: &str) -> Result<Status, Error> {
    let ledger = load::ledger(&context.home, name)?;
    // A missing file must not hide the cluster's status.
    let brought = load::brought_files(&ledger).unwrap_or_else(|error| {
        output::talk(&format!("warning: {error}\n"));
        Default::default()
    });
    Ok(verbs::status::status(&context.home, &ledger, &brought).await?)
}

fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Healthy | Verdict::Off => Exit::Done,
        Verdict::Degraded => Exit::Degraded,
        Verdict::Down | Verdict::Unformed | Verdict::Unknown => Exit::Down,
    }
}
