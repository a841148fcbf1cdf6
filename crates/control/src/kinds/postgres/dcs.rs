//! The etcd cluster in which Patroni keeps its state. Its ledger records which clusters use it. From that follow the user, its password
//! and its keys, which are created, changed and removed like any other user of that cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use quorate_agent::dial::Dial;
use quorate_core::Secret;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::postgres::check::can_serve;
use quorate_core::kinds::postgres::{Dcs, DcsCertificate, DcsLogin, DcsUser, desire, spec};
use quorate_core::model::{CLIENT_PORT, Ledger};
use quorate_core::planner::is_due;
use quorate_core::spec::ClusterSpec;
use quorate_core::text::with_causes;
use quorate_etcd::{Client, ConnectOptions, KeyRange, Login, Sockets};
use quorate_pki::{Authority, CertificateFacts, KeyPair, LeafWish};

use crate::brought::BroughtFiles;
use crate::home::Home;
use crate::kinds::etcd::clients::environment;
use crate::secrets::key_algorithm;

const CONNECTING: Duration = Duration::from_secs(1);
const ANSWERING: Duration = Duration::from_secs(5);

/// What Patroni of this cluster needs to reach and use its etcd, or why it cannot.
pub(crate) fn look(home: &Home, spec: &ClusterSpec) -> Option<Result<Dcs, String>> {
    let dcs = &spec.postgres.as_ref()?.dcs;
    let Some(name) = &dcs.cluster else { return Some(other(dcs)) };
    let read = home.store(name.as_str()).read();
    Some(match read {
        Ok(Some(ledger)) => usable(&ledger, spec),
        Ok(None) => Err(format!("there is no etcd cluster {name} in this home; create it first")),
        Err(error) => Err(format!("the ledger of {name} cannot be read: {error}")),
    })
}

/// The name of the etcd cluster that Patroni of this cluster uses, if this quorate operates it.
pub fn own_etcd(spec: &ClusterSpec) -> Option<String> {
    Some(spec.postgres.as_ref()?.dcs.cluster.as_ref()?.to_string())
}

/// An etcd that others operate, from the files that the spec names.
fn other(dcs: &spec::Dcs) -> Result<Dcs, String> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    let both = |one: &Option<String>, other: &Option<PathBuf>| match (one, other) {
        (Some(one), Some(path)) => Ok(Some((one.clone(), Secret::new(read(path)?.trim_end_matches(['\r', '\n']))))),
        _ => Ok::<_, String>(None),
    };
    let certificate = dcs.certificate.as_ref().map(&read).transpose()?;
    Ok(Dcs {
        hosts: dcs.endpoints.iter().cloned().collect(),
        ca: dcs.ca.as_ref().map(&read).transpose()?.unwrap_or_default(),
        login: both(&dcs.username, &dcs.password_file)?,
        identity: both(&certificate, &dcs.key)?,
        version: None,
    })
}

