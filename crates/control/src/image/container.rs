//! The image of a system container: the files of the system and Incus' metadata, in one tarball.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::tools::run;
use super::{ImageError, Manifest};

/// The directory of the files in Incus' tarball.
pub(super) const ROOT: &str = "rootfs";
const METADATA: &str = "metadata.yaml";

pub(super) fn pack(root: &Path, manifest: &Manifest, scratch: &Path) -> Result<PathBuf, ImageError> {
    let (metadata, image) = (scratch.join(METADATA), scratch.join("image.tar.gz"));
    fs::write(&metadata, self::metadata(manifest)).map_err(ImageError::file("write", &metadata))?;
    debug_assert!(root.ends_with(ROOT));
    let mut tar = Command::new("tar");
    // Order and times follow from the content, so the same content gives the same image.
    tar.args(["--create", "--gzip", "--numeric-owner", "--xattrs", "--sort=name", "--mtime=@0"]);
    tar.arg("--file").arg(&image).arg("--directory").arg(scratch).args([METADATA, ROOT]);
    run(tar.env("GZIP", "-n"))?;
    Ok(image)
}

/// YAML reads JSON.
pub(super) fn metadata(manifest: &Manifest) -> String {
    let etcd = manifest.packages.iter().find(|package| package.name == "etcd-server");
    let etcd = etcd.map_or("none", |package| package.version.as_str());
    let metadata = json!({
        "architecture": std::env::consts::ARCH,
        "creation_date": manifest.built.as_second(),
        "properties": {
            "os": "Debian",
            "release": manifest.suite,
            "description": format!("quorate {} on Debian {}, etcd {etcd}", manifest.quorate, manifest.suite),
            "quorate.version": manifest.version,
            "quorate.etcd": etcd,
        },
    });
    format!("{metadata:#}\n")
}
