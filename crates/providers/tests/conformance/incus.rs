//! The ground of the provider `incus`: a server that a lab runs, named by an environment variable. Its image prints a word on the
//! console and keeps running.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, MachineId, MemberName};
use quorate_core::providers::incus::IncusSettings;
use quorate_core::spec::{self, Provider as Kind, Size};
use quorate_providers::{Data, Incus, NewMachine, Provider};
use tokio::net::{UnixListener, UnixStream};

use crate::suite::Ground;

/// The socket of the server; without it there is no such ground.
const SOCKET: &str = "QUORATE_LAB_INCUS_SOCKET";
/// Names that the lab gives.
const IMAGE: &str = "quorate-lab";
const NETWORK: &str = "quorate-lab";
const POOL: &str = "quorate-lab";
const DATA_SIZE: Size = Size(1 << 20);
/// Where a machine has its data volume.
const DATA: &str = "/var/lib/etcd.disk";

static GROUNDS: AtomicU8 = AtomicU8::new(1);

pub fn is_there() -> bool {
    std::env::var_os(SOCKET).is_some()
}

fn socket() -> PathBuf {
    PathBuf::from(std::env::var_os(SOCKET).expect("the lab says where Incus is"))
}

pub struct Place {
    directory: tempfile::TempDir,
    cluster: String,
    cluster_id: String,
    /// The third number of this ground's addresses.
    range: u8,
}

impl Place {
    pub fn new() -> Self {
        let range = GROUNDS.fetch_add(1, Ordering::Relaxed);
        Place {
            directory: tempfile::tempdir().expect("a directory"),
            cluster: format!("ground{range}"),
            cluster_id: quorate_pki::random_hex(8),
            range,
        }
    }

    fn settings(&self) -> IncusSettings {
        let settings = serde_json::json!({
            "image": IMAGE, "has_agent": true, "network": NETWORK, "pool": POOL, "data_size": DATA_SIZE,
            "profiles": [], "cpus": 1, "memory": "128MiB",
        });
        serde_json::from_value(settings).expect("settings")
    }

    fn incus(&self, cluster_id: &str, settings: &IncusSettings) -> Incus {
        let spec = spec::generated(&self.cluster, 3, versions::DEFAULT, ClientAuth::Certificate).expect("a spec");
        let mut spec = spec.clusters.into_iter().next().expect("a cluster");
        spec.provider = Kind::Incus(Box::new(settings.clone()));
        let ledger = Ledger::new(cluster_id.to_owned(), spec);
        Incus::new(&ledger, settings).through(socket()).stopping_within(Duration::from_secs(2))
    }

    /// A provider whose calls that change anything fail once there were so many of them, as if it had been killed.
    fn mortal(&self, calls: usize) -> (Incus, Arc<AtomicI64>) {
        let left = Arc::new(AtomicI64::new(i64::try_from(calls).expect("few calls")));
        let path = self.directory.path().join(format!("mortal-{calls}-{}", quorate_pki::random_hex(4)));
        let listener = UnixListener::bind(&path).expect("a socket");
        tokio::spawn(serve(listener, left.clone()));
        let settings = self.settings();
        (self.incus(&self.cluster_id, &settings).through(path), left)
    }
}

/// What was planted belongs to nobody who would remove it.
impl Drop for Place {
    fn drop(&mut self) {
        let beginning = format!("{}-", self.cluster);
        for name in incus(&["list", "--format=csv", "--columns=n"]).lines().filter(|name| name.starts_with(&beginning))
        {
            let _ = Command::new("incus").args(["delete", "--force", name]).output();
        }
    }
}

/// Passes requests on, until there were too many that change something.
async fn serve(listener: UnixListener, left: Arc<AtomicI64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let left = left.clone();
        let service = service_fn(move |request| pass(request, left.clone()));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn pass(request: Request<Incoming>, left: Arc<AtomicI64>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    if request.method() != Method::GET && left.fetch_sub(1, Ordering::SeqCst) <= 0 {
        let said = r#"{"type":"error","error_code":500,"error":"killed by the lab","metadata":null}"#;
        let answer = Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR).body(Full::new(said.into()));
        return Ok(answer.expect("an answer"));
    }
    let (parts, body) = request.into_parts();
    let body = Full::new(body.collect().await?.to_bytes());
    let stream = UnixStream::connect(socket()).await.expect("the server");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (parts, body) = sender.send_request(Request::from_parts(parts, body)).await?.into_parts();
    Ok(Response::from_parts(parts, Full::new(body.collect().await?.to_bytes())))
}

