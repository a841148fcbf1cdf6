//! Checks user-provided certificates and keys: is the chain valid, is it for this member, does the key match? All problems
//! are reported at once, so one round is enough to correct them. It follows Go's rules where implementations differ,
//! because etcd makes the final check; name constraints are not checked.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::X509Certificate;

use crate::inspect::{allows, alternative_names};
use crate::{Error, KeyPair, Secret, certificate};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    Server,
    Client,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "serverAuth",
            Self::Client => "clientAuth",
        })
    }
}

/// Which of the given texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GivenPart {
    Certificate,
    Key,
    Ca,
}

impl fmt::Display for GivenPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate => "certificate",
            Self::Key => "key",
            Self::Ca => "CA certificate",
        })
    }
}

/// What a member's certificate must be good for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeafNeed {
    pub addresses: Vec<IpAddr>,
    pub dns: Vec<String>,
    pub server: bool,
    pub client: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenLeafProblem {
    #[error("the {part} cannot be used: {why}")]
    Unusable { part: GivenPart, why: String },
    #[error("the private key does not belong to the certificate")]
    KeyDoesNotMatch,
    #[error("the certificate lacks the address {address} among its subjectAltNames")]
    LacksAddress { address: IpAddr },
    #[error("the certificate lacks the name {name} among its subjectAltNames")]
    LacksName { name: String },
    #[error("the extendedKeyUsage of {certificate} lacks {usage}")]
    LacksUsage { certificate: String, usage: Usage },
    #[error("the certificate has {}, expected {expected:?}", common_name(found.as_deref()))]
    WrongCommonName { expected: String, found: Option<String> },
    #[error("the certificate of {certificate} expired at {not_after}")]
    Expired { certificate: String, not_after: Timestamp },
    #[error("the certificate of {certificate} is not valid before {not_before}")]
    NotYetValid { certificate: String, not_before: Timestamp },
    #[error("the certificate, issued by {issuer}, does not lead to the CA, with the intermediates that come with it")]
    DoesNotChain { issuer: String },
}

fn common_name(found: Option<&str>) -> String {
    found.map_or("no common name".to_owned(), |name| format!("the common name {name:?}"))
}

/// Every reason why a member could not use this certificate and key under this CA; none if it can.
pub fn check_given_leaf(
    chain_pem: &str,
    key_pem: &Secret,
    ca_pem: &str,
    need: &LeafNeed,
    now: Timestamp,
) -> Vec<GivenLeafProblem> {
    let mut problems = Vec::new();
    let chain_der = read(chain_pem, GivenPart::Certificate, &mut problems);
    let chain = parse(&chain_der, GivenPart::Certificate, &mut problems);
    let roots_der = read(ca_pem, GivenPart::Ca, &mut problems);
    let roots = parse(&roots_der, GivenPart::Ca, &mut problems);
    check_key(chain.first(), key_pem, &mut problems);
    if let Some((leaf, intermediates)) = chain.split_first() {
        check_names(leaf, need, &mut problems);
        let path = find_path(leaf, intermediates, &roots, now);
        if path.is_none() && !roots.is_empty() {
            problems.push(GivenLeafProblem::DoesNotChain { issuer: certificate::issuer(leaf) });
        }
        for one in std::iter::once(leaf).chain(path.unwrap_or_default()) {
            check_validity(one, now, &mut problems);
            check_usages(one, need, &mut problems);
        }
    }
    problems
}

/// Every reason why this certificate and key would not log `expected_common_name` in; none if they do.
pub fn check_given_client(
    chain_pem: &str,
    key_pem: &Secret,
    ca_pem: &str,
    expected_common_name: &str,
    now: Timestamp,
) -> Vec<GivenLeafProblem> {
    let need = LeafNeed { client: true, ..LeafNeed::default() };
    let mut problems = check_given_leaf(chain_pem, key_pem, ca_pem, &need, now);
    if let Ok(facts) = crate::inspect(chain_pem)
        && facts.subject_common_name.as_deref() != Some(expected_common_name)
    {
        let (expected, found) = (expected_common_name.to_owned(), facts.subject_common_name);
        problems.push(GivenLeafProblem::WrongCommonName { expected, found });
    }
    problems
}

fn read(pem: &str, part: GivenPart, problems: &mut Vec<GivenLeafProblem>) -> Vec<CertificateDer<'static>> {
    certificate::read_pem(pem).unwrap_or_else(|error| unusable(part, &error, problems))
}

fn parse<'a>(
    chain: &'a [CertificateDer<'static>],
    part: GivenPart,
    problems: &mut Vec<GivenLeafProblem>,
) -> Vec<X509Certificate<'a>> {
    certificate::parse_all(chain).unwrap_or_else(|error| unusable(part, &error, problems))
}

fn unusable<T>(part: GivenPart, error: &Error, problems: &mut Vec<GivenLeafProblem>) -> Vec<T> {
    problems.push(GivenLeafProblem::Unusable { part, why: error.to_string() });
    Vec::new()
}

