//! The cloud as the tests themselves use it, and a proxy between it and a provider.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use quorate_core::spec::read_plain_yaml;

/// The services that a provider uses, as the catalogue and `clouds.yaml` call them.
const SERVICES: [(&str, &str); 4] =
    [("compute", "compute"), ("network", "network"), ("image", "image"), ("volumev3", "volume")];

pub struct Api {
    client: reqwest::Client,
    token: String,
    pub project: String,
    /// Without the version, by name.
    endpoints: BTreeMap<&'static str, String>,
}

fn settings(cloud: &str) -> Value {
    let text = std::fs::read_to_string(super::clouds()).expect("clouds.yaml");
    read_plain_yaml(&text).expect("YAML")["clouds"][cloud].clone()
}

impl Api {
    /// As quorate's user.
    pub async fn new() -> Self {
        Self::of(super::CLOUD).await
    }

    /// As this user of the lab.
    pub async fn of(cloud: &str) -> Self {
        let region = settings(cloud)["region_name"].clone();
        Self::of_region(cloud, region.as_str().expect("a region")).await
    }

    pub async fn of_region(cloud: &str, region: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::new();
        let auth = settings(cloud)["auth"].clone();
        let domain = json!({ "name": auth["user_domain_name"] });
        let user = json!({ "name": auth["username"], "password": auth["password"], "domain": domain });
        let body = json!({ "auth": {
            "identity": { "methods": ["password"], "password": { "user": user } },
            "scope": { "project": { "name": auth["project_name"], "domain": domain } },
        } });
        let url = format!("{}/auth/tokens", auth["auth_url"].as_str().expect("auth_url"));
        let answer = client.post(url).header("Content-Type", "application/json").body(body.to_string()).send().await;
        let answer = answer.expect("the identity service");
        let token = answer.headers()["X-Subject-Token"].to_str().expect("a token").to_owned();
        let body: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        let endpoints = SERVICES.map(|(kind, name)| {
            let services = body["token"]["catalog"].as_array().expect("a catalogue");
            let service = services.iter().find(|service| service["type"] == kind).expect("a service");
            let endpoints = service["endpoints"].as_array().expect("endpoints");
            let is_it = |endpoint: &&Value| endpoint["interface"] == "public" && endpoint["region"] == region;
            let public = endpoints.iter().find(is_it).expect("a public one");
            let url: reqwest::Url = public["url"].as_str().expect("a URL").parse().expect("a URL");
            (name, url.origin().ascii_serialization())
        });
        let project = body["token"]["project"]["id"].as_str().expect("a project").to_owned();
        Api { client, token, project, endpoints: endpoints.into() }
    }

    fn url(&self, service: &str, path: &str) -> String {
        let version = match service {
            "compute" => String::from("v2.1"),
            "network" => String::from("v2.0"),
            "image" => String::from("v2"),
            _ => format!("v3/{}", self.project),
        };
        format!("{}/{version}{path}", self.endpoints[service])
    }

