//! The verbs about the spec as a file, which touch no cluster: `init`, `validate`, `schema`, and `completions`.

use clap::CommandFactory;
use clap_complete::Shell;
use quorate_core::spec::{Problem, json_schema, template};
use serde::Serialize;

use crate::cli::{self, Cli, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output::{self, count};

pub fn init(options: cli::Init) -> Result<Exit, Error> {
    output::print(&template(&options.provider).expect("clap accepts known providers alone"))?;
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
            let mut text = load::rendered(&checked.problems, &checked.text, "\n\n");
            let warnings = checked.problems.len() - errors;
            let verdict = if valid { "valid" } else { "not valid" };
            text.push_str(&format!(
                "{} is {verdict}: {}, {}\n",
                checked.file,
                count(errors, "error"),
                count(warnings, "warning")
            ));
            output::print(&text)?;
        }
    }
    Ok(if valid { Exit::Done } else { Exit::Error })
}

pub fn schema() -> Result<Exit, Error> {
    output::print_json(&json_schema())?;
    Ok(Exit::Done)
}

pub fn completions(shell: Shell) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quorate", &mut script);
    output::print_exactly(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
