//! `quorate image build`: a machine image with all that a member needs.

use std::path::PathBuf;

use quorate_control::image::{self, Format, Options};

use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;

pub fn build(options: cli::ImageBuild) -> Result<Exit, Error> {
    let cli::ImageBuild { output: file, format, program, cloud_init, suite, sources, packages, size } = options;
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
    let options = Options { output: file.clone(), program, suite, sources, packages, bytes, format };
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
