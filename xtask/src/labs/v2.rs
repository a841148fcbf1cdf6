//! Other projects' tests of the v2 API, with quorate in place of the etcds that they start: python-etcd's integration tests, from PyPI,
//! and those of etcd 3.5 itself, from Go's modules. They are kept in the lab directory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::etcd;
use crate::etcd::go::{CERTIFICATES, Module};
use crate::host;
use crate::lab::Lab;
use crate::test::build;

const VERSION: &str = "0.4.5";
/// Where the test finds Python and the server that stands in for etcd.
const PYTHON: &str = "QUORATE_LAB_PYTHON_ETCD";
const SERVER: &str = "QUORATE_LAB_V2_SERVER";
/// And the programs of etcd's tests.
const GO_TESTS: &str = "QUORATE_LAB_V2_GO_TESTS";
/// The last line of etcd that has the v2 API.
const ETCD: &str = "3.5.35";
const CLIENT: &str = "2.305.35";
const MODULE: &str = "go.etcd.io/etcd/tests/v3";
/// Packages with the files that are taken from etcd. The first one starts clusters there; ours replaces it.
const PACKAGES: [(&str, &[&str]); 4] = [
    ("integration", &["v2_http_kv_test.go"]),
    ("integration/client", &["client_test.go", "main_test.go"]),
    ("integration/client/examples", &["example_keys_test.go", "main_test.go"]),
    ("integration/v2store", &["store_test.go", "main_test.go"]),
];
const OURS: [(&str, &str); 2] = [
    ("integration/cluster.go", include_str!("v2/cluster.go")),
    ("integration/v2store/store_http_test.go", include_str!("v2/store_http_test.go")),
];

pub fn run(lab: &Lab) -> Result<()> {
    etcd::ensure(lab, false)?;
    let python = environment(lab)?;
    let go_tests = go_tests(lab)?;
    let server = build::programs()?.join("examples/serve");
    let mut tests = build::find("quorate-keys::live")?.command();
    tests.args(["--ignored", "--nocapture", "suite::"]).env(PYTHON, python).env(SERVER, server);
    tests.env(GO_TESTS, go_tests);
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

/// A directory with a program for each package of etcd's tests. Kept until one of our files changes.
fn go_tests(lab: &Lab) -> Result<PathBuf> {
    let place = lab.root().join("v2-tests").join(ETCD);
    let ours = OURS.map(|(_, text)| text).concat();
    if fs::read_to_string(place.join("whole")).is_ok_and(|whole| whole == ours) {
        return Ok(place);
    }
    if host::find("go").is_none() {
        bail!("etcd's tests are built from Go's modules: install a Go toolchain");
    }
    eprintln!("etcd {ETCD}: building its tests of v2 from Go's modules (a minute or two)");
    host::install_missing(&[CERTIFICATES])?;
    let filling = lab.lock()?;
    let module = Module::at(filling.scratch("v2-tests")?);
    host::read(module.go().args(["mod", "init", MODULE]))?;
    let download = host::read(module.go().args(["mod", "download", "-json", &format!("{MODULE}@v{ETCD}")]))?;
    let download: serde_json::Value = serde_json::from_str(&download).context("`go mod download` printed no JSON")?;
    let theirs = PathBuf::from(download["Dir"].as_str().context("`go mod download` names no directory")?);
    for (package, files) in PACKAGES {
        fs::create_dir_all(module.directory().join(package)).context("cannot create a directory")?;
        for file in files.iter().map(|file| format!("{package}/{file}")) {
            let text = fs::read(theirs.join(&file)).with_context(|| format!("etcd's tests have no {file}"))?;
            fs::write(module.directory().join(&file), text).context("cannot write a test")?;
        }
    }
    for (file, text) in OURS {
        fs::write(module.directory().join(file), text).context("cannot write a test")?;
    }
    let libraries = [("client/v2", CLIENT), ("client/pkg/v3", ETCD), ("server/v3", ETCD)];
    let libraries = libraries.map(|(name, version)| format!("go.etcd.io/etcd/{name}@v{version}"));
    host::read(module.go().arg("get").args(libraries))?;
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    for (package, _) in PACKAGES {
        let program = place.join(package.replace('/', "-"));
        let mut build = module.go();
        host::read(build.args(["test", "-p", "2", "-c", "-o"]).arg(program).arg(format!("./{package}")))?;
    }
    fs::write(place.join("whole"), ours).context("cannot write into the lab directory")?;
    Ok(place)
}
