//! Events of a story: what happened to one member, or what was found there.

use jiff::SignedDuration;
use quorate_core::kinds::etcd::{AlarmSeen, LogEnd, OldEntries, OlderData};
use quorate_core::model::{
    AgentSeen, BinarySeen, Busy, CertificateUse, ConfigAttempt, DataSeen, EDITED, Enrolment, Exit, FailedUpgrade,
    MachineSeen, MemberName, PowerState, Program, ProgramSeen, RebootOrder, RebootSeen, Seen, ServiceState, Stamp,
};
use quorate_core::planner::safety;
use quorate_core::spec::Size;

use crate::scene::{self, Scene};

/// One line of a story about one member.
pub(super) fn happen(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    match words {
        ["reboot", ..] => reboot(scene, member, &words[1..]),
        ["machine", ..] => machine(scene, member, &words[1..]),
        ["agent", ..] | ["unseen", ..] | ["token", ..] => agent(scene, member, words),
        ["certificate", ..] => certificate(scene, member, &words[1..]),
        ["snapshot", "lost"] => scene.facts_mut(member).etcd.staged = None,
        ["data", "older"] => {
            let etcd = &mut scene.facts_mut(member).etcd;
            etcd.older = Some(OlderData { holds: 90, acknowledged: 120, told_by: String::from("https://leader:2379") });
            (etcd.service, etcd.status) = (ServiceState::Stopped, None);
        }
        ["log", "ends", "at", "term", term, "index", index] => {
            let number = |text: &str| text.parse().expect("a number");
            let log = LogEnd { term: number(term), index: number(index), commit: number(index) - 1 };
            let etcd = &mut scene.facts_mut(member).etcd;
            (etcd.log, etcd.service, etcd.status) = (Some(log), ServiceState::Stopped, None);
        }
        ["log", "not", "read", "yet"] => scene.facts_mut(member).etcd.old_entries = OldEntries::Unknown,
        ["log", "has", "old", "entries", "until", index, "and", "a", "snapshot", "of", snapshot, then @ ..] => {
            let number = |text: &str| text.parse().expect("a number");
            let (index, snapshot, due) = (number(index), number(snapshot), then == ["with", "another", "due"]);
            scene.facts_mut(member).etcd.old_entries = OldEntries::Until { index, snapshot, due };
        }
        ["log", "damaged"] => {
            let etcd = &mut scene.facts_mut(member).etcd;
            etcd.log_damage = Some(String::from("a checksum does not fit"));
            (etcd.service, etcd.status) = (ServiceState::Stopped, None);
        }
        ["disk", "lost"] => {
            let etcd = &mut scene.facts_mut(member).etcd;
            etcd.data = DataSeen::Empty;
            etcd.service = ServiceState::Stopped;
            etcd.status = None;
            etcd.peer_serving = false;
        }
        ["data", ..] => data(scene, member, &words[1..]),
        ["etcd", ..] => etcd(scene, member, &words[1..]),
        ["leads"] => lead(scene, member),
        ["reports", "no", "boot"] => scene.facts_mut(member).host.boot = None,
        ["binary", "missing"] => {
            scene.facts_mut(member).etcd.binary = BinarySeen::Missing { why: String::from("no etcd on PATH") };
        }
        ["has", "no", "program", "for", "its", "config"] => {
            let digest = scene.desired().members[member].digest.clone();
            let etcd = &mut scene.facts_mut(member).etcd;
            etcd.attempt = ConfigAttempt::WithoutProgram { digest, seen: etcd.binary.clone() };
        }
        ["has", "no", "room:", why @ ..] => drop(scene.no_room.insert(member.clone(), why.join(" "))),
        ["is", "not", "ready"] => scene.not_ready(member),
        ["database", "has", size] => {
            let size: Size = size.parse().expect("a size");
            scene.facts_mut(member).etcd.status.as_mut().expect("etcd answers").db_size = size.0;
        }
        ["is", "full"] => {
            let status = scene.facts_mut(member).etcd.status.as_mut().expect("etcd answers");
            status.alarms.push(AlarmSeen { member_id: status.member_id, kind: String::from("NOSPACE") });
        }
        ["binary", version] => scene.facts_mut(member).etcd.binary = BinarySeen::Version((*version).to_owned()),
        _ => panic!("{member} does not know: {words:?}"),
    }
}

