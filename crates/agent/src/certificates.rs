//! The certificates of etcd or Patroni, as one set of files. etcd reads certificate and key as two files at each handshake, so each
//! set is a separate directory, and a link to it is switched atomically.

mod kubeadm;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use quorate_core::kinds::etcd::{SERVICE, pki};
use quorate_core::model::{CertificateUse, NodeConfig, ServiceState};
use quorate_core::spec::CertificateLayout;
use quorate_core::text::hex;
use quorate_pki::KeyPair;
use quorate_pki::Sha256;
use rustls::CertificateError;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::UnixTime;
use rustls::server::ParsedCertificate;

use crate::agent::Agent;
use crate::api::{Certificate, Refusal};
use crate::enrolment::check_agent_certificate;
use crate::error::Obstacle;
use crate::files::{self, Owner};
use crate::kinds::etcd::trust;
use crate::layout::Layout;
use crate::state::State;
use crate::{AgentError, tls};

impl Agent {
    pub(crate) async fn install_certificates(
        &self,
        trust: String,
        certificates: BTreeMap<CertificateUse, Certificate>,
    ) -> Result<(), Refusal> {
        let mut after = (*self.state.get()).clone();
        tls::roots_from_pem(&trust).map_err(AgentError::Tls)?;
        after.trust = Some(trust);
        for (of, certificate) in certificates {
            match certificate.key {
                Some(key) if of != CertificateUse::Agent => after.brought_keys.insert(of, key),
                _ => after.brought_keys.remove(&of),
            };
            check_key(&after, of, &certificate.chain)?;
            if of == CertificateUse::Peer {
                check_issuer(&after, &certificate.chain)?;
            }
            if of == CertificateUse::Agent {
                check_agent_certificate(&after, &certificate.chain)?;
            }
            after.chains.insert(of, certificate.chain);
        }
        // The state first: the files follow from it, also after a crash in between.
        let State { trust, chains, brought_keys: keys, .. } = after;
        self.state.update(|state| (state.trust, state.chains, state.brought_keys) = (trust, chains, keys)).await?;
        self.shown.swap(&self.state.get())?;
        self.put_certificates().await?;
        self.reload_postgres().await;
        self.keep_pgbouncer().await;
        Ok(())
    }

    /// Installs the certificates where etcd or Patroni reads them, and removes unused ones.
    pub(crate) async fn put_certificates(&self) -> Result<(), AgentError> {
        if self.has_patroni() {
            let (layout, state, owner) = (self.layout.clone(), self.state.get(), self.patroni().await?.owner()?);
            return crate::blocking(move || put_for_patroni(&layout, &state, owner)).await;
        }
        if self.has_front() {
            let (layout, state, owner) = (self.layout.clone(), self.state.get(), self.front_owner().await?);
            crate::blocking(move || put_for_front(&layout, &state, owner)).await?;
        } else {
            clear_front(&self.layout)?;
        }
        // A proxy has none for etcd.
        if self.state.get().node_config.as_ref().is_some_and(|in_place| in_place.config.etcd().is_none()) {
            return Ok(());
        }
        let layouts = self.layouts_in_use().await;
        let (layout, state, owner) = (self.layout.clone(), self.state.get(), self.etcd.service.owner()?);
        crate::blocking(move || put(&layout, &state, owner, &layouts)).await
    }

    /// The layout of the config in place; and as long as etcd was not started with that one, those that it may be started with again.
    async fn layouts_in_use(&self) -> BTreeSet<CertificateLayout> {
        let state = self.state.get();
        let in_place = state.node_config.as_ref();
        let wanted = in_place.and_then(|in_place| in_place.config.etcd()).map(|etcd| etcd.layout).unwrap_or_default();
        let before: BTreeSet<_> = state.etcd.launched.iter().map(|launched| launched.layout).chain([wanted]).collect();
        if before.len() == 1 {
            return before;
        }
        let digest = in_place.map(|in_place| in_place.service_digest(SERVICE)).unwrap_or_default();
        let follows = match self.etcd.service.look().await {
            ServiceState::Running { digest: of, .. } => of == digest,
            ServiceState::Stopped => !state.etcd.wanted_running,
            ServiceState::BackingOff { .. } | ServiceState::Unknown { .. } => false,
        };
        if follows { BTreeSet::from([wanted]) } else { before }
    }

