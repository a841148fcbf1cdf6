//! A real Prometheus from Debian scrapes the members of a real cluster at the port in the spec.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Sandbox, eventually, lab_directory, newest, spec};

struct Prometheus {
    child: Child,
    address: IpAddr,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// With the configuration of docs/changes.md, for these targets.
    fn start(sandbox: &Sandbox, targets: &[String]) -> Self {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = IpAddr::from([127, 211, high, low]);
        let list = targets.join("\", \"");
        let config = documented().replace("10.0.0.11:2381\", \"10.0.0.12:2381\", \"10.0.0.13:2381", &list);
        assert!(config.contains(&list), "{config}");
        let config = sandbox.file("prometheus.yml", &format!("global: {{scrape_interval: 1s}}\n{config}"));
        let program = lab_directory().join("prometheus/usr/bin/prometheus");
        assert!(program.exists(), "{} is needed: `cargo xtask test` brings it", program.display());
        let log = fs::File::create(sandbox.path().join("prometheus.log")).expect("a log");
        let child = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", sandbox.path().join("prometheus").display()))
            .arg(format!("--web.listen-address={address}:9090"))
            .args(["--web.console.templates=/nowhere", "--web.console.libraries=/nowhere"])
            .current_dir(sandbox.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Prometheus { child: child.expect("Prometheus runs"), address }
    }

    fn query(&self, query: &str) -> Option<Value> {
        let page = get(self.address, 9090, &format!("/api/v1/query?query={query}"))?;
        serde_json::from_str(page.split_once("\r\n\r\n")?.1).ok()
    }

    /// How many series have this value.
    fn count(&self, query: &str, value: &str) -> usize {
        let answer = self.query(query).unwrap_or_default();
        let series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        series.iter().filter(|one| one["value"][1] == value).count()
    }
}

/// The scrape configuration that the documentation tells operators to use.
fn documented() -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/changes.md")).expect("the page");
    let (_, rest) = page.split_once("```yaml\nscrape_configs:").expect("the page has a scrape configuration");
    let (config, _) = rest.split_once("```").expect("it ends");
    format!("scrape_configs:{config}")
}

fn get(address: IpAddr, port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect((address, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn free_port(address: IpAddr) -> u16 {
    TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()).expect("a port").port()
}

#[test]
fn a_real_prometheus_scrapes_every_member_at_the_port_that_the_spec_names() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let port = free_port(IpAddr::from([127, 0, 0, 1]));
    sandbox.file("c.yaml", &spec(3, &version, &format!("metrics: {{port: {port}}}"), ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    let status = sandbox.status("c");
    let members = status["members"].as_array().expect("members");
    let addresses: Vec<IpAddr> = members.iter().map(|m| m["address"].as_str().unwrap().parse().unwrap()).collect();
    let targets: Vec<String> = addresses.iter().map(|address| format!("{address}:{port}")).collect();

    let prometheus = Prometheus::start(&sandbox, &targets);
    eventually("every member is up to Prometheus", 60, || prometheus.count("up", "1") == 3);
    eventually("every member has a leader", 60, || prometheus.count("etcd_server_has_leader", "1") == 3);
    assert_eq!(prometheus.count("sum(etcd_server_is_leader)", "1"), 1, "one of them leads");

    // What this port shows to everybody is metrics and health, and no keys.
    let page = |path: &str| get(addresses[0], port, path).expect("an answer");
    assert!(page("/metrics").contains("etcd_mvcc_db_total_size_in_bytes"));
    for path in ["/v3/kv/range", "/version", "/debug/vars", "/members"] {
        assert!(page(path).starts_with("HTTP/1.0 404"), "{path}: {}", page(path));
    }
    // Taken from the spec again, the port is closed; that is a rolling restart.
    sandbox.file("c.yaml", &spec(3, &version, "", ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    eventually("no member is up to Prometheus", 60, || prometheus.count("up", "0") == 3);
}
