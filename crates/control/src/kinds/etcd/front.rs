//! What a front reads from the ledger: the addresses of members, the CAs, and which member is about to be stopped. Also the front's own
//! certificates. They stay in memory, are short-lived, and none is for root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use quorate_core::model::{CLIENT_PORT, Ledger, MachineSeen, MemberName};
use quorate_core::planner::Action;
use quorate_pki::{KeyAlgorithm, KeyPair, LeafWish};
use quorate_providers::Dial;

use super::clients::Issued;
use crate::clients::ClientError;
use crate::home::Home;
use crate::kinds::proxies::machines;
use crate::ledger::LedgerError;
use crate::run::error::ControlError;
use crate::run::history::{Note, notes};
use crate::run::observe::{by_name, dial};
use crate::sign::sign;

/// The front renews its certificates long before this, and one that a crash exposes is soon useless.
pub const VALIDITY: SignedDuration = SignedDuration::from_hours(24);
/// A certificate that the front acts as a user with.
pub const USER_VALIDITY: SignedDuration = SignedDuration::from_hours(1);
/// A step that never ends, because its controller was killed, keeps clients away from a member no longer than this.
pub(crate) const LONGEST_HINT: SignedDuration = SignedDuration::from_secs(60);
/// Steps during or after which a member's etcd does not serve.
const STOPPING: [&str; 10] = [
    "destroy-machine",
    "move-leader",
    "reboot-machine",
    "rebuild",
    "restart-etcd",
    "restore-data",
    "stop-etcd",
    "stop-machine",
    "take-raft-snapshot",
    "wipe-data",
];

/// A machine that may serve clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub name: String,
    pub address: SocketAddr,
    pub dial: Dial,
}

/// Every machine of a member, including those that are being replaced: the front finds out which one serves.
pub async fn places(home: &Home, ledger: &Ledger) -> Result<Vec<Place>, ClientError> {
    let provider = home.provider(ledger);
    let machines = provider.machines().await.map_err(ControlError::from)?;
    let machines = by_name(ledger, machines.found);
    let is_ours = |name: &MemberName, machine: &MachineSeen| {
        let wanted = ledger.spec.members.iter().any(|member| member.name.as_str() == name.as_str());
        machine.cluster_id == ledger.cluster_id && (wanted || ledger.etcd.formation.has_member(name))
    };
    let place = |(name, machine): (&MemberName, &MachineSeen)| {
        let dial = Some(dial(&*provider, name, machine)).filter(|dial| !matches!(dial, Dial::Line(_)));
        let address = SocketAddr::new(machine.address?, CLIENT_PORT);
        Some(Place { name: name.to_string(), address, dial: dial.unwrap_or_default() })
    };
    Ok(machines.iter().filter(|(name, machine)| is_ours(name, machine)).filter_map(place).collect())
}

/// The version of the newest ledger, without reading it.
pub fn version(home: &Home, name: &str) -> Result<Option<u64>, LedgerError> {
    home.store(name).newest()
}

/// Whether the key of the CA that signs for clients is here.
pub fn can_sign(ledger: &Ledger) -> bool {
    ledger.authorities.client.as_ref().is_some_and(|authority| authority.key.is_some())
}

/// The front's certificate for clients whose TLS ends at it.
pub fn server_certificate(ledger: &Ledger, dns: &[String], addresses: &[IpAddr]) -> Result<Issued, ClientError> {
    let wish = LeafWish { dns: dns.to_vec(), addresses: addresses.to_vec(), server: true, ..nobody(ledger) };
    signed(ledger, &LeafWish { client: false, ..wish })
}

/// The front's client certificate for members. It names no user, so it has no permissions.
pub fn nameless_certificate(ledger: &Ledger) -> Result<Issued, ClientError> {
    signed(ledger, &nobody(ledger))
}

/// The front's certificate for acting as a user who has presented a certificate.
pub fn user_certificate(ledger: &Ledger, user: &str) -> Result<Issued, ClientError> {
    if user == "root" || user.is_empty() {
        return Err(ClientError::NotAs(user.to_owned()));
    }
    let organization = ledger.spec.tls.organization.clone();
    let wish = LeafWish { common_name: user.to_owned(), organization, validity: USER_VALIDITY, ..nobody(ledger) };
    signed(ledger, &wish)
}

fn nobody(ledger: &Ledger) -> LeafWish {
    LeafWish {
        common_name: String::new(),
        organization: Some(format!("front of {}", ledger.spec.name)),
        dns: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: true,
        validity: VALIDITY,
    }
}

