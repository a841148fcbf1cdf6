//! User-provided files: CAs, certificates, keys and passwords. They are read and checked here, before anything is
//! changed; every problem is reported at once, with its place in the spec.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_core::Secret;
use quorate_core::desire::password_fingerprint;
use quorate_core::kinds::etcd::RestoreWish;
use quorate_core::kinds::etcd::spec::Binary;
use quorate_core::kinds::postgres::Dcs;
use quorate_core::model::{Brought, ForwardSecrets, Ledger, LogSecrets, MemberName, SourceLogin, SourceSecrets};
use quorate_core::spec::{
    ClusterSpec, Credentials, Destination, Forward, KeyPairFiles, Kind, LogSource, S3Destination, StoreKeys,
};
use quorate_core::text::with_causes;
use quorate_pki::{Authority, GivenLeafProblem, LeafNeed, check_given_client, check_given_leaf, inspect};

use crate::backup::vault;
use crate::home::Home;
use crate::kinds::postgres::{dcs, passwords};

/// The contents of the operator's files.
#[derive(Clone, Debug, Default)]
pub struct BroughtFiles {
    /// A CA to sign with.
    pub authority: Option<Pair>,
    pub given: Option<Given>,
    pub root_password: Option<Secret>,
    pub passwords: BTreeMap<String, Secret>,
    pub log_forwarding: Option<LogSecrets>,
    /// The keys to the stores of backups, by number, for machines that store their own.
    pub store_keys: BTreeMap<u8, StoreKeys>,
    /// The CAs of those stores, in PEM.
    pub store_cas: BTreeMap<u8, String>,
    /// For a plan of a PostgreSQL cluster: the etcd cluster that is created, or gets its user, before.
    pub planned_etcd: Option<Box<ClusterSpec>>,
    /// For an etcd cluster: the PostgreSQL clusters that are about to keep Patroni's state in it.
    pub patroni_of: Vec<ClusterSpec>,
}

#[derive(Clone, Debug)]
pub struct Pair {
    pub chain: String,
    pub key: Secret,
}

/// User-provided certificates, without the CA's key.
#[derive(Clone, Debug)]
pub struct Given {
    pub trust: String,
    pub members: BTreeMap<MemberName, Pair>,
    pub root: Option<Pair>,
}

/// A problem with a file that the spec names: the field's path below the cluster, and the problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileProblem {
    pub field: String,
    pub message: String,
    pub hint: Option<String>,
}

impl BroughtFiles {
    /// What the planner needs to know about them, and whether the snapshot of a restore is here.
    pub fn fingerprints(&self, home: &Home, ledger: &Ledger) -> Brought {
        let cluster_id = ledger.cluster_id.as_str();
        let print = |pair: &Pair| inspect(&pair.chain).map(|facts| facts.fingerprint).unwrap_or_default();
        let given = self.given.as_ref();
        let passwords = self.passwords.iter();
        let trust = self.authority.as_ref().map(|pair| &pair.chain).or(given.map(|g| &g.trust));
        Brought {
            authority: trust.and_then(|pem| quorate_pki::subject_key_id(pem)),
            root_password: self.root_password.as_ref().map(|p| password_fingerprint(cluster_id, p)),
            members: given.map(|g| g.members.iter().map(|(name, pair)| (name.clone(), print(pair))).collect()),
            root: given.and_then(|g| g.root.as_ref()).map(print),
            passwords: passwords.map(|(user, p)| (user.clone(), password_fingerprint(cluster_id, p))).collect(),
            snapshot: snapshot_at_hand(home, ledger),
            log_forwarding: self.log_forwarding.clone(),
            dcs: self.dcs(home, ledger),
            store_keys: self.store_keys.clone(),
            store_cas: self.store_cas.clone(),
            verifiers: passwords::verifiers(ledger),
            next_verifiers: passwords::next_verifiers(ledger),
        }
    }
}

impl BroughtFiles {
    /// The etcd cluster in which Patroni keeps its state; in a plan, as it will be.
    fn dcs(&self, home: &Home, ledger: &Ledger) -> Option<Result<Dcs, String>> {
        let found = dcs::look(home, &ledger.spec)?;
        Some(match &self.planned_etcd {
            Some(etcd) if found.is_err() => dcs::foresee(etcd, &ledger.spec),
            _ => found,
        })
    }
}

