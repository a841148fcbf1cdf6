//! The PostgreSQL drill: which change is combined with which fault, the clusters of a cell, and its verdict.

use std::fmt;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Rehearsal;
use super::bootstrap;
use super::ground::{CLUSTER, DCS, Place};
use super::rehearsal::{Verdict, drill, judge, needs_root, run};
use crate::postgres::newer;

/// A change of a living cluster, each a row of the tables in docs/postgres.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Only the fault.
    None,
    /// The cluster is created. There are no clients before.
    Bootstrap,
    /// A parameter that needs a restart of every member.
    Parameter,
    /// A parameter that every member takes up while it serves.
    Reload,
    /// Another minor release. It is in another directory, because the drill would find it too soon in the place of the one that runs.
    MinorUpgrade,
    /// Another major version, which stops all clients for a while.
    Upgrade,
    Scale {
        from: usize,
        to: usize,
    },
    Replace(Role),
    /// The new machine gets the data of the old one.
    ReplaceKept(Role),
    /// A machine is gone permanently.
    DeadMachine(Role),
    /// A replica's disk was wiped.
    WipedDisk,
    /// A machine is shut down in order, and comes back.
    Reboot(Role),
    /// Another member becomes the primary.
    Switchover,
    /// How many standbys commits wait for.
    Synchronous {
        from: usize,
        to: usize,
    },
    /// Another lease of Patroni.
    Lease,
    /// The members' certificates get another name.
    Certificates,
    /// Of the superuser, of replication and of `pg_rewind`.
    Passwords,
    /// The one with which Patroni logs in to etcd.
    DcsPassword,
    /// The etcd cluster below gets another version.
    DcsUpgrade,
    /// One of its members goes, and another comes.
    DcsMember,
    /// It goes back to a backup from before the primary moved.
    DcsRestore,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Primary,
    Replica,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub change: Change,
    /// The scenario of `quorate drill`.
    pub fault: &'static str,
    /// Whether it is one of the fixed set.
    pub quick: bool,
}

/// A change, its faults of the fixed set, and its other ones.
type Row = (Change, &'static [&'static str], &'static [&'static str]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (Change::None, &["partition-primary", "kill-primary", "power-cut-all"], &[
        "calm", "kill-sync", "kill-replica", "kill-patroni-primary", "kill-patroni-sync", "kill-controller",
        "stop-controller", "stop-primary", "stop-patroni-primary", "stop-sync", "stop-replica", "slow-primary", "slow-sync",
        "power-cut-primary", "power-cut-sync", "power-cut-replica", "wipe-primary", "wipe-sync", "wipe-replica",
        "reboot-primary", "reboot-sync", "reboot-replica",
        "old-data-sync", "old-data-replica", "full-disk-primary", "full-disk-replica",
        "partition-sync", "partition-replica", "partition-dcs", "kill-dcs", "stop-dcs-majority",
    ]),
    (Change::Bootstrap, &["kill-controller"], &["calm", "power-cut-first", "power-cut-clone"]),
    (Change::Parameter, &["kill-controller", "power-cut-replica"], &[
        "calm", "stop-controller", "kill-primary", "kill-sync", "kill-patroni-primary", "power-cut-primary", "stop-primary",
        "reboot-sync", "partition-primary", "partition-replica", "partition-dcs",
    ]),
    (Change::Reload, &[], &["calm", "kill-controller", "power-cut-sync", "partition-replica"]),
    (Change::MinorUpgrade, &[], &["calm", "kill-controller", "power-cut-primary", "reboot-primary", "partition-sync"]),
    (Change::Upgrade, &[], &[
        "calm", "kill-controller", "kill-replica", "power-cut-replica", "power-cut-primary", "partition-replica",
    ]),
    (Change::Scale { from: 3, to: 4 }, &["kill-controller"], &[
        "calm", "kill-clone", "power-cut-clone", "kill-primary", "power-cut-primary", "partition-primary", "partition-clone",
    ]),
    (Change::Scale { from: 4, to: 3 }, &[], &[
        "calm", "kill-controller", "kill-primary", "power-cut-sync", "partition-primary",
    ]),
    (Change::Replace(Role::Primary), &[], &[
        "calm", "kill-controller", "power-cut-clone", "kill-sync", "power-cut-sync", "partition-primary",
    ]),
    (Change::Replace(Role::Replica), &[], &[
        "calm", "kill-controller", "kill-primary", "power-cut-primary", "partition-clone",
    ]),
    (Change::ReplaceKept(Role::Primary), &[], &["calm", "kill-controller", "power-cut-sync", "partition-sync"]),
    (Change::DeadMachine(Role::Primary), &[], &["calm", "kill-controller", "power-cut-sync", "partition-primary"]),
    (Change::DeadMachine(Role::Replica), &[], &["calm", "kill-controller", "power-cut-primary", "partition-primary"]),
    (Change::WipedDisk, &[], &["calm", "kill-controller", "power-cut-primary", "partition-sync"]),
    (Change::Reboot(Role::Primary), &[], &["calm", "kill-controller", "power-cut-primary", "partition-sync"]),
    (Change::Reboot(Role::Replica), &[], &["calm", "kill-controller", "power-cut-primary", "partition-primary"]),
    (Change::Switchover, &[], &["calm", "kill-controller", "kill-sync", "power-cut-primary", "partition-primary"]),
    (Change::Synchronous { from: 1, to: 2 }, &[], &["calm", "kill-controller", "power-cut-replica", "partition-primary"]),
    (Change::Synchronous { from: 2, to: 1 }, &[], &["calm", "kill-controller", "power-cut-sync", "partition-replica"]),
    (Change::Lease, &[], &["calm", "kill-controller", "kill-primary", "power-cut-primary", "partition-primary"]),
    (Change::Certificates, &[], &["calm", "kill-controller", "kill-primary", "power-cut-sync", "partition-replica"]),
    (Change::Passwords, &[], &[
        "calm", "kill-controller", "kill-primary", "power-cut-primary", "partition-sync", "partition-replica",
    ]),
    (Change::DcsPassword, &[], &["calm", "kill-controller", "power-cut-replica", "partition-primary"]),
    (Change::DcsUpgrade, &["calm"], &["kill-controller", "kill-primary", "power-cut-primary", "partition-replica"]),
    (Change::DcsMember, &[], &["calm", "kill-controller", "power-cut-sync", "partition-primary"]),
    (Change::DcsRestore, &[], &["calm", "kill-controller", "power-cut-replica", "partition-replica"]),
];

