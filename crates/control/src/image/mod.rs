//! `quorate image build`: builds a small Debian image that needs no cloud-init. Everything comes from packages; the agent's unit
//! reads the seed disk. The image is one disk with a boot loader, so a provider only needs a volume of it. Without an agent it is
//! a standard cloud image: cloud-init sets the machine up, and the agent comes from the seed disk.

mod container;
mod disk;
mod import;
mod initrd;
mod lean;
mod manifest;
mod modules;
mod postgres;
mod system;
mod tools;

use std::fs;
use std::path::{Path, PathBuf};

use quorate_agent::boot::With;

pub use import::{ImportOptions, UploadOptions, import, upload};
pub use manifest::{Manifest, Package};
pub use quorate_providers::{Imported, Uploaded};

/// The options of an image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the image is written; its manifest is written next to it.
    pub output: PathBuf,
    /// The agent: a static program. None for an image with cloud-init, and with nothing of ours.
    pub program: Option<PathBuf>,
    /// Debian's name of the release.
    pub suite: String,
    /// A mirror, or a file with sources of packages, instead of Debian's own.
    pub sources: Option<String>,
    /// Further packages, such as fluent-bit where the sources have it.
    pub packages: Vec<String>,
    /// The major version of PostgreSQL that its machines can also run, with all needed programs.
    pub postgres: Option<u16>,
    /// How its machines get their seed: by themselves, or from the metadata service of a cloud.
    pub with: With,
    /// Of the disk. A machine's root disk may be larger: the file system grows into it.
    pub bytes: u64,
    pub format: Format,
}

/// What an image is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// A disk with a boot loader in it.
    #[default]
    Disk,
    /// A tarball of a system container, as Incus imports it.
    Container,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("{program} is missing on this machine; install the package {package}")]
    NoTool { program: &'static str, package: &'static str },
    #[error("an image can be built by root alone, since its files belong to many users")]
    NotRoot,
    #[error("{} is not a static program; build one with `cargo xtask static` and pass it with --program", path.display())]
    NotStatic { path: PathBuf },
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{command} failed: {said}")]
    Command { command: String, said: String },
    #[error("the image has no {what}: {}", why)]
    Incomplete { what: &'static str, why: String },
    #[error("{} is not the manifest of an image", path.display())]
    NotAManifest { path: PathBuf, source: serde_json::Error },
    #[error("the manifest says that the image has the SHA-256 {expected}, and {} has {found}: build it again", path.display())]
    OtherImage { path: PathBuf, expected: String, found: String },
    #[error(transparent)]
    Provider(#[from] Box<quorate_providers::ProviderError>),
}

impl ImageError {
    fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| ImageError::File { doing, path, source }
    }
}

/// Builds the image and reports progress. Leftovers of an interrupted build are removed first; the image is complete or
/// absent.
pub fn build(options: &Options, say: &dyn Fn(&str)) -> Result<Manifest, ImageError> {
    check(options)?;
    let scratch = Scratch::new(&options.output)?;
    let root = scratch.0.join(container::ROOT);
    say("installing packages (a minute or more)");
    let mut packages = system::install(options, &root, &scratch.0)?;
    if options.postgres.is_some() {
        packages.push(postgres::put_patroni(&root, &scratch.0)?);
    }
    let manifest = Manifest::new(options, packages)?;
    system::furnish(&root, options, &manifest)?;
    if options.postgres.is_some() && options.format == Format::Disk {
        postgres::put_watchdog(&root)?;
    }
    let image = match options.format {
        Format::Disk => {
            say("making the first file system");
            let kernel = initrd::put(&root, options.with == With::Ec2)?;
            disk::put_boot_menu(&root, &kernel)?;
            say("making the disk");
            disk::make(&root, options.bytes, &scratch.0)?
        }
        Format::Container => {
            say("packing the container");
            container::pack(&root, &manifest, &scratch.0)?
        }
    };
    let manifest = manifest.of_image(&image)?;
    manifest.write(&manifest_path(&options.output))?;
    fs::rename(&image, &options.output).map_err(ImageError::file("put in place", &options.output))?;
    Ok(manifest)
}

/// Next to the image.
pub fn manifest_path(image: &Path) -> PathBuf {
    let mut name = image.file_name().unwrap_or_default().to_os_string();
    name.push(".manifest.json");
    image.with_file_name(name)
}

fn check(options: &Options) -> Result<(), ImageError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ImageError::NotRoot);
    }
    tools::check_all(options)?;
    let Some(path) = &options.program else { return Ok(()) };
    let program = fs::read(path).map_err(ImageError::file("read", path))?;
    match tools::needs_a_loader(&program) {
        Some(false) => Ok(()),
        _ => Err(ImageError::NotStatic { path: path.clone() }),
    }
}

/// Next to the output, so that the build ends with a rename. Removed when the build ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(output: &Path) -> Result<Self, ImageError> {
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        name.push(".building");
        let place = output.with_file_name(name);
        disk::release(&place);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).map_err(ImageError::file("make", &place))?;
        let place = std::path::absolute(&place).map_err(ImageError::file("find", &place))?;
        Ok(Scratch(place))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        disk::release(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}
