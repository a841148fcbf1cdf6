//! `quorate image …`: a machine image with all that a member needs.

use std::path::PathBuf;

use quorate_control::image::{self, Format, ImportOptions, Imported, Options};

use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;

pub fn build(options: cli::ImageBuild) -> Result<Exit, Error> {
    let cli::ImageBuild { output: file, format, program, cloud_init, suite, sources, packages, postgres, size } =
        options;
    let program = match program {
        None if !cloud_init => {
            Some(std::env::current_exe().map_err(Error::file("found", PathBuf::from("this program")))?)
        }
        given => given,
    };
    let bytes = size.0;
    let format = match format {
        cli::ImageFormat::Qcow2 => Format::Disk,
        cli::ImageFormat::Incus => Format::Container,
    };
    let options = Options { output: file.clone(), program, suite, sources, packages, postgres, bytes, format };
    let manifest = image::build(&options, &|what| output::talk(&format!("{what}\n")))?;
    let lines = format!(
        "{}\n  version {}\n  {} packages, {} MiB\n  manifest {}\n",
        file.display(),
        manifest.version,
        manifest.packages.len(),
        manifest.image_bytes >> 20,
        image::manifest_path(&file).display()
    );
    output::print(&lines)?;
    Ok(Exit::Done)
}

pub async fn import(options: cli::ImageImport) -> Result<Exit, Error> {
    let cli::ImageImport { file, remote, project, keep } = options;
    let Imported { fingerprint, alias, was_there, pruned } =
        image::import(&ImportOptions { file, remote, project, keep }).await?;
    let how = if was_there { "was there already" } else { "imported" };
    let mut lines = format!("{alias}\n  fingerprint {}, {how}\n  in the spec: `image: {alias}`\n", &fingerprint[..12]);
    for old in pruned {
        lines.push_str(&format!("  deleted {old}: newer images are there, and no instance uses it\n"));
    }
    output::print(&lines)?;
    Ok(Exit::Done)
}