/// What became of an order to reboot.
fn reboot(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    let (now, fence) = (scene.seen.now, scene.ledger.fence);
    let boot = scene.facts_mut(member).host.boot.clone().expect("a boot");
    let accepted = |accepted| Some(RebootOrder { boot: boot.clone(), at: now, accepted });
    let ordered = match words {
        ["order", "lost"] => accepted(None),
        ["ordered"] => accepted(Some(fence)),
        ["upgrading", "for", seconds] => {
            let seconds = seconds.parse().expect("a number of seconds");
            scene.facts_mut(member).reboot = Some(RebootSeen::UpgradingPackages { seconds });
            accepted(Some(fence))
        }
        ["failed:", ..] => {
            scene.facts_mut(member).reboot = Some(RebootSeen::Failed { why: words[1..].join(" ") });
            accepted(Some(fence))
        }
        ["came", ..] => {
            let ordered = accepted(Some(fence));
            scene.facts_mut(member).host.boot = Some(String::from("another"));
            ordered
        }
        _ => panic!("the reboot of {member} does not know: {words:?}"),
    };
    let record = scene.ledger.members.get_mut(member).expect("a member");
    if let Some(reboot) = &mut record.reboot {
        reboot.ordered = ordered;
    }
}

fn machine(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    let Seen::At(_, machines) = &mut scene.seen.machines else { panic!("the provider is away") };
    match words {
        ["gone"] => {
            machines.remove(member);
            scene.seen.agents.remove(member);
        }
        ["off"] => {
            machines.get_mut(member).expect("a machine").power = PowerState::Off;
            scene.hide(member, "its machine is off");
        }
        ["starting"] => {
            machines.get_mut(member).expect("a machine").power = PowerState::Starting;
            scene.hide(member, "its machine is starting");
        }
        ["stopping"] => {
            machines.get_mut(member).expect("a machine").power = PowerState::Stopping;
            scene.hide(member, "its machine is off");
        }
        ["out", "of", "reach"] => {
            machines.get_mut(member).expect("a machine").power = PowerState::Unknown;
            scene.hide(member, "libvirt at qemu+ssh://b/system cannot be reached: no route to host");
        }
        ["without", "address"] => {
            machines.get_mut(member).expect("a machine").address = None;
            scene.hide(member, "its machine has no address yet");
        }
        ["headless"] => {
            let machine = machines.get_mut(member).expect("a machine");
            (machine.power, machine.headless) = (PowerState::Off, true);
            scene.hide(member, "its machine is off");
        }
        ["comes", "back"] => {
            let successor = machines.get(&MemberName::from(member.seat())).expect("a machine").clone();
            let incarnation = successor.incarnation - 1;
            machines.insert(member.clone(), MachineSeen { incarnation, ..successor });
            scene.hide(member, "no answer within 1 s");
        }
        ["outdated"] => machines.get_mut(member).expect("a machine").outdated = true,
        ["replaced"] => {
            let facts = scene.facts_mut(member);
            facts.machine_id = String::from("another");
            facts.etcd.data = DataSeen::Empty;
            facts.etcd.last_started = None;
            facts.etcd.service = ServiceState::Stopped;
            facts.etcd.status = None;
        }
        ["at", address] => {
            machines.get_mut(member).expect("a machine").address = Some(address.parse().expect("an address"));
        }
        ["of", "cluster", other] => machines.get_mut(member).expect("a machine").cluster_id = (*other).to_owned(),
        _ => panic!("the machine of {member} does not know: {words:?}"),
    }
}