fn usable(etcd: &Ledger, spec: &ClusterSpec) -> Result<Dcs, String> {
    let name = &etcd.spec.name;
    can_serve(&etcd.spec).map_err(|unusable| format!("{}; {} of {name}", unusable.why, unusable.hint))?;
    let members = etcd.etcd.formation.members().filter(|_| etcd.etcd.formation.is_formed());
    let members =
        members.ok_or_else(|| format!("etcd cluster {name} is not bootstrapped; `quorate apply {name}` does it"))?;
    let used = etcd.etcd.used_by.get(spec.name.as_str());
    let used = used.ok_or_else(|| format!("etcd cluster {name} has no user for {}", spec.name))?;
    // The newest that is there. One that a killed run was about to add may be missing, or may do nothing yet.
    let is_there = |user: &str| etcd.etcd.auth.users.get(user).is_some_and(|owned| !owned.unconfirmed);
    let there = used.logins().filter(|(user, _)| is_there(user)).last();
    let (user, password) = there.ok_or_else(|| {
        format!("etcd cluster {name} has no user {} yet; `quorate apply {name}` creates it", used.user)
    })?;
    let addresses = members.values().filter_map(|member| member.address());
    let hosts: BTreeSet<String> =
        addresses.map(|address| std::net::SocketAddr::new(address, CLIENT_PORT).to_string()).collect();
    let ca = etcd.authorities.client.as_ref().map(|authority| authority.certificate.clone()).unwrap_or_default();
    let login = Some((user.clone(), password.clone()));
    let identity = match etcd.spec.etcd.client_auth {
        ClientAuth::CertificateAndPassword => {
            let issued = used.certificate_of(etcd.authorities.client.as_ref());
            Some(issued.map(|issued| (issued.chain.clone(), issued.key.clone())).ok_or_else(|| {
                format!(
                    "etcd cluster {name} has no certificate for {} yet; `quorate apply {name}` issues it",
                    used.user
                )
            })?)
        }
        ClientAuth::Certificate | ClientAuth::Password => None,
    };
    Ok(Dcs { hosts, ca, login, identity, version: Some(etcd.spec.etcd.version) })
}

/// The same for a plan, in which the etcd cluster is created or gets its user first. Nothing may be configured with this.
pub(crate) fn foresee(etcd: &ClusterSpec, spec: &ClusterSpec) -> Result<Dcs, String> {
    can_serve(etcd).map_err(|unusable| format!("{}; {} of {}", unusable.why, unusable.hint, etcd.name))?;
    let login = Some((user_name(spec), Secret::new("")));
    Ok(Dcs { hosts: BTreeSet::new(), ca: String::new(), login, identity: None, version: Some(etcd.etcd.version) })
}

/// Records in the ledger of an etcd cluster that this PostgreSQL cluster uses it.
pub fn register(etcd: &mut Ledger, spec: &ClusterSpec) {
    let Some(postgres) = &spec.postgres else { return };
    let prefix = desire::key(spec, postgres);
    let used = etcd.etcd.used_by.entry(spec.name.to_string());
    let used = used.or_insert_with(|| DcsUser {
        user: user_name(spec),
        password: quorate_pki::random_token(),
        prefix: prefix.clone(),
        next: None,
        certificate: None,
    });
    used.prefix = prefix;
}

/// Issues certificates to those that have none of the current CA, and to those whose certificate is to be renewed.
pub(crate) fn certify(etcd: &mut Ledger, spec: &ClusterSpec, now: Timestamp) -> Result<(), quorate_pki::Error> {
    let Some((authority, key)) = etcd.authorities.client.as_ref().and_then(|ca| Some((ca, ca.key.as_ref()?))) else {
        return Ok(());
    };
    let signing = Authority::load_undated(&authority.certificate, key)?;
    for used in etcd.etcd.used_by.values_mut() {
        let valid = used.certificate_of(Some(authority));
        if valid.is_some_and(|known| {
            !is_due(&known.valid(), Some(authority.not_after), spec.tls.renew_before().as_duration(), now)
        }) {
            continue;
        }
        let own = KeyPair::generate(key_algorithm(spec))?;
        let wish = LeafWish {
            common_name: String::new(),
            organization: None,
            dns: Vec::new(),
            addresses: Vec::new(),
            server: false,
            client: true,
            validity: spec.tls.leaf_validity.as_duration(),
        };
        let chain = signing.sign(&own.csr("")?, &wish, now)?;
        let CertificateFacts { not_before, not_after, .. } = quorate_pki::inspect(&chain)?;
        let (key, authority_key_id) = (own.to_pem(), authority.key_id.clone());
        used.certificate = Some(DcsCertificate { chain, key, authority_key_id, not_before, not_after });
    }
    Ok(())
}

