//! The certificates of etcd, as one set of files. etcd reads certificate and key as two files at each handshake, so a set is
//! a directory of its own and the link to it flips from the old to the new in one instant.

use std::collections::BTreeMap;
use std::fs;

use quorate_core::model::CertificateUse;
use quorate_pki::KeyPair;
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};

use crate::agent::Agent;
use crate::api::{Certificate, Refusal};
use crate::enrolment::check_agent_certificate;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::state::State;
use crate::{AgentError, hex, tls};

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
        let (layout, state, owner) = (self.layout.clone(), self.state.get(), self.service.owner()?);
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

/// Writes the set that the state holds, unless it is in place, and removes all others.
fn put(layout: &Layout, state: &State, owner: Option<Owner>) -> Result<(), AgentError> {
    let Some(trust) = &state.trust else { return Ok(()) };
    let mut set = vec![(String::from("ca.crt"), trust.as_str(), 0o644)];
    for of in [CertificateUse::Member, CertificateUse::Root] {
        if let (Some(chain), Some(key)) = (state.chains.get(&of), state.key(of)) {
            set.push((format!("{}.crt", of.file_stem()), chain, 0o644));
            set.push((format!("{}.key", of.file_stem()), key.expose(), files::PRIVATE));
        }
    }
    let mut digest = Sha256::new();
    for (name, content, _) in &set {
        digest.update(format!("{name} {}\n{content}", content.len()));
    }
    let link = layout.certificates();
    let current = format!("pki-{}", &hex(&digest.finalize())[..16]);
    let directory = link.with_file_name(&current);
    files::make_dir(&directory, 0o755)?;
    for (name, content, mode) in &set {
        files::ensure(&directory.join(name), content.as_bytes(), *mode, owner)?;
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
