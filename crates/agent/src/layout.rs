//! Paths below the agent's root: `/` on a machine, a directory under the local provider.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use quorate_core::model::{ADDRESS, ROOT};
use quorate_pki::Sha256;

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        Ok(Layout { root: std::path::absolute(root)? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The agent's state: private.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/quorate")
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.state_dir().join("state.json")
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.root.join(crate::LOCK_FILE)
    }

    /// The process of a service.
    pub(crate) fn process_file(&self, service: &str) -> PathBuf {
        self.state_dir().join(format!("{service}.process.json"))
    }

    /// The source and login of the log forwarding configuration; present while one is followed.
    pub(crate) fn log_source(&self) -> PathBuf {
        self.state_dir().join("log-source.json")
    }

    /// Why that cannot be followed now. It does not survive a reboot.
    pub(crate) fn log_source_trouble(&self) -> PathBuf {
        self.root.join("run/quorate/log-source-trouble")
    }

    /// A link to the set of certificates in use.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.root.join("etc/etcd/pki")
    }

    /// The mount point of a separate disk for etcd's data. It exists only on machines with one.
    pub(crate) fn data_disk(&self) -> PathBuf {
        self.root.join("var/lib/etcd.disk")
    }

    /// All that belongs to etcd's data is on one file system, so that it can be renamed into place, and goes with the disk.
    fn data_home(&self) -> PathBuf {
        let disk = self.data_disk();
        if disk.is_dir() { disk } else { self.root.join("var/lib") }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.data_home().join("etcd")
    }

    /// Leftovers of an interrupted first start, put aside before the next.
    pub(crate) fn remnant(&self) -> PathBuf {
        self.data_home().join("etcd.remnant")
    }

    /// The directory where the data of a new bootstrap is created.
    pub(crate) fn renewal(&self) -> PathBuf {
        self.data_home().join("etcd.renewal")
    }

    /// Where the snapshot for a restore is stored: next to the data, so there is room for both or neither.
    pub(crate) fn staged(&self) -> PathBuf {
        self.data_home().join("etcd.staged")
    }

    /// The data from before the bootstrap with this token. A token is free text, so the name is a digest of it: never a
    /// path, and never too long for one.
    pub(crate) fn before(&self, token: &str) -> PathBuf {
        let digest = quorate_core::text::hex(&Sha256::digest(token)[..8]);
        self.data_home().join(format!("etcd.before-{digest}"))
    }

    pub(crate) fn stamp(&self) -> PathBuf {
        self.data_home().join("etcd.stamp")
    }

    pub(crate) fn service_log(&self, name: &str) -> PathBuf {
        self.root.join(format!("var/log/{name}.log"))
    }

    /// The directory for services without a kind's data.
    pub(crate) fn service_data(&self, name: &str) -> PathBuf {
        self.root.join(format!("var/lib/quorate-{name}"))
    }

    /// The agent's own output goes where its parent process sends it.
    pub(crate) fn agent_log(&self) -> PathBuf {
        let stderr = std::fs::canonicalize("/proc/self/fd/2").ok().filter(|path| path.is_file());
        stderr.unwrap_or_else(|| self.service_log("agent"))
    }

    pub(crate) fn programs(&self) -> PathBuf {
        self.root.join("opt/etcd")
    }

    /// A flag of the configuration, completed for this machine.
    pub(crate) fn fill_in(&self, flag: &str, address: IpAddr) -> String {
        let root = self.root.to_string_lossy();
        let address = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        flag.replace(ROOT, root.trim_end_matches('/')).replace(ADDRESS, &address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_machine_vanishes_from_paths() {
        let machine = Layout::new(Path::new("/")).unwrap();
        let v4 = "10.0.0.1".parse().unwrap();
        assert_eq!(machine.fill_in("{root}/etc/etcd/pki/ca.crt", v4), "/etc/etcd/pki/ca.crt");
        let local = Layout::new(Path::new("/tmp/m1/")).unwrap();
        assert_eq!(local.fill_in("{root}/etc,{root}/var", v4), "/tmp/m1/etc,/tmp/m1/var");
    }

    #[test]
    fn with_a_separate_disk_everything_of_the_data_is_stored_on_it() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path()).unwrap();
        assert_eq!(layout.data(), root.path().join("var/lib/etcd"));
        std::fs::create_dir_all(layout.data_disk()).unwrap();
        for path in [layout.data(), layout.stamp(), layout.staged(), layout.renewal(), layout.before("t")] {
            assert!(path.starts_with(root.path().join("var/lib/etcd.disk")), "{}", path.display());
        }
        assert_eq!(layout.state_file(), root.path().join("var/lib/quorate/state.json"));
    }

    #[test]
    fn no_token_leads_a_name_astray() {
        let layout = Layout::new(Path::new("/")).unwrap();
        for token in ["etcd-cluster-0123", "team/orders-0123", "../../etc", &"x".repeat(300), "a\0b", ""] {
            let before = layout.before(token);
            assert_eq!(before.parent(), Some(Path::new("/var/lib")), "{token:?}");
            assert!(before.file_name().unwrap().len() < 64, "{token:?}");
        }
        assert_ne!(layout.before("one"), layout.before("two"));
    }

    #[test]
    fn the_address_stands_in_urls() {
        let machine = Layout::new(Path::new("/")).unwrap();
        let fill_in = |address: &str| machine.fill_in("https://{address}:2380", address.parse().unwrap());
        assert_eq!(fill_in("10.0.0.1"), "https://10.0.0.1:2380");
        assert_eq!(fill_in("fd00::1"), "https://[fd00::1]:2380");
    }
}
