//! A compromised member whose agent answers every read of its etcd from another cluster. A backup that is read from it, or compared
//! with it, is not good, and nothing is deleted because of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use quorate_agent::api::{FactsRequest, path};
use quorate_core::model::AGENT_PORT;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::common::backups::{BackedUp, NAME, VERSION};
use crate::common::intruder::Intruder;
use crate::common::trio::read_json;
use crate::common::{eventually, signal};

fn machine(cluster: &BackedUp, member: &str) -> PathBuf {
    cluster.sandbox.home().join("machines").join(NAME).join(member)
}

fn address(cluster: &BackedUp, member: &str) -> IpAddr {
    let mark = read_json(&machine(cluster, member).join("machine.json"));
    mark["address"].as_str().and_then(|address| address.parse().ok()).expect("an address")
}

/// Has the certificate of a real agent, which it replaced.
struct Liar {
    /// What it says of itself.
    facts: Mutex<Value>,
    /// The agent of the other cluster, and its controller's certificate.
    other: (IpAddr, Intruder),
    tls: Arc<ServerConfig>,
    /// Held as long as it lives: to the provider, the machine runs.
    _lock: fs::File,
}

impl Liar {
    /// Takes the place of a member's agent.
    fn replace(cluster: &BackedUp, member: &str, other: &BackedUp) -> Arc<Self> {
        let (root, at) = (machine(cluster, member).join("root"), address(cluster, member));
        let controller = Intruder::controller(&cluster.sandbox.ledger(NAME));
        let request = FactsRequest { fence: None, auth: true, reach: BTreeSet::new() };
        let (status, facts) = controller.ask(at, path::FACTS, &request).expect("the agent answers");
        assert_eq!(status, 200, "{facts:#}");
        let line = format!(" agent --root {} ", root.display());
        let agent = || cluster.sandbox.processes().into_iter().find(|(_, found)| found.contains(&line));
        signal(agent().expect("it runs").0, "KILL");
        eventually("the agent ends", 5, || agent().is_none());
        let lock = fs::File::open(root.join(quorate_agent::LOCK_FILE)).expect("its lock");
        lock.lock().expect("nobody holds it");
        let state = read_json(&root.join("var/lib/quorate/state.json"));
        let pem = |value: &Value| value.as_str().expect("PEM").as_bytes().to_vec();
        let chain = CertificateDer::pem_slice_iter(&pem(&state["chains"]["agent"])).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(&pem(&state["keys"]["agent"]["pem"])).expect("a key");
        let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(chain.expect("a chain"), key)
            .expect("they belong together");
        let other_controller = Intruder::controller(&other.sandbox.ledger(NAME));
        let liar = Arc::new(Liar {
            facts: Mutex::new(facts),
            other: (address(other, "etcd-1"), other_controller),
            tls: Arc::new(tls),
            _lock: lock,
        });
        let listener = TcpListener::bind((at, AGENT_PORT)).expect("the agent's port is free");
        let serving = liar.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let liar = serving.clone();
                std::thread::spawn(move || liar.serve(stream));
            }
        });
        liar
    }

    /// Claims to be a follower that has applied so much.
    fn claim(&self, index: u64) {
        let mut facts = self.facts.lock().expect("no holder panics");
        let status = &mut facts["etcd"]["status"];
        (status["raft_applied_index"], status["raft_index"], status["leader"]) = (json!(index), json!(index), json!(1));
    }

    /// One request for each connection.
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let connection = ServerConnection::new(self.tls.clone()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        let mut request = Vec::new();
        let head = loop {
            let mut some = [0; 4096];
            match stream.read(&mut some)? {
                0 => return Ok(()),
                count => request.extend_from_slice(&some[..count]),
            }
            if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
                break String::from_utf8_lossy(&request[..end]).into_owned();
            }
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok()).flatten()
        });
        let mut body = request[head.len() + 4..].to_vec();
        let come = body.len();
        body.resize(length.unwrap_or(come).max(come), 0);
        stream.read_exact(&mut body[come..])?;
        let at = head.split(' ').nth(1).unwrap_or_default();
        let answer = if at.starts_with(path::READ) { self.read_elsewhere(at, &body)? } else { self.tell_facts() };
        stream.write_all(&answer)?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    fn tell_facts(&self) -> Vec<u8> {
        let facts = self.facts.lock().expect("no holder panics").to_string();
        let length = facts.len();
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{facts}").into_bytes()
    }

    fn read_elsewhere(&self, at: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let head = crate::common::intruder::post(at, &format!("Content-Length: {}\r\n", body.len()));
        self.other.1.raw((self.other.0, AGENT_PORT).into(), &[head.as_bytes(), body])
    }
}

#[test]
fn a_lying_member_poisons_no_backup_and_costs_no_data() {
    let (cluster, other) = (BackedUp::up(3, ""), BackedUp::up(1, ""));
    for n in 0..4 {
        cluster.sandbox.etcdctl(VERSION, NAME, &["put", &format!("ours/{n}"), "precious"]).ok();
    }
    other.sandbox.etcdctl(VERSION, NAME, &["put", "theirs", "worthless"]).ok();
    let liar = Liar::replace(&cluster, "etcd-1", &other);
    // Not absurd, and as good as the best: it is read.
    liar.claim(5000);
    let created = cluster.backup("create", &["--output", "json"]).expect(9).json();
    assert_eq!(created["from_member"], "etcd-1", "{created:#}");
    let why = created["verification"]["why"].as_str().expect("a reason").to_owned();
    for word in ["read from etcd-1", "etcd-2 ", "etcd-3 ", "the same as the backup: etcd-1"] {
        assert!(why.contains(word), "{word} in {why}");
    }
    // Absurd: somebody else is read, and does not agree with it.
    liar.claim(1 << 40);
    let created = cluster.backup("create", &["--output", "json"]).expect(9).json();
    assert_ne!(created["from_member"], "etcd-1", "{created:#}");
    let why = created["verification"]["why"].as_str().expect("a reason").to_owned();
    assert!(why.contains("etcd-1 ") && why.contains("the same as the backup: etcd-2, etcd-3"), "{why}");

    assert!(cluster.fulls().iter().all(|full| full["verified_at"].is_null()));
    let refused = cluster.sandbox.quorate(&["destroy", NAME, "--yes"]).expect(3).text();
    assert!(refused.contains("no verified backup"), "{refused}");
    assert_eq!(cluster.sandbox.etcds().len(), 3);
}