    pub async fn call(&self, method: Method, service: &str, path: &str, body: Option<Value>) -> Value {
        let mut request = self.client.request(method, self.url(service, path)).header("X-Auth-Token", &self.token);
        // Others refuse it.
        if service == "compute" {
            request = request.header("OpenStack-API-Version", "compute 2.64");
        }
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let bytes = request.send().await.expect("an answer").bytes().await.expect("a body");
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    pub async fn get(&self, service: &str, path: &str) -> Value {
        self.call(Method::GET, service, path, None).await
    }

    pub async fn post(&self, service: &str, path: &str, body: Value) -> Value {
        self.call(Method::POST, service, path, Some(body)).await
    }

    /// The bytes of an image.
    pub async fn put_file(&self, image: &str, content: &'static [u8]) {
        let request = self.client.put(self.url("image", &format!("/images/{image}/file")));
        let request = request.header("X-Auth-Token", &self.token).header("Content-Type", "application/octet-stream");
        let answer = request.body(content).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    pub async fn items(&self, service: &str, path: &str, field: &str) -> Vec<Value> {
        self.get(service, path).await[field].as_array().cloned().unwrap_or_else(|| panic!("no {field}"))
    }

    /// Everything that contains the name or one of the ids of a cluster.
    pub async fn inventory(&self, cluster: &str, ids: &[&str]) -> BTreeSet<String> {
        let lists = [
            ("compute", "/servers/detail", "servers"),
            ("compute", "/os-server-groups", "server_groups"),
            ("network", "/ports", "ports"),
            ("network", "/security-groups", "security_groups"),
            ("network", "/floatingips", "floatingips"),
            ("volume", "/volumes/detail", "volumes"),
        ];
        let mut found = BTreeSet::new();
        for (service, path, field) in lists {
            for item in self.items(service, path, field).await {
                let text = item.to_string();
                if text.contains(cluster) || ids.iter().any(|id| text.contains(id)) {
                    found.insert(format!("{field} {} {}", item["name"], item["id"]));
                }
            }
        }
        found
    }

    pub async fn plant(&self, name: &str, network: &str, address: IpAddr) -> String {
        let networks = self.items("network", &format!("/networks?name={network}"), "networks").await;
        let port = json!({
            "name": name, "network_id": networks[0]["id"], "fixed_ips": [{ "ip_address": address.to_string() }],
        });
        let made = self.post("network", "/ports", json!({ "port": port })).await;
        made["port"]["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    /// The data volume of a server.
    pub async fn data_volume(&self, server: &str) -> Option<String> {
        let servers = self.items("compute", "/servers/detail", "servers").await;
        let server = servers.iter().find(|found| found["name"] == server)?;
        server["metadata"]["quorate.data"].as_str().filter(|id| !id.is_empty()).map(str::to_owned)
    }

    /// Removes what a test has left.
    pub async fn clear(&self, cluster: &str) {
        let lists = [
            ("compute", "/servers", "servers"),
            ("network", "/floatingips", "floatingips"),
            ("network", "/ports", "ports"),
            ("network", "/security-groups", "security_groups"),
            ("volume", "/volumes", "volumes"),
        ];
        for (service, path, field) in lists {
            for item in self.items(service, path, field).await {
                if item["name"].as_str().is_some_and(|name| name.starts_with(cluster)) {
                    let id = item["id"].as_str().expect("an id");
                    self.call(Method::DELETE, service, &format!("{path}/{id}"), None).await;
                }
            }
        }
    }
}

/// What is done to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is answered with this status, and not carried out.
    Status(u16),
    /// It is carried out, and the connection is cut.
    Cut,
    /// It is carried out, and answered with this status.
    DoneBut(u16),
}

/// Decides what happens to a request: method, and path with its service.
type Judge = dyn Fn(&Method, &str) -> Option<Fault> + Send + Sync;

/// Passes requests on, except for those that its judge spoils.
pub struct Proxy {
    judge: Arc<Judge>,
    /// Requests so far, without those for tokens.
    pub seen: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn new(judge: impl Fn(&Method, &str) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Proxy { judge: Arc::new(judge), seen: Arc::default() }
    }

    /// Calls that change anything fail once there were so many of them, as if the provider had been killed.
    pub fn mortal(calls: usize) -> (Self, Arc<AtomicI64>) {
        let left = Arc::new(AtomicI64::new(i64::try_from(calls).expect("few calls")));
        let counted = left.clone();
        let proxy = Proxy::new(move |method, _| {
            let dies = *method != Method::GET && counted.fetch_sub(1, Ordering::SeqCst) <= 0;
            dies.then_some(Fault::Status(500))
        });
        (proxy, left)
    }

    /// Serves until the runtime ends, and writes a `clouds.yaml` that leads through it.
    pub async fn serve(self, clouds: &Path) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let endpoints: Arc<BTreeMap<&'static str, String>> = Arc::new(Api::new().await.endpoints);
        let mut settings = settings(super::CLOUD);
        for (_, name) in SERVICES {
            settings[format!("{name}_endpoint_override")] = json!(format!("http://{address}/{name}"));
        }
        // YAML reads JSON.
        std::fs::write(clouds, json!({ "clouds": { super::CLOUD: settings } }).to_string()).expect("a file");
        let proxy = Arc::new(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (proxy, endpoints) = (proxy.clone(), endpoints.clone());
                let service = service_fn(move |request| {
                    let (proxy, endpoints) = (proxy.clone(), endpoints.clone());
                    async move { proxy.pass(request, &endpoints).await }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
    }

    /// An error cuts the connection.
    async fn pass(
        &self,
        request: Request<Incoming>,
        endpoints: &BTreeMap<&'static str, String>,
    ) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        self.seen.lock().expect("a list").push(format!("{} {path}", parts.method));
        let fault = (self.judge)(&parts.method, &path);
        let answer =
            |status: u16, body: Bytes| Ok(Response::builder().status(status).body(Full::new(body)).expect("an answer"));
        let spoiled = Bytes::from(r#"{"badRequest": {"message": "spoiled by the lab"}}"#);
        if let Some(Fault::Status(status)) = fault {
            return answer(status, spoiled);
        }
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let (service, rest) = path[1..].split_once('/').expect("a service");
        let url = format!("{}/{rest}", endpoints[service]);
        let mut passed = reqwest::Client::new().request(parts.method, url).body(body);
        for (name, value) in parts.headers.iter().filter(|(name, _)| *name != "host" && *name != "content-length") {
            passed = passed.header(name, value);
        }
        let real = passed.send().await.map_err(std::io::Error::other)?;
        let status = real.status().as_u16();
        let body = real.bytes().await.map_err(std::io::Error::other)?;
        match fault {
            Some(Fault::Cut) => Err(std::io::Error::other("cut by the lab")),
            Some(Fault::DoneBut(status)) => answer(status, spoiled),
            _ => answer(status, body),
        }
    }
}
