//! etcd from Go's modules: the newest release of each line that Debian does not package. Needs a Go toolchain;
//! builds in a temporary module and leaves Go's own caches where Go keeps them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::finish;
use crate::host::{self, Need};
use crate::lab::{Filling, Lab, Version};

/// A line of releases: major and minor version.
pub type Line = (u32, u32);

const LINES: [Line; 2] = [(3, 6), (3, 7)];

const SERVER: &str = "go.etcd.io/etcd/server/v3";

/// Without them no module proxy can be trusted.
pub const CERTIFICATES: Need = Need::File { path: "/etc/ssl/certs/ca-certificates.crt", package: "ca-certificates" };

/// Each binary and the module that builds it.
const PROGRAMS: [(&str, &str); 3] =
    [("etcd", SERVER), ("etcdctl", "go.etcd.io/etcd/etcdctl/v3"), ("etcdutl", "go.etcd.io/etcd/etcdutl/v3")];

pub fn missing_lines(lab: &Lab) -> Vec<Line> {
    let installed = lab.installed();
    let covered = |line: &Line| installed.keys().any(|version| (version.major, version.minor) == *line);
    LINES.into_iter().filter(|line| !covered(line)).collect()
}

/// Builds the missing lines, or with `refresh` the newest release of every line, where there is a toolchain.
pub fn install(lab: &Lab, filling: &Filling<'_>, refresh: bool) -> Result<()> {
    let lines = if refresh { LINES.to_vec() } else { missing_lines(lab) };
    if lines.is_empty() || host::find("go").is_none() {
        return Ok(());
    }
    host::install_missing(&[CERTIFICATES])?;
    let module = Module::new(filling.scratch("go")?)?;
    let offered = module.offered()?;
    let toolchain = module.toolchain()?;
    for line in lines {
        let Some(version) = module.newest_buildable(&offered, line, &toolchain)? else { continue };
        if lab.installed().contains_key(&version) {
            continue;
        }
        eprintln!("etcd {version}: building from Go's modules, which takes minutes the first time");
        let began = Instant::now();
        let directory = filling.scratch(&version.to_string())?;
        // A separate module, so that no version chosen for another release leaks into this one.
        Module::new(filling.scratch(&format!("go-{version}"))?)?.build(version, &directory)?;
        finish(&directory, version, &format!("Go module {SERVER}@v{version}"))?;
        filling.install(version, &directory)?;
        eprintln!("etcd {version}: built in {:.0} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The Go on this machine.
struct Toolchain {
    version: Vec<u32>,
    /// Whether it may fetch a newer one by itself when a module asks for it.
    fetches_newer: bool,
}

/// A module in which the programs that are wanted are dependencies.
pub struct Module {
    directory: PathBuf,
}

impl Module {
    /// An empty one.
    pub fn new(directory: PathBuf) -> Result<Self> {
        let module = Self::at(directory);
        host::read(module.go().args(["mod", "init", "lab"]))?;
        Ok(module)
    }

    /// One whose `go.mod` is, or will be, in this directory.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn go(&self) -> Command {
        let mut command = Command::new("go");
        command.current_dir(&self.directory);
        // Settings of the surroundings (a workspace, vendoring, a version control system) are not for this module.
        command.env("GO111MODULE", "on").env("GOWORK", "off").env("GOFLAGS", "-mod=mod -buildvcs=false");
        command.env("CGO_ENABLED", "0");
        command
    }

    fn toolchain(&self) -> Result<Toolchain> {
        let printed = host::read(self.go().args(["env", "GOVERSION", "GOTOOLCHAIN"]))?;
        let mut lines = printed.lines();
        let version = lines.next().and_then(parse_go_version).context("`go env GOVERSION` names no version")?;
        let choice = lines.next().unwrap_or_default();
        Ok(Toolchain { version, fetches_newer: choice == "auto" || choice.ends_with("+auto") })
    }

    /// The releases that all of etcd's programs have in common.
    fn offered(&self) -> Result<BTreeSet<Version>> {
        let mut common: Option<BTreeSet<Version>> = None;
        for (_, module) in PROGRAMS {
            let list = host::read(self.go().args(["list", "-m", "-versions", module]))
                .context("cannot ask the Go module proxy for etcd's releases")?;
            let versions = parse_versions(&list);
            common = Some(match common {
                None => versions,
                Some(common) => &common & &versions,
            });
        }
        Ok(common.unwrap_or_default())
    }

    /// The newest release of a line that this toolchain can build; says so when it is not the newest of all.
    fn newest_buildable(
        &self,
        offered: &BTreeSet<Version>,
        line: Line,
        toolchain: &Toolchain,
    ) -> Result<Option<Version>> {
        let releases = offered.iter().rev().filter(|version| (version.major, version.minor) == line);
        for &version in releases {
            let module = format!("{SERVER}@v{version}");
            let needs = host::read(self.go().args(["list", "-m", "-f", "{{.GoVersion}}", &module]))?;
            let needs = needs.trim();
            if toolchain.fetches_newer || parse_go_version(needs).is_none_or(|needed| needed <= toolchain.version) {
                return Ok(Some(version));
            }
            eprintln!("etcd {version}: passed over, it needs Go {needs} and this one is older");
        }
        Ok(None)
    }

    fn build(&self, version: Version, into: &Path) -> Result<()> {
        let wanted = PROGRAMS.map(|(_, module)| format!("{module}@v{version}"));
        host::read(self.go().arg("get").args(wanted))?;
        for (binary, module) in PROGRAMS {
            // Two at a time: this often runs next to other work, and the linker is hungry.
            let mut build = self.go();
            build.args(["build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(into.join(binary)).arg(module);
            host::read(&mut build)?;
        }
        Ok(())
    }
}

/// The releases in what `go list -m -versions` prints; previews are left out.
fn parse_versions(list: &str) -> BTreeSet<Version> {
    list.split_whitespace().filter_map(|word| word.strip_prefix('v')?.parse().ok()).collect()
}

/// The numbers of a Go version such as `go1.26.8`, `1.24` or `go1.27rc1`.
fn parse_go_version(text: &str) -> Option<Vec<u32>> {
    let numbers = text.trim().trim_start_matches("go");
    let end = numbers.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(numbers.len());
    numbers[..end].split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_list_yields_releases_only() {
        let list = "go.etcd.io/etcd/server/v3 v3.5.0-alpha.0 v3.6.0 v3.6.14 v3.6.9 v3.7.0-rc.0 v3.7.1 v3.8.0-alpha.0\n";
        let versions: Vec<String> = parse_versions(list).iter().map(Version::to_string).collect();
        assert_eq!(versions, ["3.6.0", "3.6.9", "3.6.14", "3.7.1"]);
        assert!(parse_versions("go.etcd.io/etcd/server/v3\n").is_empty());
    }

    #[test]
    fn go_versions_compare_by_number() {
        let version = |text| parse_go_version(text).unwrap();
        assert_eq!(version("go1.26.8"), [1, 26, 8]);
        assert_eq!(version("go1.27rc1"), [1, 27]);
        assert!(version("1.9") < version("go1.24.0"));
        assert!(version("1.24") <= version("go1.24.0"));
        assert_eq!(parse_go_version(""), None);
        assert_eq!(parse_go_version("devel"), None);
    }
}