fn agent(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    match words {
        ["unseen"] => scene.hide(member, "no answer within 1 s"),
        ["unseen", "for", seconds] => {
            let seconds = seconds.parse().expect("a number of seconds");
            let record = scene.ledger.members.get_mut(member).expect("a member that the ledger knows");
            record.unseen_since = Some(scene.seen.now - SignedDuration::from_secs(seconds));
            record.unseen_at = Some(scene.seen.now);
            if scene.seen.agents.contains_key(member) {
                scene.hide(member, "no answer within 1 s");
            }
        }
        ["agent", "reaches", other] => {
            let address =
                scene.seen.machines.get().expect("a provider")[&MemberName::from(*other)].address.expect("an address");
            scene.facts_mut(member).reaches.insert(address, true);
        }
        ["agent", "is", "an", "older", "program"] => {
            drop(scene.facts_mut(member).requests.remove(&CertificateUse::Peer));
        }
        ["agent", "runs", "quorate", version, "with", "protocol", protocol] => {
            let runs = Program { protocol: protocol.parse().expect("a number"), version: (*version).to_owned() };
            let (program, understood) = (ProgramSeen { runs, failed: None }, Program::this());
            if understood.understands(&program.runs) {
                scene.facts_mut(member).program = program;
            } else {
                scene.seen.agents.insert(member.clone(), Seen::At(scene.seen.now, AgentSeen::OtherProtocol(program)));
            }
        }
        ["agent", "does", "not", "take", "the", "program"] => {
            let why = String::from("the new program did not answer within 45 s");
            scene.not_upgraded.insert(member.clone(), why);
        }
        ["agent", "gave", "up", "the", "upgrade"] => {
            let (to, why) = (Program::this().clone(), String::from("it ended (exit status: 7)"));
            scene.facts_mut(member).program.failed = Some(FailedUpgrade { to, why });
        }
        ["agent", "does", "not", "say", "whom", "it", "reaches"] => drop(scene.mute.insert(member.clone())),
        ["agent", "carries", "out", order] => {
            let fence = scene.facts_mut(member).fence;
            scene.facts_mut(member).busy = Some(Busy { order: order.replace('-', " "), fence });
        }
        ["agent", "remembers", "fence", fence] => scene.facts_mut(member).fence = fence.parse().expect("a number"),
        ["agent", "remembers", "generation", generation] => {
            let generation = generation.parse().expect("a number");
            scene.facts_mut(member).node_config = Some((generation, String::from("other content")));
        }
        ["agent", "reports", what, number] => {
            let (number, mut facts) = (number.parse().expect("a number"), scene.facts_mut(member).clone());
            let status = facts.etcd.status.as_mut();
            match *what {
                "fence" => facts.fence = number,
                "revision" => status.expect("a status").revision = number,
                "index" => status.expect("a status").raft_index = number,
                "generation" => facts.node_config = Some((number, String::from("other content"))),
                _ => panic!("an agent does not report its {what}"),
            }
            let believed = safety::believe(&scene.ledger, member, Box::new(facts));
            scene.seen.agents.insert(member.clone(), Seen::At(scene.seen.now, believed));
        }
        ["agent", "has", "another", "key"] => {
            let stranger = AgentSeen::Unenrolled { public_key: String::from("another key") };
            scene.seen.agents.insert(member.clone(), Seen::At(scene.seen.now, stranger));
        }
        ["token", "expired"] => token(scene, member).expires = scene.seen.now,
        ["token", "ends", "in", minutes, "minutes"] => {
            let left = SignedDuration::from_mins(minutes.parse().expect("a number"));
            token(scene, member).expires = scene.seen.now + left;
        }
        _ => panic!("the agent of {member} does not know: {words:?}"),
    }
}

fn token<'a>(scene: &'a mut Scene, member: &MemberName) -> &'a mut Enrolment {
    scene.ledger.members.get_mut(member).and_then(|m| m.enrolment.as_mut()).expect("an enrolment")
}

