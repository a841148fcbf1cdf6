//! `quorate drill`: causes faults in a running cluster, one scenario after another, and prints the verdicts.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::model::Ledger;
use quorate_core::spec::Kind;
use quorate_drill::record::Record;
use quorate_drill::report;
use quorate_drill::scenario::{Scenario, harmless, scenarios};
use quorate_drill::traffic::Load;
use quorate_drill::{self as drill, Ending, Options, Verdict};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;
use crate::output::page::{Page, Style};

/// What `--output json` prints.
#[derive(Serialize)]
struct DrillJson<'a> {
    cluster: &'a str,
    passed: bool,
    scenarios: Vec<&'a Verdict>,
}

pub async fn run(context: &Context, options: cli::Drill) -> Result<Exit, Error> {
    if let Some(file) = &options.check {
        return judge_again(file, &options);
    }
    if options.scenarios == ["list"] {
        return list(context, &options);
    }
    let Some(name) = &options.name else {
        return Err(Error::refused("no cluster was named", "name one: `quorate drill NAME`"));
    };
    let ledger = load::ledger(&context.home, name)?;
    let kind = ledger.spec.kind;
    let scenarios = chosen(kind, &options.scenarios)?;
    let first = options.first.as_deref().map(|name| scenario_named(kind, name)).transpose()?;
    if options.during.is_some() && scenarios.len() > 1 {
        let what = "`--during` runs the change once, so it needs exactly one scenario";
        return Err(Error::refused(what, "name one with --scenario; `calm` is the change alone"));
    }
    refuse_another_backup(&options)?;
    refuse_bad_through(kind, &options.through)?;
    context.refuse_if_being_destroyed(Some(&ledger))?;
    agree(name, &scenarios, &options)?;
    // Checked before anything is disturbed: an unwritable file is better known now.
    let mut history_file = options.history.as_deref().map(create).transpose()?;
    let mut runs = Vec::new();
    for scenario in scenarios {
        output::talk(&format!("{}: {} …\n", scenario.name, scenario.does()));
        let run = match unless_interrupted(context, name, rehearse(context, name, scenario, first, &options)).await {
            Ok(run) => run,
            Err(error) => {
                // Earlier results are reported anyway.
                if !runs.is_empty() {
                    conclude(name, &runs, &options)?;
                }
                return Err(error);
            }
        };
        if let (Some(file), Some(path)) = (&mut history_file, &options.history) {
            run.1.write(file).map_err(Error::file("written", path))?;
        }
        if options.output.format == Format::Text {
            output::print(&report::text(&run.0))?;
        }
        runs.push(run);
    }
    conclude(name, &runs, &options)
}

async fn rehearse(
    context: &Context,
    name: &str,
    scenario: Scenario,
    first: Option<Scenario>,
    options: &cli::Drill,
) -> Result<(Verdict, Record), Error> {
    // The previous scenario may have changed it.
    let ledger: Ledger = load::ledger(&context.home, name)?;
    let brought = load::brought_files(&ledger)?;
    let seed = options.seed.unwrap_or_else(|| Timestamp::now().as_microsecond().unsigned_abs() % 1_000_000);
    let pause = Duration::from_millis(options.pause);
    let how = Options {
        least: Duration::from_secs(options.seconds),
        load: Load { clients: options.clients, pause, seed, ..Load::default() },
        through: options.through.clone(),
        first,
        during: during(options),
    };
    let tell = |text: &str| output::talk(&format!("  {text}\n"));
    Ok(drill::run(&context.home, &ledger, &brought, scenario, &how, &tell).await?)
}

/// The command that runs meanwhile. It cannot ask for confirmation.
fn during(options: &cli::Drill) -> Vec<String> {
    let words = options.during.iter().flat_map(|words| words.split_whitespace());
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    if words.first().is_some_and(|verb| verb == "apply") && !words.iter().any(|word| word == "--yes") {
        words.push(String::from("--yes"));
    }
    words
}

/// The writes that a restore may revert are known only for the drill's own backup.
fn refuse_another_backup(options: &cli::Drill) -> Result<(), Error> {
    let words = during(options);
    let names_one =
        |word: &String| ["--at", "--revision", "--backup", "--snapshot"].iter().any(|option| word.starts_with(option));
    if words.first().is_some_and(|verb| verb == "restore") && words.iter().any(names_one) {
        let what = "a drill restores the backup that it takes itself, with its clients at work";
        return Err(Error::refused(what, "name only the cluster: `--during \"restore NAME --yes\"`"));
    }
    Ok(())
}

fn refuse_bad_through(kind: Kind, through: &[String]) -> Result<(), Error> {
    if kind != Kind::Etcd && !through.is_empty() {
        let what = "--through is for clusters of etcd";
        return Err(Error::refused(what, "clients of PostgreSQL connect through its HAProxy, if the spec has one"));
    }
    match through.iter().find(|url| !url.starts_with("https://")) {
        Some(url) => {
            Err(Error::refused(format!("--through {url}: not a URL"), "expected such as https://127.0.0.1:2379"))
        }
        None => Ok(()),
    }
}

