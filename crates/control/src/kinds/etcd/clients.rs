//! For the operator's own clients: certificates for declared users, and the environment of etcdctl.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::desire::Wish;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::model::{CLIENT_PORT, IssuedCertificate, Ledger, MachineSeen, MemberName, https_url};
use quorate_pki::KeyPair;
use tokio::time::timeout;

use crate::brought::BroughtFiles;
use crate::clients::{ClientError, keep_private, write_private};
use crate::home::Home;
use crate::run::controller::arch;
use crate::run::error::ControlError;
use crate::run::observe::{by_name, dial};
use crate::secrets;
use crate::sign::{client_wish, sign};
use quorate_agent::private_directory;
use quorate_providers::Dial;

/// Root's certificate is short-lived: valid for a working day and renewed on request.
const ROOT_VALIDITY: SignedDuration = SignedDuration::from_hours(24);
/// A certificate that expires sooner than this is issued again.
const ROOT_LEFT: SignedDuration = SignedDuration::from_hours(8);

/// How long to wait for a controller that holds the ledger.
const LEDGER_PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);

/// How long an address may take to answer a connection.
const KNOCK: Duration = Duration::from_secs(1);

/// A client certificate, and its key if it was created here.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: Option<Secret>,
    pub not_after: Timestamp,
}

/// Signs a certificate for a declared user, for the key of a given signing request or one created here. It is recorded
/// in the ledger before it is handed out, because only recorded certificates can be revoked.
pub fn issue(
    home: &Home,
    ledger: &Ledger,
    user: &str,
    request: Option<&str>,
    validity: Option<SignedDuration>,
) -> Result<Issued, ClientError> {
    if !ledger.spec.etcd.client_auth.asks_for_certificates() {
        return Err(ClientError::PasswordLogin);
    }
    let mut declared = vec![String::from("root")];
    declared.extend(ledger.spec.auth.users.iter().map(|u| u.name.to_string()));
    if !declared.iter().any(|d| d == user) {
        return Err(ClientError::Undeclared { user: user.to_owned(), declared: declared.join(", ") });
    }
    // Root's certificate expires within a day, and root is never removed.
    if user == "root" {
        return sign_client(ledger, user, request, Some(ROOT_VALIDITY));
    }
    let issued = sign_client(ledger, user, request, validity)?;
    note(home, ledger, user, &issued)?;
    Ok(issued)
}

/// Records a certificate in the ledger of a cluster that accepts it.
pub(super) fn note(home: &Home, ledger: &Ledger, user: &str, issued: &Issued) -> Result<(), ClientError> {
    let certificate = IssuedCertificate {
        user: user.to_owned(),
        serial: quorate_pki::inspect(&issued.certificate)?.serial,
        not_after: issued.not_after,
        recorded: None,
        revoked: false,
    };
    let store = home.store(ledger.spec.name.as_str());
    let until = Instant::now() + LEDGER_PATIENCE;
    loop {
        let now = Timestamp::now();
        let add = |ledger: &mut Ledger| ledger.issued.record(certificate.clone(), now);
        if store.amend(now, add).map_err(ControlError::from)? {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(ClientError::LedgerHeld(ledger.spec.name.to_string()));
        }
        std::thread::sleep(PAUSE);
    }
}

fn sign_client(
    ledger: &Ledger,
    user: &str,
    request: Option<&str>,
    validity: Option<SignedDuration>,
) -> Result<Issued, ClientError> {
    let authority = ledger.authorities.client.as_ref();
    if authority.is_none() {
        return Err(ClientError::NotThere(ledger.spec.name.to_string()));
    }
    if authority.is_some_and(|a| a.key.is_none()) {
        return Err(ClientError::NoAuthorityKey);
    }
    let desired = Wish { spec: &ledger.spec, brought: &Default::default(), arch: arch() }.desire(ledger, "");
    let mut wish = client_wish(user, &desired);
    wish.validity = validity.unwrap_or(wish.validity);
    // A name in it would log its holder in without a password.
    let anonymous = user != "root" && ledger.spec.etcd.client_auth == ClientAuth::CertificateAndPassword;
    if anonymous {
        wish.common_name = String::new();
        wish.organization.get_or_insert_with(|| format!("clients of {}", ledger.spec.name));
    }
    let (request, key) = match request {
        Some(request) => (request.to_owned(), None),
        None => {
            let key = KeyPair::generate(secrets::key_algorithm(&ledger.spec))?;
            (key.csr(&wish.common_name)?, Some(key.to_pem()))
        }
    };
    let certificate = sign(authority, &request, &wish)?;
    let not_after = quorate_pki::inspect(&certificate)?.not_after;
    Ok(Issued { certificate, key, not_after })
}

/// What etcdctl needs to be root.
#[derive(Clone, Debug)]
pub struct Environment {
    pub endpoints: Vec<String>,
    pub ca: PathBuf,
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub password: Option<Secret>,
    /// How a client on this host connects to the endpoints.
    pub dial: Dial,
}

