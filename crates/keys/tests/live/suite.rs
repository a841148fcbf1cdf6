//! A third-party suite: python-etcd's integration tests. They start three programs named `etcd` and use v2; here each is the library,
//! and all three serve one real etcd. `cargo xtask lab v2` installs what is needed.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use crate::stage::{Ours, run};

const PASSED: &str = "17 passed";

fn required(name: &str) -> PathBuf {
    env::var_os(name).map(PathBuf::from).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask lab v2`"))
}

#[test]
#[ignore = "needs python-etcd: cargo xtask lab v2"]
fn python_etcd_finds_no_difference() {
    run(async {
        let ours = Ours::start().await;
        let directory = tempfile::TempDir::new().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        fs::create_dir_all(file("nose")).expect("a directory");
        symlink(required("QUORATE_LAB_V2_SERVER"), file("etcd")).expect("a link");
        fs::write(file("ca.pem"), &ours.etcd.ca_pem).expect("a file");
        // The suite takes one name from a test runner that no longer runs.
        fs::write(file("nose/__init__.py"), "").expect("a file");
        fs::write(file("nose/tools.py"), "def nottest(test):\n    test.__test__ = False\n    return test\n")
            .expect("a file");
        let path = format!("{}:{}", directory.path().display(), env::var("PATH").unwrap_or_default());
        let mut python = Command::new(required("QUORATE_LAB_PYTHON_ETCD"));
        python.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--pyargs"]);
        python.arg("etcd.tests.integration.test_simple").current_dir(directory.path());
        python.env("PATH", path).env("PYTHONPATH", directory.path()).env("V2_CA", file("ca.pem"));
        python.env("V2_ENDPOINT", format!("https://{}:2379", ours.etcd.address));
        python.env("V2_ADVERTISED", "http://127.0.0.1:6001,http://127.0.0.1:6002,http://127.0.0.1:6003");
        let output = tokio::task::spawn_blocking(move || python.output()).await.expect("a task").expect("python");
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{text}");
        assert!(output.status.success() && text.contains(PASSED), "{}", String::from_utf8_lossy(&output.stderr));
    });
}
