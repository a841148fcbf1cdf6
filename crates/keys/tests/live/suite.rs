//! Third-party suites. python-etcd's integration tests start three programs named `etcd` and use v2; here each is the library, and all three
//! serve one real etcd. Of etcd's own tests, each gets the library on a new etcd. `cargo xtask lab v2` installs what is needed.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::http::ask;
use crate::stage::{Ours, Theirs, run};

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

/// Of etcd's own tests: what they look for is not in the API.
const NOT_IN_THE_API: [&str; 4] = [
    // These two never ask an etcd.
    "TestV2NoRetryEOF",
    "TestV2NoRetryNoLeader",
    // The store inside etcd has other roots next to that of keys.
    "TestNewStoreWithNamespaces",
    "TestRootRdOnly",
];
const ALL_OF_ETCDS: usize = 52;
/// etcd's first write of v2 has this index, because of what it writes itself when it starts, and some of the tests count from there.
const FIRST: i64 = 4;
const WITH_V2: &str = "3.5.30";

/// Returns when etcd has written what it writes itself.
async fn settled(at: SocketAddr) {
    let first = FIRST.unsigned_abs();
    while ask(at, "GET", "/v2/keys/", "").await.index() < first - 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn output(mut command: Command) -> (bool, String) {
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("a task").expect("it runs");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.success(), text)
}

/// The names of the tests in a program.
async fn listed(program: &Path) -> Vec<String> {
    let mut command = Command::new(program);
    command.args(["-test.list", "."]);
    let (_, text) = output(command).await;
    let names = text.lines().filter(|name| !NOT_IN_THE_API.contains(name));
    names.map(str::to_owned).collect()
}

/// What one of them prints if it fails.
async fn failure(program: &Path, name: &str, at: SocketAddr) -> Option<String> {
    let mut command = Command::new(program);
    command.args(["-test.v", "-test.timeout=60s", "-test.run", &format!("^{name}$")]);
    command.env("V2_URL", format!("http://{at}"));
    let (is_done, text) = output(command).await;
    let is_passed = is_done && text.contains(&format!("--- PASS: {name} "));
    (!is_passed).then_some(text)
}

#[test]
#[ignore = "needs etcd's tests: cargo xtask lab v2"]
fn etcds_own_tests_find_no_difference() {
    run(async {
        let mut programs: Vec<PathBuf> = fs::read_dir(required("QUORATE_LAB_V2_GO_TESTS"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| !path.ends_with("whole"))
            .collect();
        programs.sort();
        let (mut passed, mut failed) = ([0, 0], Vec::new());
        for program in &programs {
            for name in listed(program).await {
                let ours = Ours::start().await;
                while ours.client.put("revision", "").await.expect("a write") < FIRST - 1 {}
                let theirs = Theirs::start(WITH_V2).await;
                settled(theirs.at).await;
                for (side, (whose, at)) in [("quorate", ours.at), (WITH_V2, theirs.at)].into_iter().enumerate() {
                    match failure(program, &name, at).await {
                        None => passed[side] += 1,
                        Some(said) => failed.push(format!("{name} with {whose}: {said}")),
                    }
                }
            }
        }
        println!("{} passed with quorate, {} with etcd {WITH_V2}", passed[0], passed[1]);
        assert_eq!((passed, failed), ([ALL_OF_ETCDS; 2], Vec::new()));
    });
}