/// The longest that writes may pause, in seconds, where nothing restarts and nothing moves. Of other changes the drill itself judges how long
/// they may: it knows Patroni's times.
const UNDISTURBED: f64 = 3.0;

pub fn all() -> Vec<Cell> {
    let cells = |(change, quick, others): &Row| {
        let cell = |quick| move |fault: &&'static str| Cell { change: *change, fault, quick };
        quick.iter().map(cell(true)).chain(others.iter().map(cell(false))).collect::<Vec<Cell>>()
    };
    ROWS.iter().flat_map(cells).collect()
}

impl Rehearsal for Cell {
    fn is_quick(&self) -> bool {
        self.quick
    }

    fn rehearse(&self, place: &Place) -> Result<Verdict> {
        needs_root(self.fault)?;
        let (before, after) = self.shapes();
        place.write("c.yaml", &before.spec(place)?)?;
        if self.change == Change::Bootstrap {
            return bootstrap::rehearse(place, self.fault);
        }
        run(place, "apply", &["apply", "c.yaml", "--yes"]).context("the clusters did not come up")?;
        let during = self.during(place)?;
        place.write("c.yaml", &after.spec(place)?)?;
        let told = drill(place, self.fault, self.first(), during.as_deref())?;
        Ok(judge(&told, if self.change == Change::Reload { UNDISTURBED } else { f64::INFINITY }))
    }
}

/// What the specs of a cell's clusters say.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    /// The numbers of the members.
    members: Vec<usize>,
    version: u16,
    /// The minor release before the installed one.
    is_older: bool,
    connections: u32,
    work_mem: &'static str,
    /// How many standbys commits wait for.
    synchronous: usize,
    /// Of Patroni, in seconds.
    lease: u32,
    /// Another name in the members' certificates.
    named: bool,
    /// HAProxy on separate machines.
    proxies: bool,
    /// The numbers of the etcd cluster's members, and its minor version.
    etcds: Vec<usize>,
    minor: u32,
    namespaces: bool,
    /// Whether data outlives its machine.
    keeps_data: bool,
    /// Whether backups are taken of the etcd cluster.
    backups: bool,
}