fn certificate(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    let now = scene.seen.now;
    let (of, words) = match words {
        ["for", "peers", rest @ ..] => (CertificateUse::Peer, rest),
        ["for", "health", rest @ ..] => (CertificateUse::Health, rest),
        all => (CertificateUse::Member, all),
    };
    let certificates = &mut scene.facts_mut(member).certificates;
    let certificate = certificates.get_mut(&of).expect("a certificate");
    match words {
        ["has", days, "days", "left"] => {
            certificate.not_after =
                now + SignedDuration::from_hours(24 * days.parse::<i64>().expect("a number of days"));
        }
        ["is", "from", "another", "CA"] => certificate.authority_key_id = Some(String::from("another")),
        ["lacks", san] => assert!(certificate.sans.remove(*san), "it has {:?}", certificate.sans),
        ["also", "holds", san] => assert!(certificate.sans.insert((*san).to_owned()), "it has {:?}", certificate.sans),
        _ => panic!("the certificate of {member} does not know: {words:?}"),
    }
}

fn data(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    let stamp = |cluster: &str, token: &str| Stamp {
        cluster_id: cluster.to_owned(),
        token: token.to_owned(),
        member: member.clone(),
        incarnation: 1,
    };
    let data = match words {
        ["unstamped"] => DataSeen::Unstamped,
        ["deleted"] => DataSeen::Empty,
        ["of", "cluster", cluster] => DataSeen::Stamped(stamp(cluster, "etcd-cluster-z")),
        ["of", "formation", token] => DataSeen::Stamped(stamp(scene::CLUSTER_ID, token)),
        _ => panic!("the data of {member} does not know: {words:?}"),
    };
    scene.facts_mut(member).etcd.data = data;
}

fn etcd(scene: &mut Scene, member: &MemberName, words: &[&str]) {
    let at = scene.seen.now;
    let etcd = &mut scene.facts_mut(member).etcd;
    match words {
        ["stopped"] => {
            etcd.service = ServiceState::Stopped;
            etcd.status = None;
        }
        ["unknown"] => {
            etcd.service = ServiceState::Unknown { why: String::from("systemd does not answer") };
            etcd.status = None;
        }
        ["still", "goes", "down", "to", version] => {
            etcd.status.as_mut().expect("a status").downgrade_target = Some((*version).to_owned());
        }
        ["unhealthy"] => {
            let status = etcd.status.as_mut().expect("a status");
            status.healthy = false;
            status.leader = 0;
        }
        ["crashing"] => {
            let last_words = String::from("panic: disk full");
            let last_exit = Exit { at, how: String::from("exit code 2"), last_words };
            etcd.service = ServiceState::BackingOff { restarts: 3, last_exit };
            etcd.status = None;
        }
        ["at", "revision", revision] => {
            etcd.status.as_mut().expect("a status").revision = revision.parse().expect("a number");
        }
        ["does", "not", "answer"] => etcd.status = None,
        ["hangs"] => (etcd.status, etcd.peer_serving) = (None, false),
        ["says", "nothing", "of", "its", "format"] => {
            etcd.status.as_mut().expect("a status").storage_version = None;
        }
        ["calls", "its", "version", version] => {
            etcd.status.as_mut().expect("a status").version = (*version).to_owned();
        }
        ["has", "an", "edited", "manifest"] => {
            let ServiceState::Running { digest, .. } = &mut etcd.service else { panic!("it does not run") };
            *digest = EDITED.to_owned();
        }
        ["of", "another", "cluster"] => etcd.status.as_mut().expect("a status").cluster_id = 0xbad,
        ["not", "yet", "serving"] => {
            etcd.peer_serving = false;
            etcd.status = None;
        }
        _ => panic!("etcd on {member} does not know: {words:?}"),
    }
}

fn lead(scene: &mut Scene, leader: &MemberName) {
    let id = scene.facts_mut(leader).etcd.status.as_ref().expect("a status").member_id;
    for member in scene.spec.members.clone() {
        scene.facts_mut(&member.name.as_str().into()).etcd.status.as_mut().expect("a status").leader = id;
    }
}
