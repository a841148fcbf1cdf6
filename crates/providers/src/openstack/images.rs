//! Images in Glance: uploaded once, found by the digest in their properties, private, and deleted when there are newer ones and no server
//! was created from them.
//!
//! Every attempt begins by looking at what exists. So the next attempt or the next run continues an upload that was interrupted, or whose
//! answer was lost, and nothing is uploaded twice.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_core::text::hex;
use reqwest::Method;
use ring::digest::{self, Algorithm};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::catalogue::Service::{Compute, Image, Volume};
use super::error::OpenstackError;
use super::session::{Call, Session};
use super::{compute, text};
use crate::ProviderError;
use crate::web::escaped;

/// Prefix of the names of uploaded images.
const PREFIX: &str = "quorate-";
/// The mark: SHA-256 of the file.
const DIGEST: &str = "quorate_sha256";
const VERSION: &str = "quorate_version";
/// A disk in qcow2 begins with these bytes, and has its size as a disk here.
const QCOW2: &[u8] = b"QFI\xfb";
const SIZE: std::ops::Range<usize> = 24..32;
const GIB: u64 = 1 << 30;
const POLLING: Duration = Duration::from_secs(1);
/// How long another process's upload of the same image may take.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How often the file is sent.
const ATTEMPTS: usize = 3;

/// What is uploaded.
#[derive(Clone, Copy, Debug)]
pub struct Upload<'a> {
    /// As `clouds.yaml` names it. None: that of the environment.
    pub cloud: Option<&'a str>,
    pub region: Option<&'a str>,
    pub file: &'a Path,
    /// Of the file.
    pub sha256: &'a str,
    /// `ETCD-IMAGE`.
    pub version: &'a str,
    /// Debian's name of the release.
    pub suite: &'a str,
}

/// The result of an upload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uploaded {
    pub id: String,
    /// To be named in a spec.
    pub name: String,
    /// Whether it was there already.
    pub was_there: bool,
    /// Older images that were deleted, by their names.
    pub pruned: Vec<String>,
}

/// Uploads an image, and deletes older ones except the newest `keep` and those that servers were created from.
pub async fn upload(image: &Upload<'_>, keep: usize) -> Result<Uploaded, ProviderError> {
    let session = Session::of(image.cloud, image.region)?;
    upload_to(&session, image, keep, POLLING).await
}

/// The same with the credentials of this file, looking again after this time.
pub async fn upload_with(
    clouds: &Path,
    image: &Upload<'_>,
    keep: usize,
    pause: Duration,
) -> Result<Uploaded, ProviderError> {
    let session = Session::of_file(clouds, image.cloud, image.region, 5, pause)?;
    upload_to(&session, image, keep, pause).await
}

async fn upload_to(
    session: &Session,
    image: &Upload<'_>,
    keep: usize,
    pause: Duration,
) -> Result<Uploaded, ProviderError> {
    let read = std::fs::read(image.file);
    let content = read.map_err(|source| ProviderError::Io { what: "read", path: image.file.into(), source })?;
    let glance = Glance { session, image, content: content.into(), pause, patience: PATIENCE };
    let disk = glance.disk_bytes()?;
    let (found, was_there) = glance.put(disk).await?;
    let pruned = glance.prune(keep).await?;
    Ok(Uploaded { id: found.id, name: found.name, was_there, pruned })
}

struct Glance<'a> {
    session: &'a Session,
    image: &'a Upload<'a>,
    content: Bytes,
    pause: Duration,
    patience: Duration,
}

/// An image that quorate uploaded.
#[derive(Clone, Debug)]
struct Known {
    id: String,
    name: String,
    status: String,
    digest: String,
    made: String,
    /// As Glance computed it: algorithm and value.
    hash: Option<(String, String)>,
}

impl Known {
    fn read(value: &Value) -> Option<Self> {
        Some(Known {
            id: text(value, "id")?,
            name: text(value, "name").unwrap_or_default(),
            status: text(value, "status").unwrap_or_default(),
            digest: text(value, DIGEST)?,
            made: text(value, "created_at").unwrap_or_default(),
            hash: text(value, "os_hash_algo").zip(text(value, "os_hash_value")),
        })
    }
}

