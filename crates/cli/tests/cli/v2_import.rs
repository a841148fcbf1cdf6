//! `quorate v2 import`: data of a running etcd 3.4 with v2, and from a data directory alone.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{Run, Sandbox, address, eventually, lab, newest, newest_of, spec};

/// An etcd 3.4 with v2, started by hand. It ends with the test.
struct Old {
    child: Child,
    url: String,
}

impl Old {
    fn start(sandbox: &Sandbox, data: &Path, number: u8, flags: &[&str]) -> Self {
        let (url, peers) = (format!("http://{}:2379", address(number)), format!("http://{}:2380", address(number)));
        let version = newest_of("3.4").expect("an etcd 3.4: run `cargo xtask etcd`");
        let mut command = Command::new(lab(&version).join("etcd"));
        command.args(["--name=old", "--enable-v2", "--data-dir"]).arg(data).args(flags);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--listen-peer-urls", &peers]);
        command.args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("old={peers}")]);
        let log = fs::File::create(sandbox.path().join(format!("old-{number}.log"))).expect("a log");
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("etcd starts");
        let old = Old { child, url };
        eventually("the old etcd answers", 30, || old.curl(&[], "/?quorum=true").contains("\"dir\""));
        old
    }

    fn curl(&self, flags: &[&str], path: &str) -> String {
        let run: Run = Command::new("curl")
            .args(["-sS", "--max-time", "10"])
            .args(flags)
            .arg(format!("{}/v2/keys{path}", self.url))
            .output()
            .expect("curl runs")
            .into();
        run.stdout
    }

    fn put(&self, path: &str, fields: &str) {
        let answer = self.curl(&["-XPUT", "-d", fields], path);
        assert!(answer.contains("\"action\":\"set\""), "{answer}");
    }

    fn listing(&self, path: &str) -> String {
        self.curl(&[], &format!("{path}?recursive=true&quorum=true"))
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn import(sandbox: &Sandbox, files: &[&str]) -> Run {
    let words = ["v2", "import", "c", "--output", "json"];
    sandbox.quorate(&words.into_iter().chain(files.iter().copied()).collect::<Vec<_>>())
}

fn counts(run: Run) -> [u64; 3] {
    let report: Value = run.ok().json();
    ["written", "skipped", "replaced"].map(|field| report[field].as_u64().expect("a count"))
}

#[test]
fn v2_data_of_a_running_etcd_and_of_a_data_directory_is_moved_once_and_nothing_is_overwritten() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(3, &version, "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let data = sandbox.path().join("old");
    let old = Old::start(&sandbox, &data, 1, &[]);
    old.put("/planets/inner", "value=mercury venus");
    old.put("/planets/outer", "value=neptune");
    old.put("/session", "value=x&ttl=1000");
    old.put("/_hidden/x", "value=y");
    sandbox.file("v2.json", &old.listing("/"));
    sandbox.file("hidden.json", &old.listing("/_hidden"));
    assert_eq!(counts(import(&sandbox, &["v2.json", "hidden.json"])), [6, 0, 0]);
    let stored = sandbox.etcdctl(&version, "c", &["get", "/v2/planets//inner"]).ok().stdout;
    assert!(stored.ends_with("\nmercury venus\n"), "{stored}");
    assert_eq!(counts(import(&sandbox, &["v2.json", "hidden.json"])), [0, 6, 0], "repeated");

    // Only its data directory is left, and later writes are in its log alone.
    old.put("/later", "value=z");
    drop(old);
    let copy = sandbox.path().join("copy");
    assert!(Command::new("cp").arg("-a").arg(&data).arg(&copy).status().expect("cp runs").success());
    let old = Old::start(&sandbox, &copy, 2, &["--force-new-cluster"]);
    sandbox.file("later.json", &old.listing("/"));
    assert_eq!(counts(import(&sandbox, &["later.json"])), [1, 4, 0]);

    old.put("/planets/outer", "value=pluto");
    old.put("/new", "value=1");
    sandbox.file("differs.json", &old.listing("/"));
    let refused = import(&sandbox, &["differs.json"]).fails().stderr;
    assert!(refused.contains("1 of the nodes exist already and differ: /planets/outer"), "{refused}");
    assert_eq!(sandbox.etcdctl(&version, "c", &["get", "/v2//new"]).ok().stdout, "", "nothing was written");

    for (name, content, expected) in [
        ("broken.json", "{\"action\":\"get\",\n\"node\":", "broken.json: not an answer of /v2/keys: EOF"),
        ("error.json", "{\"errorCode\":100}", "error.json: not an answer of /v2/keys: missing field `node`"),
    ] {
        sandbox.file(name, content);
        let refused = import(&sandbox, &["v2.json", name]).fails().stderr;
        assert!(refused.contains(expected) && refused.contains("--enable-v2"), "{refused}");
    }
    let refused = import(&sandbox, &["nowhere.json"]).fails().stderr;
    assert!(refused.contains("nowhere.json"), "{refused}");
}
