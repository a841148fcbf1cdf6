//! Uploads of images: one for each digest, with the bytes that were sent, whatever happens on the way.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use hyper::Method;
use libtest_mimic::Trial;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use quorate_providers::{Upload, Uploaded, upload_image_with};
use serde_json::{Value, json};

use super::cloud::{Api, Fault, Proxy};
use super::{CLOUD, PAUSE, Place, clouds};
use crate::suite::runtime;

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("openstack::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial("an_image_is_uploaded_once", || runtime().block_on(once())),
        trial("an_image_with_other_bytes_is_not_used", || runtime().block_on(other_bytes())),
        trial("an_upload_survives_faults_and_kills", || runtime().block_on(faults())),
    ]
}

struct Stage {
    place: Place,
    api: Api,
}

impl Stage {
    async fn new() -> Self {
        Stage { place: Place::new(), api: Api::new().await }
    }

    /// A file that begins like a disk of 3 GiB and a bit.
    fn file(&self, fill: u8) -> (PathBuf, String) {
        let mut content = vec![fill; 300_000];
        content[..4].copy_from_slice(b"QFI\xfb");
        content[24..32].copy_from_slice(&((3_u64 << 30) + 1).to_be_bytes());
        let path = self.place.directory.path().join(format!("{fill}.qcow2"));
        std::fs::write(&path, &content).expect("a file");
        (path, hex(&Sha256::digest(&content)))
    }

    async fn upload(&self, clouds: &Path, fill: u8, version: &str, keep: usize) -> Result<Uploaded, String> {
        let (file, sha256) = self.file(fill);
        let version = format!("{}-{version}", self.place.cluster);
        let image = Upload {
            cloud: Some(CLOUD),
            region: None,
            file: &file,
            sha256: &sha256,
            version: &version,
            suite: "bookworm",
        };
        upload_image_with(clouds, &image, keep, PAUSE).await.map_err(|error| error.to_string())
    }

    /// Those of this ground.
    async fn images(&self) -> Vec<Value> {
        let all = self.api.items("image", "/images?limit=500", "images").await;
        let name = format!("quorate-{}", self.place.cluster);
        all.into_iter().filter(|image| image["name"].as_str().is_some_and(|found| found.starts_with(&name))).collect()
    }

    async fn end(&self) {
        for image in self.images().await {
            let id = image["id"].as_str().expect("an id");
            self.api.call(Method::DELETE, "image", &format!("/images/{id}"), None).await;
        }
        assert_eq!(self.images().await, Vec::<Value>::new());
    }
}

async fn once() {
    let stage = Stage::new().await;
    let first = stage.upload(&clouds(), 1, "a", 100).await.expect("uploaded");
    assert!(!first.was_there);
    let there = stage.images().await;
    assert_eq!(there.len(), 1, "{there:#?}");
    let (_, sha256) = stage.file(1);
    for (field, value) in [
        ("id", json!(first.id)),
        ("name", json!(first.name)),
        ("status", json!("active")),
        ("visibility", json!("private")),
        ("disk_format", json!("qcow2")),
        ("min_disk", json!(4)),
        ("hw_disk_bus", json!("virtio")),
        ("quorate_sha256", json!(sha256)),
    ] {
        assert_eq!(there[0][field], value, "{field}");
    }
    let again = stage.upload(&clouds(), 1, "a", 100).await.expect("it is there");
    assert_eq!(again, Uploaded { was_there: true, ..first.clone() });
    // The same version with other bytes has another name.
    let other = stage.upload(&clouds(), 2, "a", 100).await.expect("uploaded");
    assert!(other.name.starts_with(&first.name) && other.name != first.name, "{}", other.name);
    assert_eq!(stage.images().await.len(), 2);
    // One that is not a disk is refused before anything is sent.
    let path = stage.place.directory.path().join("text");
    std::fs::write(&path, "no disk").expect("a file");
    let image = Upload { cloud: Some(CLOUD), region: None, file: &path, sha256: "0", version: "0", suite: "bookworm" };
    let said = upload_image_with(&clouds(), &image, 100, PAUSE).await.expect_err("no disk").to_string();
    assert!(said.contains("not a qcow2 disk"), "{said}");
    stage.end().await;
}

/// Somebody, or something, has put other bytes under our mark.
async fn other_bytes() {
    let stage = Stage::new().await;
    let (_, sha256) = stage.file(3);
    let name = format!("quorate-{}-b", stage.place.cluster);
    let record = json!({
        "name": name, "disk_format": "qcow2", "container_format": "bare", "quorate_sha256": sha256,
        "quorate_version": "b",
    });
    let made = stage.api.post("image", "/images", record).await;
    let planted = made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    stage.api.put_file(&planted, b"other bytes").await;
    let uploaded = stage.upload(&clouds(), 3, "b", 100).await.expect("uploaded");
    assert!(!uploaded.was_there && uploaded.id != planted);
    let there = stage.images().await;
    assert_eq!((there.len(), &there[0]["size"]), (1, &json!(300_000)), "{there:#?}");
    stage.end().await;
}

async fn faults() {
    let stage = Stage::new().await;
    let path = stage.place.directory.path().join("proxied.yaml");
    let passing = [Fault::Status(401), Fault::Status(429), Fault::Status(503), Fault::Cut, Fault::DoneBut(504)];
    for (n, fault) in passing.into_iter().enumerate() {
        let spoiled: Mutex<BTreeSet<String>> = Mutex::default();
        let proxy = Proxy::new(move |method, path| {
            let path = path.split('?').next().unwrap_or_default();
            let kind = format!("{method} {}", path.ends_with("/file"));
            spoiled.lock().expect("a set").insert(kind).then_some(fault)
        });
        proxy.serve(&path).await;
        let fill = 10 + u8::try_from(n).expect("few");
        stage.upload(&path, fill, &format!("f{n}"), 100).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let there = stage.images().await;
        assert_eq!(there.len(), 1, "{fault:?}: {there:#?}");
        assert_eq!(there[0]["status"], "active", "{fault:?}");
        stage.end().await;
    }
    // Killed after the record, and after the file: the next run goes on with the same image.
    for after in 0..3 {
        let (proxy, left) = Proxy::mortal(after);
        proxy.serve(&path).await;
        let dead = stage.upload(&path, 20, "k", 100).await;
        assert_eq!(dead.is_err(), left.load(Ordering::SeqCst) < 0, "{dead:?}");
        let before: Vec<Value> = stage.images().await.into_iter().map(|image| image["id"].clone()).collect();
        let next = stage.upload(&clouds(), 20, "k", 100).await.expect("uploaded");
        let there = stage.images().await;
        assert_eq!(there.len(), 1, "killed after {after}: {there:#?}");
        assert!(before.is_empty() || before == [json!(next.id)], "the same one");
        stage.end().await;
    }
}
