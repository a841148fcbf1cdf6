//! Options of `quorate kubernetes`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;
use crate::completion;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Kubernetes {
    #[command(subcommand)]
    pub action: Option<KubernetesAction>,
    #[command(flatten)]
    pub files: KubernetesFiles,
}

#[derive(Subcommand, Debug)]
pub enum KubernetesAction {
    /// Renew certificates when due, and deliver them to hosts over ssh
    ///
    /// Hosts are those of control planes. Uses your own ssh, with its configuration and keys. Only files that differ
    /// are sent. Each is written under a temporary name and renamed, so kube-apiserver never reads half a file; it
    /// reads its certificate again at each new connection and needs no restart. If a host fails, the others are still
    /// updated, and the exit code is 1.
    Push(KubernetesPush),
}

#[derive(Args, Debug)]
pub struct KubernetesFiles {
    /// The cluster
    #[arg(required = true, add = completion::clusters())]
    pub name: Option<String>,
    /// Write to DIR instead of clients/NAME/kubernetes in $QUORATE_HOME
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The declared user that kube-apiserver logs in as
    #[arg(long, default_value = "kubernetes")]
    pub user: String,
    /// The declared user that health checks log in as; it needs no rights
    #[arg(long, value_name = "USER", default_value = "kubernetes-health")]
    pub health_user: String,
    /// Prefix of the keys that kube-apiserver uses
    #[arg(long, default_value = quorate_control::kinds::etcd::kubernetes::PREFIX)]
    pub prefix: String,
    /// Keep events in this other cluster, which must have the same CA
    #[arg(long, value_name = "NAME", add = completion::clusters())]
    pub events: Option<String>,
    /// Where the files are on control plane hosts
    #[arg(long, value_name = "DIR", default_value = "/etc/kubernetes")]
    pub dir: String,
    /// Create new private keys; otherwise renewal keeps them
    #[arg(long)]
    pub new_keys: bool,
    /// Create a key for encrypting Secrets in etcd, unless DIR has one, and configure kube-apiserver to use it
    #[arg(long)]
    pub encrypt_secrets: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct KubernetesPush {
    #[command(flatten)]
    pub files: KubernetesFiles,
    /// Control plane hosts, as for ssh: [USER@]HOST; can be repeated
    #[arg(long, value_name = "HOST", required = true, num_args = 1.., value_delimiter = ',')]
    pub to: Vec<String>,
    /// The ssh program and its options, separated by spaces
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub ssh: String,
    /// Become root on the host with `sudo -n`
    #[arg(long)]
    pub sudo: bool,
}
