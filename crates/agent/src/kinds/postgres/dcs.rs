//! The etcd in which Patroni keeps its state, as far as the agent itself reads and clears it. The agent logs in like Patroni.

use std::time::Duration;

use quorate_etcd::{Client, Condition, ConnectOptions, Error, KeyRange, KeyValue, Login, Op, Txn};
use reqwest::{Certificate, Identity, StatusCode};

use quorate_core::kinds::postgres::desire::{DCS_CERTIFICATE_FILE, DCS_KEY_FILE, DCS_TRUST_FILE};
use quorate_core::model::ConfigFile;

use super::config::PatroniConfig;
use crate::AgentError;
use crate::api::Refusal;

const CONNECTING: Duration = Duration::from_secs(1);
const ANSWERING: Duration = Duration::from_secs(5);

pub(super) async fn get(
    settings: &PatroniConfig,
    files: &[ConfigFile],
    key: &str,
) -> Result<Option<KeyValue>, Refusal> {
    let mut last = Refusal::failed("the configuration names no member of the DCS");
    for client in clients(settings, files)? {
        match client.get(key).await {
            Ok(found) => return Ok(found),
            Err(error) => last = not_asked(&client, error),
        }
    }
    Err(last)
}

/// Removes all that Patroni has noted of the cluster with this system identifier, if that is whose state it is and nobody leads it.
pub(super) async fn forget(settings: &PatroniConfig, files: &[ConfigFile], system_id: &str) -> Result<(), Refusal> {
    let prefix = settings.key();
    let (initialize, leader) = (format!("{prefix}initialize"), format!("{prefix}leader"));
    let Some(there) = get(settings, files, &initialize).await?.filter(|there| there.value == system_id.as_bytes())
    else {
        return Ok(());
    };
    let condition = |key: &str, known: &KeyValue| Condition::unchanged_since(key.as_bytes(), known.mod_revision);
    let mut last = Refusal::failed("the configuration names no member of the DCS");
    for client in clients(settings, files)? {
        let txn = Txn {
            conditions: vec![condition(&initialize, &there), Condition::absent(leader.as_bytes())],
            then: vec![Op::Delete(KeyRange::prefix(prefix.as_bytes()))],
            otherwise: Vec::new(),
        };
        match client.txn(txn).await {
            Ok(done) if done.succeeded => return Ok(()),
            Ok(_) => {
                let why = format!("the key {leader} is still there: Patroni removes it, or it expires");
                return Err(Refusal::Failed { why });
            }
            Err(error) => last = not_asked(&client, error),
        }
    }
    Err(last)
}

/// Writes `sync`, if nobody has changed it since and nobody leads.
pub(super) async fn name_successor(
    settings: &PatroniConfig,
    files: &[ConfigFile],
    was: &KeyValue,
    sync: &str,
) -> Result<(), Refusal> {
    let leader = format!("{}leader", settings.key());
    let mut last = Refusal::failed("the configuration names no member of the DCS");
    for client in clients(settings, files)? {
        let unchanged = Condition::unchanged_since(was.key.clone(), was.mod_revision);
        let txn = Txn {
            conditions: vec![unchanged, Condition::absent(leader.as_bytes())],
            then: vec![Op::Put { key: was.key.clone(), value: sync.as_bytes().to_vec(), lease: 0 }],
            otherwise: Vec::new(),
        };
        match client.txn(txn).await {
            Ok(_) => return Ok(()),
            Err(error) => last = not_asked(&client, error),
        }
    }
    Err(last)
}

/// Patroni speaks to nothing but etcd's JSON gateway, and would only say that no member answers. One that cannot be asked is not judged.
pub(super) async fn check_gateway(settings: &PatroniConfig, files: &[ConfigFile]) -> Result<(), Refusal> {
    let (trust, identity) = credentials(files)?;
    // Fails where a provider is installed already, which does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let unusable = |error: reqwest::Error| Refusal::Failed { why: format!("the DCS does not answer: {error}") };
    let trust = Certificate::from_pem_bundle(trust.as_bytes()).map_err(unusable)?;
    let mut client = reqwest::Client::builder().tls_certs_only(trust).connect_timeout(CONNECTING).timeout(ANSWERING);
    if let Some((chain, key)) = identity {
        client = client.identity(Identity::from_pem([chain, "\n", key].concat().as_bytes()).map_err(unusable)?);
    }
    let client = client.build().map_err(unusable)?;
    for host in &settings.etcd3.hosts {
        let asked = client.post(format!("https://{host}/v3/kv/range")).body("{}").send().await;
        if asked.is_ok_and(|answer| answer.status() == StatusCode::NOT_FOUND) {
            let why = format!("the etcd at {host} has no JSON gateway, and Patroni uses no other API");
            return Err(Refusal::Failed { why: format!("{why}: start it with --enable-grpc-gateway") });
        }
    }
    Ok(())
}

type CertificateAndKey<'a> = (&'a str, &'a str);

/// The CAs of the etcd, and what a client shows there.
fn credentials(files: &[ConfigFile]) -> Result<(&str, Option<CertificateAndKey<'_>>), Refusal> {
    let content = |path: &str| files.iter().find(|file| file.path == path).map(|file| file.content.expose());
    let trust = content(DCS_TRUST_FILE).ok_or_else(|| Refusal::failed("the configuration has no CA of the DCS"))?;
    Ok((trust, content(DCS_CERTIFICATE_FILE).zip(content(DCS_KEY_FILE))))
}

fn clients(settings: &PatroniConfig, files: &[ConfigFile]) -> Result<Vec<Client>, Refusal> {
    let (trust, identity) = credentials(files)?;
    let login = settings.etcd3.username.as_ref().zip(settings.etcd3.password.as_ref());
    let login = login.map(|(user, password)| Login { user: user.clone(), password: password.expose().to_owned() });
    let client = |host: &String| {
        let mut options = ConnectOptions::new(format!("https://{host}"), trust);
        options.login = login.clone();
        options.identity = identity.map(|(chain, key)| (chain.to_owned(), key.to_owned()));
        options.connect_timeout = CONNECTING;
        options.request_timeout = ANSWERING;
        Client::connect(options).map_err(AgentError::Etcd)
    };
    Ok(settings.etcd3.hosts.iter().map(client).collect::<Result<_, _>>()?)
}

fn not_asked(client: &Client, error: Error) -> Refusal {
    let why = quorate_core::text::with_causes(&error);
    Refusal::Failed { why: format!("the DCS at {} does not answer: {why}", client.endpoint()) }
}