fn was_killed(left: &AtomicI64) -> bool {
    left.load(Ordering::SeqCst) < 0
}

fn incus(words: &[&str]) -> String {
    let output = Command::new("incus").args(words).output().expect("incus");
    assert!(output.status.success(), "incus {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// What an instance of this machine is called.
fn instance(cluster: &str, machine: &str) -> String {
    format!("{cluster}-{}", machine.replace('.', "-i"))
}

#[async_trait(?Send)]
impl Ground for Place {
    fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    fn provider(&self) -> Rc<dyn Provider> {
        Rc::new(self.incus(&self.cluster_id, &self.settings()))
    }

    fn stranger(&self) -> (Rc<dyn Provider>, String) {
        let id = format!("strange{}", self.range);
        (Rc::new(self.incus(&id, &self.settings())), id)
    }

    fn pinned(&self, member: &str) -> Option<IpAddr> {
        let number = member.rsplit('-').next()?.parse().ok()?;
        Some(Ipv4Addr::new(10, 78, self.range, number).into())
    }

    async fn inventory(&self) -> BTreeSet<String> {
        let instances: Vec<serde_json::Value> =
            serde_json::from_str(&incus(&["list", "--format=json"])).expect("a list");
        let volumes = incus(&["storage", "volume", "list", POOL, "--format=csv", "--columns=n"]);
        let ids = [self.cluster_id.clone(), format!("strange{}", self.range)];
        let instances = instances.into_iter().filter_map(|instance| {
            let name = instance["name"].as_str()?.to_owned();
            // Whatever its name, its mark says whose it is.
            let mark = instance["config"]["user.quorate.mark"].as_str().unwrap_or_default();
            let mine =
                name.starts_with(&format!("{}-", self.cluster)) || ids.iter().any(|id| mark.contains(id.as_str()));
            mine.then(|| format!("instance {name}"))
        });
        let volumes = volumes.lines().filter(|name| ids.iter().any(|id| name.contains(id.as_str())));
        instances.chain(volumes.map(|name| format!("volume {name}"))).collect()
    }

    async fn interrupt_create(&self, new: &NewMachine<'_>, after: usize) -> bool {
        let (provider, left) = self.mortal(after);
        let _ = provider.create(new).await;
        was_killed(&left)
    }

    async fn interrupt_destroy(&self, _: &str, member: &MemberName, incarnation: u64, after: usize) -> bool {
        let (provider, left) = self.mortal(after);
        let _ = provider.destroy(&MachineId::new(member, incarnation), Data::Goes).await;
        was_killed(&left)
    }

    async fn plant(&self, machine: &str) {
        incus(&["init", IMAGE, &instance(&self.cluster, machine), "--storage", POOL]);
    }

    async fn write_data(&self, machine: &str, text: &str) {
        let file = self.directory.path().join("data");
        std::fs::write(&file, text).expect("written");
        let name = instance(&self.cluster, machine);
        // A volume is where the instance is only while that runs.
        incus(&["start", &name]);
        incus(&["file", "push", &file.to_string_lossy(), &format!("{name}{DATA}/precious")]);
        incus(&["stop", "--force", &name]);
    }

    async fn read_data(&self, machine: &str) -> Option<String> {
        let file = self.directory.path().join("read");
        let _ = std::fs::remove_file(&file);
        let from = format!("{}{DATA}/precious", instance(&self.cluster, machine));
        let words = ["file", "pull", &from, &file.to_string_lossy()];
        let pulled = Command::new("incus").args(words).output().expect("incus").status.success();
        pulled.then(|| std::fs::read_to_string(Path::new(&file)).expect("what was pulled"))
    }

    fn greedy(&self) -> Option<Rc<dyn Provider>> {
        let settings = IncusSettings { data_size: Some(Size(1 << 50)), ..self.settings() };
        Some(Rc::new(self.incus(&self.cluster_id, &settings)))
    }
}
