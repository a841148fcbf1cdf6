//! As many servers, each with a port, of Terraform's OpenStack provider on the same scripted cloud. The provider is
//! built from its Go module: the newest version that a module proxy had, older than the newest in Terraform's registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use quorate_scripted_cloud::{self as cloud, Server};

use super::{Asked, Measured};
use crate::bench::{Ground, terraform};
use crate::etcd::go::{CERTIFICATES, Module};
use crate::host;
use crate::lab::Lab;

pub const VERSION: &str = "1.54.1";
const MODULE: &str = "github.com/terraform-provider-openstack/terraform-provider-openstack";
const PROVIDER: &str = "terraform-provider-openstack";
/// The provider sleeps for 10 s after each server that it creates. Plans have Terraform's own limit, which is 10.
const AT_ONCE: &str = "-parallelism=300";

pub struct Terraform {
    program: PathBuf,
    directory: PathBuf,
    server: Server,
}

impl Terraform {
    /// None where Terraform is not on the PATH, or its provider cannot be had.
    pub fn prepare(lab: &Lab, ground: &Ground) -> Result<Option<Self>> {
        let Some(program) = host::find("terraform") else {
            eprintln!("terraform is not on the PATH, so nothing is compared with it");
            return Ok(None);
        };
        let provider = match provider(lab) {
            Ok(provider) => provider,
            Err(error) => {
                eprintln!("Terraform's provider {VERSION} cannot be built, so nothing is compared with it: {error:#}");
                return Ok(None);
            }
        };
        let directory = ground.directory("terraform")?;
        let server = Server::start()?;
        let image = server.cloud().id_of("images");
        let flavor = server.cloud().id_of("flavors");
        let network = server.cloud().id_of("networks");
        write(&directory.join("main.tf"), &configuration(&image, &flavor, &network))?;
        write(&directory.join("terraformrc"), &settings(&provider))?;
        Ok(Some(Self { program, directory, server }))
    }

    fn terraform(&self, arguments: &[&str], servers: usize) -> Command {
        let mut command = terraform::call(&self.program, &self.directory, arguments);
        command.arg(format!("-var=servers={servers}"));
        super::log_in(&mut command, &self.server);
        command
    }

    /// Has this many servers.
    pub fn grow(&self, servers: usize) -> Result<()> {
        eprintln!("terraform creates servers until there are {servers}");
        host::read(&mut self.terraform(&["apply", "-auto-approve", AT_ONCE], servers)).map(drop)
    }

    /// Refreshes all of them, and finds nothing to do.
    pub fn plan(&self, servers: usize) -> Result<Measured> {
        let asked = Asked::of(&self.server, &mut self.terraform(&["plan"], servers))?;
        asked.expect(0, |printed| printed.contains("No changes."), "a plan without changes")
    }
}

/// Built where it is missing. It stays.
fn provider(lab: &Lab) -> Result<PathBuf> {
    let place = lab.root().join("terraform").join(format!("openstack-{VERSION}"));
    if place.join(PROVIDER).is_file() {
        return Ok(place);
    }
    host::install_missing(&[CERTIFICATES])?;
    eprintln!("Terraform's OpenStack provider {VERSION}: building it from its Go module, which takes minutes");
    let filling = lab.lock()?;
    let module = Module::new(filling.scratch("terraform-provider")?)?;
    host::read(module.go().args(["get", &format!("{MODULE}@v{VERSION}")]))?;
    let built = filling.scratch("terraform-provider-built")?;
    let mut build = module.go();
    build.args(["build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(built.join(PROVIDER)).arg(MODULE);
    host::read(&mut build)?;
    fs::create_dir_all(place.parent().context("a place in no directory")?).context("cannot create a directory")?;
    fs::rename(&built, &place).with_context(|| format!("cannot move into place {}", place.display()))?;
    Ok(place)
}

fn configuration(image: &str, flavor: &str, network: &str) -> String {
    format!(
        r#"terraform {{
  required_providers {{
    openstack = {{ source = "terraform-provider-openstack/openstack" }}
  }}
}}

variable "servers" {{ type = number }}

resource "openstack_networking_port_v2" "member" {{
  count          = var.servers
  name           = "member-${{count.index}}"
  network_id     = "{network}"
  admin_state_up = true
}}

resource "openstack_compute_instance_v2" "member" {{
  count     = var.servers
  name      = "member-${{count.index}}"
  image_id  = "{image}"
  flavor_id = "{flavor}"
  network {{
    port = openstack_networking_port_v2.member[count.index].id
  }}
}}

provider "openstack" {{
  region = "{}"
}}
"#,
        cloud::REGION
    )
}

/// The provider is this very one, so nothing is installed.
fn settings(provider: &Path) -> String {
    format!(
        "provider_installation {{\n  dev_overrides {{\n    \"terraform-provider-openstack/openstack\" = {:?}\n  }}\n\
         \x20 direct {{}}\n}}\n",
        provider.display().to_string()
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
