//! The seed disk of a running machine contains nothing that grants access.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{Run, eventually};
use crate::ground::{Machines, POOL, virsh};

/// The disk is taken, looked through, and given to a second machine, which comes up at the address of etcd-2's while that one holds
/// still: libvirt says that it runs.
#[track_caller]
pub fn is_worth_nothing(machines: &Machines, address: &str) {
    let domain = machines.domain("etcd-2");
    let stolen = machines.sandbox.path().join("stolen.img");
    let volume = format!("{domain}-cloud-init.iso");
    virsh(&["vol-download", "--pool", POOL, &volume, &stolen.display().to_string()]).ok();
    holds_no_secret_but_the_token(machines, &stolen);
    virsh(&["suspend", &domain]).ok();
    let impostor = Impostor::new(&domain, &stolen, machines.sandbox.path());
    eventually("the impostor's agent answers", 180, || {
        std::net::TcpStream::connect_timeout(
            &format!("{address}:{}", quorate_core::model::AGENT_PORT).parse().expect("an address"),
            Duration::from_secs(2),
        )
        .is_ok()
    });
    let plan = machines.sandbox.quorate(&["plan", machines.name, "--output", "json"]).expect(3).json();
    assert_eq!(plan["clusters"][0]["blocked"][0]["kind"], "second-key", "{plan:#}");
    let refused = machines.apply().expect(3).text();
    assert!(refused.contains("an enrolment token is valid for one key"), "{refused}");
    drop(impostor);
    virsh(&["resume", &domain]).ok();
    eventually("the machine itself is known again", 180, || {
        machines.sandbox.status(machines.name)["verdict"] == "healthy"
    });
    machines.assert_healthy();
}

fn holds_no_secret_but_the_token(machines: &Machines, disk: &Path) {
    let files = mtools("mdir", disk, &["-b", "::"]).ok().stdout;
    let names: Vec<&str> = files.lines().filter_map(|line| line.strip_prefix("::/")).collect();
    assert!(names.contains(&"seed.json") && names.contains(&"user-data"), "{names:?}");
    let ledger = machines.sandbox.ledger(machines.name);
    let token = ledger["members"]["etcd-2"]["enrolment"]["token"].as_str().expect("a token").to_owned();
    for name in names.into_iter().filter(|name| *name != "quorate") {
        let text = mtools("mtype", disk, &[&format!("::{name}")]).ok().stdout;
        assert!(!text.contains("PRIVATE KEY"), "{name} holds a private key");
        assert!(!text.to_lowercase().contains("password\":"), "{name} holds a password: {text}");
        assert_eq!(text.contains(&token), name == "seed.json", "the token is in seed.json alone, not in {name}");
    }
}

fn mtools(program: &str, disk: &Path, words: &[&str]) -> Run {
    Command::new(program).arg("-i").arg(disk).args(words).output().expect("mtools run").into()
}

/// A machine with another root disk and a copy of the seed disk.
struct Impostor {
    name: String,
    disks: Vec<PathBuf>,
}

impl Impostor {
    fn new(of: &str, seed: &Path, place: &Path) -> Self {
        let description = virsh(&["dumpxml", "--inactive", of]).ok().stdout;
        let image = virsh(&["vol-path", "--pool", POOL, "machine.qcow2"]).ok().stdout;
        let [root, data] = ["impostor-root.qcow2", "impostor-data.qcow2"].map(|name| place.join(name));
        let backing = format!("backing_file={},backing_fmt=qcow2", image.trim());
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-o", &backing])
            .arg(&root)
            .arg("3G")
            .status();
        assert!(made.expect("qemu-img runs").success());
        let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&data).arg("1G").status();
        assert!(made.expect("qemu-img runs").success());
        let impostor = Impostor { name: String::from("impostor"), disks: vec![root.clone(), data.clone()] };
        let file = place.join("impostor.xml");
        fs::write(&file, disguised(&description, of, &impostor.name, [&root, &data, seed])).expect("a file");
        virsh(&["create", &file.display().to_string()]).ok();
        impostor
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        virsh(&["destroy", &self.name]);
        for disk in &self.disks {
            let _ = fs::remove_file(disk);
        }
    }
}

/// The description of the machine with other disks, without its name, id and mark.
fn disguised(description: &str, of: &str, name: &str, disks: [&Path; 3]) -> String {
    let mut text = description.replace(&format!("<name>{of}</name>"), &format!("<name>{name}</name>"));
    for (begin, end) in [("<uuid>", "</uuid>"), ("<metadata>", "</metadata>")] {
        let (from, to) = (text.find(begin).expect(begin), text.find(end).expect(end) + end.len());
        text.replace_range(from..to, "");
    }
    for (disk, target) in disks.into_iter().zip(["vda", "vdb", "vdc"]) {
        let at = text.find(&format!("<target dev='{target}'")).expect(target);
        let from = text[..at].rfind("<source ").expect("a source");
        let to = from + text[from..].find("/>").expect("an end") + 2;
        text.replace_range(from..to, &format!("<source file='{}'/>", disk.display()));
        let from = text[..from].rfind("<disk type='volume'").expect("a disk");
        text.replace_range(from..from + "<disk type='volume'".len(), "<disk type='file'");
    }
    let console = format!("{of}-console.log");
    text.replace(&console, &format!("{name}-console.log"))
}
