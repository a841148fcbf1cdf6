//! etcd and the image of a running cluster change, one member after the other.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Containers, HOST, IMAGE, Wanted, incus};
use crate::common::lab;
use crate::common::releases::{self, Server};
use crate::ground::chapter;

const VERSIONS: [&str; 3] = ["3.5.30", "3.6.16", "3.7.3"];
const OTHER_IMAGE: &str = "quorate-machine-2";

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn etcd_is_upgraded_over_two_minors_and_the_image_is_changed() {
    let containers = Containers::new("lab-up", "3.5.30");
    let archives = VERSIONS.map(|version| {
        let (archive, sum) = releases::archive(&containers.sandbox, version, &lab(version).join("etcd"));
        (format!("/{version}.tar.gz"), archive, sum)
    });
    let sums = archives.clone().map(|(_, _, sum)| sum);
    let server = Server::at(HOST, BTreeMap::from(archives.map(|(path, archive, _)| (path, archive))));
    let want = |n: usize, image: &str| {
        let (version, sum) = (VERSIONS[n], &sums[n]);
        let archive = format!("{}/{version}.tar.gz", server.base);
        let etcd = format!("version: {version}, binary: {{archive: \"{archive}\", sha256: {sum}}}");
        containers.want_of(image, &Wanted { members: 3, etcd, ..Wanted::default() });
    };
    for (n, version) in VERSIONS.into_iter().enumerate() {
        chapter(&format!("three members of etcd {version}"), || {
            want(n, IMAGE);
            containers.apply().ok();
            containers.assert_healthy(3);
            containers.etcdctl(&["put", version, "as it was"]).ok();
            let status = containers.etcdctl(&["endpoint", "status", "--cluster"]).ok().stdout;
            assert_eq!(status.matches(version).count(), 3, "{status}");
        });
    }
    chapter("another image, one machine after the other", || {
        let image = incus(&["image", "info", IMAGE]).ok().stdout;
        let fingerprint = image.lines().find_map(|line| line.strip_prefix("Fingerprint: ")).expect("a fingerprint");
        incus(&["image", "alias", "create", OTHER_IMAGE, fingerprint]).ok();
        want(2, OTHER_IMAGE);
        containers.apply().ok();
        containers.assert_healthy(3);
        for member in ["etcd-1", "etcd-2", "etcd-3"] {
            assert_eq!(containers.incarnation(member), 2, "of {member}");
        }
        VERSIONS.iter().for_each(|version| containers.assert_reads(version, "as it was"));
        incus(&["image", "alias", "delete", OTHER_IMAGE]).ok();
    });
    chapter(
        "an image that quorate imports has its versions in its name, may be a disk, and replaces an older one that nobody uses",
        || {
            let directory = containers.sandbox.path();
            let import = |file: &str| containers.sandbox.quorate(&["image", "import", file, "--keep", "1"]).ok().stdout;
            let of_containers = std::env::var("QUORATE_LAB_CONTAINER_IMAGE").expect("the lab names it");
            let imported = import(&of_containers);
            assert!(imported.contains("quorate-3.4.") && imported.contains("was there already"), "{imported}");
            let manifest = std::fs::read_to_string(format!("{of_containers}.manifest.json")).expect("its manifest");
            let write_disk = |version: &str| {
                let file = format!("{version}.qcow2");
                let disk: Vec<u8> = [b"QFI\xfb".as_slice(), version.as_bytes(), &[0; 512]].concat();
                std::fs::write(directory.join(&file), &disk).expect("a disk");
                let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
                let sum = containers.sandbox.openssl(&["dgst", "-sha256", "-r", &file]);
                manifest["image_sha256"] = sum.split_whitespace().next().into();
                manifest["version"] = version.into();
                containers.sandbox.file(&format!("{file}.manifest.json"), &manifest.to_string());
                file
            };
            let first = write_disk("0-disk");
            let imported = import(&first);
            let alias = imported.lines().next().expect("its name");
            assert!(alias.ends_with("-0-disk") && imported.contains("imported"), "{imported}");
            let shown = incus(&["image", "info", alias]).ok().stdout;
            assert!(shown.contains("Type: virtual-machine"), "{shown}");
            assert!(import(&first).contains("was there already"), "quorate and Incus compute the same fingerprint");
            let imported = import(&write_disk("1-disk"));
            let second = imported.lines().next().expect("its name");
            assert!(imported.contains(alias), "the older one is reported as deleted: {imported}");
            incus(&["image", "info", alias]).fails();
            incus(&["image", "info", IMAGE]).ok();
            incus(&["image", "delete", second]).ok();
        },
    );
    chapter("everything is destroyed, and nothing is left", || containers.destroy());
}
