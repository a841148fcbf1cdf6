//! The side that is made and changed manually: Patroni started as its page says, and commanded through its REST API, which is faster than
//! `patronictl`. Its etcd has neither TLS nor authentication, nor has its REST API; PostgreSQL has TLS, because clients are compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::store::free_ports;
use super::{CONNECTIONS, Ground, LOOP_WAIT, MEMBERS, Programs, RETRY_TIMEOUT, Release, Side, TTL, host, until};

const PASSWORD: &str = "manual";
const SUPERUSER: &str = "postgres";
/// Restarts and switchovers are answered when they are done.
const ANSWER: Duration = Duration::from_secs(60);

pub struct Manual {
    directory: PathBuf,
    patroni: PathBuf,
    release: Release,
    members: BTreeMap<&'static str, Member>,
    etcd_port: u16,
    etcd: Child,
    /// A bring-up begins with an empty key.
    scope: u32,
}

struct Member {
    port: u16,
    rest: u16,
    patroni: Option<Child>,
}

impl Manual {
    pub fn prepare(ground: &Ground, programs: &Programs) -> Result<Self> {
        let directory = ground.directory("manual")?;
        make_certificate(&directory)?;
        let ports = free_ports(MEMBERS.len() * 2 + 2)?;
        let (etcd_ports, ports) = ports.split_at(2);
        let member =
            |(name, ports): (&&'static str, &[u16])| (*name, Member { port: ports[0], rest: ports[1], patroni: None });
        let members = MEMBERS.iter().zip(ports.chunks_exact(2)).map(member).collect();
        let etcd = start_etcd(&programs.etcd, &directory, etcd_ports[0], etcd_ports[1])?;
        let patroni = programs.patroni.join("patroni");
        let release = Release::install(directory.join("programs"))?;
        Ok(Self { directory, patroni, release, members, etcd_port: etcd_ports[0], etcd, scope: 0 })
    }

    fn start(&mut self, name: &str) -> Result<()> {
        let directory = self.directory(name);
        let log = directory.join("patroni.log");
        let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = host::tethered("unshare");
        command.args(as_postgres()?).arg(&self.patroni).arg(directory.join("patroni.yml"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started = command.spawn().context("cannot start Patroni")?;
        self.member_mut(name)?.patroni = Some(started);
        Ok(())
    }

    fn member(&self, name: &str) -> Result<&Member> {
        self.members.get(name).with_context(|| format!("no member {name}"))
    }

    fn member_mut(&mut self, name: &str) -> Result<&mut Member> {
        self.members.get_mut(name).with_context(|| format!("no member {name}"))
    }

    fn configure(&self, name: &str) -> Result<()> {
        let directory = self.directory(name);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join("patroni.yml");
        fs::write(&path, self.config(name)?.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The settings of the other side, but for its certificates. JSON is YAML too.
    fn config(&self, name: &str) -> Result<Value> {
        let Member { port, rest, .. } = self.member(name)?;
        let directory = self.directory(name);
        let file = |name: &str| self.directory.join(name).display().to_string();
        let login = |user: &str| json!({ "username": user, "password": PASSWORD });
        Ok(json!({
            "scope": format!("manual-{}", self.scope),
            "name": name,
            "restapi": { "listen": local(*rest), "connect_address": local(*rest) },
            "etcd3": { "hosts": [local(self.etcd_port)] },
            "bootstrap": {
                "initdb": ["data-checksums", { "encoding": "UTF8" }],
                "dcs": {
                    "ttl": TTL, "loop_wait": LOOP_WAIT, "retry_timeout": RETRY_TIMEOUT,
                    "failsafe_mode": true,
                    "synchronous_mode": true, "synchronous_mode_strict": true, "synchronous_node_count": 1,
                    "postgresql": {
                        "use_pg_rewind": true, "use_slots": true, "parameters": { "max_connections": CONNECTIONS },
                    },
                },
            },
            "postgresql": {
                "listen": local(*port),
                "connect_address": local(*port),
                "use_unix_socket": false,
                "data_dir": directory.join("data"),
                "bin_dir": self.release.directory(),
                "pgpass": directory.join("pgpass"),
                "authentication": {
                    "superuser": login(SUPERUSER), "replication": login("replicator"), "rewind": login("rewinder"),
                },
                "parameters": {
                    "ssl": "on", "ssl_cert_file": file("server.crt"), "ssl_key_file": file("server.key"),
                    "unix_socket_directories": "", "password_encryption": "scram-sha-256",
                },
                "pg_hba": [
                    "hostssl replication replicator all scram-sha-256",
                    "hostssl all all all scram-sha-256",
                ],
                "basebackup": [{ "checkpoint": "fast" }],
            },
        }))
    }

    /// What Patroni reports about all members, from the first that answers.
    fn cluster(&self) -> Result<Vec<Value>> {
        let told = self.members.values().find_map(|member| call(member.rest, "GET", "/cluster", None).ok());
        let told = told.context("no Patroni answers")?;
        Ok(told["members"].as_array().cloned().unwrap_or_default())
    }

    fn with_role(&self, role: &str) -> Result<String> {
        let members = self.cluster()?;
        let found = members.iter().find(|member| member["role"] == role && is_up(member));
        let name = found.and_then(|member| member["name"].as_str());
        name.map(str::to_owned).with_context(|| format!("nobody is {role}"))
    }

    /// One leads, all others stream, one of them synchronously, and nobody must restart.
    fn is_whole(&self) -> bool {
        let Ok(members) = self.cluster() else { return false };
        let count = |role: &str| members.iter().filter(|member| member["role"] == role && is_up(member)).count();
        let pending = members.iter().any(|member| member["pending_restart"] == true);
        !pending && (count("leader"), count("sync_standby"), count("replica")) == (1, 1, 1)
    }

    fn restart(&self, name: &str) -> Result<()> {
        call(self.member(name)?.rest, "POST", "/restart", Some(json!({})))?;
        until("a member that streams again", || {
            let members = self.cluster()?;
            Ok(members
                .iter()
                .any(|member| member["name"] == name && is_up(member) && member["pending_restart"].is_null()))
        })
    }
}

impl Manual {
    /// The replica first, then the synchronous standby, then the primary after a switchover.
    fn restart_all(&self) -> Result<()> {
        let primary = self.primary()?;
        for role in ["replica", "sync_standby"] {
            self.restart(&self.with_role(role)?)?;
            until("a synchronous standby", || Ok(self.with_role("sync_standby").is_ok()))?;
        }
        let candidate = self.with_role("sync_standby")?;
        let wish = json!({ "leader": primary, "candidate": candidate });
        call(self.member(&primary)?.rest, "POST", "/switchover", Some(wish))?;
        until("the former primary as a replica", || {
            Ok(self
                .cluster()?
                .iter()
                .any(|member| member["name"] == primary && member["role"] != "leader" && is_up(member)))
        })?;
        self.restart(&primary)?;
        until("a whole cluster", || Ok(self.is_whole()))
    }
}

impl Side for Manual {
    fn name(&self) -> &'static str {
        "plain Patroni"
    }

    /// The first creates its data, and the others clone it as soon as it leads.
    fn bring_up(&mut self) -> Result<()> {
        self.scope += 1;
        for name in MEMBERS {
            self.configure(name)?;
        }
        let [first, others @ ..] = MEMBERS;
        self.start(first)?;
        let rest = self.member(first)?.rest;
        until("the first primary", || Ok(call(rest, "GET", "/primary", None).is_ok()))?;
        for name in others {
            self.start(name)?;
        }
        until("a whole cluster", || Ok(self.is_whole()))
    }

    fn variables(&self) -> Result<Vec<(String, String)>> {
        let ports: Vec<String> = self.members.values().map(|member| member.port.to_string()).collect();
        let variables = [
            ("PGHOST", MEMBERS.map(|_| "127.0.0.1").join(",")),
            ("PGPORT", ports.join(",")),
            ("PGUSER", SUPERUSER.to_owned()),
            ("PGPASSWORD", PASSWORD.to_owned()),
            ("PGDATABASE", SUPERUSER.to_owned()),
            ("PGSSLMODE", String::from("verify-full")),
            ("PGSSLROOTCERT", self.directory.join("server.crt").display().to_string()),
            ("PGTARGETSESSIONATTRS", String::from("read-write")),
        ];
        Ok(variables.map(|(name, value)| (name.to_owned(), value)).into())
    }

    fn through_proxy(&self) -> Result<Vec<(String, String)>> {
        self.variables()
    }

    fn primary(&self) -> Result<String> {
        self.with_role("leader")
    }

    fn directory(&self, member: &str) -> PathBuf {
        self.directory.join(member)
    }

    fn switch_over(&mut self) -> Result<()> {
        let (leader, candidate) = (self.primary()?, self.with_role("sync_standby")?);
        let wish = json!({ "leader": leader, "candidate": candidate });
        call(self.member(&leader)?.rest, "POST", "/switchover", Some(wish))?;
        until("a whole cluster", || Ok(self.is_whole()))
    }

    fn set_connections(&mut self, connections: u32) -> Result<()> {
        let primary = self.primary()?;
        let change = json!({ "postgresql": { "parameters": { "max_connections": connections } } });
        call(self.member(&primary)?.rest, "PATCH", "/config", Some(change))?;
        until("members that must restart", || {
            Ok(self.cluster()?.iter().all(|member| member["pending_restart"] == true))
        })?;
        self.restart_all()
    }

    fn take_release(&mut self, release: &Path) -> Result<()> {
        self.release.put(release)?;
        self.restart_all()
    }

    fn bring_back(&mut self, member: &str) -> Result<()> {
        if let Some(mut dead) = self.member_mut(member)?.patroni.take() {
            dead.wait()?;
        }
        self.start(member)?;
        until("a whole cluster", || Ok(self.is_whole()))
    }

    fn take_down(&mut self) -> Result<()> {
        for name in MEMBERS {
            if let Some(mut patroni) = self.member_mut(name)?.patroni.take() {
                super::kill_all_below(&self.directory(name))?;
                patroni.wait()?;
            }
            super::super::remove(&self.directory(name))?;
        }
        Ok(())
    }
}

impl Drop for Manual {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("warning: {error:#}");
        }
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

/// PostgreSQL does not run as root. In its namespace root has another number.
fn as_postgres() -> Result<Vec<String>> {
    let number = |option: &str| {
        Ok::<_, anyhow::Error>(host::read(Command::new("id").args([option, SUPERUSER]))?.trim().to_owned())
    };
    Ok(vec![
        "--user".into(),
        format!("--map-user={}", number("-u")?),
        format!("--map-group={}", number("-g")?),
        "--".into(),
    ])
}

/// Of all members: they share an address.
fn make_certificate(directory: &Path) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=manual", "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(directory.join("server.key")).arg("-out").arg(directory.join("server.crt"));
    host::read(&mut openssl).map(drop)
}

fn start_etcd(programs: &Path, directory: &Path, client: u16, peer: u16) -> Result<Child> {
    let log = directory.join("etcd.log");
    let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let [client_url, peer_url] = [client, peer].map(|port| format!("http://{}", local(port)));
    let mut command = host::tethered(programs.join("etcd"));
    command.args(["--name", "manual"]).arg("--data-dir").arg(directory.join("etcd"));
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.args(["--initial-cluster", &format!("manual={peer_url}")]);
    // Patroni uses etcd's JSON gateway.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let started = command.spawn().context("cannot start etcd")?;
    until("etcd", || Ok(call(client, "GET", "/health", None).is_ok()))?;
    Ok(started)
}

/// Running, and if it is a replica, streaming.
fn is_up(member: &Value) -> bool {
    ["running", "streaming"].iter().any(|state| member["state"] == *state)
        && (member["role"] == "leader" || member["state"] == "streaming")
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// One request over plain HTTP; its answer as JSON, or as text where it is none.
fn call(port: u16, method: &str, path: &str, body: Option<Value>) -> Result<Value> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(ANSWER))?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n{body}", local(port))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no whole answer")?;
    let status: u32 = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    ensure!((200..300).contains(&status), "{method} {path}: {status}: {body}");
    Ok(serde_json::from_str(body).unwrap_or_else(|_| Value::from(body)))
}
