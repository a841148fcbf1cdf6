//! `quorate unlock`: breaks the lock of a dead controller, with consent.

use quorate_control::ledger::is_alive_here;

use super::Context;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub fn run(context: &Context, options: cli::Unlock) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let Some(lock) = &ledger.lock else {
        output::talk(&format!("cluster {} is not locked\n", options.name));
        return Ok(Exit::Done);
    };
    output::talk(&format!(
        "cluster {} is locked: {} on {} (process {}), since {}\n",
        options.name,
        lock.holder,
        lock.host,
        lock.pid,
        lock.since.strftime("%Y-%m-%d %H:%M:%S UTC")
    ));
    if is_alive_here(lock) {
        output::talk("that process is alive on this host: kill it instead, which frees the lock at once\n");
    }
    if !options.yes {
        if !output::can_ask() {
            let what = "there is no terminal to ask whether to break the lock";
            return Err(Error::refused(what, "pass --yes to break it without asking"));
        }
        if !matches!(output::ask("break this lock? [y/N] ")?.to_ascii_lowercase().as_str(), "y" | "yes") {
            return Err(Error::Declined);
        }
    }
    context.home.store(&options.name).unlock(lock)?;
    output::talk(&format!("the lock of cluster {} is broken\n", options.name));
    Ok(Exit::Done)
}
