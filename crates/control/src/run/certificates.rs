//! Certificates of machines: an agent proves which key is its own before it is enrolled. Then what it asks for is signed, and the ledger
//! has each serial number before a machine gets the certificate.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use jiff::Timestamp;
use quorate_agent::api::{Certificate, EnrolAnswer, EnrolRequest, Order, agent_common_name};
use quorate_core::desire::AGENT_VALIDITY;
use quorate_core::model::{AuthorityRecord, CertificateUse, Desired, MachineCertificate, MemberName, Observation};
use quorate_core::planner::{Action, Step, certificate_sans};
use quorate_core::text::with_causes;
use quorate_pki::{Authority, LeafWish};

use crate::run::controller::Controller;
use crate::run::error::ControlError;
use crate::secrets;
use crate::sign::{client_wish, sign};

/// The answer of each agent to enrol, or why it is not enrolled.
pub(super) type Answers = BTreeMap<MemberName, Result<EnrolAnswer, String>>;
/// The certificates for each machine, or why nothing could be signed for it.
pub(super) type Signed = BTreeMap<MemberName, Result<Order, String>>;
type Requests<'a> = Option<&'a BTreeMap<CertificateUse, String>>;

impl Controller {
    /// Asks every agent to enrol for its proof, and binds each token to the proven key, before anything is signed.
    pub(super) async fn enrolments(&self, steps: &[Step]) -> Result<Answers, ControlError> {
        let members: Vec<&MemberName> = steps
            .iter()
            .filter(|s| matches!(s.action, Action::Enrol { .. }))
            .filter_map(|s| s.action.member())
            .collect();
        if members.is_empty() {
            return Ok(BTreeMap::new());
        }
        let asked = members.into_iter().map(async |m| (m.clone(), self.prove(m).await.map_err(|e| with_causes(&e))));
        let answers: Answers = join_all(asked).await.into_iter().collect();
        self.held.write(Timestamp::now(), |ledger| {
            for (member, answer) in answers.iter().filter_map(|(m, a)| Some((m, a.as_ref().ok()?))) {
                let record = ledger.members.entry(member.clone()).or_default();
                if let Some(enrolment) = &mut record.enrolment {
                    enrolment.bound_key.get_or_insert_with(|| answer.public_key.clone());
                }
            }
        })?;
        Ok(answers)
    }

    /// Asks an agent for the proof that it knows the token, for the very key with which it serves.
    async fn prove(&self, member: &MemberName) -> Result<EnrolAnswer, ControlError> {
        let ledger = self.held.ledger();
        let enrolment = ledger.members.get(member).and_then(|r| r.enrolment.as_ref());
        let refused = |why: &str| ControlError::Enrolment(format!("{member} is not enrolled: {why}"));
        let enrolment = enrolment.ok_or_else(|| refused("the ledger holds no token for it"))?;
        let nonce = quorate_pki::random_hex(32);
        let request = EnrolRequest { nonce: nonce.clone(), key_algorithm: secrets::key_algorithm(&ledger.spec) };
        let (answer, served) = self.agent(member)?.enrol(&request).await?;
        let proven = answer.proves(&enrolment.token, &nonce, &served);
        if !proven {
            return Err(refused("its proof does not match the token and the key of its TLS certificate"));
        }
        match &enrolment.bound_key {
            Some(bound) if *bound != answer.public_key => Err(refused("its token is bound to another key")),
            _ => Ok(answer),
        }
    }

    pub(super) async fn enrol(&self, member: &MemberName, answers: &Answers) -> Result<(), ControlError> {
        let request = match answers.get(member) {
            Some(Err(why)) => return Err(ControlError::Enrolment(why.clone())),
            Some(Ok(answer)) => answer.requests.get(&CertificateUse::Agent),
            None => None,
        };
        let unasked = || ControlError::Enrolment(format!("{member} sent no signing request for itself"));
        let request = request.ok_or_else(unasked)?;
        // The token was bound to the key that proved itself: no other is signed for it.
        let proven = answers.get(member).and_then(|answer| answer.as_ref().ok()).map(|answer| &answer.public_key);
        if Some(&quorate_pki::request_key_sha256(request)?) != proven {
            let why =
                format!("{member} is not enrolled: it asks for a certificate for a key that it has not proven to hold");
            return Err(ControlError::Enrolment(why));
        }
        let chain = self.sign_for_agent(member, request)?;
        self.agent(member)?.enrol_certificate(chain).await?;
        self.sight.told(member);
        Ok(())
    }

