//! Certificates that were signed here. Only recorded certificates can be revoked, so each is recorded before it is handed out.
//! It is dropped when it has expired, and never once it is revoked.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{CertificateUse, MemberName};

/// How long an expired certificate is still recorded: clocks differ.
const ENDED: SignedDuration = SignedDuration::from_hours(24);

/// A user's certificate. It is revoked when its user is no longer declared, and stays revoked if the name is declared again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct IssuedCertificate {
    pub user: String,
    /// In hexadecimal.
    pub serial: String,
    pub not_after: Timestamp,
    /// When it was recorded, by that host's clock; absent in records of an older quorate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Timestamp>,
    #[serde(default)]
    pub revoked: bool,
}

/// A machine's certificate: for clients, for peers, as user root, for health checks, or of a front. It is revoked once the machine no
/// longer belongs to the cluster. A renewed one is kept until it expires, because its key is also that of its successor.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MachineCertificate {
    /// The member, and which of its machines.
    pub member: MemberName,
    pub incarnation: u64,
    #[serde(rename = "use")]
    pub of: CertificateUse,
    /// In hexadecimal.
    pub serial: String,
    pub not_after: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Timestamp>,
    #[serde(default)]
    pub revoked: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Issued {
    /// Certificates that were issued to users: until they have ended, and forever if they are revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<IssuedCertificate>,
    /// Certificates that machines were given, by the same rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineCertificate>,
    /// The signed revocation list for etcd's clients, in DER and hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_crl: Option<String>,
    /// The same for its peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_crl: Option<String>,
    /// The same for programs that check who signed a list, in PEM: one list for each CA that peers trust, by its key identifier.
    /// Without one, they refuse every certificate of that CA.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peer_lists: BTreeMap<String, String>,
}

impl Issued {
    pub fn record(&mut self, issued: IssuedCertificate, now: Timestamp) {
        forget_ended(&mut self.users, now, |known| (known.recorded, known.not_after, known.revoked));
        self.users.push(IssuedCertificate { recorded: Some(now), ..issued });
    }

    pub fn record_machine(&mut self, given: impl IntoIterator<Item = MachineCertificate>, now: Timestamp) {
        forget_ended(&mut self.machines, now, |known| (known.recorded, known.not_after, known.revoked));
        self.machines.extend(given.into_iter().map(|given| MachineCertificate { recorded: Some(now), ..given }));
    }

    /// Revokes the certificates of a user. Returns whether that changed anything.
    pub fn revoke_user(&mut self, user: &str) -> bool {
        let theirs = self.users.iter_mut().filter(|known| known.user == user);
        theirs.fold(false, |changed, known| !std::mem::replace(&mut known.revoked, true) | changed)
    }

    /// Revokes the certificates of a machine. Returns whether that changed anything.
    pub fn revoke_machine(&mut self, member: &MemberName, incarnation: u64) -> bool {
        let its = self.machines.iter_mut().filter(|known| (&known.member, known.incarnation) == (member, incarnation));
        its.fold(false, |changed, known| !std::mem::replace(&mut known.revoked, true) | changed)
    }

    /// The serial numbers that etcd refuses of its clients.
    pub fn refused_of_clients(&self) -> impl Iterator<Item = &str> {
        let users = self.users.iter().filter(|known| known.revoked).map(|known| known.serial.as_str());
        users.chain(self.refused_machines(|of| of != CertificateUse::Peer))
    }

    /// The serial numbers that etcd refuses from its peers. A client certificate counts as a peer's if peers had no separate
    /// CA when it was issued.
    pub fn refused_of_peers(&self) -> impl Iterator<Item = &str> {
        self.refused_machines(|of| !matches!(of, CertificateUse::Root | CertificateUse::Health | CertificateUse::Front))
    }

    fn refused_machines(&self, of: impl Fn(CertificateUse) -> bool) -> impl Iterator<Item = &str> {
        self.machines.iter().filter(move |known| known.revoked && of(known.of)).map(|known| known.serial.as_str())
    }
}

/// Drops what has expired and is not revoked. A clock may be wrong for one run: something has expired only if the time of
/// another record confirms it.
fn forget_ended<T>(known: &mut Vec<T>, now: Timestamp, facts: impl Fn(&T) -> (Option<Timestamp>, Timestamp, bool)) {
    let recorded_before = known.iter().filter_map(|one| facts(one).0).max();
    let Some(at) = recorded_before.map(|before| before.min(now)) else { return };
    known.retain(|one| {
        let (_, not_after, revoked) = facts(one);
        revoked || at.duration_since(not_after) <= ENDED
    });
}
