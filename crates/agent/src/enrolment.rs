//! Enrolment: the agent proves that it has the seed's token and the key of its TLS certificate, and installs the
//! certificate that its controller signs for that key. Then the token is deleted, and the agent cannot be enrolled
//! again.

use quorate_core::model::CertificateUse;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use quorate_pki::{KeyAlgorithm, enrolment_proof};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::UnixTime;
use rustls::server::ParsedCertificate;

use crate::agent::Agent;
use crate::api::{EnrolAnswer, EnrolCertificate, EnrolRequest, Refusal};
use crate::state::{Key, State};
use crate::{AgentError, tls, x509};

impl Agent {
    pub(crate) async fn enrol(&self, request: EnrolRequest) -> Result<EnrolAnswer, Refusal> {
        let _one_at_a_time = self.orders.lock().await;
        if self.state.get().enrolled {
            return Err(Refusal::AlreadyEnrolled);
        }
        let seed = self.seed.lock().expect("no holder panics").clone().ok_or(Refusal::AlreadyEnrolled)?;
        // The controller decides whether the token is still valid, by one clock: this machine's may be hours ahead. A
        // token that is bound to this agent's key is useless to anyone else, however old it is.
        self.make_keys(request.key_algorithm).await?;
        let state = self.state.get();
        let public_key = state.agent_key().pair()?.public_key_der();
        let proof = enrolment_proof(&seed.token, request.nonce.as_bytes(), &public_key, &state.machine_id);
        Ok(EnrolAnswer {
            machine_id: state.machine_id.clone(),
            public_key: hex(&Sha256::digest(&public_key)),
            proof: hex(&proof),
            requests: state.requests(),
        })
    }

    /// Existing keys of this algorithm stay, so a repeated request changes nothing.
    async fn make_keys(&self, algorithm: KeyAlgorithm) -> Result<(), AgentError> {
        let state = self.state.get();
        let mut made = Vec::new();
        let member = state.identity.member.as_str();
        let wanted = [
            (CertificateUse::Member, member, algorithm),
            (CertificateUse::Peer, member, algorithm),
            (CertificateUse::Root, "root", algorithm),
            (CertificateUse::Health, "health", algorithm),
            // Most machines never have a front, and an RSA key takes seconds.
            (CertificateUse::Front, "", KeyAlgorithm::P256),
        ];
        for (of, name, algorithm) in wanted {
            let known = state.keys.get(&of).map(Key::pair).transpose()?;
            if known.is_none_or(|key| key.algorithm() != algorithm) {
                let name = name.to_owned();
                // RSA keys take seconds.
                made.push((of, crate::blocking(move || Key::make(algorithm, &name)).await?));
            }
        }
        self.state.update(|state| state.keys.extend(made)).await
    }

    /// A machine that was enrolled by an older program lacks the keys for its peers, for health checks and for a front.
    pub(crate) async fn make_missing_keys(&self) -> Result<(), AgentError> {
        let state = self.state.get();
        match state.keys.get(&CertificateUse::Member) {
            Some(key)
                if state.enrolled
                    && ![CertificateUse::Peer, CertificateUse::Health, CertificateUse::Front]
                        .iter()
                        .all(|of| state.keys.contains_key(of)) =>
            {
                self.make_keys(key.pair()?.algorithm()).await
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn enrol_certificate(&self, given: EnrolCertificate) -> Result<(), Refusal> {
        let _one_at_a_time = self.orders.lock().await;
        if self.state.get().enrolled {
            return Err(Refusal::AlreadyEnrolled);
        }
        check_agent_certificate(&self.state.get(), &given.chain)?;
        let store = |state: &mut State| {
            state.chains.insert(CertificateUse::Agent, given.chain);
            state.enrolled = true;
        };
        self.state.update(store).await?;
        self.shown.swap(&self.state.get())?;
        self.seed.lock().expect("no holder panics").take();
        tracing::info!("enrolled");
        Ok(())
    }
}

/// The agent's certificate must be for its own key and name, and from the control CA: anything else would lock the
/// controller out.
pub(crate) fn check_agent_certificate(state: &State, chain: &str) -> Result<(), Refusal> {
    let refuse = |why: String| Refusal::Failed { why: format!("the agent's certificate is not accepted: {why}") };
    let chain = tls::chain_from_pem(chain).map_err(|error| refuse(error.to_string()))?;
    let leaf = ParsedCertificate::try_from(&chain[0]).map_err(|error| refuse(error.to_string()))?;
    if leaf.subject_public_key_info().as_ref() != state.agent_key().pair()?.public_key_der() {
        return Err(refuse(String::from("it is for another key")));
    }
    let (name, expected) = (x509::common_name(&chain[0]), state.identity.common_name());
    if name.as_deref() != Some(&expected) {
        return Err(refuse(format!("it names {name:?}, expected {expected:?}")));
    }
    let roots = tls::roots_from_pem(&state.control_ca).map_err(|error| refuse(error.to_string()))?;
    let algorithms = tls::provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &chain[1..], UnixTime::now(), algorithms)
        .map_err(|error| refuse(error.to_string()))
}
