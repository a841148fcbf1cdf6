//! `quorate image import`: imports the image of a system container or virtual machine into an Incus server or OpenStack, named after
//! the versions in its manifest.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use quorate_providers::{Image, Imported, Upload, Uploaded, import_image, upload_image};

use super::container::metadata;
use super::manifest::digest;
use super::{ImageError, Manifest, manifest_path};

/// What is imported into Incus, and where to.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    pub file: PathBuf,
    /// Its name in `incus remote list`. None: the server on this host.
    pub remote: Option<String>,
    pub project: Option<String>,
    /// How many imported images to keep, including this one.
    pub keep: usize,
}

/// What is uploaded to OpenStack, and where to.
#[derive(Clone, Debug)]
pub struct UploadOptions {
    pub file: PathBuf,
    /// Its name in `clouds.yaml`. None: that of the environment.
    pub cloud: Option<String>,
    pub region: Option<String>,
    /// How many uploaded images to keep, including this one.
    pub keep: usize,
}

pub async fn import(options: &ImportOptions) -> Result<Imported, ImageError> {
    let manifest = manifest_of(&options.file)?;
    let version = version(&manifest);
    let (remote, project) = (options.remote.as_deref(), options.project.as_deref());
    let metadata = is_disk(&options.file)?.then(|| metadata(&manifest));
    let image = Image { file: &options.file, version: &version, metadata: metadata.as_deref() };
    let imported = import_image(remote, project, &image, options.keep).await;
    imported.map_err(|error| Box::new(error).into())
}

pub async fn upload(options: &UploadOptions) -> Result<Uploaded, ImageError> {
    let manifest = manifest_of(&options.file)?;
    let image = Upload {
        cloud: options.cloud.as_deref(),
        region: options.region.as_deref(),
        file: &options.file,
        sha256: &manifest.image_sha256,
        version: &version(&manifest),
        suite: &manifest.suite,
    };
    upload_image(&image, options.keep).await.map_err(|error| Box::new(error).into())
}

/// The manifest next to an image, which must be the one that it describes.
fn manifest_of(file: &Path) -> Result<Manifest, ImageError> {
    let path = manifest_path(file);
    let text = fs::read(&path).map_err(ImageError::file("read", &path))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|source| ImageError::NotAManifest { path, source })?;
    let (found, _) = digest(file)?;
    if found != manifest.image_sha256 {
        let (path, expected) = (file.to_owned(), manifest.image_sha256);
        return Err(ImageError::OtherImage { path, expected, found });
    }
    Ok(manifest)
}

/// A disk in qcow2 begins with these bytes.
fn is_disk(file: &Path) -> Result<bool, ImageError> {
    let mut beginning = Vec::new();
    let read = fs::File::open(file).and_then(|file| file.take(4).read_to_end(&mut beginning));
    read.map_err(ImageError::file("read", file))?;
    Ok(beginning == b"QFI\xfb")
}

/// Of etcd, of PostgreSQL if the image has it, and of the image.
fn version(manifest: &Manifest) -> String {
    let etcd = manifest.packages.iter().find(|package| package.name == "etcd-server");
    // Debian's own part of a version comes after a hyphen.
    let etcd = etcd.and_then(|package| package.version.split(['-', '+', '~']).next()).unwrap_or("none");
    let postgres = manifest.packages.iter().find_map(|package| postgres_in(&package.name));
    let postgres = postgres.map(|version| format!("-pg{version}")).unwrap_or_default();
    format!("{etcd}{postgres}-{}", manifest.version)
}

/// The major version that this package is a server of.
fn postgres_in(package: &str) -> Option<u16> {
    package.strip_prefix("postgresql-")?.parse().ok()
}
