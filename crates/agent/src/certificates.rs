//! The certificates of etcd, as one set of files. etcd reads certificate and key as two files at each handshake, so a set is
//! a directory of its own and the link to it flips from the old to the new in one instant.

use std::collections::BTreeMap;
use std::fs;

use quorate_core::model::CertificateUse;
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
        Ok(())
    }

    pub(crate) async fn put_certificates(&self) -> Result<(), AgentError> {
        let (layout, state, owner) = (self.layout.clone(), self.state.get(), self.etcd.service.owner()?);
        crate::blocking(move || put(&layout, &state, owner)).await
    }
}

fn check_key(state: &State, of: CertificateUse, chain: &str) -> Result<(), Refusal> {
    let name = of.file_stem();
    let refuse = |why: &str| Refusal::Failed { why: format!("the {name} certificate is not accepted: {why}") };
    let key = state.key(of).ok_or_else(|| refuse("there is no key for it here, and none came with it"))?;
    let chain = tls::chain_from_pem(chain).map_err(|error| refuse(&error.to_string()))?;
    let leaf = ParsedCertificate::try_from(&chain[0]).map_err(|error| refuse(&error.to_string()))?;
    if leaf.subject_public_key_info().as_ref() == KeyPair::from_pem(key).map_err(AgentError::Pki)?.public_key_der() {
        Ok(())
    } else {
        Err(refuse("it is for another key"))
    }
}

/// An order that comes late must not bring back a certificate of a CA that peers have stopped trusting. Dates are the
/// controller's affair.
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

/// Writes the set that the state holds, unless it is in place, and removes all others.
fn put(layout: &Layout, state: &State, owner: Option<Owner>) -> Result<(), AgentError> {
    let Some(trust) = &state.trust else { return Ok(()) };
    let mut set = vec![(String::from("ca.crt"), trust.as_str(), 0o644, owner)];
    for of in [CertificateUse::Member, CertificateUse::Peer, CertificateUse::Root] {
        // etcd's own user has no business with what the agent logs in with.
        let owner = owner.filter(|_| of != CertificateUse::Root);
        if let (Some(chain), Some(key)) = (state.chains.get(&of), state.key(of)) {
            set.push((format!("{}.crt", of.file_stem()), chain, 0o644, owner));
            set.push((format!("{}.key", of.file_stem()), key.expose(), files::PRIVATE, owner));
        }
    }
    let mut digest = Sha256::new();
    for (name, content, ..) in &set {
        digest.update(format!("{name} {}\n{content}", content.len()));
    }
    let link = layout.certificates();
    let current = format!("pki-{}", &hex(&digest.finalize())[..16]);
    let directory = link.with_file_name(&current);
    files::make_dir(&directory, 0o755)?;
    for (name, content, mode, owner) in &set {
        files::ensure(&directory.join(name), content.as_bytes(), *mode, *owner)?;
    }
    files::link(&link, &current)?;
    remove_others(layout, &current)
}

fn remove_others(layout: &Layout, current: &str) -> Result<(), AgentError> {
    let link = layout.certificates();
    let parent = link.parent().expect("it lies below the root");
    for entry in fs::read_dir(parent).map_err(AgentError::file("list", parent))?.flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("pki-") && name != current {
            files::remove_dir(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use quorate_core::Secret;
    use quorate_core::model::{ConfigFile, NodeConfig};

    use super::*;
    use crate::api::Seed;
    use crate::state;

    const NOBODY: u32 = 65534;

    /// etcd's user reads what etcd needs, and nothing that makes it root of etcd.
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
        let uses = [CertificateUse::Member, CertificateUse::Peer, CertificateUse::Root];
        for of in uses {
            state.chains.insert(of, String::from("chain"));
            state.brought_keys.insert(of, Secret::new("key"));
        }
        let owner_of = |name: &str| fs::metadata(layout.root().join(name)).unwrap().uid();
        // As an older agent left them.
        put(&layout, &state, Some((0, 0))).unwrap();
        put(&layout, &state, Some((NOBODY, NOBODY))).unwrap();
        for (file, owner) in [("member.key", NOBODY), ("peer.key", NOBODY), ("ca.crt", NOBODY), ("root.key", 0)] {
            assert_eq!(owner_of(&format!("etc/etcd/pki/{file}")), owner, "{file}");
        }
        let file = |path: &str| ConfigFile::text(path, 0o600, Secret::new("secret"));
        let files = vec![file("etc/etcd/jwt.key"), file("etc/quorate/root-password")];
        let owners = BTreeMap::from([(String::from("etc/etcd/jwt.key"), (NOBODY, NOBODY))]);
        crate::converge::put(&layout, None, &NodeConfig { files, services: Vec::new(), host: None }, &owners).unwrap();
        assert_eq!((owner_of("etc/etcd/jwt.key"), owner_of("etc/quorate/root-password")), (NOBODY, 0));
    }
}