impl Glance<'_> {
    fn disk_bytes(&self) -> Result<u64, OpenstackError> {
        let size = self.content.get(SIZE).filter(|_| self.content.starts_with(QCOW2));
        let size = size.and_then(|bytes| Some(u64::from_be_bytes(bytes.try_into().ok()?)));
        size.ok_or_else(|| OpenstackError::NotADisk { file: self.image.file.to_owned() })
    }

    /// Images of this project that quorate uploaded, the oldest first.
    async fn ours(&self) -> Result<Vec<Known>, OpenstackError> {
        let project = self.session.project().await?;
        let path = format!("/images?owner={}&limit=200", escaped(&project));
        let all = self.session.list("list images", Image, &path, "images", None).await?;
        let is_ours = |image: &&Value| text(image, "owner").as_deref() == Some(&project);
        let mut ours: Vec<Known> = all.iter().filter(is_ours).filter_map(Known::read).collect();
        ours.sort_by(|a, b| (&a.made, &a.id).cmp(&(&b.made, &b.id)));
        Ok(ours)
    }

    /// Returns the image, and whether it was there.
    async fn put(&self, disk: u64) -> Result<(Known, bool), OpenstackError> {
        let mut begun = Instant::now();
        let (mut sent, mut records) = (0, 0);
        loop {
            let ours = self.ours().await?;
            let (same, others): (Vec<Known>, Vec<Known>) =
                ours.into_iter().partition(|image| image.digest == self.image.sha256);
            if let Some(whole) = same.iter().find(|image| image.status == "active").cloned() {
                if self.is_right(&whole)? {
                    for surplus in same.iter().filter(|image| image.id != whole.id && image.status != "saving") {
                        self.delete(surplus).await?;
                    }
                    return Ok((whole, sent == 0));
                }
                self.delete(&whole).await?;
                if sent > 0 {
                    return Err(OpenstackError::OtherContent { image: whole.name });
                }
                continue;
            }
            match same.first() {
                None if records < ATTEMPTS => {
                    records += 1;
                    self.make_record(disk, &others).await?;
                }
                Some(record) if record.status == "queued" && sent < ATTEMPTS => {
                    sent += 1;
                    self.send(record).await?;
                }
                // Another process is uploading it, or our upload was cut off and Glance has not noticed yet.
                Some(other) if other.status == "saving" && begun.elapsed() < self.patience => sleep(self.pause).await,
                // The process that uploaded it has stopped, or Glance has lost it. The state would never change.
                Some(lost) if lost.status == "saving" && sent < ATTEMPTS => {
                    self.delete(lost).await?;
                    begun = Instant::now();
                }
                Some(other) if matches!(other.status.as_str(), "killed" | "deleted" | "pending_delete") => {
                    self.delete(other).await?;
                    sleep(self.pause).await;
                }
                other => {
                    let image = other.map_or_else(|| self.image.file.display().to_string(), |other| other.name.clone());
                    let status = other.map_or_else(|| String::from("deleted again"), |other| other.status.clone());
                    return Err(OpenstackError::ImageUnusable { image, status });
                }
            }
        }
    }

    /// Whether Glance has the same bytes.
    fn is_right(&self, image: &Known) -> Result<bool, OpenstackError> {
        let algorithm: Option<&Algorithm> = match image.hash.as_ref().map(|(algorithm, _)| algorithm.as_str()) {
            Some("sha256") => Some(&digest::SHA256),
            Some("sha384") => Some(&digest::SHA384),
            Some("sha512") => Some(&digest::SHA512),
            _ => None,
        };
        let (Some(algorithm), Some((_, value))) = (algorithm, &image.hash) else {
            return Err(OpenstackError::NoChecksum { image: image.name.clone() });
        };
        Ok(hex(digest::digest(algorithm, &self.content).as_ref()) == *value)
    }

    async fn make_record(&self, disk: u64, others: &[Known]) -> Result<(), OpenstackError> {
        let mut name = format!("{PREFIX}{}", self.image.version);
        // The same version, built again: a name in a spec must mean one image.
        if others.iter().any(|other| other.name == name) {
            name = format!("{name}-{}", self.image.sha256.get(..8).unwrap_or_default());
        }
        let record = json!({
            "name": name,
            "disk_format": "qcow2",
            "container_format": "bare",
            "visibility": "private",
            "min_disk": disk.div_ceil(GIB),
            "os_type": "linux",
            "os_distro": "debian",
            "os_version": self.image.suite,
            "hw_disk_bus": "virtio",
            "hw_vif_model": "virtio",
            VERSION: self.image.version,
            DIGEST: self.image.sha256,
        });
        let find = async || {
            let found = self.ours().await?.into_iter().find(|image| image.digest == self.image.sha256);
            Ok(found.map(|image| json!({ "id": image.id })))
        };
        let call = Call::new(format!("create the image {name}"), Image, Method::POST, "/images").json(record);
        self.session.create(call, find).await.map(drop)
    }

    /// Whether the answer is good or lost, the resulting state decides.
    async fn send(&self, record: &Known) -> Result<(), OpenstackError> {
        let path = format!("/images/{}/file", record.id);
        let sent = self.session.upload(&format!("upload {}", record.name), Image, &path, self.content.clone()).await;
        let passes = |error: &OpenstackError| {
            error.is_unsure() || error.is_conflict() || error.is_absent() || error.is_throttled()
        };
        match sent {
            Err(error) if passes(&error) => {
                sleep(self.pause).await;
                Ok(())
            }
            Err(error) => {
                // Such as a full quota: what Glance says of it is worth more than a failure to delete the record.
                let _ = self.delete(record).await;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    async fn delete(&self, image: &Known) -> Result<(), OpenstackError> {
        let doing = format!("delete the image {}", image.name);
        self.session.delete(&doing, Image, &format!("/images/{}", image.id)).await
    }

    /// Deletes images that are neither among the newest nor in use.
    async fn prune(&self, keep: usize) -> Result<Vec<String>, OpenstackError> {
        let ours = self.ours().await?;
        let servers = self.session.list("list servers", Compute, "/servers/detail", "servers", Some(compute::VERSION));
        let servers = servers.await?;
        let volumes = match self.session.list("list volumes", Volume, "/volumes/detail", "volumes", None).await {
            // Not every cloud has volumes.
            Err(OpenstackError::NoService { .. }) => Vec::new(),
            volumes => volumes?,
        };
        let mut pruned = Vec::new();
        for image in doomed(&ours, self.image.sha256, &used(&servers, &volumes), keep) {
            match self.delete(image).await {
                // Protected, or in use by a volume.
                Err(error) if error.is_conflict() || error.is_forbidden() => {}
                deleted => {
                    deleted?;
                    pruned.push(image.name.clone());
                }
            }
        }
        Ok(pruned)
    }
}

/// Images that servers or their boot volumes were created from, by id. A server that boots from a volume names no image itself.
fn used<'a>(servers: &'a [Value], volumes: &'a [Value]) -> BTreeSet<&'a str> {
    let servers = servers.iter().filter_map(|server| server.pointer("/image/id"));
    let volumes = volumes.iter().filter_map(|volume| volume.pointer("/volume_image_metadata/image_id"));
    servers.chain(volumes).filter_map(Value::as_str).collect()
}

/// `ours`: the oldest first. The one that was just named stays.
fn doomed<'a>(ours: &'a [Known], digest: &str, used: &BTreeSet<&str>, keep: usize) -> Vec<&'a Known> {
    let usable = ours.iter().rev().filter(|image| image.status == "active" && image.digest != digest);
    usable.skip(keep.max(1) - 1).filter(|image| !used.contains(image.id.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::script::{Then, script, serve, status};
    use super::*;

    #[test]
    fn the_newest_images_those_in_use_and_the_one_just_named_stay() {
        let image = |id: &str, status: &str| Known {
            id: id.to_owned(),
            name: id.to_owned(),
            status: status.to_owned(),
            digest: id.to_owned(),
            made: id.to_owned(),
            hash: None,
        };
        let images = [image("a", "active"), image("b", "active"), image("c", "saving"), image("d", "active")];
        let gone = |digest: &str, used: &[&str], keep: usize| {
            let used = used.iter().copied().collect();
            doomed(&images, digest, &used, keep).into_iter().map(|image| image.id.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(gone("d", &[], 2), ["a"]);
        assert_eq!(gone("d", &["a"], 1), ["b"]);
        assert_eq!(gone("a", &[], 0), ["d", "b"], "an old one that is imported again is the one that is wanted");
    }

    #[test]
    fn an_image_that_a_boot_volume_was_made_from_is_in_use() {
        let servers = [json!({ "image": { "id": "a" } }), json!({ "image": "" })];
        let volumes = [json!({ "volume_image_metadata": { "image_id": "b" } }), json!({ "id": "data" })];
        assert_eq!(used(&servers, &volumes), BTreeSet::from(["a", "b"]));
    }

    #[tokio::test]
    async fn an_upload_that_never_ends_is_replaced() {
        let image = json!({ "id": "i1", "owner": "p", "status": "saving", DIGEST: "abc" });
        let list = |images: Value| Then::Answer(200, json!({ "images": images }));
        let script = script([list(json!([image])), status(200), list(json!([])), status(403)]);
        let session = serve(script.clone()).await;
        let upload = Upload {
            cloud: None,
            region: None,
            file: Path::new("machine.qcow2"),
            sha256: "abc",
            version: "1",
            suite: "bookworm",
        };
        let (pause, patience) = (Duration::ZERO, Duration::ZERO);
        let glance = Glance { session: &session, image: &upload, content: Bytes::new(), pause, patience };
        let said = glance.put(1).await.unwrap_err().to_string();
        assert!(said.contains("create the image"), "the script ends there: {said}");
        assert_eq!(script.lock().unwrap().seen[1], "DELETE /v2/images/i1 t0ken1");
    }
}