    /// Signs for every machine that needs certificates. The ledger records them before any machine gets them, because only
    /// recorded certificates can be revoked when the machine is gone.
    pub(super) fn sign(
        &self,
        desired: &Desired,
        seen: &Observation,
        steps: &[Step],
        answers: &Answers,
    ) -> Result<Signed, ControlError> {
        let mut signed = Signed::new();
        let mut given = Vec::new();
        for step in steps {
            let Action::InstallCertificates { member, uses } = &step.action else { continue };
            let order = self.certificates(desired, requests(seen, member, answers), member, uses);
            let order = order.and_then(|order| {
                given.extend(self.leaves(member, &order)?);
                Ok(order)
            });
            signed.insert(member.clone(), order.map_err(|e| with_causes(&e)));
        }
        let now = Timestamp::now();
        if !given.is_empty() {
            self.held.write(now, |ledger| ledger.issued.record_machine(given, now))?;
        }
        Ok(signed)
    }

    /// All certificates of one machine: signed here, or as they were brought. A proxy has none but its agent's and that of its front, which
    /// names nobody, whatever it asks for: members would take it for one of them.
    fn certificates(
        &self,
        desired: &Desired,
        asked: Requests,
        member: &MemberName,
        uses: &BTreeSet<CertificateUse>,
    ) -> Result<Order, ControlError> {
        let ledger = self.held.ledger();
        let request = |of: CertificateUse| {
            let missing =
                || ControlError::Enrolment(format!("{member} has no key for its {} certificate", of.file_stem()));
            asked.and_then(|requests| requests.get(&of)).map(String::as_str).ok_or_else(missing)
        };
        let trust = ledger.authorities.client.as_ref().map(|a| a.certificate.clone()).unwrap_or_default();
        let own = self.sign_for_agent(member, request(CertificateUse::Agent)?)?;
        let mut certificates = BTreeMap::from([(CertificateUse::Agent, Certificate { chain: own, key: None })]);
        // It is decided separately, because etcd must authenticate users before it exists.
        if uses.contains(&CertificateUse::Front) {
            let wish = self.front_wish(desired, member);
            let chain = sign(ledger.authorities.client.as_ref(), request(CertificateUse::Front)?, &wish)?;
            certificates.insert(CertificateUse::Front, Certificate { chain, key: None });
        }
        if desired.is_proxy(member) {
            return Ok(Order::InstallCertificates { trust, certificates });
        }
        let given = self.brought.given.as_ref();
        let member_certificate = match given.and_then(|g| g.members.get(member)) {
            Some(pair) => Certificate { chain: pair.chain.clone(), key: Some(pair.key.clone()) },
            None => {
                let wish = self.member_wish(desired, member, CertificateUse::Member);
                let chain = sign(ledger.authorities.client.as_ref(), request(CertificateUse::Member)?, &wish)?;
                Certificate { chain, key: None }
            }
        };
        if let Some(peers) = &ledger.authorities.peer {
            let signing = peers.signing();
            let shown = match signing {
                // Its key is not here: peers still use the client-facing certificate.
                Some(AuthorityRecord { key: None, .. }) => member_certificate.clone(),
                _ => {
                    let wish = self.member_wish(desired, member, CertificateUse::Peer);
                    Certificate { chain: sign(signing, request(CertificateUse::Peer)?, &wish)?, key: None }
                }
            };
            certificates.insert(CertificateUse::Peer, shown);
        }
        certificates.insert(CertificateUse::Member, member_certificate);
        if desired.certificates.root {
            let root = match given.and_then(|g| g.root.as_ref()) {
                Some(pair) => Certificate { chain: pair.chain.clone(), key: Some(pair.key.clone()) },
                None => {
                    let wish = client_wish("root", desired);
                    let chain = sign(ledger.authorities.client.as_ref(), request(CertificateUse::Root)?, &wish)?;
                    Certificate { chain, key: None }
                }
            };
            certificates.insert(CertificateUse::Root, root);
        }
        if desired.certificates.health {
            let wish = client_wish(CertificateUse::HEALTH_NAME, desired);
            let chain = sign(ledger.authorities.client.as_ref(), request(CertificateUse::Health)?, &wish)?;
            certificates.insert(CertificateUse::Health, Certificate { chain, key: None });
        }
        Ok(Order::InstallCertificates { trust, certificates })
    }