/// Adds a second user for Patroni of this cluster. One that an interrupted run has added is used.
pub fn add_login(etcd: &mut Ledger, cluster: &str) {
    let Some(used) = etcd.etcd.used_by.get_mut(cluster) else { return };
    let user = format!("patroni-{cluster}-2");
    let user = if used.user == user { format!("patroni-{cluster}") } else { user };
    used.next.get_or_insert_with(|| DcsLogin { user, password: quorate_pki::random_token() });
}

/// Removes the first one.
pub fn drop_former_login(etcd: &mut Ledger, cluster: &str) {
    etcd.etcd.used_by.get_mut(cluster).into_iter().for_each(DcsUser::promote);
}

/// The PostgreSQL clusters of this home that keep Patroni's state in an etcd cluster.
pub fn users_of(home: &Home, etcd: &Ledger) -> Vec<String> {
    let is_there = |name: &&String| !matches!(home.store(name).read(), Ok(None));
    etcd.etcd.used_by.keys().filter(is_there).cloned().collect()
}

/// Removes users whose clusters are gone: an earlier run may have been killed before it could.
pub(crate) fn forget_gone(home: &Home, etcd: &mut Ledger) {
    let there = users_of(home, etcd);
    etcd.etcd.used_by.retain(|name, _| there.contains(name));
}

/// Removes Patroni's keys of a destroyed cluster.
pub async fn clear(home: &Home, spec: &ClusterSpec) -> Result<(), String> {
    let (Some(Ok(dcs)), Some(postgres)) = (look(home, spec), &spec.postgres) else { return Ok(()) };
    let key = desire::key(spec, postgres);
    let dial = dial(home, own_etcd(spec).as_deref()).await;
    let mut last = String::from("it has no members");
    for host in &dcs.hosts {
        let mut options = ConnectOptions::new(format!("https://{host}"), &dcs.ca);
        options.login =
            dcs.login.clone().map(|(user, password)| Login { user, password: password.expose().to_owned() });
        options.identity = dcs.identity.clone().map(|(chain, key)| (chain, key.expose().to_owned()));
        options.sockets = dial.clone().map(|dial| Sockets::new(move |to| dial.socket(to)));
        options.connect_timeout = CONNECTING;
        options.request_timeout = ANSWERING;
        let cleared = match Client::connect(options) {
            Ok(client) => client.delete(KeyRange::prefix(key.as_bytes())).await.map(drop),
            Err(error) => Err(error),
        };
        match cleared {
            Ok(()) => return Ok(()),
            Err(error) => last = with_causes(&error),
        }
    }
    Err(format!("the keys below {key} are left in etcd {}: {last}", postgres.dcs))
}

/// How this host connects to the members of an etcd cluster of this quorate.
async fn dial(home: &Home, name: Option<&str>) -> Option<Dial> {
    let Ok(Some(etcd)) = home.store(name?).read() else { return Some(Dial::default()) };
    let known = environment(home, &etcd, &BroughtFiles::default()).await;
    Some(known.map(|known| known.dial).unwrap_or_default())
}

/// Whether the etcd cluster is ready for it: it needs no step for that.
pub fn is_ready(home: &Home, spec: &ClusterSpec) -> bool {
    let etcd = own_etcd(spec).and_then(|name| home.store(&name).read().ok().flatten());
    let is_due = etcd.is_some_and(|etcd| certificate_is_due(&etcd, spec.name.as_str(), Timestamp::now()));
    !is_due && look(home, spec).is_none_or(|dcs| dcs.is_ok())
}

fn certificate_is_due(etcd: &Ledger, cluster: &str, now: Timestamp) -> bool {
    let known = etcd.etcd.used_by.get(cluster).and_then(|used| used.certificate.as_ref());
    let ends = etcd.authorities.client.as_ref().map(|authority| authority.not_after);
    known.is_some_and(|known| is_due(&known.valid(), ends, etcd.spec.tls.renew_before().as_duration(), now))
}

fn user_name(spec: &ClusterSpec) -> String {
    format!("patroni-{}", spec.name)
}
