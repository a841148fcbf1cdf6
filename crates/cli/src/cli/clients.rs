//! Arguments of `quorate env`, `output` and `cert`, for clients of a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Output;
use crate::completion;

#[derive(Args, Debug)]
pub struct Env {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Log in as this declared user instead of the superuser; with password login, etcdctl asks for the password
    #[arg(long)]
    pub user: Option<String>,
    /// Connect through the HAProxy of a PostgreSQL cluster, to the primary or to replicas
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "primary")]
    pub proxy: Option<ProxyPort>,
    /// Which member of a PostgreSQL cluster clients stay connected to
    #[arg(long, conflicts_with = "proxy")]
    pub session: Option<Session>,
    /// Through the fronts of an etcd cluster, which `etcd.front` in its spec adds
    #[arg(long)]
    pub front: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct OutputValues {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// Output format
    #[arg(long, value_enum, default_value_t = OutputFormat::Json)]
    pub format: OutputFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OutputFormat {
    /// One JSON object
    Json,
    /// Lines of NAME=VALUE, quoted for a shell
    Shell,
    /// Variables for Terraform, for a file such as quorate.auto.tfvars
    Tfvars,
}

/// As `target_session_attrs` of libpq.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Session {
    /// The primary (the default)
    ReadWrite,
    /// A standby, or the primary if no standby answers; needs libpq 14
    PreferStandby,
    /// The first that answers
    Any,
}

/// A port of HAProxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ProxyPort {
    /// The port to the primary
    Primary,
    /// The port to replicas
    Replica,
}

#[derive(Subcommand, Debug)]
pub enum Cert {
    /// Issue a client certificate for a user
    ///
    /// For root, or a user that the spec declares. The key is created here and written to a file that only you can read, unless
    /// you provide a signing request.
    Issue(CertIssue),
}

#[derive(Args, Debug)]
pub struct CertIssue {
    /// The cluster
    #[arg(add = completion::clusters())]
    pub name: String,
    /// The user in the certificate
    #[arg(long)]
    pub user: String,
    /// Sign this request (PEM) instead of creating a key
    #[arg(long, value_name = "FILE")]
    pub csr: Option<PathBuf>,
    /// Valid for N days instead of `tls.leaf_validity`; not longer than the CA, and not for root
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub days: Option<u16>,
    /// Write to DIR instead of the cluster's directory in $QUORATE_HOME
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