impl Cell {
    /// Before the change, and after it.
    fn shapes(&self) -> (Shape, Shape) {
        // A majority is lost or restarted only where there are others.
        let touches_dcs = matches!(self.change, Change::DcsUpgrade | Change::DcsMember | Change::DcsRestore);
        let etcds = if self.fault.contains("dcs") || touches_dcs { vec![1, 2, 3] } else { vec![1] };
        let namespaces = self.fault.starts_with("partition-");
        let before = Shape {
            members: vec![1, 2, 3],
            version: 15,
            is_older: self.change == Change::MinorUpgrade,
            connections: 50,
            work_mem: "4MB",
            synchronous: 1,
            lease: 20,
            named: false,
            proxies: self.change == Change::Switchover,
            etcds,
            minor: 5,
            namespaces,
            keeps_data: matches!(self.change, Change::ReplaceKept(_)),
            backups: self.change == Change::DcsRestore,
        };
        let same = before.clone();
        let members = |count| (1..=count).collect();
        match self.change {
            Change::Parameter => (before, Shape { connections: 60, ..same }),
            Change::Reload => (before, Shape { work_mem: "8MB", ..same }),
            Change::Upgrade => (before, Shape { version: newer::VERSION, ..same }),
            Change::Scale { from, to } => {
                (Shape { members: members(from), ..before }, Shape { members: members(to), ..same })
            }
            Change::Synchronous { from, to } => {
                (Shape { synchronous: from, ..before }, Shape { synchronous: to, ..same })
            }
            Change::Lease => (before, Shape { lease: 25, ..same }),
            Change::Certificates => (before, Shape { named: true, ..same }),
            Change::DcsUpgrade => (before, Shape { minor: 6, ..same }),
            Change::DcsMember => (before, Shape { etcds: vec![1, 2, 4], ..same }),
            Change::MinorUpgrade => (before, Shape { is_older: false, ..same }),
            Change::None
            | Change::Bootstrap
            | Change::Replace(_)
            | Change::ReplaceKept(_)
            | Change::DeadMachine(_)
            | Change::WipedDisk
            | Change::Reboot(_)
            | Change::Switchover
            | Change::Passwords
            | Change::DcsPassword
            | Change::DcsRestore => (before, same),
        }
    }

    /// What happens to the cluster before the change begins, with the clients at work already.
    fn first(&self) -> Option<&'static str> {
        match self.change {
            Change::DeadMachine(Role::Primary) => Some("lose-primary"),
            Change::DeadMachine(Role::Replica) => Some("lose-replica"),
            Change::WipedDisk => Some("wipe-replica"),
            Change::Reboot(Role::Primary) => Some("reboot-primary"),
            Change::Reboot(Role::Replica) => Some("reboot-replica"),
            _ => None,
        }
    }

    /// The command that makes the change.
    fn during(&self, place: &Place) -> Result<Option<String>> {
        Ok(match self.change {
            Change::None | Change::Bootstrap => None,
            Change::Replace(role) | Change::ReplaceKept(role) => {
                Some(format!("replace {CLUSTER} {} --yes", member(place, role)?))
            }
            Change::DeadMachine(_) => Some(String::from("apply c.yaml --now --yes")),
            Change::Switchover => Some(format!("switchover {CLUSTER} --yes")),
            Change::Passwords => Some(format!("passwords rotate {CLUSTER} --yes")),
            Change::DcsPassword => Some(format!("passwords rotate {CLUSTER} --dcs --yes")),
            Change::DcsRestore => Some(format!("restore {DCS} --yes")),
            Change::Upgrade => Some(String::from("apply c.yaml --allow-downtime --yes")),
            Change::Parameter
            | Change::Reload
            | Change::MinorUpgrade
            | Change::Scale { .. }
            | Change::WipedDisk
            | Change::Reboot(_)
            | Change::Synchronous { .. }
            | Change::Lease
            | Change::Certificates
            | Change::DcsUpgrade
            | Change::DcsMember => Some(String::from("apply c.yaml --yes")),
        })
    }
}

impl Shape {
    fn spec(&self, place: &Place) -> Result<String> {
        let Shape { members, version, connections, work_mem, synchronous, lease, etcds, minor, .. } = self;
        let members: Vec<String> = members.iter().map(|number| format!("{{name: pg-{number}}}")).collect();
        let etcds: Vec<String> = etcds.iter().map(|number| format!("{{name: etcd-{number}}}")).collect();
        let (etcd, programs) = place.etcd(*minor)?;
        let network = if self.namespaces { "netns" } else { "loopback" };
        let names = if self.named { "    tls: {extra_sans: [db.example.org]}\n" } else { "" };
        let machines = if self.proxies { "machines: [{name: proxy-1}, {name: proxy-2}], " } else { "" };
        let older = match self.is_older {
            true => format!("      programs: {}\n", place.older_postgres().display()),
            false => String::new(),
        };
        let backup = match self.backups {
            true => format!("    backup: {{to: {{directory: {}}}}}\n", place.backups().display()),
            false => String::new(),
        };
        // Patroni looks every second and its lease is as short as it takes, so nothing waits longer than it must.
        Ok(format!(
            "quorate: 1\nclusters:\n  - name: {CLUSTER}\n    members: [{}]\n    provider: {{local: {{network: {network}, keep_data: {}}}}}\n\
             {names}    postgres:\n      version: {version}\n{older}      dcs: {{cluster: {DCS}}}\n      \
             parameters: {{max_connections: {connections}, work_mem: {work_mem}}}\n      synchronous: {{nodes: {synchronous}}}\n      \
             haproxy: {{{machines}check_every: 500ms}}\n      patroni: {{ttl: {lease}s, loop_wait: 1s, retry_timeout: 5s}}\n  \
             - name: {DCS}\n    members: [{}]\n    provider: {{local: {{network: {network}}}}}\n{backup}    etcd:\n      \
             version: {etcd}\n      binary: {{path: {}}}\n      client_auth: password\n      grpc_gateway: true\n      \
             flags: {{bcrypt-cost: 4}}\n",
            members.join(", "),
            self.keeps_data,
            etcds.join(", "),
            programs.display()
        ))
    }
}