    fn sign_for_agent(&self, member: &MemberName, request: &str) -> Result<String, ControlError> {
        let ledger = self.held.ledger();
        let incarnation = ledger.members.get(member).map_or(1, |r| r.incarnation);
        let wish = LeafWish {
            common_name: agent_common_name(&ledger.cluster_id, member, incarnation),
            organization: None,
            dns: Vec::new(),
            addresses: self.sight.machine(member).and_then(|m| m.address).into_iter().collect(),
            server: true,
            client: false,
            validity: AGENT_VALIDITY,
        };
        let (control, now) = (ledger.authorities.control.as_ref(), Timestamp::now());
        let unable = || ControlError::Enrolment(String::from("the ledger holds no control CA to sign with"));
        let (certificate, key) = control.and_then(|c| Some((&c.certificate, c.key.as_ref()?))).ok_or_else(unable)?;
        Ok(Authority::load_undated(certificate, key)?.sign(request, &wish, now)?)
    }

    /// For clients it has the name that they connect to, and for members it proves that the cluster signed it. It names no user, so it has
    /// no permissions.
    fn front_wish(&self, desired: &Desired, member: &MemberName) -> LeafWish {
        LeafWish {
            common_name: String::new(),
            organization: Some(format!("front of {}", desired.cluster)),
            client: self.held.ledger().spec.etcd.client_auth.asks_for_certificates(),
            ..self.member_wish(desired, member, CertificateUse::Front)
        }
    }

    fn member_wish(&self, desired: &Desired, member: &MemberName, of: CertificateUse) -> LeafWish {
        let sans = self.sight.machine(member).map(|m| certificate_sans(desired, member, m, of)).unwrap_or_default();
        let (addresses, dns): (Vec<_>, Vec<_>) = sans.into_iter().map(|san| (san.parse().ok(), san)).unzip();
        let dns = dns.into_iter().zip(&addresses).filter(|(_, ip)| ip.is_none()).map(|(name, _)| name).collect();
        LeafWish {
            common_name: member.to_string(),
            organization: desired.certificates.organization.clone(),
            dns,
            addresses: addresses.into_iter().flatten().collect(),
            server: true,
            client: true,
            validity: desired.certificates.validity,
        }
    }

    /// The certificates in an order that etcd would accept. User-provided ones come with their key. An agent's own names its
    /// machine, and no controller connects to a former one.
    fn leaves(&self, member: &MemberName, order: &Order) -> Result<Vec<MachineCertificate>, ControlError> {
        let Order::InstallCertificates { certificates, .. } = order else { return Ok(Vec::new()) };
        let recorded = || self.held.ledger().members.get(member).map(|record| record.incarnation);
        let incarnation = self.sight.machine(member).map(|machine| machine.incarnation).or_else(recorded);
        let ours = certificates.iter().filter(|(of, made)| **of != CertificateUse::Agent && made.key.is_none());
        let leaf = |(of, made): (&CertificateUse, &Certificate)| {
            let facts = quorate_pki::inspect(&made.chain)?;
            Ok(MachineCertificate {
                member: member.clone(),
                incarnation: incarnation.unwrap_or(1),
                of: *of,
                serial: facts.serial,
                not_after: facts.not_after,
                recorded: None,
                revoked: false,
            })
        };
        ours.map(leaf).collect()
    }
}

/// An agent's signing requests: as last reported, or as sent during enrolment.
fn requests<'a>(seen: &'a Observation, member: &MemberName, answers: &'a Answers) -> Requests<'a> {
    let enrolled = || answers.get(member).and_then(|answer| answer.as_ref().ok()).map(|answer| &answer.requests);
    seen.facts(member).map(|facts| &facts.requests).or_else(enrolled)
}
