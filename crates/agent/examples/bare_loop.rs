//! The floor that `cargo xtask bench bringup` measures `quorate up` against: a bare loop that starts etcd, in the order
//! that avoids its one-second peer waits, with certificates made beforehand and no authentication.
//!
//! `bare_loop ETCD_DIRECTORY MEMBERS` prints the milliseconds from the first start until a linearizable read works on every
//! member. Its files are below the temporary directory; files and processes are gone when it ends.

mod hand;

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hand::{ONE_DAY, free_addresses, issue};
use jiff::Timestamp;
use quorate_core::kinds::etcd::desire::{Peers, etcd_flags};
use quorate_core::kinds::etcd::spec::{ClientAuth, TokenKind};
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{ADDRESS, CLIENT_PORT, PEER_PORT, ROOT};
use quorate_core::spec::{self, MemberSpec};
use quorate_etcd::{Client, ConnectOptions};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// Between two questions to a member that is not ready.
const PAUSE: Duration = Duration::from_millis(3);
/// A port that is open but not served yet keeps the asker waiting; asking again then costs less than waiting longer.
const ANSWER: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
/// The second number of its addresses: benchmarks may run in parallel.
const ADDRESSES: u8 = 210;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).collect()).await {
        Ok(elapsed) => {
            println!("{:.1}", elapsed.as_secs_f64() * 1000.0);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Vec<OsString>) -> Result<Duration> {
    let [etcd_directory, members] = &arguments[..] else {
        return Err("usage: bare_loop ETCD_DIRECTORY MEMBERS".into());
    };
    let members: usize = members.to_str().and_then(|text| text.parse().ok()).ok_or("MEMBERS is a number")?;
    let program = Path::new(etcd_directory).join("etcd");
    let directory = tempfile::tempdir()?;
    let members = prepare(directory.path(), members)?;
    // Declared after the directory, so that it ends the processes before their files go.
    let mut running = Running::default();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        elapsed = timeout(PATIENCE, bring_up(&program, &members, &mut running)) => match elapsed {
            Ok(elapsed) => elapsed,
            Err(_) => Err(format!("not all members answered within {PATIENCE:?}").into()),
        },
        _ = interrupt.recv() => Err("interrupted".into()),
        _ = terminate.recv() => Err("interrupted".into()),
    }
}

async fn bring_up(program: &Path, members: &[Member], running: &mut Running) -> Result<Duration> {
    let begun = Instant::now();
    for (position, member) in members.iter().enumerate() {
        running.start(program, member)?;
        if position + 1 < members.len() {
            while !member.peer_answers().await {
                running.check()?;
                sleep(PAUSE).await;
            }
        }
    }
    for member in members {
        while member.client.linearizable_read_ok().await.is_err() {
            running.check()?;
            sleep(PAUSE).await;
        }
    }
    Ok(begun.elapsed())
}

/// All that is ready before the clock starts.
struct Member {
    arguments: Vec<String>,
    log: PathBuf,
    address: IpAddr,
    peer: TlsConnector,
    client: Client,
}

impl Member {
    fn prepare(root: &Path, flags: BTreeMap<String, String>, address: IpAddr, authority: &Authority) -> Result<Self> {
        let (certificate, key) = issue(authority, &address.to_string(), Some(address))?;
        let ca = authority.certificate_pem();
        let pki = root.join("etc/etcd/pki");
        fs::create_dir_all(&pki)?;
        fs::write(pki.join("ca.crt"), ca)?;
        fs::write(pki.join("member.crt"), &certificate)?;
        fs::write(pki.join("member.key"), &key)?;
        let fill_in =
            |value: &str| value.replace(ROOT, &root.display().to_string()).replace(ADDRESS, &address.to_string());
        let peer = TlsConnector::from(Arc::new(peer_config(ca, &certificate, &key)?));
        let endpoint = format!("https://{address}:{CLIENT_PORT}");
        let options = ConnectOptions { identity: Some((certificate, key)), ..ConnectOptions::new(endpoint, ca) };
        Ok(Self {
            arguments: flags.iter().map(|(name, value)| format!("--{name}={}", fill_in(value))).collect(),
            log: root.join("etcd.log"),
            address,
            peer,
            client: Client::connect(options)?,
        })
    }

    async fn peer_answers(&self) -> bool {
        matches!(timeout(ANSWER, self.ask_peer_port()).await, Ok(Ok(true)))
    }

    async fn ask_peer_port(&self) -> std::io::Result<bool> {
        let stream = TcpStream::connect(SocketAddr::new(self.address, PEER_PORT)).await?;
        let mut stream = self.peer.connect(self.address.into(), stream).await?;
        let request = format!("GET /members HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await?;
        let expected = b"HTTP/1.1 200";
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        Ok(answer == *expected)
    }
}

fn prepare(directory: &Path, count: usize) -> Result<Vec<Member>> {
    // The flags do not depend on the version.
    let cluster = spec::generated("floor", count, versions::DEFAULT, ClientAuth::Certificate)?.clusters.remove(0);
    let subject = AuthoritySubject { common_name: String::from("floor"), organization: None };
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, ONE_DAY, Timestamp::now())?;
    let seats: Vec<_> = cluster.members.iter().zip(free_addresses(ADDRESSES, count)?).collect();
    let peer_url = |address: &IpAddr| format!("https://{address}:{PEER_PORT}");
    let all: Vec<String> =
        seats.iter().map(|(member, address)| format!("{}={}", member.name, peer_url(address))).collect();
    let prepare = |(member, address): &(&MemberSpec, IpAddr)| {
        let mut flags = etcd_flags(&cluster, member, TokenKind::Simple, Peers::CaOfClients);
        flags.insert(String::from("initial-cluster"), all.join(","));
        flags.insert(String::from("initial-cluster-token"), String::from("floor"));
        flags.insert(String::from("initial-cluster-state"), String::from("new"));
        flags.insert(String::from("initial-advertise-peer-urls"), peer_url(address));
        Member::prepare(&directory.join(member.name.as_str()), flags, *address, &authority)
    };
    seats.iter().map(prepare).collect()
}

fn peer_config(ca: &str, certificate: &str, key: &str) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes())?)?;
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_client_auth_cert(chain, key)?)
}

/// The etcds that were started; they end with it.
#[derive(Default)]
struct Running(Vec<(Child, PathBuf)>);

impl Running {
    fn start(&mut self, program: &Path, member: &Member) -> Result<()> {
        let log = File::create(&member.log)?;
        let mut command = Command::new(program);
        command.args(&member.arguments).env_clear().stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        self.0.push((child, member.log.clone()));
        Ok(())
    }

    /// Fails when one has ended.
    fn check(&mut self) -> Result<()> {
        for (child, log) in &mut self.0 {
            if let Some(status) = child.try_wait()? {
                let words = fs::read_to_string(log).unwrap_or_default();
                return Err(format!("etcd ended: {status}\n{}", words.lines().next_back().unwrap_or_default()).into());
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
        }
        for (child, _) in &mut self.0 {
            let _ = child.wait();
        }
    }
}
