//! The agent's connection to the local etcd: its address and login. It is kept between requests and replaced when
//! certificates, password or address change.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_core::Secret;
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::model::{CLIENT_PORT, CertificateUse, NodeConfig, PEER_PORT, https_url};
use quorate_etcd::{Client, ConnectOptions, Login};
use rustls::ClientConfig;

use crate::api::Refusal;
use crate::kinds::etcd::trust;
use crate::layout::Layout;
use crate::state::State;
use crate::{AgentError, tls};

const CONNECTING: Duration = Duration::from_secs(1);
/// For orders. Observations of etcd have shorter limits.
const ANSWERING: Duration = Duration::from_secs(8);
const PAGES: &str = "listen-client-http-urls";

pub(crate) struct Access {
    layout: Layout,
    kept: Mutex<Option<(Settings, Client)>>,
    kept_peer: Mutex<Option<(Settings, Arc<ClientConfig>)>>,
    kept_pages: Mutex<Option<(Settings, Arc<ClientConfig>)>>,
}

/// Everything that a connection depends on.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    url: String,
    trust: String,
    identity: Option<(String, Secret)>,
    password: Option<Secret>,
}

impl Access {
    pub(crate) fn new(layout: Layout) -> Self {
        Access { layout, kept: Mutex::default(), kept_peer: Mutex::default(), kept_pages: Mutex::default() }
    }

    /// The client of etcd's API, as root if possible.
    pub(crate) fn client(&self, state: &State) -> Result<Client, Refusal> {
        let settings = self.client_settings(state).ok_or_else(not_ready)?;
        let mut kept = self.kept.lock().expect("no holder panics");
        if let Some((known, client)) = &*kept
            && *known == settings
        {
            return Ok(client.clone());
        }
        let client = Client::connect(options(&settings)).map_err(AgentError::Etcd)?;
        *kept = Some((settings, client.clone()));
        Ok(client)
    }

    /// Drops the connection to etcd's API and the login with it. Anyone who starts etcd on other data does this: the tokens of the etcd that
    /// was there before mean nothing to the new one.
    pub(super) fn forget_login(&self) {
        self.kept.lock().expect("no holder panics").take();
    }

    /// etcd's peer URL, and how to connect as a member.
    pub(super) fn peer(&self, state: &State) -> Option<(String, Arc<ClientConfig>)> {
        over_tls(&self.kept_peer, self.peer_settings(state)?)
    }

    /// Where etcd serves its clients, and how to go to its plain pages there. The pages of a peer take the same way.
    pub(super) fn pages(&self, state: &State) -> Option<(String, Arc<ClientConfig>)> {
        let config = &state.node_config.as_ref()?.config;
        let mut settings = Settings { password: None, ..self.client_settings(state)? };
        // Where gRPC is kept apart from all else.
        if config.etcd()?.flags.contains_key(PAGES) {
            settings.url = self.url(config, PAGES, state.address, CLIENT_PORT);
        }
        over_tls(&self.kept_pages, settings)
    }

    /// By certificate if etcd requires one, by password if the configuration has one.
    fn client_settings(&self, state: &State) -> Option<Settings> {
        let config = &state.node_config.as_ref()?.config;
        let by_certificate = config.etcd()?.flags.get("client-cert-auth").is_some_and(|value| value == "true");
        let identity = if by_certificate { Some(identity(state, CertificateUse::Root)?) } else { None };
        let password = config.files.iter().find(|file| file.path == ROOT_PASSWORD_FILE);
        Some(Settings {
            url: self.url(config, "listen-client-urls", state.address, CLIENT_PORT),
            trust: state.trust.clone()?,
            identity,
            password: password.map(|file| file.content.clone()),
        })
    }

    fn peer_settings(&self, state: &State) -> Option<Settings> {
        let config = &state.node_config.as_ref()?.config;
        Some(Settings {
            url: self.url(config, "listen-peer-urls", state.address, PEER_PORT),
            trust: trust::peer_bundle(config).map(str::to_owned).or_else(|| state.trust.clone())?,
            identity: Some(identity(state, CertificateUse::Peer).or_else(|| identity(state, CertificateUse::Member))?),
            password: None,
        })
    }

    /// The first URL that etcd listens at; one that means every address is reached at the machine's own.
    fn url(&self, config: &NodeConfig, flag: &str, address: IpAddr, port: u16) -> String {
        let urls = config.etcd().and_then(|etcd| etcd.flags.get(flag)).map(|urls| self.layout.fill_in(urls, address));
        let first = urls.as_deref().and_then(|urls| urls.split(',').next()).map_or("", str::trim);
        let port = first.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(port);
        let everywhere = first.contains("//0.0.0.0:") || first.contains("//[::]:");
        if first.is_empty() || everywhere { https_url(address, port) } else { first.to_owned() }
    }
}

/// The TLS configuration for these settings, rebuilt only when they have changed.
fn over_tls(
    kept: &Mutex<Option<(Settings, Arc<ClientConfig>)>>,
    settings: Settings,
) -> Option<(String, Arc<ClientConfig>)> {
    let mut kept = kept.lock().expect("no holder panics");
    if let Some((known, config)) = &*kept
        && *known == settings
    {
        return Some((settings.url, config.clone()));
    }
    let identity = settings.identity.as_ref().map(|(chain, key)| (chain.as_str(), key));
    let config = tls::etcd_client_config(&settings.trust, identity).ok()?;
    *kept = Some((settings.clone(), config.clone()));
    Some((settings.url, config))
}

fn not_ready() -> Refusal {
    Refusal::Failed { why: String::from("etcd has neither a configuration nor certificates yet") }
}

fn options(settings: &Settings) -> ConnectOptions {
    let mut options = ConnectOptions::new(&settings.url, &settings.trust);
    options.identity = settings.identity.as_ref().map(|(chain, key)| (chain.clone(), key.expose().to_owned()));
    let login = |password: &Secret| Login { user: String::from("root"), password: password.expose().to_owned() };
    options.login = settings.password.as_ref().map(login);
    options.connect_timeout = CONNECTING;
    options.request_timeout = ANSWERING;
    options
}

fn identity(state: &State, of: CertificateUse) -> Option<(String, Secret)> {
    Some((state.chains.get(&of)?.clone(), state.key(of)?.clone()))
}
