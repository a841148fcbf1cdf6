//! `status`: how a cluster is, and what an `apply` would have to deal with.

use quorate_core::desire::Wish;
use quorate_core::model::Ledger;
use quorate_core::planner::decide;

use crate::brought::BroughtFiles;
use crate::home::Home;
use crate::kinds::status::Status;
use crate::kinds::summarize;
use crate::run::controller::{arch, latest_fence};
use crate::run::error::ControlError;
use crate::run::observe::Observer;

/// Observes one cluster, without its lock.
pub async fn status(home: &Home, ledger: &Ledger, brought: &BroughtFiles) -> Result<Status, ControlError> {
    let mut sight = Observer::new(home.observer(ledger));
    let seen = sight.glance(ledger, None).await?;
    let store = home.store(ledger.spec.name.as_str());
    let ledger = &Ledger { fence: latest_fence(&store, ledger)?, ..ledger.clone() };
    let fingerprints = brought.fingerprints(home, ledger);
    let desired = Wish { spec: &ledger.spec, brought: &fingerprints, arch: arch() }.desire(ledger, "");
    Ok(summarize(ledger, &seen, &decide(&desired, &seen)))
}
