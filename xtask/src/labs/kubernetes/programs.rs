//! Kubernetes' programs from its Go modules, and a client that is linked with the same version of its library. The module of
//! Kubernetes replaces its libraries by directories that are not published with it, so ours replaces them by the published modules of
//! the same release. A version is complete in the lab or absent, because it arrives by a rename.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::etcd::go::{CERTIFICATES, Module};
use crate::host;
use crate::lab::{Filling, Lab, Version};

const KUBERNETES: &str = "k8s.io/kubernetes";
/// A program, and the arguments that make it print its version.
type Program = (&'static str, &'static [&'static str]);
const PROGRAMS: [Program; 3] = [
    ("kube-apiserver", &["--version"]),
    ("kubeadm", &["version", "--output=short"]),
    ("kubectl", &["version", "--client"]),
];
const KUBELET: Program = ("kubelet", &["--version"]);
/// What builds the client again when its source has changed.
const MODULE_FILES: [&str; 2] = ["go.mod", "go.sum"];
const CLIENT: &str = "client";
const SOURCES: [(&str, &str); 3] = [
    ("follower.go", include_str!("../../../kubernetes/follower.go")),
    ("main.go", include_str!("../../../kubernetes/main.go")),
    ("writers.go", include_str!("../../../kubernetes/writers.go")),
];

/// The directory with the programs of this version, which are built first if they are missing.
pub fn ensure(lab: &Lab, version: Version) -> Result<PathBuf> {
    let place = lab.root().join("kubernetes").join(version.to_string());
    if is_complete(&place) {
        return Ok(place);
    }
    check_toolchain(version)?;
    let filling = lab.lock()?;
    // Asked again under the lock: another run may have done the work meanwhile.
    if !has_programs(&place) {
        install_programs(&filling, version, &place)?;
    }
    if !has_client(&place) {
        install_client(&filling, &place)?;
    }
    Ok(place)
}

/// The kubelet of this version, which is built first if it is missing. It needs a third of the time of all the other programs.
pub fn kubelet(lab: &Lab, version: Version) -> Result<PathBuf> {
    let place = lab.root().join("kubernetes").join(format!("kubelet-{version}"));
    let program = place.join(KUBELET.0);
    if program.is_file() {
        return Ok(program);
    }
    check_toolchain(version)?;
    let filling = lab.lock()?;
    if !program.is_file() {
        eprintln!("kubelet {version}: building from Go's modules, which takes 5 minutes the first time");
        let module = Module::at(filling.scratch("kubelet-module")?);
        move_into_place(&build(&filling, &module, version, &[KUBELET])?, &place)?;
    }
    Ok(program)
}

fn check_toolchain(version: Version) -> Result<()> {
    if host::find("go").is_none() {
        bail!("Kubernetes {version} is built from Go's modules: install a recent Go toolchain, with `go` on the PATH");
    }
    host::install_missing(&[CERTIFICATES])
}

fn is_complete(place: &Path) -> bool {
    has_programs(place) && has_client(place)
}

fn has_programs(place: &Path) -> bool {
    PROGRAMS.iter().all(|(program, _)| place.join(program).is_file())
}

/// Another source is another client.
fn has_client(place: &Path) -> bool {
    let client = place.join(CLIENT);
    let same =
        |(name, source): &(&str, &str)| fs::read_to_string(client.join(name)).is_ok_and(|found| found == *source);
    client.join(CLIENT).is_file() && SOURCES.iter().all(same)
}

fn write_sources(directory: &Path) -> Result<()> {
    SOURCES.iter().try_for_each(|(name, source)| write(&directory.join(name), source))
}

fn install_programs(filling: &Filling<'_>, version: Version, place: &Path) -> Result<()> {
    eprintln!("Kubernetes {version}: building from Go's modules, which takes 10 minutes the first time");
    let began = Instant::now();
    let module = Module::at(filling.scratch("kubernetes-module")?);
    // What the client needs is in the module's list too.
    write_sources(module.directory())?;
    let made = build(filling, &module, version, &PROGRAMS)?;
    for file in MODULE_FILES {
        fs::copy(module.directory().join(file), made.join(file)).with_context(|| format!("cannot keep {file}"))?;
    }
    move_into_place(&made, place)?;
    eprintln!("Kubernetes {version}: built in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Builds these programs in a module, and says where.
fn build(filling: &Filling<'_>, module: &Module, version: Version, programs: &[Program]) -> Result<PathBuf> {
    write(&module.directory().join("go.mod"), &go_mod(&published(module, version)?, version, programs)?)?;
    host::read(module.go().args(["mod", "tidy"]))?;
    let made = filling.scratch("kubernetes")?;
    let mut build = module.go();
    // With several programs, or into a directory that ends so, each gets its name.
    let into = format!("{}/", made.display());
    build.args(["build", "-p", "2", "-trimpath", "-ldflags", &stamp(version), "-o", &into]);
    host::read(build.args(programs.iter().map(|(program, _)| package(program))))?;
    for (program, arguments) in programs {
        let printed = host::read(Command::new(made.join(program)).args(*arguments))?;
        if !printed.contains(&format!("v{version}")) {
            bail!("expected v{version} from {program}, found:\n{printed}");
        }
    }
    Ok(made)
}

fn install_client(filling: &Filling<'_>, place: &Path) -> Result<()> {
    let module = Module::at(filling.scratch("kubernetes-client")?);
    for file in MODULE_FILES {
        fs::copy(place.join(file), module.directory().join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    write_sources(module.directory())?;
    let made = filling.scratch(CLIENT)?;
    let mut build = module.go();
    build.args(["build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(made.join(CLIENT)).arg(".");
    host::read(&mut build).context("the client of Kubernetes does not compile")?;
    write_sources(&made)?;
    move_into_place(&made, &place.join(CLIENT))
}

/// The `go.mod` of this release.
fn published(module: &Module, version: Version) -> Result<String> {
    let wanted = format!("{KUBERNETES}@v{version}");
    let printed = host::read(module.go().args(["mod", "download", "-json", &wanted]))?;
    let answer: Value = serde_json::from_str(&printed).context("`go mod download` printed no JSON")?;
    let file = answer["GoMod"].as_str().with_context(|| format!("{wanted} has no go.mod"))?;
    fs::read_to_string(file).with_context(|| format!("cannot read {file}"))
}

/// A module that can build the programs of a release: the language settings are those of the release.
fn go_mod(published: &str, version: Version, programs: &[Program]) -> Result<String> {
    let setting = |name: &str| {
        let line = published.lines().find(|line| line.starts_with(name));
        line.with_context(|| format!("the go.mod of Kubernetes {version} has no line `{name}…`"))
    };
    let libraries: Vec<&str> = published.lines().filter_map(library).collect();
    if libraries.is_empty() {
        bail!("the go.mod of Kubernetes {version} replaces no library");
    }
    let Version { minor, patch, .. } = version;
    let replaced: String = libraries.iter().map(|name| format!("\t{name} => {name} v0.{minor}.{patch}\n")).collect();
    let tools: String = programs.iter().map(|(program, _)| format!("\t{}\n", package(program))).collect();
    Ok(format!(
        "module lab\n\n{}\n{}\n\ntool (\n{tools})\n\nrequire {KUBERNETES} v{version}\n\nreplace (\n{replaced})\n",
        setting("go ")?,
        setting("godebug ")?,
    ))
}

/// The name in a line such as `k8s.io/api => ./staging/src/k8s.io/api`.
fn library(line: &str) -> Option<&str> {
    let (name, place) = line.trim().trim_start_matches("replace ").split_once(" => ")?;
    place.starts_with("./staging/").then_some(name)
}

fn package(program: &str) -> String {
    format!("{KUBERNETES}/cmd/{program}")
}

/// Without it the programs say that they are v0.0.0.
fn stamp(version: Version) -> String {
    let place = "k8s.io/component-base/version";
    let Version { major, minor, .. } = version;
    format!("-s -w -X {place}.gitVersion=v{version} -X {place}.gitMajor={major} -X {place}.gitMinor={minor}")
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn move_into_place(made: &Path, place: &Path) -> Result<()> {
    let above = place.parent().context("the lab has no place for it")?;
    fs::create_dir_all(above).with_context(|| format!("cannot create {}", above.display()))?;
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    fs::rename(made, place).with_context(|| format!("cannot move into place {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: &str = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\n\
        replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/client-go => ./staging/src/k8s.io/client-go\n)\n";

    #[test]
    fn libraries_are_replaced_by_their_published_modules() {
        let text = go_mod(PUBLISHED, Version::new(1, 37, 1), &PROGRAMS).unwrap();
        assert!(text.contains("\ngo 1.26.0\ngodebug default=go1.26\n"), "{text}");
        assert!(text.contains("\nrequire k8s.io/kubernetes v1.37.1\n"), "{text}");
        assert!(text.contains("\tk8s.io/api => k8s.io/api v0.37.1\n"), "{text}");
        assert!(text.contains("\tk8s.io/client-go => k8s.io/client-go v0.37.1\n"), "{text}");
        assert!(!text.contains("staging"), "{text}");
        assert!(text.contains("\tk8s.io/kubernetes/cmd/kubectl\n"), "{text}");
    }

    #[test]
    fn a_release_in_another_shape_is_refused() {
        let error = go_mod("module k8s.io/kubernetes\n\ngo 1.26.0\n", Version::new(1, 37, 1), &PROGRAMS).unwrap_err();
        assert!(error.to_string().contains("replaces no library"), "{error}");
        assert!(go_mod(&PUBLISHED.replace("godebug", "toolchain"), Version::new(1, 37, 1), &PROGRAMS).is_err());
    }
}
