//! The settings with which `psql` and `patronictl` connect to a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use quorate_agent::dial::Dial;
use quorate_agent::private_directory;
use quorate_core::Secret;
use quorate_core::kinds::postgres::{CLIENT_PORT, Dcs, SUPERUSER, desire};
use quorate_core::model::{Ledger, MemberName};
use quorate_pki::{KeyPair, LeafWish};

use crate::clients::{ClientError, keep_private, write_private};
use crate::home::Home;
use crate::kinds::postgres::dcs;
use crate::run::error::ControlError;
use crate::run::observe::{by_name, dial};
use crate::secrets;
use crate::sign::sign;

/// The superuser's certificate is short-lived: valid for a working day.
const VALIDITY: SignedDuration = SignedDuration::from_hours(24);

/// A port of HAProxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyPort {
    Primary,
    Replica,
}

/// The kind of server that a client stays connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// The primary.
    ReadWrite,
    /// A standby; the primary, if no standby answers.
    PreferStandby,
    /// The first that answers.
    Any,
}

impl Session {
    /// For libpq, which knows `prefer-standby` from version 14 on.
    fn word(self) -> &'static str {
        match self {
            Session::ReadWrite => "read-write",
            Session::PreferStandby => "prefer-standby",
            Session::Any => "any",
        }
    }
}

/// Where clients connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the members themselves; the client chooses one.
    Members(Session),
    /// Through HAProxy, which chooses.
    Proxy(ProxyPort),
}

impl Way {
    /// The port that clients connect to, and what they ask of the server behind it.
    fn ends_at(self, ledger: &Ledger) -> Result<(u16, Session), ClientError> {
        let haproxy = ledger.spec.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref());
        match (self, haproxy) {
            (Way::Members(session), _) => Ok((CLIENT_PORT, session)),
            (Way::Proxy(ProxyPort::Primary), Some(haproxy)) => Ok((haproxy.primary_port, Session::ReadWrite)),
            (Way::Proxy(ProxyPort::Replica), Some(haproxy)) => Ok((haproxy.replica_port, Session::Any)),
            (Way::Proxy(_), None) => Err(ClientError::NoProxy(ledger.spec.name.to_string())),
        }
    }
}

/// Variables that libpq reads.
pub async fn environment(
    home: &Home,
    ledger: &Ledger,
    user: Option<&str>,
    way: Way,
) -> Result<BTreeMap<&'static str, String>, ClientError> {
    let name = ledger.spec.name.as_str();
    let there = |what: Option<&Secret>| what.cloned().ok_or_else(|| ClientError::NotThere(name.to_owned()));
    let passwords = ledger.postgres.passwords.as_ref();
    let user = user.unwrap_or(SUPERUSER);
    let password = match user {
        SUPERUSER => there(passwords.map(|known| &known.superuser))?,
        other => there(declared(ledger, other)?)?,
    };
    let (port, session) = way.ends_at(ledger)?;
    let (hosts, dial) = hosts(home, ledger, matches!(way, Way::Proxy(_))).await?;
    if hosts.is_empty() {
        return Err(ClientError::NotThere(name.to_owned()));
    }
    let directory = home.clients(name);
    private_directory(&directory).map_err(|source| ClientError::Io { path: directory.clone(), source })?;
    let ca = directory.join("ca.crt");
    let authority = ledger.authorities.client.as_ref().map(|authority| authority.certificate.as_str());
    keep_private(&ca, authority.unwrap_or_default())?;
    let mut variables = BTreeMap::from([
        ("PGHOST", hosts.join(",")),
        ("PGPORT", port.to_string()),
        ("PGUSER", user.to_owned()),
        ("PGPASSWORD", password.expose().to_owned()),
        ("PGDATABASE", database(ledger, user)),
        ("PGSSLMODE", String::from("verify-full")),
        ("PGSSLROOTCERT", ca.display().to_string()),
        ("PGTARGETSESSIONATTRS", session.word().to_owned()),
    ]);
    if let Dial::Namespace(namespace) = dial {
        variables.insert("QUORATE_NETNS", namespace);
    }
    if user == SUPERUSER {
        let (certificate, key) = superuser_certificate(&directory, ledger)?;
        variables.insert("PGSSLCERT", certificate.display().to_string());
        variables.insert("PGSSLKEY", key.display().to_string());
        if let Some(Ok(dcs)) = dcs::look(home, &ledger.spec) {
            let config = patronictl_config(&directory, ledger, &dcs, &certificate, &key)?;
            variables.insert("PATRONICTL_CONFIG_FILE", config.display().to_string());
        }
    }
    Ok(variables)
}

