//! Options of `quorate discovery`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use quorate_core::spec::Millis;

use crate::completion;

#[derive(Subcommand, Debug)]
pub enum Discovery {
    /// Serve discovery until SIGINT or SIGTERM
    ///
    /// Members get a token from URL/new?size=N and register under it. Every registration is on disk before it is answered, so the
    /// service can be killed and restarted at any time. Without --tls-cert it presents a certificate of its own CA, which members
    /// must trust; docs/discovery.md has the flags for each etcd version.
    Serve(Box<DiscoveryServe>),
}

#[derive(Args, Debug)]
pub struct DiscoveryServe {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8087")]
    pub listen: SocketAddr,
    /// The URL that members use, such as https://discovery.example.com; by default made from --listen
    #[arg(long)]
    pub url: Option<String>,
    #[command(flatten)]
    pub access: DiscoveryAccess,
    /// Keep tokens and the CA in DIR instead of $QUORATE_HOME/discovery
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Certificate chain to present, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve without TLS: on loopback, or behind a proxy that speaks TLS
    #[arg(long, conflicts_with = "tls_cert")]
    pub insecure_http: bool,
    /// Lifetime of a token, counted while the service runs; one that no member uses expires after a day
    #[arg(long, value_name = "TIME", default_value = "168h")]
    pub token_lifetime: Millis,
    /// How many tokens may exist at the same time
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_tokens: u32,
    /// How many new tokens a client address gets per minute
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub new_per_minute: u32,
    /// How many requests a client address may send per second; six times as many at once
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub requests_per_second: u32,
    /// How many connections may be open at the same time
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub max_connections: u32,
}

/// The etcd cluster that keeps the tokens, where one does.
#[derive(Args, Debug)]
pub struct DiscoveryAccess {
    /// Keep tokens in this cluster of quorate instead of files; several services can share it
    #[arg(long, value_name = "NAME", conflicts_with = "endpoints", add = completion::clusters())]
    pub cluster: Option<String>,
    /// Keep tokens in this etcd cluster instead of files: the https URLs of its members
    #[arg(long, value_name = "URL", num_args = 1.., value_delimiter = ',', requires = "cacert")]
    pub endpoints: Vec<String>,
    /// CA of the etcd cluster
    #[arg(long, value_name = "FILE", requires = "endpoints")]
    pub cacert: Option<PathBuf>,
    /// Client certificate for the etcd cluster
    #[arg(long, value_name = "FILE", requires_all = ["endpoints", "key"])]
    pub cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The user of the etcd cluster that the service logs in as
    #[arg(long, default_value = "discovery")]
    pub user: String,
    /// File with the user's password, if the etcd cluster requires one
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}
