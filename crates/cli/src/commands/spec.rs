//! Commands about spec files, which touch no cluster: `init`, `validate`, `schema`, `completions` and the man pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use quorate_core::kinds::etcd::versions::DEFAULT;
use quorate_core::spec::{FORMAT, Problem, SCHEMA_LINE, Spec, json_schema, postgres_template, template};
use serde::Serialize;

use super::Context;
use crate::cli::{self, Cli, Format};
use crate::completion;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;
use crate::output::page::Style;
use quorate_core::text::plural;

pub async fn init(context: &Context, options: cli::Init) -> Result<Exit, Error> {
    let mut text = match options.kind {
        cli::Runs::Etcd => template(&options.provider).expect("clap accepts known providers alone"),
        cli::Runs::Postgres => postgres_template(),
    };
    // The installed etcd, rather than one to download. One that cannot run is reported when it is needed.
    if let Ok(Some((_, version))) = super::up::found_version(context).await {
        text = text.replace(&format!("# version: {DEFAULT}"), &format!("version: {version}"));
    }
    output::print_exactly(&text)?;
    Ok(Exit::Done)
}

/// The spec as it was applied last.
pub fn show(context: &Context, named: cli::Named) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &named.name)?;
    let spec = Spec { quorate: FORMAT, clusters: vec![ledger.spec] };
    output::print_exactly(&format!("{SCHEMA_LINE}{}", spec.to_yaml()))?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Verdict<'a> {
    file: &'a str,
    valid: bool,
    problems: &'a [Problem],
}

pub fn validate(options: cli::Validate) -> Result<Exit, Error> {
    let checked = load::file(&options.file)?;
    let errors = load::errors(&checked.problems);
    let valid = errors == 0;
    match options.output.format {
        Format::Json => output::print_json(&Verdict { file: &checked.file, valid, problems: &checked.problems })?,
        Format::Text => {
            let mut page = output::problems::page(&checked.problems, &checked.text, 1, output::terminal::of_stdout());
            let warnings = checked.problems.len() - errors;
            let verdict = if valid { (Style::Green, "valid") } else { (Style::Red, "not valid") };
            let counts = format!(": {}, {}", plural(errors, "error"), plural(warnings, "warning"));
            let file = format!("{} is ", checked.file);
            page.line(2, [(Style::Plain, file.as_str()), verdict, (Style::Plain, counts.as_str())]);
            output::show(&page)?;
        }
    }
    Ok(if valid { Exit::Done } else { Exit::Error })
}

pub fn schema() -> Result<Exit, Error> {
    output::print_json(&json_schema())?;
    Ok(Exit::Done)
}

pub fn completions(shell: Shell) -> Result<Exit, Error> {
    output::print_exactly(&String::from_utf8_lossy(&completion::script(shell)))?;
    Ok(Exit::Done)
}

/// A man page for each command, generated from the help texts.
pub fn manual(directory: &Path) -> Result<Exit, Error> {
    clap_mangen::generate_to(Cli::command(), directory).map_err(Error::file("written", directory))?;
    Ok(Exit::Done)
}