/// The faults are undone when the drill is dropped early.
async fn unless_interrupted<T>(
    context: &Context,
    name: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut ended = signal(SignalKind::terminate()).map_err(Error::Runtime)?;
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Err(interrupted(context, name)),
        _ = ended.recv() => Err(interrupted(context, name)),
    }
}

fn interrupted(context: &Context, name: &str) -> Error {
    let apply = context.command(&format!("apply {name}"));
    Error::refused("the drill was interrupted, and its fault was undone", format!("`{apply}` starts what is still off"))
}

fn chosen(kind: Kind, names: &[String]) -> Result<Vec<Scenario>, Error> {
    let names: Vec<&str> = match names {
        [] => harmless(kind).to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    names.into_iter().map(|name| scenario_named(kind, name)).collect()
}

fn scenario_named(kind: Kind, name: &str) -> Result<Scenario, Error> {
    let unknown = || Error::refused(format!("there is no scenario `{name}`"), "`quorate drill --scenario list`");
    Scenario::named(kind, name).ok_or_else(unknown)
}

#[derive(Serialize)]
struct Listed {
    kind: Kind,
    name: &'static str,
    downtime: &'static str,
    needs: Option<&'static str>,
    does: String,
}

/// The scenarios of the cluster's kind, or of all kinds.
fn list(context: &Context, options: &cli::Drill) -> Result<Exit, Error> {
    let kinds = match &options.name {
        Some(name) => vec![load::ledger(&context.home, name)?.spec.kind],
        None => vec![Kind::Etcd, Kind::Postgres],
    };
    if options.output.format == Format::Json {
        let listed = |scenario: &Scenario| Listed {
            kind: scenario.kind,
            name: scenario.name,
            downtime: scenario.downtime(3, false).text(),
            needs: scenario.needs(),
            does: scenario.does(),
        };
        output::print_json(&kinds.iter().flat_map(|kind| scenarios(*kind)).map(listed).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    let mut page = Page::new();
    for kind in kinds {
        let title = match kind {
            Kind::Etcd => "etcd",
            Kind::Postgres => "PostgreSQL",
        };
        page.line(0, [(Style::Plain, title)]);
        let width = scenarios(kind).iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
        for scenario in scenarios(kind) {
            let (name, does) = (format!("  {:width$}  ", scenario.name), scenario.does());
            page.line(width + 4, [(Style::Bold, name.as_str()), (Style::Plain, &does)]);
            let needs = scenario.needs().map(|needs| format!("; needs {needs}")).unwrap_or_default();
            let more = format!("  {:width$}  downtime: {}{needs}", "", scenario.downtime(3, false).text());
            page.line(width + 4, [(Style::Dim, more.as_str())]);
        }
    }
    output::show(&page)?;
    Ok(Exit::Done)
}

fn agree(name: &str, scenarios: &[Scenario], options: &cli::Drill) -> Result<(), Error> {
    if options.yes {
        return Ok(());
    }
    if !output::can_ask() {
        return Err(Error::refused(
            "a drill disturbs a running cluster, and there is no terminal to ask for confirmation",
            "pass --yes to run it without asking",
        ));
    }
    let names: Vec<&str> = scenarios.iter().map(|s| s.name).collect();
    match output::ask(&format!("disturb cluster {name} with {}? [y/N] ", names.join(", ")))?.as_str() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Error::Declined),
    }
}

fn create(path: &Path) -> Result<BufWriter<File>, Error> {
    Ok(BufWriter::new(File::create(path).map_err(Error::file("created", path))?))
}

/// The checker's verdict on an earlier record.
fn judge_again(file: &Path, options: &cli::Drill) -> Result<Exit, Error> {
    let opened = File::open(file).map_err(Error::file("read", file))?;
    let records = Record::read(BufReader::new(opened)).map_err(Error::file("read", file))?;
    let runs: Vec<_> = records.into_iter().map(|record| (record.judge(Vec::new()), record)).collect();
    let Some((_, first)) = runs.first() else {
        return Err(Error::refused(
            format!("{} contains no drill", file.display()),
            "pass a file that --history wrote",
        ));
    };
    if options.output.format == Format::Text {
        let told: Vec<String> = runs.iter().map(|(verdict, _)| report::text(verdict)).collect();
        output::print(&told.concat())?;
    }
    conclude(&first.about().cluster, &runs, options)
}

fn conclude(cluster: &str, runs: &[(Verdict, Record)], options: &cli::Drill) -> Result<Exit, Error> {
    let verdicts: Vec<&Verdict> = runs.iter().map(|(verdict, _)| verdict).collect();
    let passed = verdicts.iter().all(|v| v.result == Ending::Passed);
    if let Some(path) = &options.report {
        std::fs::write(path, report::page(runs)).map_err(Error::file("written", path))?;
        output::talk(&format!("the report is in {}\n", path.display()));
    }
    match options.output.format {
        Format::Json => output::print_json(&DrillJson { cluster, passed, scenarios: verdicts })?,
        Format::Text => output::print(&format!("{}\n", report::tally(verdicts.into_iter())))?,
    }
    Ok(if passed { Exit::Done } else { Exit::Drill })
}
