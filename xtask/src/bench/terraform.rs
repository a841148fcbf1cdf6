//! The same fleets as a Terraform configuration, made of nothing but Terraform's own `terraform_data`: no provider is
//! started and nobody is asked, so this is the least that Terraform takes for as many clusters.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Ground;
use super::process::{Cost, measure};
use crate::host;

pub const SIZES: [usize; 2] = [30, 100];
pub const COMPARED: &str = "\
Against Terraform, both from nothing: a module per cluster with a CA, and per member a key, a certificate, a node config and
a machine, all as built-in `terraform_data` without a provider; real modules, whose providers compute and ask, take longer.";
const PATIENCE: Duration = Duration::from_secs(120);

const CLUSTER: &str = r#"variable "name" { type = string }

locals {
  members = toset(["etcd-1", "etcd-2", "etcd-3"])
  peers   = join(",", [for member in local.members : "${member}=https://${member}.${var.name}:2380"])
}

resource "terraform_data" "ca" { input = var.name }

resource "terraform_data" "key" {
  for_each = local.members
  input    = "${var.name}/${each.key}"
}

resource "terraform_data" "certificate" {
  for_each = local.members
  input    = { ca = terraform_data.ca.id, key = terraform_data.key[each.key].id, name = each.key }
}

resource "terraform_data" "config" {
  for_each = local.members
  input = join("\n", [
    "name: ${each.key}",
    "initial-cluster: ${local.peers}",
    "cert: ${terraform_data.certificate[each.key].id}",
  ])
}

resource "terraform_data" "machine" {
  for_each = local.members
  input    = { name = "${each.key}-${var.name}", config = terraform_data.config[each.key].output }
}
"#;

/// A call of Terraform on the configuration in this directory, with neither the user's settings nor a question whether there is a newer one.
pub fn call(program: &Path, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(format!("-chdir={}", directory.display())).args(arguments).args(["-input=false", "-no-color"]);
    command.env("TF_CLI_CONFIG_FILE", directory.join("terraformrc")).env("CHECKPOINT_DISABLE", "1");
    command
}

/// Planning alone; preparing the directory is not counted.
pub fn measure_plan(ground: &Ground, program: &Path, clusters: usize) -> Result<Cost> {
    let directory = ground.directory("terraform")?;
    write_configuration(&directory, clusters)?;
    host::read(&mut call(program, &directory, &["init"]))?;
    eprintln!("terraform plans {clusters} clusters");
    measure(&mut call(program, &directory, &["plan"]), &directory.join("complaints"), PATIENCE)
}

fn write_configuration(directory: &Path, clusters: usize) -> Result<()> {
    let root = format!(
        r#"module "cluster" {{
  source   = "./cluster"
  for_each = toset([for number in range(1, {}) : format("c%05d", number)])
  name     = each.key
}}
"#,
        clusters + 1
    );
    let write =
        |path: PathBuf, text: &str| fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()));
    fs::create_dir(directory.join("cluster")).context("cannot create the module's directory")?;
    write(directory.join("cluster/main.tf"), CLUSTER)?;
    write(directory.join("main.tf"), &root)?;
    write(directory.join("terraformrc"), "")
}
