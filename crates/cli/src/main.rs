//! quorate's binary: a match on the command, and the place where errors are printed.
//!
//! It decides nothing about clusters; commands record requests in the ledger and let `control` run the loop.

mod cli;
mod commands;
mod completion;
mod error;
mod exit;
mod load;
mod output;
mod saved_plan;

use std::process::ExitCode;

use clap::Parser;
use quorate_control::Home;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::{AgentAlone, AgentBootAlone, AgentCheckAlone, AgentFollowAlone, AgentFrontAlone, Cli, Global, Verb};
use crate::commands::Context;
use crate::error::Error;
use crate::exit::Exit;

fn main() -> ExitCode {
    // Agents and etcd processes continue after this one, and would keep the caller's files open, such as a timer's lock.
    close_fds::set_fds_cloexec(3, &[]);
    completion::answer();
    let Cli { global, verb } = command_line();
    output::terminal::want(global.color);
    match run(global, verb) {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::talk(&error.render(None));
            error.exit().into()
        }
    }
}

/// An agent runs for years: it does not load the parsers of the other commands into its memory.
fn command_line() -> Cli {
    let word = |at: usize, expected: &str| std::env::args_os().nth(at).is_some_and(|word| word == expected);
    if word(1, "agent") && word(2, "boot") {
        let AgentBootAlone { global, options } = AgentBootAlone::parse_from(std::env::args_os().skip(2));
        return Cli { global, verb: Verb::AgentBoot(options) };
    }
    if word(1, "agent") && word(2, "check") {
        let AgentCheckAlone { global, options } = AgentCheckAlone::parse_from(std::env::args_os().skip(2));
        return Cli { global, verb: Verb::AgentCheck(options) };
    }
    if word(1, "agent") && word(2, "follow") {
        let AgentFollowAlone { global, options } = AgentFollowAlone::parse_from(std::env::args_os().skip(2));
        return Cli { global, verb: Verb::AgentFollow(options) };
    }
    if word(1, "agent") && word(2, "front") {
        let AgentFrontAlone { global, options } = AgentFrontAlone::parse_from(std::env::args_os().skip(2));
        return Cli { global, verb: Verb::AgentFront(options) };
    }
    if word(1, "agent") {
        let AgentAlone { global, options } = AgentAlone::parse_from(std::env::args_os().skip(1));
        return Cli { global, verb: Verb::Agent(options) };
    }
    Cli::parse()
}

