//! The machines of a local cluster as faults see them: directories, processes and addresses. Only a drill accesses machines from
//! outside like this; everything else uses agents.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_agent::process::{self, Process};
use quorate_control::home::Home;
use quorate_core::model::{CLIENT_PORT, MemberName, Stamp, https_url};
use quorate_core::spec::Kind;
use quorate_providers::mark::{self, Mark};
use rustix::process::Signal;

/// How long killed processes may take to be gone.
const DEATH: Duration = Duration::from_secs(10);
/// What file systems set aside at least.
const BLOCK: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    pub kind: Kind,
    pub member: MemberName,
    /// Distinguishes it from its successor, which is of the same member.
    pub incarnation: u64,
    pub address: IpAddr,
    directory: PathBuf,
}

/// A machine that vanishes meanwhile is not there.
fn marked(home: &Home, cluster: &str) -> Vec<(PathBuf, Mark)> {
    mark::marked(&home.machines(), cluster).unwrap_or_default()
}

/// The newest machine of every member, in the order of their names.
pub fn machines(home: &Home, cluster: &str, kind: Kind) -> Vec<Machine> {
    let mut found = every_machine(home, cluster, kind);
    found.dedup_by(|later, kept| later.member == kept.member);
    found
}

/// Former machines too, which may lead and vote until they are removed; those of one member from the newest on.
pub fn every_machine(home: &Home, cluster: &str, kind: Kind) -> Vec<Machine> {
    let machine = |(directory, Mark { member, incarnation, address, .. })| Machine {
        kind,
        member,
        incarnation,
        address,
        directory,
    };
    let mut found: Vec<Machine> = marked(home, cluster).into_iter().map(machine).collect();
    found.sort_by(|a, b| (&a.member, b.incarnation).cmp(&(&b.member, a.incarnation)));
    found
}

impl Machine {
    /// The name that no other machine has, whether it has a successor or not.
    pub fn exact_name(&self) -> MemberName {
        self.member.former(self.incarnation)
    }

    pub fn endpoint(&self) -> String {
        https_url(self.address, CLIENT_PORT)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What would be the machine's disk for data.
    pub fn disk(&self) -> PathBuf {
        mark::data_directory(&self.directory)
    }

    /// All that belongs to the data of etcd or PostgreSQL.
    pub fn data(&self) -> PathBuf {
        self.disk().join(match self.kind {
            Kind::Etcd => "etcd",
            Kind::Postgres => "postgresql",
        })
    }

    /// What serves clients on it.
    pub fn program(&self) -> &'static str {
        match self.kind {
            Kind::Etcd => "etcd",
            Kind::Postgres => "PostgreSQL",
        }
    }

    fn stamp_file(&self) -> PathBuf {
        match self.kind {
            Kind::Etcd => self.disk().join("etcd.stamp"),
            Kind::Postgres => self.data().join("data.stamp"),
        }
    }

    /// Which formation its data belongs to.
    pub fn stamp(&self) -> Option<Stamp> {
        serde_json::from_slice(&fs::read(self.stamp_file()).ok()?).ok()
    }

    fn processes(&self) -> Vec<Process> {
        mark::processes_of(&self.directory)
    }

    /// Every process but the agent's: etcd, or Patroni and all of PostgreSQL. PostgreSQL's own children write what they do over their
    /// environment, so they are known by their parent.
    pub fn service(&self) -> Vec<Process> {
        let mut found: Vec<Process> = self.processes().into_iter().filter(|p| !p.is_called_with("agent")).collect();
        if self.kind == Kind::Etcd {
            return found;
        }
        let parents: Vec<(u32, u32)> = process::pids().filter_map(|pid| Some((pid, parent(pid)?))).collect();
        let mut at = 0;
        while let Some(known) = found.get(at).copied() {
            let children =
                parents.iter().filter(|(_, parent)| *parent == known.pid).filter_map(|(pid, _)| Process::of(*pid));
            let new: Vec<Process> = children.filter(|child| !found.contains(child)).collect();
            found.extend(new);
            at += 1;
        }
        found
    }

    /// The process that serves clients, if it runs: etcd, or the first of PostgreSQL's.
    pub fn server(&self) -> Option<Process> {
        match self.kind {
            Kind::Etcd => self.service().into_iter().next(),
            Kind::Postgres => {
                let noted = fs::read_to_string(self.data().join("data/postmaster.pid")).ok()?;
                let pid: u32 = noted.lines().next()?.trim().parse().ok()?;
                self.service().into_iter().find(|process| process.pid == pid)
            }
        }
    }

