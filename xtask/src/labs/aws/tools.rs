//! What the lab of AWS installs: moto, from PyPI; Ignition and its validator, built from its Go modules; and the base system of instances
//! that are whole systems, from Debian's packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::etcd::go::{CERTIFICATES, Module};
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::weed::python;

const MOTO: &str = "5.2.5";
/// The services that moto serves.
const SERVICES: &str = "server,ec2,elbv2,route53,ssm";
/// What was installed, in a file that is written last. Something else is installed again.
const WHOLE: &str = "whole";
const IGNITION: &str = "2.27.0";
const MODULE: &str = "github.com/coreos/ignition/v2";
/// Flatcar has no SELinux policy to label files by.
const AS_FLATCAR: &str = "-X github.com/coreos/ignition/v2/internal/distro.selinuxRelabel=false";
/// Ignition is linked with it.
const BLKID: Need = Need::File { path: "/usr/include/blkid/blkid.h", package: "libblkid-dev" };
/// Of every run: the network that instances are on.
const ALWAYS: [Need; 1] = [Need::Command { name: "ip", package: "iproute2" }];
/// Of whole systems.
const NEEDS: [Need; 4] = [
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "dnsmasq", package: "dnsmasq-base" },
    Need::Command { name: "useradd", package: "passwd" },
    Need::Command { name: "cc", package: "gcc" },
];
const SYSTEM: &str = "bookworm";
const PACKAGES: &str = "systemd-sysv,udev,dbus,iproute2,netbase,hostname,openssh-server,sudo,ca-certificates,curl,nftables,cloud-init,\
                        systemd-container,etcd-server,etcd-client,prometheus-node-exporter";
/// Agents start these, or they only make a start slower.
const NOT_AT_BOOT: &str = "etcd prometheus-node-exporter nftables apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
                           e2scrub_reap fstrim.timer dpkg-db-backup.timer";

/// What was installed.
pub struct Tools {
    /// moto's environment.
    pub moto: PathBuf,
    /// Where whole systems are wanted.
    pub systems: Option<Systems>,
}

pub struct Systems {
    /// Ignition's.
    pub validator: PathBuf,
    /// With `root` and `ignition`.
    pub directory: PathBuf,
}

/// Installs what is missing.
pub fn prepare(lab: &Lab, systems: bool) -> Result<Tools> {
    let moto = lab.root().join("moto").join(MOTO);
    host::install_missing(&ALWAYS)?;
    install_moto(lab, &moto)?;
    Ok(Tools { moto, systems: systems.then(|| whole_systems(lab)).transpose()? })
}

fn is_whole(place: &Path, what: &str) -> bool {
    fs::read_to_string(place.join(WHOLE)).is_ok_and(|installed| installed == what)
}

fn finish(place: &Path, what: &str) -> Result<()> {
    fs::write(place.join(WHOLE), what).context("cannot write into the lab directory")
}

fn install_moto(lab: &Lab, place: &Path) -> Result<()> {
    let what = format!("moto[{SERVICES}]=={MOTO}");
    if is_whole(place, &what) {
        return Ok(());
    }
    let _filling = lab.lock()?;
    // Asked again under the lock: another run may have done the work meanwhile.
    if is_whole(place, &what) {
        return Ok(());
    }
    eprintln!("moto {MOTO}: installing it from PyPI");
    let _ = fs::remove_dir_all(place);
    host::read(Command::new(python()?).args(["-m", "venv"]).arg(place))?;
    let mut pip = Command::new(place.join("bin/pip"));
    host::read(pip.args(["install", "--quiet", &what]))
        .context("pip cannot get it: it needs the network, or a mirror that it is configured for")?;
    finish(place, &what)
}

/// A program of Ignition's.
fn build(lab: &Lab, package: &str, place: &Path, with_c: bool) -> Result<()> {
    if host::find("go").is_none() {
        bail!("Ignition is built from Go's modules: install a Go toolchain");
    }
    eprintln!("Ignition {IGNITION}: building its {package} from Go's modules");
    host::install_missing(&[CERTIFICATES])?;
    let package = format!("{MODULE}/{package}");
    let filling = lab.lock()?;
    let module = Module::new(filling.scratch("ignition")?)?;
    host::read(module.go().args(["get", &format!("{package}@v{IGNITION}")]))?;
    let program = module.directory().join("program");
    let mut go = module.go();
    if with_c {
        go.env("CGO_ENABLED", "1");
    }
    go.args(["build", "-p", "2", "-trimpath", "-ldflags", &format!("-s -w {AS_FLATCAR}"), "-o"]);
    host::read(go.arg(&program).arg(&package))?;
    fs::create_dir_all(place.parent().context("a place in no directory")?).context("cannot create a directory")?;
    fs::rename(&program, place).with_context(|| format!("cannot move into place {}", place.display()))
}

fn whole_systems(lab: &Lab) -> Result<Systems> {
    let place = lab.root().join("ignition").join(IGNITION);
    let (ignition, validator) = (place.join("ignition"), place.join("ignition-validate"));
    if !validator.exists() {
        build(lab, "validate", &validator, false)?;
    }
    host::install_missing(&NEEDS)?;
    if !ignition.exists() {
        host::install_missing(&[BLKID])?;
        build(lab, "internal", &ignition, true)?;
    }
    Ok(Systems { validator, directory: debian_with(lab, &ignition)? })
}

/// The system of instances, and Ignition next to it.
fn debian_with(lab: &Lab, ignition: &Path) -> Result<PathBuf> {
    let place = lab.root().join("ec2").join(format!("{SYSTEM}-{IGNITION}"));
    let what = format!("{PACKAGES}\n{NOT_AT_BOOT}");
    if is_whole(&place, &what) {
        return Ok(place);
    }
    eprintln!("installing the system of instances (a minute or more)");
    let _filling = lab.lock()?;
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let mut debian = Command::new("mmdebstrap");
    debian.args(["--mode=root", "--variant=minbase", "--quiet", &format!("--include={PACKAGES}")]);
    debian.arg("--aptopt=Apt::Install-Recommends \"0\"");
    for documents in ["man", "locale", "doc"] {
        debian.arg(format!("--dpkgopt=path-exclude=/usr/share/{documents}/*"));
    }
    debian.arg(format!("--customize-hook=chroot \"$1\" systemctl --quiet disable {NOT_AT_BOOT}"));
    host::run(debian.arg(SYSTEM).arg(place.join("root")))?;
    fs::copy(ignition, place.join("ignition")).context("cannot copy Ignition")?;
    finish(&place, &what)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_of_what_to_install_is_installed_again() {
        let place = std::env::temp_dir().join(format!("xtask-whole-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let before = is_whole(&place, "moto[ec2]==1");
        finish(&place, "moto[ec2]==1").unwrap();
        let (same, other) = (is_whole(&place, "moto[ec2]==1"), is_whole(&place, "moto[ec2,ssm]==1"));
        fs::remove_dir_all(&place).unwrap();
        assert_eq!((before, same, other), (false, true, false));
    }
}
