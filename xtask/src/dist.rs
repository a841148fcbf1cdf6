//! `cargo xtask dist`: the release files. A static binary for any Linux, as a tarball and as a Debian package, with completions,
//! man pages and systemd units, and the SHA-256 of each. `--try` then installs the package on bare Debians and uses it there.

mod trial;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::host::{self, Need};
use crate::lab::{self, Lab};
use crate::static_build;

pub const NEEDS: [Need; 3] = [
    Need::Command { name: "dpkg-deb", package: "dpkg" },
    Need::Command { name: "gzip", package: "gzip" },
    Need::Command { name: "tar", package: "tar" },
];

/// What is installed next to the program: where it is in the repository, and where it goes.
const FILES: [(&str, &str); 9] = [
    ("packaging/quorate-apply@.service", "usr/lib/systemd/system/quorate-apply@.service"),
    ("packaging/quorate-apply@.timer", "usr/lib/systemd/system/quorate-apply@.timer"),
    ("packaging/quorate-backup@.service", "usr/lib/systemd/system/quorate-backup@.service"),
    ("packaging/sysusers.conf", "usr/lib/sysusers.d/quorate.conf"),
    ("packaging/tmpfiles.conf", "usr/lib/tmpfiles.d/quorate.conf"),
    ("README.md", "usr/share/doc/quorate/README.md"),
    ("docs/installing.md", "usr/share/doc/quorate/installing.md"),
    ("CHANGELOG.md", "usr/share/doc/quorate/CHANGELOG.md"),
    ("LICENSE", "usr/share/doc/quorate/copyright"),
];

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/quorate"),
    ("zsh", "usr/share/zsh/vendor-completions/_quorate"),
    ("fish", "usr/share/fish/vendor_completions.d/quorate.fish"),
];

const MANUAL: &str = "usr/share/man/man1";

/// What dpkg runs when the package comes and goes.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

#[derive(clap::Args)]
pub struct Options {
    /// Install the package on bare Debians, in namespaces, and use it there; needs root
    #[arg(long = "try")]
    trial: bool,
    /// Pack this program instead of building the static one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    host::install_missing(&NEEDS)?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => static_build::build()?,
    };
    let out = host::target_directory()?.join("dist");
    let _ = fs::remove_dir_all(&out);
    let tree = out.join("tree");
    lay_out(&program, &tree)?;
    let name = format!("quorate-{}-linux-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let made = [tarball(&out, &tree, &name)?, package(&out, &tree)?];
    fs::remove_dir_all(&tree).context("cannot remove the files that were packed")?;
    let names = made.iter().filter_map(|file| file.file_name());
    let sums = host::read(Command::new("sha256sum").args(names).current_dir(&out))?;
    fs::write(out.join("SHA256SUMS"), &sums).context("cannot write SHA256SUMS")?;
    if options.trial {
        trial::run(lab, &made[1])?;
    }
    println!("{sums}in {}", out.display());
    Ok(())
}

/// The files as they are installed.
fn lay_out(program: &Path, tree: &Path) -> Result<()> {
    let root = lab::workspace()?;
    put(program, &tree.join("usr/bin/quorate"), 0o755)?;
    for (from, to) in FILES {
        put(&root.join(from), &tree.join(to), 0o644)?;
    }
    for (shell, to) in COMPLETIONS {
        write(&tree.join(to), host::read(Command::new(program).args(["completions", shell]))?)?;
    }
    let manual = tree.join(MANUAL);
    fs::create_dir_all(&manual).with_context(|| format!("cannot create {}", manual.display()))?;
    host::run(Command::new(program).arg("manual").arg(&manual))?;
    let pages = fs::read_dir(&manual).context("cannot list the man pages")?;
    let pages: Vec<PathBuf> = pages.map(|page| Ok(page?.path())).collect::<Result<_>>()?;
    host::run(Command::new("gzip").args(["-9", "-n"]).args(&pages))
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, content)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(|| format!("cannot change {}", to.display()))
}

fn write(to: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let directory = to.parent().unwrap_or(to);
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    fs::write(to, content).with_context(|| format!("cannot write {}", to.display()))
}

/// The same bytes for the same content: no times, no owners.
fn tarball(out: &Path, tree: &Path, name: &str) -> Result<PathBuf> {
    let file = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -9n",
    ]);
    tar.arg(format!("--transform=s,^./usr,{name},")).arg("-cf").arg(&file).arg("-C").arg(tree).arg("./usr");
    host::run(&mut tar)?;
    Ok(file)
}

fn package(out: &Path, tree: &Path) -> Result<PathBuf> {
    let (version, architecture) = (env!("CARGO_PKG_VERSION"), architecture()?);
    let packaging = lab::workspace()?.join("packaging");
    let control = fs::read_to_string(packaging.join("control")).context("cannot read packaging/control")?;
    let control = control.replace("VERSION", version).replace("ARCHITECTURE", architecture);
    write(&tree.join("DEBIAN/control"), control)?;
    for script in SCRIPTS {
        put(&packaging.join(script), &tree.join("DEBIAN").join(script), 0o755)?;
    }
    let file = out.join(format!("quorate_{version}_{architecture}.deb"));
    // dpkg-deb takes the times of the files from here, so the same content gives the same package.
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", "0").args(["--root-owner-group", "--build"]).arg(tree).arg(&file);
    host::read(&mut build)?;
    Ok(file)
}

fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("Debian's name for the architecture {other} is not known here"),
    }
}