    /// The process of Patroni, if it runs.
    pub fn patroni(&self) -> Option<Process> {
        let is_patroni = |process: &Process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.any(|word| Path::new(&*String::from_utf8_lossy(word)).file_name().is_some_and(|n| n == "patroni"))
        };
        self.service().into_iter().find(is_patroni)
    }

    /// Ends everything on the machine at once, like a power failure. The agent first, because it would restart the rest.
    pub fn cut_power(&self) -> io::Result<()> {
        let deadline = Instant::now() + DEATH;
        loop {
            let (agents, rest): (Vec<_>, Vec<_>) =
                self.processes().into_iter().partition(|p| p.is_called_with("agent"));
            if agents.is_empty() && rest.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("its processes do not end"));
            }
            agents.into_iter().chain(rest).for_each(|p| p.signal(Signal::KILL));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends its agent, and nothing else.
    pub fn end_agent(&self) {
        self.processes().into_iter().filter(|p| p.is_called_with("agent")).for_each(|p| p.signal(Signal::KILL));
    }

    /// Removes all that the machine was.
    pub fn lose(&self) -> io::Result<()> {
        self.cut_power()?;
        fs::remove_dir_all(&self.directory)
    }

    /// Removes the data and the stamp that says whose it was.
    pub fn wipe(&self) -> io::Result<()> {
        fs::remove_dir_all(self.data())?;
        match fs::remove_file(self.stamp_file()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// `PID (NAME) STATE PARENT …`, where the name may hold anything.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Copies a directory with all that is in it. Links, modes and holes are kept, and no room is set aside in advance: etcd makes its
/// files larger than what it has written. Sockets are left out: a process that starts makes its own.
pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
        } else if !kind.is_socket() {
            copy_file(&entry.path(), &target)?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let target = File::create(to)?;
    target.set_permissions(source.metadata()?.permissions())?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            return target.set_len(at);
        }
        for block in buffer[..read].chunks(BLOCK) {
            if block.iter().any(|byte| *byte != 0) {
                target.write_all_at(block, at)?;
            }
            at += block.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(home: &Home, directory: &str, member: &str, incarnation: u64, address: &str) {
        let directory = home.machines().join("demo").join(directory);
        fs::create_dir_all(&directory).unwrap();
        let mark = format!(
            r#"{{"cluster":"demo","cluster_id":"1","member":"{member}","incarnation":{incarnation},"address":"{address}"}}"#
        );
        fs::write(directory.join("machine.json"), mark).unwrap();
    }

    #[test]
    fn the_newest_machine_of_each_member_counts_and_drafts_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        assert_eq!(machines(&home, "demo", Kind::Etcd), []);
        mark(&home, "etcd-2", "etcd-2", 1, "127.0.0.2");
        mark(&home, "etcd-1", "etcd-1", 1, "127.0.0.1");
        mark(&home, "etcd-2.2", "etcd-2", 2, "127.0.0.22");
        mark(&home, ".3.new", "etcd-3", 1, "127.0.0.3");
        let endpoints: Vec<String> = machines(&home, "demo", Kind::Etcd).iter().map(Machine::endpoint).collect();
        assert_eq!(endpoints, ["https://127.0.0.1:2379", "https://127.0.0.22:2379"]);
    }

    #[test]
    fn a_machine_and_its_successor_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        mark(&home, "etcd-2", "etcd-2", 1, "127.0.0.2");
        let struck = machines(&home, "demo", Kind::Etcd).remove(0);
        // Also where the successor has its address, as a pinned one does.
        mark(&home, "etcd-2.2", "etcd-2", 2, "127.0.0.2");
        let successor = machines(&home, "demo", Kind::Etcd).remove(0);
        assert_ne!(struck, successor);
        assert_eq!(every_machine(&home, "demo", Kind::Etcd), [successor.clone(), struck.clone()]);
        let names = [&struck, &successor].map(|machine| machine.exact_name().to_string());
        assert_eq!(names, ["etcd-2.1", "etcd-2.2"]);
    }

    #[test]
    fn the_parent_of_a_process_is_known() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        assert_eq!(parent(child.id()), Some(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_tree_is_copied_with_all_that_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b"));
        fs::create_dir_all(from.join("member/wal")).unwrap();
        let mut log = vec![0; 3 * BLOCK + 7];
        log[BLOCK] = 1;
        log[3 * BLOCK + 6] = 2;
        fs::write(from.join("member/wal/0.wal"), &log).unwrap();
        std::os::unix::fs::symlink("member", from.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read(to.join("link/wal/0.wal")).unwrap(), log);
        assert!(!to.join("socket").exists());
    }
}
