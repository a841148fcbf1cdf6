//! The agent's state: one file, replaced atomically and durable before anything depends on it. Everything else that the
//! agent writes is derived from it and corrected at each start, except etcd's data and the stamp next to it.

mod migrate;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use quorate_core::Secret;
use quorate_core::model::{CertificateUse, NodeConfig, PROTOCOL, PackagesSeen, Program};
use quorate_pki::{KeyAlgorithm, KeyPair};
use serde::{Deserialize, Serialize};

use crate::api::{Identity, Kept, Refusal, Seed};
use crate::kinds::etcd::EtcdState;
use crate::kinds::postgres::PostgresState;
use crate::layout::Layout;
use crate::{AgentError, files};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// Of the program that wrote it. An older program does not know what it would lose.
    #[serde(default)]
    pub(crate) protocol: u32,
    /// Made at the first start: a machine that was recreated has another.
    pub(crate) machine_id: String,
    pub(crate) identity: Identity,
    pub(crate) address: IpAddr,
    /// The agent obeys nobody but whom this CA calls its controller.
    pub(crate) control_ca: String,
    pub(crate) enrolled: bool,
    /// The highest fencing number ever obeyed.
    pub(crate) fence: u64,
    pub(crate) node_config: Option<InPlace>,
    /// Keys made here.
    pub(crate) keys: BTreeMap<CertificateUse, Key>,
    /// Keys that were brought with their certificates, used instead of those made here.
    pub(crate) brought_keys: BTreeMap<CertificateUse, Secret>,
    pub(crate) chains: BTreeMap<CertificateUse, String>,
    /// The CAs that etcd and its clients trust.
    pub(crate) trust: Option<String>,
    pub(crate) etcd: EtcdState,
    #[serde(default)]
    pub(crate) postgres: PostgresState,
    /// Services that need no more than to be kept running, and are meant to run.
    #[serde(default)]
    pub(crate) services: BTreeSet<String>,
    /// The PATH of the controller that gave the node config, on a machine that it shares with us.
    #[serde(default)]
    pub(crate) search: Option<String>,
    /// The last upgrade of packages before a reboot.
    #[serde(default)]
    pub(crate) packages: Option<PackagesSeen>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct InPlace {
    pub(crate) generation: u64,
    pub(crate) digest: String,
    /// By name: what each service must be restarted for. Absent in what an older agent wrote.
    #[serde(default)]
    pub(crate) services: BTreeMap<String, String>,
    pub(crate) config: Kept<NodeConfig>,
}

impl InPlace {
    pub(crate) fn service_digest(&self, name: &str) -> String {
        let known = self.services.get(name).cloned();
        known.or_else(|| self.config.service_digests().remove(name)).unwrap_or_default()
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) pem: Secret,
    pub(crate) request: String,
}

impl Key {
    pub(crate) fn make(algorithm: KeyAlgorithm, common_name: &str) -> Result<Self, AgentError> {
        let pair = KeyPair::generate(algorithm)?;
        Ok(Key { pem: pair.to_pem(), request: pair.csr(common_name)? })
    }

    pub(crate) fn pair(&self) -> Result<KeyPair, AgentError> {
        Ok(KeyPair::from_pem(&self.pem)?)
    }
}

impl State {
    /// A machine that nobody has spoken to yet.
    fn new(seed: &Seed) -> Result<Self, AgentError> {
        let identity = identity(seed);
        let key = Key::make(KeyAlgorithm::P256, &identity.common_name())?;
        Ok(State {
            protocol: PROTOCOL,
            machine_id: quorate_pki::random_hex(16),
            identity,
            address: seed.address,
            control_ca: seed.control_ca.clone(),
            enrolled: false,
            fence: 0,
            node_config: None,
            keys: BTreeMap::from([(CertificateUse::Agent, key)]),
            brought_keys: BTreeMap::new(),
            chains: BTreeMap::new(),
            trust: None,
            etcd: EtcdState::default(),
            postgres: PostgresState::default(),
            services: BTreeSet::new(),
            search: None,
            packages: None,
        })
    }

    /// The key that the agent serves TLS with, which is made together with the state.
    pub(crate) fn agent_key(&self) -> &Key {
        &self.keys[&CertificateUse::Agent]
    }

    /// The signing requests of the keys that were made here.
    pub(crate) fn requests(&self) -> BTreeMap<CertificateUse, String> {
        self.keys.iter().map(|(of, key)| (*of, key.request.clone())).collect()
    }

    /// The key of the certificate for this use.
    pub(crate) fn key(&self, of: CertificateUse) -> Option<&Secret> {
        self.brought_keys.get(&of).or_else(|| Some(&self.keys.get(&of)?.pem))
    }
}

fn identity(seed: &Seed) -> Identity {
    Identity { cluster_id: seed.cluster_id.clone(), member: seed.member.clone(), incarnation: seed.incarnation }
}

