//! `quorate agent`: runs the agent of one machine until it is killed.

use quorate_agent::boot::{BootOptions, With};
use quorate_agent::{AgentError, Options, Supervisor};

use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;

pub fn run(options: cli::Agent) -> Result<Exit, Error> {
    let cli::Agent { root, seed, cache, systemd, channel, trial } = options;
    let supervisor = if systemd { Supervisor::Systemd } else { Supervisor::Child };
    if let (Supervisor::Child, Err(error)) = (supervisor, quorate_agent::detach()) {
        // This happens when it is started manually in a shell.
        tracing::info!(%error, "the agent stays in the session it was started in");
    }
    // It fails only when one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    quorate_agent::run(&Options { root, seed, cache, supervisor, channel, on_trial: trial })?;
    Ok(Exit::Done)
}

/// `quorate agent check`: prints what this program is, if it can be the agent of this machine.
pub fn check(options: cli::AgentCheck) -> Result<Exit, Error> {
    let program = quorate_agent::upgrade::check(&options.root)?;
    output::print_json(&program)?;
    Ok(Exit::Done)
}

/// `quorate agent follow`: follows the log forwarding configuration in another etcd.
pub fn follow(options: cli::AgentFollow) -> Result<Exit, Error> {
    on_one_thread(quorate_agent::follow::follow(&options.root))
}

fn on_one_thread(work: impl Future<Output = Result<(), AgentError>>) -> Result<Exit, Error> {
    // It fails only when one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(work)?;
    Ok(Exit::Done)
}

/// `quorate agent boot`: sets the machine up from its seed disk.
pub fn boot(options: cli::AgentBoot) -> Result<Exit, Error> {
    let cli::AgentBoot { root, seed_from, beside_cloud_init, ec2, openstack } = options;
    let with = match (beside_cloud_init, ec2, openstack) {
        (true, _, _) => With::CloudInit,
        (_, true, _) => With::Ec2,
        (_, _, true) => With::Nova,
        (false, false, false) => With::Nothing,
    };
    quorate_agent::boot::boot(&BootOptions { root, seed_from, with })?;
    Ok(Exit::Done)
}
