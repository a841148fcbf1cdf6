//! `quorate backup watch`: runs until SIGINT or SIGTERM.

use quorate_control::backup::Vault;
use quorate_control::kinds::etcd::backup::{Watching, watch};
use tokio::signal::unix::{SignalKind, signal};

use super::create::NOT_ENCRYPTED;
use super::{Context, refuse_another_signer};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;
use crate::output::working::Working;

pub async fn run(context: &Context, options: cli::BackupWatch) -> Result<Exit, Error> {
    let ledger = load::etcd_ledger(&context.home, &options.name)?;
    refuse_another_signer(&ledger)?;
    if Vault::open(&ledger.spec)?.settings.recipients.is_empty() {
        output::talk(NOT_ENCRYPTED);
    }
    let working = Working::log();
    let watching = Watching { home: &context.home, cluster: &options.name, prune: options.prune, teller: &working };
    watch(&watching, stopped_by_signals()?).await?;
    Ok(Exit::Done)
}

/// Becomes true with SIGINT or SIGTERM.
pub fn stopped_by_signals() -> Result<tokio::sync::watch::Receiver<bool>, Error> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Runtime)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Runtime)?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            // A second signal means: do not wait for a store that is unreachable.
            if stop.send_replace(true) {
                std::process::exit(Exit::Error.code().into());
            }
        }
    });
    Ok(stopped)
}