/// Reads state and seed, and writes nothing. Once the agent is enrolled, the seed has served its purpose and is not looked at.
pub(crate) fn open(layout: &Layout, seed: &Path) -> Result<(StateStore, Option<Seed>), AgentError> {
    let path = layout.state_file();
    let known = read(&path)?.map(|state| State { protocol: Program::this().protocol, ..state });
    if let Some(state) = known.as_ref().filter(|state| state.enrolled) {
        return Ok((StateStore::new(path, state.clone()), None));
    }
    let text = fs::read(seed).map_err(AgentError::file("read the seed", seed))?;
    let seed: Seed = read_json(seed, &text)?;
    let state = match known {
        Some(state) => {
            State { identity: identity(&seed), address: seed.address, control_ca: seed.control_ca.clone(), ..state }
        }
        None => State::new(&seed)?,
    };
    Ok((StateStore::new(path, state), Some(seed)))
}

/// Whether this program could continue with what is there.
pub(crate) fn check(layout: &Layout) -> Result<(), AgentError> {
    read(&layout.state_file()).map(drop)
}

fn read(path: &Path) -> Result<Option<State>, AgentError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(AgentError::file("read", path)(error)),
    };
    // Before the rest is read: a newer program may have written it in a form that this one does not know.
    let Written { protocol } = read_json(path, &text)?;
    let ours = Program::this();
    if protocol > ours.protocol {
        return Err(AgentError::NewerState { path: path.into(), written: protocol, ours: ours.clone() });
    }
    let state = migrate::to_present(read_json(path, &text)?, protocol);
    serde_json::from_value(state).map(Some).map_err(|source| AgentError::Unreadable { path: path.into(), source })
}

/// The part of the state that keeps its form.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    protocol: u32,
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, AgentError> {
    serde_json::from_slice(text).map_err(|source| AgentError::Unreadable { path: path.into(), source })
}

fn write(path: &Path, state: &State) -> Result<(), AgentError> {
    let text = serde_json::to_vec(state).expect("plain data serializes");
    files::write_durably(path, &text, files::PRIVATE)
}

/// The state as it is on disk. Readers never wait for a write.
pub(crate) struct StateStore {
    path: PathBuf,
    current: Mutex<Arc<State>>,
    writing: tokio::sync::Mutex<()>,
    /// Whether the file stays as it is for now.
    held: AtomicBool,
}

impl StateStore {
    fn new(path: PathBuf, state: State) -> Self {
        StateStore {
            path,
            current: Mutex::new(Arc::new(state)),
            writing: tokio::sync::Mutex::new(()),
            held: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self) -> Arc<State> {
        self.current.lock().expect("no holder panics").clone()
    }

    /// Writes the state as it was opened.
    pub(crate) fn save(&self) -> Result<(), AgentError> {
        write(&self.path, &self.get())
    }

    /// Leaves the file alone until `release`. A program on trial does this: the one before it could not read what it writes.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    /// Writes what has changed meanwhile, and every change from now on.
    pub(crate) async fn release(&self) -> Result<(), AgentError> {
        let _writing = self.writing.lock().await;
        if !self.held.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (path, state) = (self.path.clone(), self.get());
        crate::blocking(move || write(&path, &state)).await?;
        self.held.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Changes the state on disk, then in memory. A change that changes nothing writes nothing.
    pub(crate) async fn update(&self, change: impl FnOnce(&mut State)) -> Result<(), AgentError> {
        let _writing = self.writing.lock().await;
        let before = self.get();
        let mut after = (*before).clone();
        change(&mut after);
        if after == *before {
            return Ok(());
        }
        let after = Arc::new(after);
        let (path, written) = (self.path.clone(), after.clone());
        if !self.held.load(Ordering::Relaxed) {
            // A disk that etcd keeps busy can take long to sync; facts must be answered meanwhile.
            crate::blocking(move || write(&path, &written)).await?;
        }
        *self.current.lock().expect("no holder panics") = after;
        Ok(())
    }

    /// Lets a fencing number through that is not older than the newest obeyed, and obeys nothing older from then on.
    pub(crate) async fn obey_fence(&self, carried: u64) -> Result<(), Refusal> {
        self.update(|state| state.fence = state.fence.max(carried)).await?;
        let obeyed = self.get().fence;
        if carried < obeyed { Err(Refusal::StaleFence { obeyed, carried }) } else { Ok(()) }
    }
}

/// The node config's own fence: an older generation, or other content under the same one, is refused. True: it is in
/// place already.
pub(crate) fn check_generation(in_place: Option<&InPlace>, carried: u64, digest: &str) -> Result<bool, Refusal> {
    match in_place {
        Some(known) if carried < known.generation => {
            Err(Refusal::StaleGeneration { in_place: known.generation, carried })
        }
        Some(known) if carried == known.generation && digest != known.digest => {
            Err(Refusal::ChangedContent { generation: carried })
        }
        Some(known) => Ok(carried == known.generation),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_newer_program_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path()).unwrap();
        fs::create_dir_all(layout.state_dir()).unwrap();
        fs::write(layout.state_file(), r#"{"protocol": 99, "in": "another form"}"#).unwrap();
        let refused = check(&layout).unwrap_err().to_string();
        assert!(refused.contains("written by a newer quorate (protocol 99)"), "{refused}");
        fs::remove_file(layout.state_file()).unwrap();
        check(&layout).unwrap();
    }
}
