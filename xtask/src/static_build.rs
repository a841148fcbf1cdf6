//! `cargo xtask static`: quorate as one program without shared libraries, so the agent starts on any Linux. What people install is linked
//! with musl; the labs' program is in `lab_program.rs`. Both are checked before they are called static.

pub mod lab_program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::host::{self, Need};

/// zstd and ring are C in part.
pub const NEEDS: [Need; 1] = [Need::Command { name: "musl-gcc", package: "musl-tools" }];

/// For the linker: leaves out what only unwinding needs.
const NO_UNWINDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/static_build/no_unwinding.ld");

/// Builds what people install, and returns where it is.
pub fn build() -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    host::install_missing(&NEEDS)?;
    if host::find("rustup").is_some() {
        host::read(Command::new("rustup").args(["target", "add", &target]))?;
    }
    eprintln!("building quorate for {target}");
    let mut cargo = host::cargo()?;
    cargo.args(["rustc", "--locked", "--package", "quorate", "--bin", "quorate", "--target", &target]);
    cargo.args(["--release", "--", "-C", &format!("link-arg=-Wl,-T,{NO_UNWINDING}")]);
    cargo.args(["-C", "link-arg=-Wl,--no-eh-frame-hdr"]);
    host::run(&mut cargo)?;
    let program = host::target_directory()?.join(&target).join("release").join("quorate");
    check_static(&program)?;
    Ok(program)
}

pub fn run(for_labs: bool) -> Result<()> {
    let program = if for_labs { lab_program::build()? } else { build()? };
    let size = fs::metadata(&program).with_context(|| format!("cannot look at {}", program.display()))?.len();
    println!("{}  static, {:.1} MiB", program.display(), size as f64 / f64::from(1 << 20));
    Ok(())
}

/// A loader that finds nothing to load says so, in one way or another.
fn check_static(program: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(program).output().context("cannot start `ldd`")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    if is_static(&said) { Ok(()) } else { bail!("{} is not static:\n{said}", program.display()) }
}

fn is_static(said: &str) -> bool {
    ["statically linked", "not a dynamic executable"].iter().any(|word| said.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_libraries_is_not_static() {
        // This very test was linked the usual way.
        let own = std::env::current_exe().unwrap();
        assert_eq!(check_static(&own).is_ok(), cfg!(target_feature = "crt-static"));
        assert!(is_static("\tstatically linked") && is_static("\tnot a dynamic executable"));
    }
}