/// The configuration of `patronictl`: its connection to etcd, and the certificate with which it commands members. The file contains a
/// password.
fn patronictl_config(
    directory: &Path,
    ledger: &Ledger,
    dcs: &Dcs,
    certificate: &Path,
    key: &Path,
) -> Result<PathBuf, ClientError> {
    let [peers, trust, dcs_certificate, dcs_key, path] =
        ["peer-ca.crt", "dcs-ca.crt", "dcs.crt", "dcs.key", "patronictl.yml"].map(|name| directory.join(name));
    let bundle = ledger.authorities.peer.as_ref().map(|peers| peers.bundle());
    keep_private(&peers, &bundle.unwrap_or_default())?;
    keep_private(&trust, &dcs.ca)?;
    if let Some((certificate, key)) = &dcs.identity {
        keep_private(&dcs_certificate, certificate)?;
        keep_private(&dcs_key, key.expose())?;
    }
    let of_dcs = [&*trust, &*dcs_certificate, &*dcs_key];
    let config = desire::patronictl_config(&ledger.spec, dcs, of_dcs, [certificate, key, &peers]);
    keep_private(&path, &config)?;
    Ok(path)
}

fn declared<'a>(ledger: &'a Ledger, user: &str) -> Result<Option<&'a Secret>, ClientError> {
    let users = || ledger.spec.postgres.iter().flat_map(|postgres| &postgres.users).map(|user| user.name.to_string());
    if !users().any(|name| name == user) {
        let declared: Vec<String> = [SUPERUSER.to_owned()].into_iter().chain(users()).collect();
        return Err(ClientError::Undeclared { user: user.to_owned(), declared: declared.join(", ") });
    }
    Ok(ledger.postgres.passwords.as_ref().and_then(|known| known.users.get(user)))
}

/// The first one that the user owns, or the default one.
fn database(ledger: &Ledger, user: &str) -> String {
    let databases = ledger.spec.postgres.iter().flat_map(|postgres| &postgres.databases);
    let mut owned = databases.filter(|database| database.owner.as_ref().is_some_and(|owner| owner.as_str() == user));
    owned.next().map_or_else(|| SUPERUSER.to_owned(), |database| database.name.to_string())
}

/// The addresses of the members, or of those machines that have HAProxy, and how this host connects to them.
async fn hosts(home: &Home, ledger: &Ledger, is_proxied: bool) -> Result<(Vec<String>, Dial), ClientError> {
    let provider = home.provider(ledger);
    let machines = provider.machines().await.map_err(ControlError::from)?;
    let machines = by_name(ledger, machines.found);
    let address = |name: &MemberName| Some(machines.get(name)?.address?.to_string());
    let haproxy = ledger.spec.postgres.as_ref().and_then(|postgres| postgres.haproxy.as_ref());
    let is_wanted = |name: &str| !is_proxied || haproxy.is_some_and(|haproxy| haproxy.runs_on(name));
    let members = ledger.spec.members.iter().filter(|member| is_wanted(member.name.as_str()));
    let names: Vec<MemberName> = match is_proxied && ledger.spec.proxies().next().is_some() {
        true => ledger.spec.proxies().map(|proxy| proxy.name.as_str().into()).collect(),
        false => members.map(|member| member.name.as_str().into()).collect(),
    };
    let way = machines.iter().next().map(|(name, machine)| dial(&*provider, name, machine)).unwrap_or_default();
    Ok((names.iter().filter_map(address).collect(), way))
}

/// The superuser presents a certificate of the members' CA, in addition to the password.
fn superuser_certificate(directory: &Path, ledger: &Ledger) -> Result<(PathBuf, PathBuf), ClientError> {
    let (certificate, key) = (directory.join("superuser.crt"), directory.join("superuser.key"));
    let pair = KeyPair::generate(secrets::key_algorithm(&ledger.spec))?;
    let wish = LeafWish {
        common_name: SUPERUSER.to_owned(),
        organization: None,
        dns: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: true,
        validity: VALIDITY,
    };
    let signing = ledger.authorities.peer.as_ref().and_then(|peers| peers.signing());
    let signed = sign(signing, &pair.csr(SUPERUSER)?, &wish)?;
    write_private(&key, pair.to_pem().expose())?;
    write_private(&certificate, &signed)?;
    Ok((certificate, key))
}
