//! The etcd in which Patroni keeps its state, as far as the agent reads and clears it itself. The agent logs in as Patroni does.

use std::time::Duration;

use quorate_etcd::{Client, Condition, ConnectOptions, Error, KeyRange, KeyValue, Login, Op, Txn};

use super::config::PatroniConfig;
use crate::AgentError;
use crate::api::Refusal;

const CONNECTING: Duration = Duration::from_secs(1);
const ANSWERING: Duration = Duration::from_secs(5);

pub(super) async fn get(settings: &PatroniConfig, trust: Option<&str>, key: &str) -> Result<Option<KeyValue>, Refusal> {
    let mut last = Refusal::failed("the configuration names no member of the DCS");
    for client in clients(settings, trust)? {
        match client.get(key).await {
            Ok(found) => return Ok(found),
            Err(error) => last = not_asked(&client, error),
        }
    }
    Err(last)
}

/// Removes all that Patroni has noted of the cluster with this system identifier, if that is whose state it is and nobody leads it.
pub(super) async fn forget(settings: &PatroniConfig, trust: Option<&str>, system_id: &str) -> Result<(), Refusal> {
    let prefix = settings.key();
    let (initialize, leader) = (format!("{prefix}initialize"), format!("{prefix}leader"));
    let Some(there) = get(settings, trust, &initialize).await?.filter(|there| there.value == system_id.as_bytes())
    else {
        return Ok(());
    };
    let condition = |key: &str, known: &KeyValue| Condition::unchanged_since(key.as_bytes(), known.mod_revision);
    let mut last = Refusal::failed("the configuration names no member of the DCS");
    for client in clients(settings, trust)? {
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

fn clients(settings: &PatroniConfig, trust: Option<&str>) -> Result<Vec<Client>, Refusal> {
    let trust = trust.ok_or_else(|| Refusal::failed("the configuration has no CA of the DCS"))?;
    let login = settings.etcd3.username.as_ref().zip(settings.etcd3.password.as_ref());
    let login = login.map(|(user, password)| Login { user: user.clone(), password: password.expose().to_owned() });
    let client = |host: &String| {
        let mut options = ConnectOptions::new(format!("https://{host}"), trust);
        options.login = login.clone();
        options.connect_timeout = CONNECTING;
        options.request_timeout = ANSWERING;
        Client::connect(options).map_err(AgentError::Etcd)
    };
    Ok(settings.etcd3.hosts.iter().map(client).collect::<Result<_, _>>()?)
}

fn not_asked(client: &Client, error: Error) -> Refusal {
    let why = quorate_core::text::with_causes(&error);
    Refusal::Failed { why: format!("the DCS at {} cannot be asked: {why}", client.endpoint()) }
}
