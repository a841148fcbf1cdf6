//! `quorate front`: one address in front of a cluster.

use std::time::Duration;

use quorate_front::{MachineOptions, Options, Prefer, Ready};

use super::Context;
use super::backup::stopped_by_signals;
use super::discovery::connections;
use crate::cli::{self, PreferredMember};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, options: cli::Front) -> Result<Exit, Error> {
    let ledger = load::etcd_ledger(&context.home, &options.name)?;
    let hosts = hosts(&options)?;
    if options.insecure_http && !options.listen.ip().is_loopback() {
        output::talk(
            "warning: without TLS anyone on the network can read passwords and data, and change them on the way; leave out \
             --insecure-http unless a proxy in front speaks TLS\n",
        );
    }
    let connections = at_most(options.max_connections);
    if connections < options.max_connections as usize {
        output::talk(&format!(
            "warning: the limit of open files allows {connections} connections instead of {}; raise it with `ulimit -n`, or \
             LimitNOFILE= in a unit\n",
            options.max_connections
        ));
    }
    let of_one = options.max_per_address.map_or(connections.div_ceil(2), |most| most as usize);
    let settings = Options {
        cluster: options.name.clone(),
        listen: options.listen,
        hosts: hosts.clone(),
        prefer: prefer(options.prefer),
        insecure_http: options.insecure_http,
        connections,
        connections_of_one: of_one,
        drain: Duration::from_millis(options.drain_time.0),
    };
    let port = options.listen.port();
    let ready = |ready: &Ready| output::talk(&text(&options.name, &hosts, port, options.insecure_http, ready));
    drop(ledger);
    quorate_front::run(&context.home, settings, stopped_by_signals()?, ready).await?;
    Ok(Exit::Done)
}

/// `quorate agent front`: serves on a machine of the cluster, with the settings from its agent.
pub fn on_machine(options: cli::AgentFront) -> Result<Exit, Error> {
    // It fails only when one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(async {
        let connections = at_most(options.max_connections);
        if connections < options.max_connections as usize {
            tracing::warn!(connections, "the limit of open files of this process allows only this many connections");
        }
        let settings = MachineOptions {
            directory: options.directory,
            listen: options.listen,
            prefer: prefer(options.prefer),
            connections,
            connections_of_one: options.max_per_address.map_or(connections.div_ceil(2), |most| most as usize),
            drain: Duration::from_millis(options.drain_time.0),
        };
        quorate_front::run_on_machine(settings, stopped_by_signals()?).await?;
        Ok(Exit::Done)
    })
}

/// As many connections as this process may open files for: one to the client and one to the member.
fn at_most(wanted: u32) -> usize {
    connections(wanted.saturating_mul(2)) / 2
}

fn prefer(member: PreferredMember) -> Prefer {
    match member {
        PreferredMember::Leader => Prefer::Leader,
        PreferredMember::Spread => Prefer::Spread,
    }
}

/// The names that clients use for the front; the first one is printed.
fn hosts(options: &cli::Front) -> Result<Vec<String>, Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    if let Some(bad) = options.host.iter().find(|host| host.is_empty() || !host.chars().all(fits)) {
        return Err(Error::refused(
            format!("--host {bad}: not a name or an address"),
            "expected a host alone, such as etcd.example.org",
        ));
    }
    let listen = options.listen.ip();
    let mut hosts = options.host.clone();
    if !listen.is_unspecified() {
        hosts.push(listen.to_string());
    }
    if hosts.is_empty() {
        let what = format!("{listen} is not an address that clients can connect to");
        return Err(Error::refused(what, "name the front with --host, such as etcd.example.org"));
    }
    Ok(hosts)
}

fn text(name: &str, hosts: &[String], port: u16, insecure_http: bool, ready: &Ready) -> String {
    let host = if hosts[0].contains(':') { format!("[{}]", hosts[0]) } else { hosts[0].clone() };
    let Ready { members, serving, unnamed, is_rest } = ready;
    let mut text = format!("serving cluster {name} at https://{host}:{port}: {serving} of {members} members serve\n");
    for (host, member) in unnamed {
        text.push_str(&format!(
            "warning: the certificate of {member} is not valid for {host}, so clients of gRPC, such as etcdctl, refuse it; add it to the \
             spec and apply it:\n    tls: {{extra_sans: [{host}]}}\n"
        ));
    }
    if !is_rest {
        text.push_str(
            "warning: REST is not served, because certificates of this cluster are user-provided and the key of its CA is not here; \
             gRPC is passed through\n",
        );
    }
    if insecure_http && *is_rest {
        text.push_str(&format!("  without TLS:  http://{host}:{port}\n"));
    }
    text
}
