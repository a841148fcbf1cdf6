//! Images for containerd, made from programs of this machine: one layer with the program and the libraries that it needs, in the format of
//! `docker save`. An image is complete or absent, because it arrives by a rename.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::etcd::go::Module;
use crate::host;
use crate::lab::{Filling, Lab, Version};

/// No registry has this name, so nothing is ever fetched.
const REGISTRY: &str = "lab.invalid";
const PAUSE: &str = include_str!("../../../static-pod/pause.go");
const PROGRAMS: &str = "usr/local/bin";

/// Makes the images that are missing: `pause.tar`, and `etcd-VERSION.tar` for each version.
pub fn ensure(lab: &Lab, place: &Path, versions: &[Version]) -> Result<()> {
    let filling = lab.lock()?;
    if !place.join("pause.tar").is_file() {
        let program = build_pause(&filling)?;
        make(&filling, "pause:1", &program, "pause", &place.join("pause.tar"))?;
    }
    for version in versions {
        let file = place.join(format!("etcd-{version}.tar"));
        if !file.is_file() {
            make(&filling, &format!("etcd:{version}-0"), &lab.etcd(*version).join("etcd"), "etcd", &file)?;
        }
    }
    Ok(())
}

fn build_pause(filling: &Filling<'_>) -> Result<PathBuf> {
    let module = Module::new(filling.scratch("pause")?)?;
    fs::write(module.directory().join("main.go"), PAUSE).context("cannot write the source of pause")?;
    let program = module.directory().join("pause");
    host::read(module.go().args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&program).arg("."))?;
    Ok(program)
}

fn make(filling: &Filling<'_>, name: &str, program: &Path, called: &str, to: &Path) -> Result<()> {
    let (layer, image) = (filling.scratch(&format!("{called}-layer"))?, filling.scratch(&format!("{called}-image"))?);
    for (from, below) in libraries(program).into_iter().chain([(program.to_owned(), format!("{PROGRAMS}/{called}"))]) {
        let target = layer.join(below);
        fs::create_dir_all(target.parent().unwrap_or(&layer)).context("cannot create a directory of the layer")?;
        fs::copy(&from, &target).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    host::run(
        Command::new("tar")
            .args(["--numeric-owner", "--owner=0", "--group=0", "-cf"])
            .arg(image.join("layer.tar"))
            .arg("-C")
            .arg(&layer)
            .arg("."),
    )?;
    let sum = host::read(Command::new("sha256sum").arg(image.join("layer.tar")))?;
    let sum = sum.split_whitespace().next().context("`sha256sum` printed nothing")?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Env": [format!("PATH=/{PROGRAMS}")], "Entrypoint": [format!("/{PROGRAMS}/{called}")] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
    });
    let manifest =
        json!([{ "Config": "config.json", "RepoTags": [format!("{REGISTRY}/{name}")], "Layers": ["layer.tar"] }]);
    for (file, value) in [("config.json", config), ("manifest.json", manifest)] {
        fs::write(image.join(file), value.to_string()).with_context(|| format!("cannot write {file}"))?;
    }
    let made = filling.scratch("images")?.join(called);
    let files = ["manifest.json", "config.json", "layer.tar"];
    host::run(Command::new("tar").arg("-cf").arg(&made).arg("-C").arg(&image).args(files))?;
    for directory in [&layer, &image] {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::rename(&made, to).with_context(|| format!("cannot move into place {}", to.display()))
}

/// The libraries that a program is linked with, and where they belong in the image. `ldd` fails on a static one.
fn libraries(program: &Path) -> Vec<(PathBuf, String)> {
    let printed = host::read(Command::new("ldd").arg(program)).unwrap_or_default();
    let paths = printed.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    paths.map(|path| (PathBuf::from(path), path.trim_start_matches('/').to_owned())).collect()
}