fn signed(ledger: &Ledger, wish: &LeafWish) -> Result<Issued, ClientError> {
    let authority = ledger.authorities.client.as_ref();
    if authority.is_none() {
        return Err(ClientError::NotThere(ledger.spec.name.to_string()));
    }
    if authority.is_some_and(|authority| authority.key.is_none()) {
        return Err(ClientError::NoAuthorityKey);
    }
    // Independent of the spec's key algorithm: an RSA key takes seconds to create.
    let key = KeyPair::generate(KeyAlgorithm::P256)?;
    let certificate = sign(authority, &key.csr(&wish.common_name)?, wish)?;
    let not_after = quorate_pki::inspect(&certificate)?.not_after;
    Ok(Issued { certificate, key: Some(key.to_pem()), not_after })
}

/// The member that a step is about to stop, and the machines whose fronts must be notified. Former ones included while they exist,
/// because clients connect through all of them.
pub(crate) fn to_be_told<'a>(ledger: &Ledger, action: &'a Action) -> Option<(&'a MemberName, Vec<MemberName>)> {
    let front = ledger.spec.etcd.front.as_ref()?;
    let member = action.member().filter(|_| STOPPING.contains(&action.kind()))?;
    let members = ledger.spec.members.iter().map(|member| MemberName::from(member.name.as_str()));
    let members = members.filter(|member| front.runs_on(member.as_str()));
    ledger.etcd.formation.has_member(member).then(|| (member, members.chain(machines(ledger)).collect()))
}

/// Follows a cluster's history for members that are about to be stopped. The controller writes each step there before it acts.
#[derive(Debug)]
pub struct Stops {
    path: PathBuf,
    read: u64,
    rest: Vec<u8>,
    /// By run and step.
    open: BTreeMap<(String, u64), (String, Timestamp)>,
}

impl Stops {
    /// Begins at the end of the file: a member that stopped long ago is found by probing it.
    pub fn new(home: &Home, name: &str) -> Self {
        let path = home.history(name);
        let read = std::fs::metadata(&path).map_or(0, |file| file.len());
        Stops { path, read, rest: Vec::new(), open: BTreeMap::new() }
    }

    /// The members that a step which has begun, and has not ended, stops.
    pub fn look(&mut self, now: Timestamp) -> io::Result<BTreeSet<String>> {
        self.read_on()?;
        self.open.retain(|_, (_, since)| now.duration_since(*since) < LONGEST_HINT);
        Ok(self.open.values().map(|(member, _)| member.clone()).collect())
    }

    fn read_on(&mut self) -> io::Result<()> {
        /// More than that at once is an old history that was imported.
        const MOST: u64 = 1 << 20;
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let length = file.metadata()?.len();
        if length == self.read {
            return Ok(());
        }
        if length < self.read || length - self.read > MOST {
            (self.read, self.rest) = (length, Vec::new());
            self.open.clear();
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        let got = file.take(length - self.read).read_to_end(&mut self.rest)?;
        self.read += got as u64;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        for note in notes(&String::from_utf8_lossy(&whole)) {
            match note {
                Note::Begins { run, step, kind, member: Some(member), at } if STOPPING.contains(&kind.as_str()) => {
                    self.open.insert((run, step), (member, at));
                }
                Note::Begins { .. } => {}
                Note::Ends { run, step } => {
                    self.open.remove(&(run, step));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_step_that_stops_a_member_is_one() {
        for kind in STOPPING {
            assert!(quorate_core::planner::Action::KINDS.contains(&kind), "{kind}");
        }
    }

    #[test]
    fn a_member_is_about_to_stop_from_the_beginning_of_the_step_to_its_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let home = Home::at(directory.path().to_owned());
        let path = home.history("c");
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        let mut file = File::create(&path).expect("a file");
        let now = Timestamp::now();
        let line = |step: u64, kind: &str| {
            format!(
                "{{\"at\":\"{now}\",\"run\":\"r\",\"step\":{step},\"event\":\"begins\",\"verb\":\"apply\",\"by\":\"me\",\"host\":\"h\",\
                 \"fence\":1,\"kind\":\"{kind}\",\"member\":\"etcd-2\",\"action\":\"a\",\"because\":\"b\"}}\n"
            )
        };
        let ended = |step: u64| format!("{{\"at\":\"{now}\",\"run\":\"r\",\"step\":{step},\"event\":\"done\"}}\n");
        file.write_all(line(1, "restart-etcd").as_bytes()).expect("a line");
        let mut stops = Stops::new(&home, "c");
        let mut say = |text: &str| {
            file.write_all(text.as_bytes()).expect("a line");
            stops.look(now).expect("a file").into_iter().collect::<Vec<_>>()
        };
        assert!(say("").is_empty(), "a step from before counts");
        assert!(say(&line(2, "push-config")).is_empty());
        let restart = line(3, "restart-etcd");
        assert!(say(&restart[..40]).is_empty());
        assert_eq!(say(&restart[40..]), ["etcd-2"]);
        assert!(say("no JSON\n").contains(&String::from("etcd-2")));
        assert!(say(&ended(3)).is_empty());
        assert_eq!(say(&line(4, "stop-machine")), ["etcd-2"]);
        assert!(stops.look(now + LONGEST_HINT).expect("a file").is_empty());
    }
}
