//! `cargo xtask postgres`: PostgreSQL from Debian's package, and Patroni from PyPI in an environment in the lab. Links to Patroni's programs are
//! put into a separate directory, last and by a rename: it is there whole or not at all. Repeating it costs nothing and needs no network.
//! A second major version, to upgrade to, is only unpacked (`newer.rs`), and so is Debian's older Patroni (`older.rs`). A second minor release is
//! made of the installed one (`minor.rs`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::host::{self, Need};
use crate::lab::{Filling, Lab};
use crate::weed::python;

pub mod minor;
pub mod newer;
mod older;

/// One major version for everybody, that of Debian 12. Elsewhere it comes from the packages that PostgreSQL's own project makes.
pub const SERVER: Need = Need::File { path: POSTGRES, package: PACKAGE };
/// For backups.
pub const PGBACKREST: Need = Need::Command { name: "pgbackrest", package: "pgbackrest" };
/// In front of it. Debian's package starts it where there is systemd, with a configuration that listens nowhere.
pub const HAPROXY: Need = Need::File { path: "/usr/sbin/haproxy", package: "haproxy" };
/// The same: the package starts it where there is systemd, for nobody.
pub const PGBOUNCER: Need = Need::File { path: "/usr/sbin/pgbouncer", package: "pgbouncer" };
const PACKAGE: &str = "postgresql-15";
/// Where Debian's package puts them.
pub const PROGRAMS_DIRECTORY: &str = "/usr/lib/postgresql/15/bin";
const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";
/// One version for everybody: what the tests say of Patroni's behaviour was seen with it.
const VERSION: &str = "4.1.5";
const PROGRAMS: [&str; 2] = ["patroni", "patronictl"];
/// Debian's package reads this when it is installed for the first time.
const SETTING: &str = "/etc/postgresql-common/createcluster.d/quorate-xtask.conf";

pub fn run(lab: &Lab) -> Result<()> {
    let programs = ensure(lab)?;
    println!("{}  {POSTGRES}", host::read(Command::new(POSTGRES).arg("--version"))?.trim_end());
    println!("Patroni {VERSION}  {}", programs.display());
    println!("Patroni {}  {}", older::VERSION, older::ensure(lab)?.display());
    println!("PostgreSQL {}  {}", newer::VERSION, newer::ensure(lab)?.display());
    println!("PostgreSQL 15, the minor release before  {}", minor::ensure(lab)?.display());
    Ok(())
}

/// The directory of Patroni's programs, for the PATH. What is missing is installed.
pub fn ensure(lab: &Lab) -> Result<PathBuf> {
    host::install_missing(&[SERVER, PGBACKREST, HAPROXY, PGBOUNCER])?;
    let programs = lab.patroni().join(format!("{VERSION}-bin"));
    if is_whole(&programs) {
        return Ok(programs);
    }
    let filling = lab.lock()?;
    // Asked again under the lock: another run may have done the work meanwhile.
    if !is_whole(&programs) {
        install(lab, &filling, &programs).with_context(|| {
            format!(
                "Patroni {VERSION} is missing; links to programs that were got in another way can be put into {}",
                programs.display()
            )
        })?;
    }
    Ok(programs)
}

/// Asks the program itself: its environment breaks when the Python that it was made with goes away.
fn is_whole(programs: &Path) -> bool {
    let answer = host::read(Command::new(programs.join("patroni")).arg("--version"));
    answer.is_ok_and(|answer| answer.trim_end() == format!("patroni {VERSION}"))
}

fn install(lab: &Lab, filling: &Filling<'_>, target: &Path) -> Result<()> {
    eprintln!("getting Patroni {VERSION}");
    // An environment cannot be moved, so it is created where it stays. One that was interrupted is created again.
    let environment = lab.patroni().join(VERSION);
    for old in [target, &environment] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    host::read(Command::new(python()?).args(["-m", "venv"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--only-binary=psycopg2-binary", "psycopg2-binary"]);
    pip.arg(format!("patroni[etcd3]=={VERSION}"));
    host::read(&mut pip).context("pip cannot get it: it needs the network, or a mirror that it is configured for")?;
    let links = filling.scratch("patroni")?;
    for name in PROGRAMS {
        let program = environment.join("bin").join(name);
        ensure!(program.is_file(), "the package has no program {}", program.display());
        symlink(&program, links.join(name)).with_context(|| format!("cannot link to {}", program.display()))?;
    }
    ensure!(is_whole(&links), "what pip installed in {} is not Patroni {VERSION}", environment.display());
    fs::rename(&links, target).with_context(|| format!("cannot move into place {}", target.display()))
}

/// Whether a package would create a PostgreSQL cluster on this machine, and start it.
pub fn is_server(package: &str) -> bool {
    package == PACKAGE
}

/// Has the package install programs alone. Only while it is installed: what else is installed on this machine later behaves as usual.
pub fn without_first_cluster(install: impl FnOnce() -> Result<()>) -> Result<()> {
    let directory = Path::new(SETTING).parent().context("a file in no directory")?.display().to_string();
    host::run_as_root(&format!("mkdir -p {directory} && echo 'create_main_cluster = false' > {SETTING}"))?;
    let installed =
        install().context("PostgreSQL 15 is in Debian 12; for other releases, add the packages of apt.postgresql.org");
    host::run_as_root(&format!("rm -f {SETTING}"))?;
    installed
}
