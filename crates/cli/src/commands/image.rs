//! `quorate image …`: machine images with everything that a member needs.

use std::path::PathBuf;

use quorate_agent::boot::With;
use quorate_control::image::{self, Format, ImportOptions, Imported, Options, UploadOptions, Uploaded};

use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::output;

pub fn build(options: cli::ImageBuild) -> Result<Exit, Error> {
    let cli::ImageBuild {
        output: file,
        format,
        program,
        cloud_init,
        suite,
        sources,
        packages,
        postgres,
        ec2,
        openstack,
        size,
    } = options;
    let with = match (ec2, openstack) {
        (true, _) => With::Ec2,
        (_, true) => With::Nova,
        (false, false) => With::Nothing,
    };
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
    let options = Options { output: file.clone(), program, suite, sources, packages, postgres, with, bytes, format };
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
    let cli::ImageImport { file, to, remote, project, cloud, region, keep } = options;
    let (lines, pruned) = match to {
        cli::ImageStore::Incus if cloud.is_some() || region.is_some() => {
            return Err(Error::refused("--cloud and --region are about OpenStack", "add `--to openstack`"));
        }
        cli::ImageStore::Openstack if remote.is_some() || project.is_some() => {
            return Err(Error::refused(
                "--remote and --project are about Incus",
                "leave them out: the project is that of the credentials",
            ));
        }
        cli::ImageStore::Incus => {
            let Imported { fingerprint, alias, was_there, pruned } =
                image::import(&ImportOptions { file, remote, project, keep }).await?;
            let how = if was_there { "was there already" } else { "imported" };
            (format!("{alias}\n  fingerprint {}, {how}\n  in the spec: `image: {alias}`\n", &fingerprint[..12]), pruned)
        }
        cli::ImageStore::Openstack => {
            let Uploaded { id, name, was_there, pruned } =
                image::upload(&UploadOptions { file, cloud, region, keep }).await?;
            let how = if was_there { "was there already" } else { "uploaded" };
            (format!("{name}\n  id {id}, {how}, checksum compared\n  in the spec: `image: {name}`\n"), pruned)
        }
    };
    let pruned = pruned.iter().map(|old| format!("  deleted {old}: newer images are there, and no machine uses it\n"));
    output::print(&pruned.fold(lines, |lines, line| lines + &line))?;
    Ok(Exit::Done)
}