fn run(global: Global, verb: Verb) -> Result<Exit, Error> {
    let level = if global.verbose { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let verb = match verb {
        Verb::Agent(options) => {
            log(level);
            return commands::agent::run(options);
        }
        Verb::AgentBoot(options) => {
            log(level);
            return commands::agent::boot(options);
        }
        Verb::AgentCheck(options) => return commands::agent::check(options),
        Verb::AgentFront(options) => {
            log(level);
            return commands::front::on_machine(options);
        }
        Verb::AgentFollow(options) => {
            log(level);
            return commands::agent::follow(options);
        }
        verb => verb,
    };
    if global.verbose || matches!(verb, Verb::Discovery(cli::Discovery::Serve(_)) | Verb::Front(_)) {
        log(level);
    }
    // It fails only when one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    let context = Context::new(home(&global)?, global.home.is_some());
    let done = runtime.block_on(perform(&context, verb));
    if let Err(Error::Stopped { .. }) = done {
        // Work on separate threads was dropped with the rest, and is not waited for.
        runtime.shutdown_background();
    }
    context.tell_outdated();
    done
}

async fn perform(context: &Context, verb: Verb) -> Result<Exit, Error> {
    match verb {
        Verb::Up(options) => commands::up::run(context, options).await,
        Verb::Init(options) => commands::spec::init(context, options).await,
        Verb::Spec(named) => commands::spec::show(context, named),
        Verb::Validate(options) => commands::spec::validate(options),
        Verb::Plan(options) => commands::plan::run(context, options).await,
        Verb::Apply(options) => commands::apply::run(context, options).await,
        Verb::Reboot(options) => commands::reboot::run(context, options).await,
        Verb::Passwords(cli::Passwords::Rotate(options)) => commands::passwords::run(context, options).await,
        Verb::Discard(options) => commands::discard::run(context, options).await,
        Verb::Switchover(options) => commands::switchover::run(context, options).await,
        Verb::Replace(options) => commands::replace::run(context, options).await,
        Verb::Recover(options) => commands::recover::run(context, options).await,
        Verb::History(options) => commands::history::run(context, options),
        Verb::Status(options) => commands::status::run(context, options).await,
        Verb::Env(options) => commands::clients::env(context, options).await,
        Verb::Output(options) => commands::outputs::run(context, &options).await,
        Verb::Cert(cli::Cert::Issue(options)) => commands::clients::issue(context, options),
        Verb::Kubernetes(options) => commands::kubernetes::run(context, options),
        Verb::Discovery(verb) => commands::discovery::run(context, verb).await,
        Verb::Front(options) => commands::front::run(context, options).await,
        Verb::V2(verb) => commands::v2::run(context, verb).await,
        Verb::Logs(options) => commands::logs::run(context, options).await,
        Verb::Drill(options) => commands::drill::run(context, options).await,
        Verb::Down(options) => commands::power::down(context, options).await,
        Verb::Start(named) => commands::power::start(context, named).await,
        Verb::Destroy(options) => commands::destroy::run(context, options).await,
        Verb::Backup(verb) => commands::backup::run(context, verb).await,
        Verb::Restore(options) => commands::restore::run(context, options).await,
        Verb::Ledger(cli::Ledger::Export(options)) => commands::ledger::export(context, options),
        Verb::Ledger(cli::Ledger::Import(options)) => commands::ledger::import(context, options).await,
        Verb::Requests(options) => commands::requests::run(context, options),
        Verb::Unlock(options) => commands::unlock::run(context, options),
        Verb::Key(cli::Key::Show(options)) => commands::key::show(context, options),
        Verb::Key(cli::Key::Rotate(options)) => commands::key::rotate(context, options).await,
        Verb::Image(cli::Image::Build(options)) => commands::image::build(options),
        Verb::Image(cli::Image::Import(options)) => commands::image::import(options).await,
        Verb::Schema => commands::spec::schema(),
        Verb::Completions { shell } => commands::spec::completions(shell),
        Verb::Manual { directory } => commands::spec::manual(&directory),
        Verb::Agent(options) => commands::agent::run(options),
        Verb::AgentBoot(options) => commands::agent::boot(options),
        Verb::AgentCheck(options) => commands::agent::check(options),
        Verb::AgentFollow(options) => commands::agent::follow(options),
        Verb::AgentFront(options) => commands::front::on_machine(options),
    }
}

fn home(global: &Global) -> Result<Home, Error> {
    let home = named_home(global)?;
    if home.root().exists() && !home.root().is_dir() {
        let what = format!("{} is not a directory, so no state can be kept there", home.root().display());
        return Err(Error::refused(what, "name a directory with --home or QUORATE_HOME"));
    }
    Ok(home)
}

fn named_home(global: &Global) -> Result<Home, Error> {
    if let Some(directory) = &global.home {
        return Ok(Home::at(std::path::absolute(directory).map_err(Error::file("found", directory))?));
    }
    Home::from_environment().ok_or_else(|| {
        Error::refused("there is no place to keep state: neither QUORATE_HOME nor HOME is set", "pass --home DIR")
    })
}

/// Only quorate's crates log details, because libraries may log the data they handle.
fn log(level: LevelFilter) {
    let ours = ["quorate", "quorate_agent", "quorate_control", "quorate_discovery", "quorate_etcd", "quorate_front"]
        .map(|of| (of, level));
    let told = Targets::new().with_default(LevelFilter::WARN).with_targets(ours);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(told).init();
}
