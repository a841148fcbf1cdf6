//! The CAs that etcd trusts: those in the configuration, which it reads when it starts, and those that the running etcd
//! was started with. The latter are recorded before each start, because a running etcd does not report them.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::kinds::etcd::desire::{CLIENT_TRUST_FILE, PEER_TRUST_FILE};
use quorate_core::kinds::postgres::desire::PEER_TRUST_FILE as PATRONI_PEER_TRUST_FILE;
use quorate_core::model::{NodeConfig, ServiceState, TrustPlane, TrustSeen};

use super::state::Launched;
use crate::AgentError;
use crate::agent::Agent;
use crate::state::State;

/// How many starts are remembered: a crash may come between the note and the start.
const REMEMBERED: usize = 2;

impl Agent {
    /// Records the CAs that etcd is about to be started with.
    pub(crate) async fn note_trust(&self, digest: &str) -> Result<(), AgentError> {
        let state = self.state.get();
        let Some(in_place) = &state.node_config else { return Ok(()) };
        let launched = Launched {
            digest: digest.to_owned(),
            trust: in_config(&in_place.config),
            layout: in_place.config.etcd().map(|etcd| etcd.layout).unwrap_or_default(),
        };
        let note = |state: &mut State| {
            state.etcd.launched.retain(|known| known.digest != launched.digest);
            state.etcd.launched.insert(0, launched);
            state.etcd.launched.truncate(REMEMBERED);
        };
        self.state.update(note).await
    }
}

/// What etcd trusts, by plane. A plane that the node config says nothing about is left out.
pub(crate) fn seen(state: &State, service: &ServiceState) -> BTreeMap<TrustPlane, TrustSeen> {
    let on_disk = state.node_config.as_ref().map(|in_place| in_config(&in_place.config)).unwrap_or_default();
    let running = match service {
        ServiceState::Running { digest, .. } => state.etcd.launched.iter().find(|known| known.digest == *digest),
        ServiceState::Stopped | ServiceState::BackingOff { .. } | ServiceState::Unknown { .. } => None,
    };
    let of = |plane: &TrustPlane| running.and_then(|known| known.trust.get(plane).cloned()).unwrap_or_default();
    on_disk.into_iter().map(|(plane, on_disk)| (plane, TrustSeen { running: of(&plane), on_disk })).collect()
}

/// The peers' CAs, in PEM, where they have separate ones.
pub(crate) fn peer_bundle(config: &NodeConfig) -> Option<&str> {
    bundle(config, PEER_TRUST_FILE).or_else(|| bundle(config, PATRONI_PEER_TRUST_FILE))
}

/// The CA of clients, in PEM, where the config has it.
pub(crate) fn client_bundle(config: &NodeConfig) -> Option<&str> {
    bundle(config, CLIENT_TRUST_FILE)
}

fn bundle<'a>(config: &'a NodeConfig, path: &str) -> Option<&'a str> {
    config.files.iter().find(|file| file.path == path).map(|file| file.content.expose())
}

fn in_config(config: &NodeConfig) -> BTreeMap<TrustPlane, BTreeSet<String>> {
    let bundles = [(TrustPlane::Peer, peer_bundle(config)), (TrustPlane::Client, client_bundle(config))];
    let read =
        |(plane, bundle): (_, Option<&str>)| Some((plane, quorate_pki::subject_key_ids(bundle?).into_iter().collect()));
    bundles.into_iter().filter_map(read).collect()
}
