//! python-etcd's integration tests, with quorate in place of the etcds that they start. It is the last client library of the v2 API with
//! a suite that needs a real server. Its tests are installed with it, from PyPI, into the lab directory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::etcd;
use crate::host;
use crate::lab::Lab;
use crate::test::build;

const VERSION: &str = "0.4.5";
/// Where the test finds Python and the server that stands in for etcd.
const PYTHON: &str = "QUORATE_LAB_PYTHON_ETCD";
const SERVER: &str = "QUORATE_LAB_V2_SERVER";

pub fn run(lab: &Lab) -> Result<()> {
    etcd::ensure(lab, false)?;
    let python = environment(lab)?;
    let server = build::programs()?.join("examples/serve");
    let mut tests = build::find("quorate-keys::live")?.command();
    tests.args(["--ignored", "--nocapture", "suite::"]).env(PYTHON, python).env(SERVER, server);
    host::run(tests.env("QUORATE_LAB", lab.root()))
}

/// Installed at the first run and kept.
fn environment(lab: &Lab) -> Result<PathBuf> {
    let place = lab.root().join("python-etcd").join(VERSION);
    let python = place.join("bin/python");
    if place.join("whole").exists() {
        return Ok(python);
    }
    let _ = fs::remove_dir_all(&place);
    host::read(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    let mut pip = Command::new(place.join("bin/pip"));
    // Its helpers use what pyOpenSSL has dropped since, and its assertions what Python has from 3.12 on.
    pip.args(["install", "--quiet", "pytest", "mock", "pyOpenSSL<24"]).arg(format!("python-etcd=={VERSION}"));
    host::read(&mut pip).context("pip cannot get it: it needs the network, or a mirror that it is configured for")?;
    fs::write(place.join("whole"), "").context("cannot write into the lab directory")?;
    Ok(python)
}
