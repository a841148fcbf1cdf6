//! What a Kubernetes control plane needs to use a cluster as its external etcd: certificates in kubeadm's layout, and the settings of
//! kubeadm and kube-apiserver.
//!
//! Everything is written to a local directory, all at once, and only what differs. Renewal keeps the private key, so a renewed
//! certificate is one file that is replaced atomically. The spec is never edited: if users are missing, the command is refused and
//! prints the lines to add.

mod certificates;
mod files;
pub mod push;
mod render;
mod rights;

use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use quorate_core::kinds::etcd::Formation;
use quorate_core::model::{CLIENT_PORT, Ledger, https_url};
use serde::Serialize;

use crate::clients::ClientError;
use crate::home::Home;
use certificates::{Pair, Previous};
use files::{Change, Files};

/// kube-apiserver's own default.
pub const PREFIX: &str = "/registry/";

/// What is wished for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The user of kube-apiserver.
    pub user: String,
    /// The user of health checks.
    pub health_user: String,
    /// The prefix of kube-apiserver's keys. Begins and ends with a slash.
    pub prefix: String,
    /// The directory on control plane hosts.
    pub on_hosts: String,
    /// The local directory.
    pub out: PathBuf,
    /// Create new private keys, instead of keeping them.
    pub new_keys: bool,
    /// Create a key that kube-apiserver encrypts Secrets with, unless there is one.
    pub encrypt_secrets: bool,
}

/// The cluster, and another one for events where they are split.
#[derive(Clone, Copy, Debug)]
pub struct Clusters<'a> {
    pub main: &'a Ledger,
    pub events: Option<&'a Ledger>,
}

impl<'a> Clusters<'a> {
    fn all(self) -> impl Iterator<Item = &'a Ledger> {
        [Some(self.main), self.events].into_iter().flatten()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    #[error("{what}")]
    Refused { what: String, hint: String },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Pki(#[from] quorate_pki::Error),
    #[error("{} cannot be {what}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
}

fn refused<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T, KubernetesError> {
    Err(KubernetesError::Refused { what: what.into(), hint: hint.into() })
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KubernetesError {
    let path = path.to_owned();
    move |source| KubernetesError::File { what, path, source }
}

/// The result, for people and for scripts.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    pub cluster: String,
    pub directory: PathBuf,
    /// Whether any file was created or updated.
    pub changed: bool,
    pub files: Vec<WrittenFile>,
    pub certificates: Vec<WrittenCertificate>,
    pub endpoints: Vec<String>,
    pub events_endpoints: Vec<String>,
    /// Recommendations.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WrittenFile {
    /// Below the directory.
    pub path: &'static str,
    pub change: Change,
}

#[derive(Clone, Debug, Serialize)]
pub struct WrittenCertificate {
    pub user: String,
    /// Below the directory.
    pub path: &'static str,
    pub not_after: Timestamp,
    /// From then on a run renews it.
    pub renew_after: Timestamp,
}

/// Issues or renews certificates that are due, and writes what differs.
pub fn write(home: &Home, clusters: Clusters<'_>, wish: &Wish) -> Result<Written, KubernetesError> {
    let mut notes = rights::check(clusters, wish)?;
    let endpoints = endpoints(clusters.main)?;
    let events_endpoints = clusters.events.map(self::endpoints).transpose()?.unwrap_or_default();
    files::refuse_if_not_a_directory(&wish.out)?;
    let mut files = Files::new(&wish.out);
    if wish.encrypt_secrets {
        files.secret_once(render::ENCRYPTION, render::encryption_configuration)?;
    }
    let mut certificates = Vec::new();
    for (pair, user) in [(certificates::APISERVER, &wish.user), (certificates::HEALTH, &wish.health_user)] {
        let held = certificates::obtain(home, clusters, wish, pair, user)?;
        files.secret(pair.key, held.key.expose());
        files.public(pair.certificate, &held.certificate);
        certificates.push(described(clusters.main, pair, user, held.not_after));
        notes.extend(held.previous.map(|previous| still_accepted(pair, user, &previous)));
    }
    let authority = clusters.main.authorities.client.as_ref().map(|ca| ca.certificate.as_str());
    files.public(certificates::CA, authority.unwrap_or_default());
    let settings = render::Settings { wish, endpoints: &endpoints, events: &events_endpoints };
    files.public(render::KUBEADM_V1BETA3, &render::kubeadm_v1beta3(&settings));
    files.public(render::KUBEADM_V1BETA4, &render::kubeadm_v1beta4(&settings));
    files.public(render::FLAGS, &render::flags(&settings));
    let files = files.write()?;
    let changed = files.iter().any(|file| file.change != Change::Unchanged);
    let directory = std::path::absolute(&wish.out).unwrap_or_else(|_| wish.out.clone());
    let cluster = clusters.main.spec.name.to_string();
    Ok(Written { cluster, directory, changed, files, certificates, endpoints, events_endpoints, notes })
}

/// A key may have been replaced because it was stolen.
fn still_accepted(pair: Pair, user: &str, previous: &Previous) -> String {
    let Previous { user: former, not_after } = previous;
    let until = not_after.strftime("%Y-%m-%d %H:%M UTC");
    let refuse = if former == user {
        format!(
            "if someone else may have its key, declare another user with the rights of {user}, give it with `--user` or \
             `--health-user`, push, and then remove {user} from the spec"
        )
    } else {
        format!("when no control plane uses it any more, remove {former} from the spec")
    };
    format!(
        "the previous certificate in {}, of user {former}, has another key and is valid until {until}; {refuse}: \
         `quorate apply` then revokes it",
        pair.certificate
    )
}

fn described(ledger: &Ledger, pair: Pair, user: &str, not_after: Timestamp) -> WrittenCertificate {
    let renew_after = not_after.saturating_sub(renew_before(ledger)).unwrap_or(not_after);
    WrittenCertificate { user: user.to_owned(), path: pair.certificate, not_after, renew_after }
}

/// How long before its end a certificate is renewed.
fn renew_before(ledger: &Ledger) -> SignedDuration {
    ledger.spec.tls.renew_before().as_duration()
}

/// The client URLs of the voters. They come from the ledger, so this works while machines are down.
fn endpoints(ledger: &Ledger) -> Result<Vec<String>, KubernetesError> {
    let name = ledger.spec.name.to_string();
    let formation = &ledger.etcd.formation;
    let (Formation::Formed { members, .. }
    | Formation::Recovering { members, .. }
    | Formation::Restoring { members, .. }) = formation
    else {
        return Err(ClientError::NotThere(name).into());
    };
    let voters = members.values().filter(|member| !member.learner);
    Ok(voters.filter_map(|member| Some(https_url(member.address()?, CLIENT_PORT))).collect())
}

/// What tests wish for.
#[cfg(test)]
fn wish() -> Wish {
    Wish {
        user: String::from("kubernetes"),
        health_user: String::from("kubernetes-health"),
        prefix: String::from(PREFIX),
        on_hosts: String::from("/etc/kubernetes"),
        out: PathBuf::from("out"),
        new_keys: false,
        encrypt_secrets: false,
    }
}
