//! Images on the server: imported once, identified by their fingerprint, named after the versions of etcd and of the image, and deleted
//! when there are newer ones and no instance uses them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;
use hyper::Method;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use serde_json::{Value, json};

use super::error::IncusError;
use super::server::{Call, Server, escaped};
use crate::ProviderError;

/// Prefix of the aliases of imported images.
const PREFIX: &str = "quorate-";
/// Images that quorate built have this property.
const VERSION: &str = "quorate.version";

/// The result of an import.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    pub fingerprint: String,
    /// To be named in a spec.
    pub alias: String,
    /// Whether it was there already.
    pub was_there: bool,
    /// Older images that were removed, by their aliases.
    pub pruned: Vec<String>,
}

/// What is imported.
pub struct Image<'a> {
    pub file: &'a Path,
    /// `ETCD-IMAGE`.
    pub version: &'a str,
    /// The `metadata.yaml` for the disk of a virtual machine. The tarball of a container contains its own.
    pub metadata: Option<&'a str>,
}

/// Imports an image, and deletes older ones except the newest `keep` and those that instances were created from.
pub async fn import(
    remote: Option<&str>,
    project: Option<&str>,
    image: &Image<'_>,
    keep: usize,
) -> Result<Imported, ProviderError> {
    let file = image.file;
    let content =
        Content::read(image).map_err(|source| ProviderError::Io { what: "read", path: file.into(), source })?;
    let fingerprint = content.fingerprint();
    let server = Server::new(remote, project)?;
    server.check().await?;
    let path = format!("/1.0/images/{fingerprint}");
    let was_there = server.get("find the image", &path).await?.is_some();
    if !was_there {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let call = Call::new(format!("import {}", file.display()), Method::POST, "/1.0/images");
        let call = call.with("X-Incus-filename", name).with("X-Incus-public", "0").patiently();
        server.change(content.sent_with(call)).await?;
    }
    let alias = format!("{PREFIX}{}", image.version);
    name_it(&server, &alias, &fingerprint).await?;
    let pruned = prune(&server, keep).await?;
    Ok(Imported { fingerprint, alias, was_there, pruned })
}

/// An image in one part, or with its metadata in a tarball next to it.
struct Content {
    metadata: Option<Vec<u8>>,
    image: Bytes,
}

impl Content {
    fn read(image: &Image<'_>) -> io::Result<Self> {
        let metadata = image.metadata.map(tarball).transpose()?;
        Ok(Content { metadata, image: Bytes::from(fs::read(image.file)?) })
    }

    /// As Incus computes it.
    fn fingerprint(&self) -> String {
        let mut all = Sha256::new();
        all.update(self.metadata.as_deref().unwrap_or_default());
        all.update(&self.image);
        hex(&all.finalize())
    }

    fn sent_with(self, call: Call<'_>) -> Call<'_> {
        let Some(metadata) = self.metadata else { return call.bytes(self.image) };
        let boundary = format!("quorate-{}", hex(&Sha256::digest(&metadata)));
        let part = |name: &str| {
            format!(
                "\r\n--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            )
        };
        let (before, between) = (part("metadata"), part("rootfs.img"));
        let end = format!("\r\n--{boundary}--\r\n");
        let body = [before.as_bytes(), &metadata, between.as_bytes(), &self.image, end.as_bytes()];
        call.body(body.concat().into(), &format!("multipart/form-data; boundary={boundary}"))
    }
}

/// Deterministic, so that an image keeps its fingerprint.
fn tarball(metadata: &str) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_size(metadata.len() as u64);
    header.set_mode(0o644);
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut header, "metadata.yaml", metadata.as_bytes())?;
    tar.into_inner()
}

async fn name_it(server: &Server, alias: &str, fingerprint: &str) -> Result<(), IncusError> {
    let path = format!("/1.0/images/aliases/{}", escaped(alias));
    let found = server.get("find the alias", &path).await?;
    let doing = format!("call the image {alias}");
    let call = match &found {
        Some(found) if found.value.get("target").and_then(Value::as_str) == Some(fingerprint) => return Ok(()),
        Some(_) => Call::new(doing, Method::PATCH, path).json(&json!({ "target": fingerprint })),
        None => {
            let body = json!({ "name": alias, "target": fingerprint });
            Call::new(doing, Method::POST, "/1.0/images/aliases").json(&body)
        }
    };
    server.change(call).await
}

/// Deletes images that are neither among the newest nor in use.
async fn prune(server: &Server, keep: usize) -> Result<Vec<String>, IncusError> {
    let images = server.list("list images", "/1.0/images?recursion=1").await?;
    let instances = server.instances_of_all_projects().await?;
    let used: BTreeSet<&str> =
        instances.iter().filter_map(|one| one.get("config")?.get("volatile.base_image")?.as_str()).collect();
    let mut pruned = Vec::new();
    for image in doomed(&images, &used, keep) {
        let call = Call::new(
            format!("delete the image {}", image.alias),
            Method::DELETE,
            format!("/1.0/images/{}", image.fingerprint),
        );
        match server.change(call).await {
            Err(error) if error.is_absent() => {}
            deleted => deleted?,
        }
        pruned.push(image.alias);
    }
    Ok(pruned)
}

struct Known {
    fingerprint: String,
    alias: String,
    uploaded: String,
}

fn doomed(images: &[Value], used: &BTreeSet<&str>, keep: usize) -> Vec<Known> {
    let read = |image: &Value| {
        let text = |field: &str| image.get(field).and_then(Value::as_str).map(str::to_owned);
        image.get("properties")?.get(VERSION)?;
        let aliases = image.get("aliases").and_then(Value::as_array).into_iter().flatten();
        let mut aliases = aliases.filter_map(|alias| alias.get("name")?.as_str());
        // One that has no name of ours was imported manually.
        let alias = aliases.find(|alias| alias.starts_with(PREFIX))?.to_owned();
        Some(Known { fingerprint: text("fingerprint")?, alias, uploaded: text("uploaded_at")? })
    };
    let mut ours: Vec<Known> = images.iter().filter_map(read).collect();
    ours.sort_by(|a, b| b.uploaded.cmp(&a.uploaded));
    ours.into_iter().skip(keep.max(1)).filter(|image| !used.contains(image.fingerprint.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_images_those_in_use_and_those_of_others_stay() {
        let image = |fingerprint: &str, alias: &str, ours: bool, day: u8| {
            let properties = if ours { json!({ VERSION: "0.1.0-a" }) } else { json!({}) };
            json!({
                "fingerprint": fingerprint, "aliases": [{ "name": alias }], "properties": properties,
                "uploaded_at": format!("2026-01-{day:02}T00:00:00Z"),
            })
        };
        let images = [
            image("a", "quorate-3.5.1-1", true, 1),
            image("b", "quorate-3.5.2-1", true, 2),
            image("c", "quorate-3.5.3-1", true, 3),
            image("d", "quorate-3.5.4-1", true, 4),
            image("e", "debian", false, 1),
            image("f", "by-hand", true, 1),
        ];
        let gone = |used: &[&str], keep| {
            let used = used.iter().copied().collect();
            doomed(&images, &used, keep).into_iter().map(|image| image.fingerprint).collect::<Vec<_>>()
        };
        assert_eq!(gone(&[], 2), ["b", "a"]);
        assert_eq!(gone(&["a"], 2), ["b"]);
        assert_eq!(gone(&[], 0), ["c", "b", "a"], "the newest always stays");
    }
}