/// Its bytes are compared where they arrive.
fn snapshot_at_hand(home: &Home, ledger: &Ledger) -> Option<String> {
    let RestoreWish { sha256, bytes, .. } = ledger.etcd.restore.as_ref()?;
    let found = fs::metadata(home.snapshot(ledger.spec.name.as_str(), sha256)).ok()?;
    (found.is_file() && found.len() == *bytes).then(|| sha256.clone())
}

/// Makes the file names in a spec independent of the current directory.
pub fn resolve_paths(spec: &mut ClusterSpec, base: &Path) {
    let resolve = |path: &mut PathBuf| {
        if path.is_relative() {
            *path = std::path::absolute(base.join(&*path)).unwrap_or_else(|_| base.join(&*path));
        }
    };
    let pair = |files: &mut KeyPairFiles| {
        resolve(&mut files.certificate);
        resolve(&mut files.key);
    };
    if let Some(Binary::Path(path)) = &mut spec.etcd.binary {
        resolve(path);
    }
    spec.tls.ca.iter_mut().for_each(pair);
    if let Some(given) = &mut spec.tls.given {
        resolve(&mut given.ca);
        given.members.values_mut().for_each(pair);
        given.root.iter_mut().for_each(pair);
    }
    spec.auth.root_password_file.iter_mut().for_each(resolve);
    if let Some(dcs) = spec.postgres.as_mut().map(|postgres| &mut postgres.dcs) {
        let files = [&mut dcs.ca, &mut dcs.password_file, &mut dcs.certificate, &mut dcs.key];
        files.into_iter().flatten().for_each(resolve);
    }
    for user in &mut spec.auth.users {
        user.password_file.iter_mut().for_each(resolve);
    }
    spec.postgres.iter_mut().flat_map(|postgres| postgres.all_password_files_mut()).for_each(resolve);
    if let Some(forwarding) = spec.host.as_mut().and_then(|host| host.log_forwarding.as_mut()) {
        if let Some(forward) = &mut forwarding.forward {
            resolve(&mut forward.shared_key_file);
            resolve(&mut forward.ca);
        }
        if let Some(source) = &mut forwarding.from_etcd {
            resolve(&mut source.ca);
            [&mut source.certificate, &mut source.key, &mut source.password_file]
                .into_iter()
                .flatten()
                .for_each(resolve);
        }
    }
    for place in spec.backup.iter_mut().flat_map(|b| [Some(&mut b.to), b.also_to.as_mut()]).flatten() {
        match place {
            Destination::Directory(path) => resolve(path),
            Destination::S3(s3) => {
                s3.ca.iter_mut().for_each(resolve);
                if let Credentials::File(path) = &mut s3.credentials {
                    resolve(path);
                }
            }
        }
    }
}

/// Reads and checks every file that the spec names.
pub fn read(spec: &ClusterSpec, now: Timestamp) -> Result<BroughtFiles, Vec<FileProblem>> {
    let mut reader = Reader { problems: Vec::new() };
    let files = BroughtFiles {
        authority: reader.authority(spec, now),
        given: reader.given(spec, now),
        root_password: spec
            .auth
            .root_password_file
            .as_ref()
            .and_then(|path| reader.password("auth.root_password_file", path)),
        passwords: reader.passwords(spec),
        log_forwarding: reader.log_forwarding(spec),
        store_keys: reader.store_keys(spec),
        store_cas: reader.store_cas(spec),
        planned_etcd: None,
        patroni_of: Vec::new(),
    };
    reader.check_dcs(spec);
    if reader.problems.is_empty() { Ok(files) } else { Err(reader.problems) }
}

/// The stores of backups that are in S3, with their numbers and their places in the spec.
fn s3_stores(spec: &ClusterSpec) -> impl Iterator<Item = (u8, &'static str, &S3Destination)> {
    let places = spec
        .backup
        .iter()
        .flat_map(|backup| [(1, "backup.to.s3", Some(&backup.to)), (2, "backup.also_to.s3", backup.also_to.as_ref())]);
    places.filter_map(|(number, field, place)| match place {
        Some(Destination::S3(s3)) => Some((number, field, s3)),
        _ => None,
    })
}

const GOOD_PASSWORD: &str =
    "use letters, digits and other visible ASCII characters, but no spaces, quotes, `:` or `\\`";

