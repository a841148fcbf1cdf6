//! Names and paths of etcd's certificates on a machine, in quorate's layout and in kubeadm's.
//!
//! kubeadm has one CA for etcd's servers, peers and clients. Here peers have a separate CA, because with a shared one any client's
//! certificate would be valid on the peer port. `ca.crt` is the CA of servers and clients, which a control plane expects under this name.
//! The CA of peers, which only members need, is `peer-ca.crt` next to it. No machine has the key of a CA.

use crate::model::CertificateUse;
use crate::spec::CertificateLayout;

/// Below the agent's root: where quorate's layout has all certificates, and kubeadm's only those that kubeadm has no name for.
pub const DIRECTORY: &str = "etc/etcd/pki";
/// Below the agent's root.
pub const KUBEADM_DIRECTORY: &str = "etc/kubernetes/pki/etcd";
pub const CA: &str = "ca.crt";
pub const PEER_CA: &str = "peer-ca.crt";

pub fn directory(layout: CertificateLayout) -> &'static str {
    match layout {
        CertificateLayout::Standard => DIRECTORY,
        CertificateLayout::Kubeadm => KUBEADM_DIRECTORY,
    }
}

/// How the files of a certificate and its key begin; none where the layout does not have it.
pub fn file_stem(layout: CertificateLayout, of: CertificateUse) -> Option<&'static str> {
    match (layout, of) {
        // etcd has no use for that of a front, which has its own directory.
        (_, CertificateUse::Agent | CertificateUse::Front) | (CertificateLayout::Standard, CertificateUse::Health) => {
            None
        }
        (CertificateLayout::Standard, of) => Some(of.file_stem()),
        (CertificateLayout::Kubeadm, CertificateUse::Member) => Some("server"),
        (CertificateLayout::Kubeadm, CertificateUse::Peer) => Some("peer"),
        (CertificateLayout::Kubeadm, CertificateUse::Health) => Some("healthcheck-client"),
        // What the agent logs in with is none of kubeadm's affair.
        (CertificateLayout::Kubeadm, CertificateUse::Root) => None,
    }
}
