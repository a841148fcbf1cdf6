//! The ground of the provider `local`: a separate home directory.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use async_trait::async_trait;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, MachineId, MemberName};
use quorate_core::providers::local::LocalSettings;
use quorate_core::spec;
use quorate_providers::{Data, Local, NewMachine, Provider};

use crate::suite::{self, Ground};

const CLUSTER: &str = "demo";

pub struct Place {
    directory: tempfile::TempDir,
    cluster_id: String,
}

impl Place {
    pub fn new() -> Self {
        Place { directory: tempfile::tempdir().expect("a directory"), cluster_id: quorate_pki::random_hex(8) }
    }

    fn local(&self, cluster_id: &str) -> Local {
        let spec = spec::generated(CLUSTER, 3, versions::DEFAULT, ClientAuth::Certificate).expect("a spec");
        let ledger = Ledger::new(cluster_id.to_owned(), spec.clusters.into_iter().next().expect("a cluster"));
        Local::new(&suite::directories(self.directory.path()), &ledger, &LocalSettings::default())
    }

    fn machines(&self) -> PathBuf {
        self.directory.path().join("machines").join(CLUSTER)
    }

    fn data(&self, machine: &str) -> PathBuf {
        self.machines().join(machine).join("root/var/lib/etcd")
    }
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, content).expect("written");
}

#[async_trait(?Send)]
impl Ground for Place {
    fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    fn provider(&self) -> Rc<dyn Provider> {
        Rc::new(self.local(&self.cluster_id))
    }

    fn stranger(&self) -> (Rc<dyn Provider>, String) {
        let id = String::from("strange");
        (Rc::new(self.local(&id)), id)
    }

    fn pinned(&self, _: &str) -> Option<IpAddr> {
        None
    }

    async fn inventory(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.machines()).into_iter().flatten().flatten();
        // Each controller has a place for drafts while it runs.
        let empty_drafts = |path: &Path| {
            path.to_string_lossy().ends_with(".new")
                && fs::read_dir(path).is_ok_and(|mut inside| inside.next().is_none())
        };
        let found = entries.map(|entry| entry.path()).filter(|path| !empty_drafts(path));
        found.map(|path| path.display().to_string()).collect()
    }

    /// Each is what a kill after that many of them leaves.
    async fn interrupt_create(&self, new: &NewMachine<'_>, after: usize) -> bool {
        let draft = self.machines().join(format!(".{}.new", new.fence)).join(new.name);
        let mark = serde_json::json!({
            "cluster": CLUSTER, "cluster_id": self.cluster_id, "member": new.id.member,
            "incarnation": new.id.incarnation, "address": "127.64.0.1",
        });
        if after >= 3 {
            let provider = self.provider();
            provider.create(new).await.expect("a machine");
            if after == 3 {
                provider.stop(&new.id).await.expect("stopped");
            }
            return after == 3;
        }
        if after >= 1 {
            fs::create_dir_all(draft.join("root")).expect("made");
        }
        if after >= 2 {
            write(&draft.join("machine.json"), &mark.to_string());
        }
        true
    }

    async fn interrupt_destroy(&self, machine: &str, member: &MemberName, incarnation: u64, after: usize) -> bool {
        let provider = self.provider();
        match after {
            0 => provider.stop(&MachineId::new(member, incarnation)).await.expect("stopped"),
            1 => {
                provider.stop(&MachineId::new(member, incarnation)).await.expect("stopped");
                let doomed = self.machines().join(format!(".{machine}.gone"));
                fs::rename(self.machines().join(machine), doomed).expect("renamed");
            }
            _ => provider.destroy(&MachineId::new(member, incarnation), Data::Goes).await.expect("destroyed"),
        }
        after < 2
    }

    async fn plant(&self, machine: &str) {
        write(&self.machines().join(machine).join("thesis.txt"), "of somebody else");
    }

    async fn write_data(&self, machine: &str, text: &str) {
        write(&self.data(machine).join("member/wal/0.wal"), text);
    }

    async fn read_data(&self, machine: &str) -> Option<String> {
        fs::read_to_string(self.data(machine).join("member/wal/0.wal")).ok()
    }

    fn greedy(&self) -> Option<Rc<dyn Provider>> {
        None
    }
}