/// PostgreSQL normalizes other characters before it computes the verifier, and the files of its programs use some of these as separators.
fn postgres_password(password: &str) -> Result<(), &'static str> {
    let is_good = |c: char| c.is_ascii_graphic() && !['\'', '"', '`', ':', '\\'].contains(&c);
    match password.chars().all(is_good) {
        true => Ok(()),
        false => Err("a password with characters that PostgreSQL's programs interpret differently"),
    }
}

struct Reader {
    problems: Vec<FileProblem>,
}

impl Reader {
    fn complain(&mut self, field: &str, message: String, hint: Option<&str>) {
        let hint = hint.map(str::to_owned);
        self.problems.push(FileProblem { field: field.to_owned(), message, hint });
    }

    fn text(&mut self, field: &str, path: &Path) -> Option<String> {
        match std::fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(e) => {
                let hint = Some("relative names are taken from the directory of the spec");
                self.complain(field, format!("{} cannot be read: {e}", path.display()), hint);
                None
            }
        }
    }

    fn pair(&mut self, field: &str, files: &KeyPairFiles) -> Option<Pair> {
        let chain = self.text(&format!("{field}.certificate"), &files.certificate);
        let key = self.text(&format!("{field}.key"), &files.key);
        Some(Pair { chain: chain?, key: Secret::new(key?) })
    }

    fn password(&mut self, field: &str, path: &Path) -> Option<Secret> {
        let text = self.text(field, path)?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            self.complain(field, format!("{} is empty", path.display()), Some("write the password on its first line"));
            return None;
        }
        if password.contains('\n') {
            let message = format!("{} has more than one line", path.display());
            self.complain(field, message, Some("write the password on its only line"));
            return None;
        }
        Some(Secret::new(password))
    }

    fn passwords(&mut self, spec: &ClusterSpec) -> BTreeMap<String, Secret> {
        let mut passwords = BTreeMap::new();
        for (index, user) in spec.auth.users.iter().enumerate() {
            let Some(path) = &user.password_file else { continue };
            if let Some(password) = self.password(&format!("auth.users[{index}].password_file"), path) {
                passwords.insert(user.name.to_string(), password);
            }
        }
        for (user, field, path) in spec.postgres.iter().flat_map(|postgres| postgres.all_password_files()) {
            let Some(password) = self.password(&field, path) else { continue };
            match postgres_password(password.expose()) {
                Ok(()) => drop(passwords.insert(user, password)),
                Err(why) => self.complain(&field, format!("{} holds {why}", path.display()), Some(GOOD_PASSWORD)),
            }
        }
        passwords
    }

    /// What Patroni needs to log in to an etcd that others operate. It is read again when it is used.
    fn check_dcs(&mut self, spec: &ClusterSpec) {
        let Some(dcs) = spec.postgres.as_ref().map(|postgres| &postgres.dcs) else { return };
        let at = |field: &str| format!("postgres.dcs.{field}");
        dcs.ca.iter().for_each(|path| drop(self.certificates(&at("ca"), path, "the CA that signed that etcd's")));
        dcs.password_file.iter().for_each(|path| drop(self.password(&at("password_file"), path)));
        let Some((certificate, key)) = dcs.certificate.as_ref().zip(dcs.key.as_ref()) else { return };
        self.certificates(&at("certificate"), certificate, "the client that logs in there");
        self.text(&at("key"), key);
    }

    fn log_forwarding(&mut self, spec: &ClusterSpec) -> Option<LogSecrets> {
        let forwarding = spec.host.as_ref()?.log_forwarding.as_ref()?;
        let forward = forwarding.forward.as_ref().and_then(|forward| self.forward(forward));
        let source = forwarding.from_etcd.as_ref().and_then(|source| self.log_source(source));
        Some(LogSecrets { forward, source })
    }

    fn forward(&mut self, forward: &Forward) -> Option<ForwardSecrets> {
        let shared_key = self.password("host.log_forwarding.forward.shared_key_file", &forward.shared_key_file);
        let ca = self.certificates("host.log_forwarding.forward.ca", &forward.ca, "the CA that signed the receiver's");
        Some(ForwardSecrets { shared_key: shared_key?, ca: ca? })
    }

    fn log_source(&mut self, source: &LogSource) -> Option<SourceSecrets> {
        let at = |field: &str| format!("host.log_forwarding.from_etcd.{field}");
        let ca = self.certificates(&at("ca"), &source.ca, "the CA that signed that etcd's");
        let login = match (&source.certificate, &source.key, &source.username, &source.password_file) {
            (Some(certificate), Some(key), ..) => {
                let chain = self.certificates(&at("certificate"), certificate, "the client that logs in there");
                let key = self.text(&at("key"), key);
                SourceLogin::Certificate { chain: chain?, key: Secret::new(key?) }
            }
            (.., Some(user), Some(password)) => {
                SourceLogin::Password { user: user.clone(), password: self.password(&at("password_file"), password)? }
            }
            // The check of the spec has refused it.
            _ => return None,
        };
        Some(SourceSecrets { ca: ca?, login })
    }

    /// PostgreSQL's machines store their backups themselves.
    fn store_keys(&mut self, spec: &ClusterSpec) -> BTreeMap<u8, StoreKeys> {
        let mut keys = BTreeMap::new();
        for (number, field, s3) in s3_stores(spec).filter(|_| spec.kind == Kind::Postgres) {
            match vault::keys(&s3.credentials) {
                Ok(found) => keys.extend(found.map(|found| (number, found))),
                Err(error) => self.complain(&format!("{field}.credentials"), with_causes(&error), None),
            }
        }
        keys
    }

    fn store_cas(&mut self, spec: &ClusterSpec) -> BTreeMap<u8, String> {
        let mut read =
            |field: &str, path: &Path| self.certificates(&format!("{field}.ca"), path, "the CA of the store");
        let with_ca = s3_stores(spec).filter_map(|(number, field, s3)| Some((number, field, s3.ca.as_ref()?)));
        with_ca.filter_map(|(number, field, path)| Some((number, read(field, path)?))).collect()
    }

    fn certificates(&mut self, field: &str, path: &Path, of: &str) -> Option<String> {
        let text = self.text(field, path)?;
        if inspect(&text).is_err() {
            let message = format!("{} holds no certificate in PEM", path.display());
            self.complain(field, message, Some(&format!("name the certificate of {of}")));
            return None;
        }
        Some(text)
    }

    fn authority(&mut self, spec: &ClusterSpec, now: Timestamp) -> Option<Pair> {
        let pair = self.pair("tls.ca", spec.tls.ca.as_ref()?)?;
        if let Err(e) = Authority::load(&pair.chain, &pair.key, now) {
            self.complain("tls.ca", format!("this CA cannot be used: {}", with_causes(&e)), None);
            return None;
        }
        Some(pair)
    }

    fn given(&mut self, spec: &ClusterSpec, now: Timestamp) -> Option<Given> {
        let given = spec.tls.given.as_ref()?;
        let trust = self.text("tls.given.ca", &given.ca)?;
        let mut members = BTreeMap::new();
        for (index, member) in spec.members.iter().enumerate() {
            let Some(files) = given.members.get(member.name.as_str()) else { continue };
            let field = format!("tls.given.members.{}", member.name);
            let Some(address) = spec.provider.settings().pinned(member) else {
                let message =
                    format!("the address of {} must be pinned, because its certificate is user-provided", member.name);
                self.complain(
                    &format!("members[{index}]"),
                    message,
                    Some("add `address`, and put it into the certificate"),
                );
                continue;
            };
            let Some(pair) = self.pair(&field, files) else { continue };
            let need = LeafNeed {
                addresses: vec![address, IpAddr::from([127, 0, 0, 1])],
                server: true,
                client: true,
                ..LeafNeed::default()
            };
            self.faults(&field, check_given_leaf(&pair.chain, &pair.key, &trust, &need, now));
            members.insert(MemberName::from(member.name.as_str()), pair);
        }
        let root = given.root.as_ref().and_then(|files| {
            let pair = self.pair("tls.given.root", files)?;
            self.faults("tls.given.root", check_given_client(&pair.chain, &pair.key, &trust, "root", now));
            Some(pair)
        });
        Some(Given { trust, members, root })
    }

    fn faults(&mut self, field: &str, faults: Vec<GivenLeafProblem>) {
        for fault in faults {
            self.complain(field, format!("this certificate cannot be used: {fault}"), None);
        }
    }
}