    /// Why this machine cannot have the certificates where a configuration wants them.
    pub(crate) fn certificates_in_the_way(&self, config: &NodeConfig) -> Result<Option<Obstacle>, AgentError> {
        if config.etcd().is_none_or(|etcd| etcd.layout != CertificateLayout::Kubeadm) {
            return Ok(None);
        }
        let uses = [CertificateUse::Member, CertificateUse::Peer, CertificateUse::Health];
        let stems = uses.into_iter().filter_map(|of| pki::file_stem(CertificateLayout::Kubeadm, of));
        let files = stems.flat_map(|stem| [format!("{stem}.crt"), format!("{stem}.key")]);
        let files: Vec<String> = [pki::CA, pki::PEER_CA].map(String::from).into_iter().chain(files).collect();
        let directory = self.layout.root().join(pki::KUBEADM_DIRECTORY);
        let names = files.iter().map(String::as_str);
        Ok(kubeadm::obstacle(self.layout.root(), &directory, names, self.etcd.service.owner()?))
    }
}

fn check_key(state: &State, of: CertificateUse, chain: &str) -> Result<(), Refusal> {
    let name = of.file_stem();
    let refuse = |why: &str| Refusal::Failed { why: format!("the {name} certificate is not accepted: {why}") };
    let key = state.key(of).ok_or_else(|| refuse("there is no key for it here, and the order has none"))?;
    let chain = tls::chain_from_pem(chain).map_err(|error| refuse(&error.to_string()))?;
    let leaf = ParsedCertificate::try_from(&chain[0]).map_err(|error| refuse(&error.to_string()))?;
    if leaf.subject_public_key_info().as_ref() == KeyPair::from_pem(key).map_err(AgentError::Pki)?.public_key_der() {
        Ok(())
    } else {
        Err(refuse("it is for another key"))
    }
}

/// A late order must not restore a certificate of a CA that peers have stopped trusting. The controller checks dates.
fn check_issuer(state: &State, chain: &str) -> Result<(), Refusal> {
    let bundle = state.node_config.as_ref().and_then(|in_place| trust::peer_bundle(&in_place.config));
    let Some(bundle) = bundle else { return Ok(()) };
    let refuse = |why: String| Refusal::Failed { why: format!("the peer certificate is not accepted: {why}") };
    let chain = tls::chain_from_pem(chain).map_err(|error| refuse(error.to_string()))?;
    let leaf = ParsedCertificate::try_from(&chain[0]).map_err(|error| refuse(error.to_string()))?;
    let roots = tls::roots_from_pem(bundle).map_err(|error| refuse(error.to_string()))?;
    let algorithms = tls::provider().signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &chain[1..], UnixTime::now(), algorithms) {
        Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            Err(refuse(String::from("peers do not trust the CA that signed it")))
        }
        _ => Ok(()),
    }
}

/// One file of a set.
struct Entry<'a> {
    name: String,
    content: &'a str,
    mode: u32,
    owner: Option<Owner>,
}

impl Entry<'_> {
    fn ensure_in(&self, directory: &Path) -> Result<(), AgentError> {
        files::ensure(&directory.join(&self.name), self.content.as_bytes(), self.mode, self.owner)
    }
}

