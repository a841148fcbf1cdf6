//! A running etcd with one member for tests, with TLS and optional authentication; the source that reads it; and a workshop.

#![allow(dead_code, reason = "what is made for several tests may be used by none of them")]

use std::fs;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use age::secrecy::ExposeSecret;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use jiff::{SignedDuration, Timestamp};
use prost::Message;
use quorate_backup::catalog::{Catalog, Full};
use quorate_backup::full::{self, Draft};
use quorate_backup::keys::Identities;
use quorate_backup::manifest::Manifest;
use quorate_backup::settings::{Location, Patience, Settings};
use quorate_backup::source::{About, ChangeStream, Changes, HashKv, Member, SnapshotStream};
use quorate_backup::throwaway::Programs;
use quorate_backup::verify::Workshop;
use quorate_backup::{Source, SourceError, Store, Trust};
use quorate_core::Secret;
use quorate_etcd::wire::{LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};
use quorate_etcd::{
    Client, ConnectOptions, Error, KeyRange, Permission, PermissionKind, RangeQuery, RangeResult, ReadMethod,
};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish, SigningKey};
use tempfile::TempDir;

pub const VERSION: &str = "3.5.30";
pub const CLUSTER: &str = "orders";
pub const CLUSTER_ID: &str = "5f2c9c0de1a74b1c";
const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Someone with an age key.
pub struct Operator {
    pub identities: Identities,
    /// The key file.
    pub file: Secret,
    pub recipient: String,
}

impl Operator {
    pub fn new() -> Self {
        let key = age::x25519::Identity::generate();
        let file = Secret::new(key.to_string().expose_secret());
        Operator { identities: Identities::parse(&file).unwrap(), file, recipient: key.to_public().to_string() }
    }

    pub fn settings(&self) -> Settings {
        Settings { recipients: vec![self.recipient.clone()], ..Settings::default() }
    }
}

pub fn lab() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("QUORATE_LAB").or_else(|| Some(cache()?.join("quorate-lab"))).expect("HOME is set")
}

pub fn programs(version: &str) -> Programs {
    let directory = lab().join("etcd").join(version);
    let etcd = directory.join("etcd");
    assert!(etcd.exists(), "etcd {version} is not at {}: run `cargo xtask etcd`", directory.display());
    let etcdutl = directory.join("etcdutl");
    let restorer = if etcdutl.exists() { etcdutl } else { directory.join("etcdctl") };
    Programs { version: version.to_owned(), etcd, restorer }
}

pub struct Living {
    pub client: Client,
    /// The member that it is.
    pub name: String,
    pub version: String,
    etcd: Child,
    directory: TempDir,
}

impl Drop for Living {
    fn drop(&mut self) {
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

impl Living {
    pub async fn start(version: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let (ca, chain, key) = certificates(directory.path(), address);
        let endpoint = format!("https://{address}:2379");
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let etcd = Command::new(programs(version).etcd)
            .args(["--name=etcd-1", "--data-dir=data", "--listen-peer-urls=unix://peer:0", "--logger=zap"])
            .args(["--cert-file=server.crt", "--key-file=server.key", "--trusted-ca-file=ca.crt"])
            .args(["--client-cert-auth=true", "--enable-grpc-gateway=false"])
            .args([format!("--listen-client-urls={endpoint}"), format!("--advertise-client-urls={endpoint}")])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut options = ConnectOptions::new(endpoint, ca);
        options.identity = Some((chain, key));
        let client = Client::connect(options).unwrap();
        let name = String::from("etcd-1");
        let living = Living { client, name, version: version.to_owned(), etcd, directory };
        for _ in 0..400 {
            if living.client.linearizable_read_ok().await.is_ok() {
                return living;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let log = fs::read_to_string(living.directory.path().join("log")).unwrap_or_default();
        panic!("etcd {version} does not answer: {log}");
    }

    /// With authentication on, one user next to root.
    pub async fn enable_auth(&self) {
        let client = &self.client;
        client.user_add("root", Some("s3cret")).await.unwrap();
        client.role_add("root").await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        client.user_add("app", Some("hunter2")).await.unwrap();
        client.role_add("app").await.unwrap();
        let KeyRange { key, range_end } = KeyRange::prefix("app/");
        let all = Permission { key, range_end, kind: PermissionKind::ReadWrite };
        client.role_grant_permission("app", all).await.unwrap();
        client.user_grant_role("app", "app").await.unwrap();
        client.auth_enable().await.unwrap();
    }

    pub async fn fill(&self, count: usize) {
        for n in 0..count {
            self.client.put(format!("app/{n:05}"), format!("value {n}").repeat(10)).await.unwrap();
        }
    }

    pub async fn contents(&self, revision: i64) -> RangeResult {
        contents(&self.client, revision).await
    }
}

pub async fn contents(client: &Client, revision: i64) -> RangeResult {
    client.range(RangeQuery { revision, ..RangeQuery::new(KeyRange::prefix("")) }).await.unwrap()
}

/// An address in 127.202.0.0/16 that no other test uses. A free port of 127.0.0.1 would not do: until etcd listens there, any
/// connection of a test next to this one may be given the same port.
fn free_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = std::process::id().wrapping_mul(7919).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let address = IpAddr::from([127, 202, (place >> 8) as u8, place as u8 % 254 + 1]);
        if TcpListener::bind((address, 2379)).is_ok() {
            return address;
        }
    }
}

fn certificates(directory: &Path, address: IpAddr) -> (String, String, String) {
    let now = Timestamp::now();
    let subject = AuthoritySubject { common_name: String::from("test"), organization: None };
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, YEAR, now).unwrap();
    let leaf = |name: &str| {
        let key = KeyPair::generate(KeyAlgorithm::P256).unwrap();
        let wish = LeafWish {
            common_name: name.to_owned(),
            organization: None,
            dns: Vec::new(),
            addresses: vec![address],
            server: true,
            client: true,
            validity: YEAR,
        };
        (authority.sign(&key.csr(name).unwrap(), &wish, now).unwrap(), key.to_pem().expose().to_owned())
    };
    let (server, server_key) = leaf("server");
    fs::write(directory.join("ca.crt"), authority.certificate_pem()).unwrap();
    fs::write(directory.join("server.crt"), server).unwrap();
    fs::write(directory.join("server.key"), server_key).unwrap();
    let (chain, key) = leaf("root");
    (authority.certificate_pem().to_owned(), chain, key)
}

fn told(error: Error) -> SourceError {
    match error {
        Error::Compacted { oldest } => SourceError::Compacted { oldest },
        Error::PermissionDenied | Error::Unauthenticated(_) => SourceError::Denied(error.to_string()),
        error => SourceError::Unreachable(error.to_string()),
    }
}

#[async_trait]
impl Source for Living {
    async fn about(&self) -> Result<About, SourceError> {
        let members = self.client.members(true).await.map_err(told)?;
        let member = |member: quorate_etcd::Member| Member {
            name: member.name,
            id: format!("{:x}", member.id),
            peer_urls: member.peer_urls,
            client_urls: member.client_urls,
        };
        Ok(About {
            cluster: CLUSTER.to_owned(),
            cluster_id: CLUSTER_ID.to_owned(),
            etcd_version: self.version.clone(),
            from_member: self.name.clone(),
            members: members.into_iter().map(member).collect(),
        })
    }