/// A member with this role.
fn member(place: &Place, role: Role) -> Result<String> {
    let told = run(place, "status", &["status", CLUSTER, "--output", "json"])?;
    let status: Value = serde_json::from_str(&told).context("`quorate status` printed no JSON")?;
    let wanted = match role {
        Role::Primary => "primary",
        Role::Replica => "replica",
    };
    let members = status["members"].as_array().into_iter().flatten();
    let mut fitting = members.filter(|member| member["role"] == wanted).filter_map(|member| member["member"].as_str());
    fitting.next().map(str::to_owned).with_context(|| format!("no {role} in {told}"))
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.change, self.fault)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::None => write!(f, "none"),
            Change::Bootstrap => write!(f, "bootstrap"),
            Change::Parameter => write!(f, "parameter"),
            Change::Reload => write!(f, "reload"),
            Change::MinorUpgrade => write!(f, "minor-upgrade"),
            Change::Upgrade => write!(f, "upgrade"),
            Change::Scale { from, to } => write!(f, "scale-{from}-{to}"),
            Change::Replace(role) => write!(f, "replace-{role}"),
            Change::ReplaceKept(role) => write!(f, "replace-kept-{role}"),
            Change::DeadMachine(role) => write!(f, "dead-{role}"),
            Change::WipedDisk => write!(f, "wiped-disk"),
            Change::Reboot(role) => write!(f, "reboot-{role}"),
            Change::Switchover => write!(f, "switchover"),
            Change::Synchronous { from, to } => write!(f, "synchronous-{from}-{to}"),
            Change::Lease => write!(f, "lease"),
            Change::Certificates => write!(f, "certificates"),
            Change::Passwords => write!(f, "passwords"),
            Change::DcsPassword => write!(f, "etcd-password"),
            Change::DcsUpgrade => write!(f, "etcd-upgrade"),
            Change::DcsMember => write!(f, "etcd-member"),
            Change::DcsRestore => write!(f, "etcd-restore"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_change_meets_calm_and_a_killed_controller() {
        for (change, quick, others) in ROWS {
            let all: Vec<&str> = quick.iter().chain(*others).copied().collect();
            assert!(all.contains(&"calm") && all.contains(&"kill-controller"), "{change}");
        }
    }

    #[test]
    fn every_change_of_a_living_cluster_meets_a_power_cut_and_a_partition() {
        for (change, quick, others) in ROWS.iter().filter(|(change, ..)| *change != Change::Bootstrap) {
            for fault in ["power-cut-", "partition-"] {
                assert!(quick.iter().chain(*others).any(|name| name.starts_with(fault)), "{change}: no {fault}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<String> = all().iter().map(Rehearsal::file_name).collect();
        assert_eq!(names.len(), all().len());
    }

    #[test]
    fn a_clone_is_struck_only_where_one_is_made() {
        let clones = |change| matches!(change, Change::Bootstrap | Change::Scale { .. } | Change::Replace(_));
        assert!(all().iter().filter(|cell| cell.fault.ends_with("clone")).all(|cell| clones(cell.change)));
    }

    #[test]
    fn a_change_changes_what_it_says_and_nothing_else() {
        let of = |change, fault| Cell { change, fault, quick: false }.shapes();
        let (before, after) = of(Change::Parameter, "calm");
        assert_eq!(after, Shape { connections: 60, ..before });
        let (before, after) = of(Change::Upgrade, "calm");
        assert!(before.version < after.version);
        let (before, after) = of(Change::Scale { from: 4, to: 3 }, "calm");
        assert_eq!((before.members.len(), after.members.len()), (4, 3));
        let (before, after) = of(Change::Reload, "calm");
        assert_eq!(after, Shape { work_mem: "8MB", ..before });
        let (before, after) = of(Change::Synchronous { from: 2, to: 1 }, "calm");
        assert_eq!((before.synchronous, after), (2, Shape { synchronous: 1, ..before.clone() }));
        let (before, after) = of(Change::DcsUpgrade, "calm");
        assert_eq!((before.etcds.len(), before.minor, after.minor), (3, 5, 6));
    }
}