/// Distinguishes two sets.
fn digest_of(set: &[Entry<'_>]) -> String {
    let mut digest = Sha256::new();
    for Entry { name, content, .. } in set {
        digest.update(format!("{name} {}\n{content}", content.len()));
    }
    hex(&digest.finalize())[..16].to_owned()
}

/// Writes the sets in the state, unless they are in place, and removes all others.
fn put(
    layout: &Layout,
    state: &State,
    owner: Option<Owner>,
    layouts: &BTreeSet<CertificateLayout>,
) -> Result<(), AgentError> {
    let Some(trust) = &state.trust else { return Ok(()) };
    let is_standard = layouts.contains(&CertificateLayout::Standard);
    // The certificates of the agent and the machine's admin stay in quorate's own directory.
    let own: &[CertificateUse] = if is_standard {
        &[CertificateUse::Member, CertificateUse::Peer, CertificateUse::Root]
    } else {
        &[CertificateUse::Root]
    };
    let mut set = vec![Entry { name: pki::CA.to_owned(), content: trust, mode: 0o644, owner }];
    set.extend(pairs(state, CertificateLayout::Standard, own, owner));
    let directory = layout.root().join(pki::KUBEADM_DIRECTORY);
    if layouts.contains(&CertificateLayout::Kubeadm) {
        kubeadm::put(&directory, &kubeadm_set(state, trust, owner))?;
    }
    put_set(&layout.certificates(), &set)?;
    if !layouts.contains(&CertificateLayout::Kubeadm) {
        kubeadm::clear(layout.root(), &directory)?;
    }
    Ok(())
}

fn put_set(link: &Path, set: &[Entry<'_>]) -> Result<(), AgentError> {
    let current = format!("pki-{}", digest_of(set));
    let directory = link.with_file_name(&current);
    files::make_dir(&directory, 0o755)?;
    for entry in set {
        entry.ensure_in(&directory)?;
    }
    files::link(link, &current)?;
    remove_sets(link, Some(&current))
}

/// Certificates come before the first configuration, so they may have been put where etcd would read them.
fn put_for_patroni(layout: &Layout, state: &State, owner: Option<Owner>) -> Result<(), AgentError> {
    let Some(trust) = &state.trust else { return Ok(()) };
    let mut set = vec![Entry { name: pki::CA.to_owned(), content: trust, mode: 0o644, owner }];
    let uses = [CertificateUse::Member, CertificateUse::Peer];
    set.extend(pairs(state, CertificateLayout::Standard, &uses, owner));
    put_set(&layout.patroni_certificates(), &set)?;
    let of_etcd = layout.certificates();
    if fs::symlink_metadata(&of_etcd).is_ok() {
        files::remove(&of_etcd)?;
        remove_sets(&of_etcd, None)?;
    }
    Ok(())
}

/// The key of a front is removed with it.
fn clear_front(layout: &Layout) -> Result<(), AgentError> {
    let link = layout.front_certificates();
    if fs::symlink_metadata(&link).is_ok() {
        files::remove(&link)?;
        remove_sets(&link, None)?;
    }
    Ok(())
}

/// A front needs no CA here: its configuration has it.
fn put_for_front(layout: &Layout, state: &State, owner: Option<Owner>) -> Result<(), AgentError> {
    let (Some(chain), Some(key)) = (state.chains.get(&CertificateUse::Front), state.key(CertificateUse::Front)) else {
        return Ok(());
    };
    let set = [
        Entry { name: String::from("front.crt"), content: chain, mode: 0o644, owner },
        Entry { name: String::from("front.key"), content: key.expose(), mode: files::PRIVATE, owner },
    ];
    put_set(&layout.front_certificates(), &set)
}

/// etcd's CAs at its start are those of the configuration, if it has some.
fn kubeadm_set<'a>(state: &'a State, trust: &'a str, owner: Option<Owner>) -> Vec<Entry<'a>> {
    let config = state.node_config.as_ref().map(|in_place| &*in_place.config);
    let clients = config.and_then(trust::client_bundle).unwrap_or(trust);
    let peers = config.and_then(trust::peer_bundle);
    let bundles = [Some((pki::CA, clients)), peers.map(|peers| (pki::PEER_CA, peers))];
    let bundle = |(name, content): (&str, &'a str)| Entry { name: name.to_owned(), content, mode: 0o644, owner };
    let uses = [CertificateUse::Member, CertificateUse::Peer, CertificateUse::Health];
    let pairs = pairs(state, CertificateLayout::Kubeadm, &uses, owner);
    bundles.into_iter().flatten().map(bundle).chain(pairs).collect()
}

fn pairs<'a>(
    state: &'a State,
    layout: CertificateLayout,
    uses: &[CertificateUse],
    owner: Option<Owner>,
) -> Vec<Entry<'a>> {
    let pair = |of: &CertificateUse| {
        // etcd's user must not read other users' login certificates.
        let owner = owner.filter(|_| !matches!(of, CertificateUse::Root | CertificateUse::Health));
        let (stem, chain, key) = (pki::file_stem(layout, *of)?, state.chains.get(of)?, state.key(*of)?);
        Some([
            Entry { name: format!("{stem}.crt"), content: chain, mode: 0o644, owner },
            Entry { name: format!("{stem}.key"), content: key.expose(), mode: files::PRIVATE, owner },
        ])
    };
    uses.iter().filter_map(pair).flatten().collect()
}

/// Removes the sets next to this link, except the current one.
fn remove_sets(link: &Path, current: Option<&str>) -> Result<(), AgentError> {
    let parent = link.parent().expect("it is below the root");
    for entry in fs::read_dir(parent).map_err(AgentError::file("list", parent))?.flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("pki-") && current.is_none_or(|current| name != current) {
            files::remove_dir(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use quorate_core::Secret;
    use quorate_core::model::ConfigFile;

    use super::*;
    use crate::api::Seed;
    use crate::state;

    const NOBODY: u32 = 65534;

    /// etcd's user can read what etcd needs, but not root's certificate.
    #[test]
    fn only_what_etcd_reads_is_given_to_its_user() {
        assert!(rustix::process::geteuid().is_root(), "only root can give files away");
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path()).unwrap();
        let seed = Seed {
            cluster: String::from("c"),
            cluster_id: String::from("id"),
            member: "etcd-1".into(),
            incarnation: 1,
            address: std::net::IpAddr::from([127, 0, 0, 1]),
            control_ca: String::new(),
            token: Secret::new("t"),
            token_expires: jiff::Timestamp::now(),
        };
        let path = directory.path().join("seed.json");
        fs::write(&path, serde_json::to_vec(&seed).unwrap()).unwrap();
        let (store, _) = state::open(&layout, &path).unwrap();
        let mut state = (*store.get()).clone();
        state.trust = Some(String::from("ca"));
        use CertificateUse::{Health, Member, Peer, Root};
        for of in [Member, Peer, Root, Health] {
            state.chains.insert(of, String::from("chain"));
            state.brought_keys.insert(of, Secret::new("key"));
        }
        let owner_of = |name: &str| fs::metadata(layout.root().join(name)).unwrap().uid();
        // In an older agent's layout.
        let standard = BTreeSet::from([CertificateLayout::Standard]);
        put(&layout, &state, Some((0, 0)), &standard).unwrap();
        put(&layout, &state, Some((NOBODY, NOBODY)), &standard).unwrap();
        for (file, owner) in [("member.key", NOBODY), ("peer.key", NOBODY), ("ca.crt", NOBODY), ("root.key", 0)] {
            assert_eq!(owner_of(&format!("etc/etcd/pki/{file}")), owner, "{file}");
        }
        put(&layout, &state, Some((NOBODY, NOBODY)), &BTreeSet::from([CertificateLayout::Kubeadm])).unwrap();
        let kubeadm = |name: &str| owner_of(&format!("etc/kubernetes/pki/etcd/{name}"));
        for (file, owner) in [("server.key", NOBODY), ("peer.key", NOBODY), ("healthcheck-client.key", 0)] {
            assert_eq!(kubeadm(file), owner, "{file}");
        }
        assert!(!layout.certificates().join("member.key").exists(), "a key of etcd is in one place");
        assert_eq!(owner_of("etc/etcd/pki/root.key"), 0);
        let file = |path: &str| ConfigFile::text(path, 0o600, Secret::new("secret"));
        let files = vec![file("etc/etcd/jwt.key"), file("etc/quorate/root-password")];
        let owners = BTreeMap::from([(String::from("etc/etcd/jwt.key"), (NOBODY, NOBODY))]);
        crate::converge::put(&layout, None, &NodeConfig { files, services: Vec::new(), host: None }, &owners).unwrap();
        assert_eq!((owner_of("etc/etcd/jwt.key"), owner_of("etc/quorate/root-password")), (NOBODY, 0));
    }
}