    async fn snapshot(&self) -> Result<SnapshotStream, SourceError> {
        let snapshot = self.client.snapshot().await.map_err(told)?;
        Ok(Box::pin(stream::try_unfold(snapshot, |mut snapshot| async {
            let chunk = snapshot.next().await.map_err(told)?;
            Ok(chunk.map(|chunk| (Bytes::from(chunk.bytes), snapshot)))
        })))
    }

    async fn hash_kv(&self, revision: i64) -> Result<HashKv, SourceError> {
        self.client.hash_kv(revision).await.map_err(told)
    }

    async fn changes(&self, from: i64) -> Result<ChangeStream, SourceError> {
        let watch = self.client.watch(KeyRange::prefix(""), from, true).await.map_err(told)?;
        Ok(Box::pin(stream::try_unfold(watch, |mut watch| async {
            let update = watch.next().await.map_err(told)?;
            Ok(Some((Changes { events: update.events, revision: update.revision, unfinished: false }, watch)))
        })))
    }

    async fn lease_ttl(&self, id: i64) -> Result<Option<i64>, SourceError> {
        let request = LeaseTimeToLiveRequest { id, keys: false };
        let request = Bytes::from(request.encode_to_vec());
        let mut answers = self.client.read(ReadMethod::LeaseTimeToLive, request).await.map_err(told)?;
        let answer = answers.next().await.map_err(told)?.expect("an answer");
        let answer = LeaseTimeToLiveResponse::decode(answer).expect("a lease's answer");
        Ok((answer.ttl > 0).then_some(answer.granted_ttl))
    }

    async fn range(&self, query: RangeQuery) -> Result<RangeResult, SourceError> {
        self.client.range(query).await.map_err(told)
    }
}

/// The key of the cluster, the same in every test.
pub fn signing() -> SigningKey {
    SigningKey::load(&Secret::new("5a".repeat(32))).unwrap()
}

pub fn trust() -> Trust {
    Trust::only(signing().signer(), Timestamp::now())
}

/// A directory store, and a place for temporary etcds; both go at the end.
pub struct Room {
    pub directory: TempDir,
    pub store: Store,
    pub scratch: PathBuf,
    pub programs: Programs,
}

impl Room {
    pub fn new(version: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = Location::Directory(directory.path().join("store"));
        let store = Store::open(&place, None, Patience::default()).unwrap();
        Room { store, scratch: directory.path().join("scratch"), programs: programs(version), directory }
    }

    pub fn workshop(&self) -> Workshop<'_> {
        Workshop { programs: &self.programs, scratch: &self.scratch }
    }

    pub async fn create(&self, living: &Living, settings: &Settings) -> (Manifest, Draft) {
        let draft = Draft::new(settings, &signing(), Timestamp::now()).unwrap();
        let manifest = full::create(&self.store, living, &draft, settings, None, &|_| {}).await.unwrap();
        (manifest, draft)
    }

    pub async fn catalog(&self) -> Catalog {
        Catalog::load(&self.store, CLUSTER, Some(CLUSTER_ID), &trust()).await.unwrap()
    }

    pub async fn newest(&self) -> Full {
        self.catalog().await.fulls.pop().unwrap()
    }

    /// Where an object of the store is.
    pub fn file(&self, path: &str) -> PathBuf {
        self.directory.path().join("store").join(path)
    }

    /// A directory for prepared snapshots.
    pub fn prepared(&self) -> PathBuf {
        let path = self.directory.path().join("prepared");
        fs::create_dir_all(&path).unwrap();
        path
    }
}
