//! A sender of logs in the lab that speaks fluentd's forward protocol, built from Go's modules: fluent-bit itself is in no registry of
//! packages that we take programs from. It shows that what the agent writes for fluent-bit is what a receiver needs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::etcd::go::Module;
use crate::host;
use crate::lab::Lab;

const NAME: &str = "forward";
const LIBRARY: &str = "github.com/IBM/fluent-forward-go@v0.4.0";
const SOURCE: &str = include_str!("../forward/main.go");

/// Builds it if it is missing, where there is a toolchain.
pub fn ensure(lab: &Lab) -> Result<()> {
    let place = lab.root().join(NAME);
    // Another source is another sender.
    let is_ours = |place: &Path| fs::read_to_string(place.join("main.go")).is_ok_and(|found| found == SOURCE);
    if is_ours(&place) || host::find("go").is_none() {
        return Ok(());
    }
    let filling = lab.lock()?;
    eprintln!("building a sender of logs from Go's modules");
    let module = Module::new(filling.scratch("forward-module")?)?;
    fs::write(module.directory().join("main.go"), SOURCE).context("cannot write the sender's source")?;
    host::read(module.go().args(["get", LIBRARY]))?;
    let made = filling.scratch(NAME)?;
    host::read(
        module.go().args(["build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(made.join("sender")),
    )?;
    fs::write(made.join("main.go"), SOURCE).context("cannot write the sender's source")?;
    let _ = fs::remove_dir_all(&place);
    fs::rename(&made, &place).context("cannot put the sender in the lab")
}
