//! Options of `quorate front`.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use quorate_core::spec::Millis;

use crate::completion;

#[derive(Args, Debug)]
pub struct Front {
    /// Name of the cluster
    #[arg(value_name = "CLUSTER", add = completion::clusters())]
    pub name: String,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2379")]
    pub listen: SocketAddr,
    /// Name or address that clients use for the front, besides that of --listen; can be repeated
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Where new connections go: to the leader while it serves, or to all members in turn
    #[arg(long, value_enum, default_value_t = PreferredMember::Spread)]
    pub prefer: PreferredMember,
    /// Serve REST without TLS as well: on loopback, or behind a proxy that speaks TLS
    #[arg(long)]
    pub insecure_http: bool,
    /// How many connections may be open at the same time
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub max_connections: u32,
    /// How many of them may come from one address; by default half
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_per_address: Option<u32>,
    /// How long open connections may last after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub drain_time: Millis,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PreferredMember {
    Leader,
    Spread,
}
