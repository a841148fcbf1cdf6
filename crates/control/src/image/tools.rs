//! The programs that a build needs on this machine.

use std::path::Path;
use std::process::Command;

use super::{Format, ImageError, Options};

const ALWAYS: [(&str, &str); 4] =
    [("mmdebstrap", "mmdebstrap"), ("chroot", "coreutils"), ("gzip", "gzip"), ("tar", "tar")];
const FOR_DISKS: [(&str, &str); 5] = [
    ("mke2fs", "e2fsprogs"),
    ("extlinux", "extlinux"),
    ("qemu-img", "qemu-utils"),
    ("mount", "mount"),
    ("umount", "mount"),
];

const FOR_PATRONI: [(&str, &str); 1] = [("pip3", "python3-pip")];

pub(super) fn check_all(options: &Options) -> Result<(), ImageError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    let for_disks = FOR_DISKS.iter().filter(|_| options.format == Format::Disk);
    let for_patroni = FOR_PATRONI.iter().filter(|_| options.postgres.is_some());
    match ALWAYS.iter().chain(for_disks).chain(for_patroni).find(|(program, _)| !is_there(program)) {
        Some((program, package)) => Err(ImageError::NoTool { program, package }),
        None => Ok(()),
    }
}

/// Runs it to its end; its error output is shown only if it fails.
pub(super) fn run(command: &mut Command) -> Result<String, ImageError> {
    let output = command.output().map_err(ImageError::file("run", Path::new(command.get_program())))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let command = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    // The last lines show the error; the whole output would be pages.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = said.trim().lines().collect();
    let said = lines[lines.len().saturating_sub(12)..].join("\n");
    Err(ImageError::Command { command, said })
}

/// Whether a 64-bit ELF program needs a loader of shared libraries; none for other files.
pub(super) fn needs_a_loader(elf: &[u8]) -> Option<bool> {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = elf.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (start, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    let kinds: Option<Vec<u64>> = (0..count).map(|at| number(start.checked_add(at.checked_mul(size)?)?, 4)).collect();
    Some(kinds?.contains(&INTERPRETER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_libraries_is_told_from_one_that_does_not() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(needs_a_loader(&own), Some(cfg!(not(target_feature = "crt-static"))));
        let mut header = vec![0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[32] = 64;
        header[54] = 56;
        assert_eq!(needs_a_loader(&header), Some(false));
        header[56] = 1;
        assert_eq!(needs_a_loader(&header), None, "its program header is cut off");
        assert_eq!(needs_a_loader(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn a_failed_command_reports_its_last_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo last >&2; exit 3"]);
        let error = run(&mut command).unwrap_err().to_string();
        assert!(error.ends_with("failed: first\nlast"), "{error}");
    }
}