/// Writes a client's files into the home directory, and returns their paths.
pub async fn environment(home: &Home, ledger: &Ledger, brought: &BroughtFiles) -> Result<Environment, ClientError> {
    let name = ledger.spec.name.as_str();
    let Some(authority) = &ledger.authorities.client else { return Err(ClientError::NotThere(name.to_owned())) };
    let directory = home.clients(name);
    private_directory(&directory).map_err(|source| ClientError::Io { path: directory.clone(), source })?;
    let ca = directory.join("ca.crt");
    keep_private(&ca, &authority.certificate)?;
    let by_certificate = ledger.spec.etcd.client_auth.asks_for_certificates();
    let certificate = by_certificate.then(|| root_certificate(&directory, ledger, brought)).transpose()?;
    let password = ledger.etcd.auth.root_password.clone().filter(|_| !by_certificate && ledger.spec.auth.bootstrap);
    let (endpoints, dial) = endpoints(home, ledger).await?;
    Ok(Environment { endpoints, ca, certificate, password, dial })
}

/// The URLs for clients, and how a client on this host connects to them.
pub async fn endpoints(home: &Home, ledger: &Ledger) -> Result<(Vec<String>, Dial), ClientError> {
    let serving = serving(home, ledger).await?;
    let Some((_, dial)) = serving.first() else { return Err(ClientError::NoMachines(ledger.spec.name.to_string())) };
    let endpoints = serving.iter().map(|(address, _)| https_url(*address, CLIENT_PORT)).collect();
    Ok((endpoints, dial.clone()))
}

/// The URLs of the cluster's fronts: of the machines that the spec names.
pub async fn fronts(home: &Home, ledger: &Ledger) -> Result<Vec<String>, ClientError> {
    let Some(front) = &ledger.spec.etcd.front else { return Ok(Vec::new()) };
    let machines = home.provider(ledger).machines().await.map_err(ControlError::from)?;
    let machines = by_name(ledger, machines.found);
    let is_front = |name: &str| front.runs_on(name) || ledger.spec.proxies().any(|proxy| proxy.name.as_str() == name);
    let names = ledger.spec.machines().map(|machine| machine.name.to_string()).filter(|name| is_front(name));
    let address = |name: String| machines.get(&name.as_str().into())?.address;
    Ok(names.filter_map(address).map(|address| https_url(address, front.port())).collect())
}

/// The addresses for clients, and how they connect.
async fn serving(home: &Home, ledger: &Ledger) -> Result<Vec<(IpAddr, Dial)>, ClientError> {
    let provider = home.provider(ledger);
    let machines = provider.machines().await.map_err(ControlError::from)?;
    let machines = by_name(ledger, machines.found);
    let way = |name: &MemberName, machine: &MachineSeen| {
        // Clients do not use a machine's serial line.
        let dial = Some(dial(&*provider, name, machine)).filter(|dial| !matches!(dial, Dial::Line(_)));
        Some((machine.address?, dial.unwrap_or_default()))
    };
    let current = ledger.spec.members.iter().map(|member| MemberName::from(member.name.as_str()));
    let current: Vec<_> = current.filter_map(|name| way(&name, machines.get(&name)?)).collect();
    let former = machines.iter().filter(|(name, _)| name.is_former() && ledger.etcd.formation.has_member(name));
    let former: Vec<_> = former.filter_map(|(name, machine)| way(name, machine)).collect();
    // While the only member is replaced, its former machine is the one that serves.
    Ok(if former.is_empty() || any_serves(&current).await { current } else { former })
}

/// Whether a client would be answered at one of these addresses.
async fn any_serves(ways: &[(IpAddr, Dial)]) -> bool {
    let knock = async |(address, dial): &(IpAddr, Dial)| {
        let connected = timeout(KNOCK, dial.connect(SocketAddr::new(*address, CLIENT_PORT))).await;
        matches!(connected, Ok(Ok(_)))
    };
    join_all(ways.iter().map(knock)).await.contains(&true)
}

fn root_certificate(
    directory: &Path,
    ledger: &Ledger,
    brought: &BroughtFiles,
) -> Result<(PathBuf, PathBuf), ClientError> {
    let (certificate, key) = (directory.join("root.crt"), directory.join("root.key"));
    if let Some(root) = brought.given.as_ref().and_then(|g| g.root.as_ref()) {
        keep_private(&key, root.key.expose())?;
        keep_private(&certificate, &root.chain)?;
        return Ok((certificate, key));
    }
    if !still_good(&certificate, ledger, ROOT_LEFT) {
        let issued = sign_client(ledger, "root", None, Some(ROOT_VALIDITY))?;
        let made = issued.key.as_ref().map_or(Ok(()), |made| write_private(&key, made.expose()));
        match made.and_then(|()| write_private(&certificate, &issued.certificate)) {
            // On a full or read-only disk an older file is used while it is valid, because etcdctl may be needed just then.
            Err(_) if still_good(&certificate, ledger, SignedDuration::ZERO) && is_pair(&certificate, &key) => {}
            done => done?,
        }
    }
    Ok((certificate, key))
}

fn is_pair(certificate: &Path, key: &Path) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    quorate_pki::key_fits(&read(certificate), &Secret::new(read(key))).is_ok()
}

/// Whether a client can still log in with a certificate in this file.
pub fn is_usable(certificate: &Path, ledger: &Ledger) -> bool {
    still_good(certificate, ledger, ROOT_LEFT)
}

fn still_good(certificate: &Path, ledger: &Ledger, left: SignedDuration) -> bool {
    let Ok(pem) = std::fs::read_to_string(certificate) else { return false };
    let Ok(facts) = quorate_pki::inspect(&pem) else { return false };
    let authority = ledger.authorities.client.as_ref().map(|a| a.key_id.clone());
    facts.authority_key_id == authority && facts.not_after.duration_since(Timestamp::now()) > left
}