fn check_key(leaf: Option<&X509Certificate<'_>>, key_pem: &Secret, problems: &mut Vec<GivenLeafProblem>) {
    match (KeyPair::from_pem(key_pem), leaf) {
        (Err(error), _) => problems.push(GivenLeafProblem::Unusable { part: GivenPart::Key, why: error.to_string() }),
        (Ok(key), Some(leaf)) if !certificate::key_matches(leaf, &key) => {
            problems.push(GivenLeafProblem::KeyDoesNotMatch);
        }
        (Ok(_), _) => {}
    }
}

fn check_names(leaf: &X509Certificate<'_>, need: &LeafNeed, problems: &mut Vec<GivenLeafProblem>) {
    let (names, addresses) = alternative_names(leaf);
    for address in &need.addresses {
        if !addresses.iter().any(|given| given.to_canonical() == address.to_canonical()) {
            problems.push(GivenLeafProblem::LacksAddress { address: *address });
        }
    }
    for name in &need.dns {
        if !names.iter().any(|given| covers(given, name)) {
            problems.push(GivenLeafProblem::LacksName { name: name.clone() });
        }
    }
}

/// Whether a name in a certificate, which may begin with `*.` for any one label, stands for this one.
fn covers(given: &str, name: &str) -> bool {
    let given = given.to_ascii_lowercase();
    let name = name.to_ascii_lowercase();
    match (given.strip_prefix("*."), name.split_once('.')) {
        (Some(domain), Some((_, rest))) => domain == rest,
        _ => given == name,
    }
}

fn check_validity(one: &X509Certificate<'_>, now: Timestamp, problems: &mut Vec<GivenLeafProblem>) {
    match certificate::check_validity(one, now) {
        Err(Error::Expired { subject: certificate, not_after, .. }) => {
            problems.push(GivenLeafProblem::Expired { certificate, not_after });
        }
        Err(Error::NotYetValid { subject: certificate, not_before, .. }) => {
            problems.push(GivenLeafProblem::NotYetValid { certificate, not_before });
        }
        _ => {}
    }
}

/// A CA that is restricted to a usage passes the restriction on to what it signs, so the whole path is asked.
fn check_usages(one: &X509Certificate<'_>, need: &LeafNeed, problems: &mut Vec<GivenLeafProblem>) {
    for (needed, usage) in [(need.server, Usage::Server), (need.client, Usage::Client)] {
        if needed && !allows(one, usage) {
            problems.push(GivenLeafProblem::LacksUsage { certificate: certificate::subject(one), usage });
        }
    }
}

/// The issuers from the leaf's own up to one of the roots. A path that holds today is preferred; one that once held or will
/// hold lets the dates be named as the problem.
fn find_path<'a, 'b>(
    leaf: &X509Certificate<'b>,
    intermediates: &'a [X509Certificate<'b>],
    roots: &'a [X509Certificate<'b>],
    now: Timestamp,
) -> Option<Vec<&'a X509Certificate<'b>>> {
    let all: Vec<_> = intermediates.iter().collect();
    let valid = |one: &X509Certificate<'_>| certificate::check_validity(one, now).is_ok();
    search(leaf, &all, roots, 0, &valid).or_else(|| search(leaf, &all, roots, 0, &|_| true))
}

fn search<'a, 'b>(
    current: &X509Certificate<'b>,
    intermediates: &[&'a X509Certificate<'b>],
    roots: &'a [X509Certificate<'b>],
    intermediates_below: u32,
    accept: &dyn Fn(&X509Certificate<'_>) -> bool,
) -> Option<Vec<&'a X509Certificate<'b>>> {
    let leads_up = |above: &X509Certificate<'_>| accept(above) && may_sign(above, current, intermediates_below);
    if let Some(root) = roots.iter().find(|root| leads_up(root)) {
        return Some(vec![root]);
    }
    intermediates.iter().enumerate().filter(|(_, one)| leads_up(one)).find_map(|(index, one)| {
        let others = [&intermediates[..index], &intermediates[index + 1..]].concat();
        let further = search(one, &others, roots, intermediates_below + 1, accept)?;
        Some(std::iter::once(*one).chain(further).collect())
    })
}

fn may_sign(above: &X509Certificate<'_>, below: &X509Certificate<'_>, intermediates_below: u32) -> bool {
    certificate::authority_lack(above).is_none()
        && allowed_depth(above).is_none_or(|depth| depth >= intermediates_below)
        && certificate::is_issued_by(below, above)
}

fn allowed_depth(authority: &X509Certificate<'_>) -> Option<u32> {
    authority.basic_constraints().ok()??.value.path_len_constraint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_one_label() {
        assert!(covers("etcd-1.example.com", "ETCD-1.example.com"));
        assert!(covers("*.example.com", "etcd-1.example.com"));
        assert!(!covers("*.example.com", "example.com"));
        assert!(!covers("*.example.com", "a.etcd-1.example.com"));
        assert!(!covers("*.example.com", "localhost"));
        assert!(!covers("etcd-1.example.com", "etcd-2.example.com"));
    }
}
