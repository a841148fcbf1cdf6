//! `quorate discovery`: a discovery service for etcd members that quorate did not create.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use quorate_control::clients::ClientError;
use quorate_control::kinds::etcd::clients;
use quorate_core::text::with_causes;
use quorate_discovery::{Bounds, Keep, Limits, Options, Ready, Source};
use quorate_etcd::{ConnectOptions, Login};

use super::Context;
use super::backup::stopped_by_signals;
use super::clients::certificate_of;
use crate::cli::{Discovery, DiscoveryAccess, DiscoveryServe};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, verb: Discovery) -> Result<Exit, Error> {
    match verb {
        Discovery::Serve(options) => serve(context, *options).await,
    }
}

async fn serve(context: &Context, options: DiscoveryServe) -> Result<Exit, Error> {
    let url = match &options.url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => default_url(&options)?,
    };
    let host = checked_host(&url, options.insecure_http)?;
    if options.insecure_http && !options.listen.ip().is_loopback() {
        output::talk(
            "warning: without TLS anyone on the network can read tokens and take part in a cluster that is being created; \
             leave out --insecure-http unless a proxy in front speaks TLS\n",
        );
    }
    let directory = options.dir.clone().unwrap_or_else(|| context.home.root().join("discovery"));
    let tls = match (options.tls_cert, options.tls_key) {
        _ if options.insecure_http => None,
        (Some(certificate), Some(key)) => Some(Source::Given { certificate, key }),
        _ => Some(own_certificate(&directory, &host, options.listen)),
    };
    let access = &options.access;
    let keep = match access.cluster.is_some() || !access.endpoints.is_empty() {
        false => Keep::Files(directory),
        true => {
            // Checked again before anything listens, for an error with its hint.
            connections_to(context, access).await?;
            let again = || async { connections_to(context, access).await.map_err(|error| with_causes(&error)) };
            Keep::Cluster(Box::new(move || Box::pin(again())))
        }
    };
    let bounds = Bounds {
        connections: connections(options.max_connections),
        new_per_minute: options.new_per_minute,
        requests_per_second: options.requests_per_second,
        ..Bounds::default()
    };
    let lifetime = Duration::from_millis(options.token_lifetime.0);
    let limits = Limits { tokens: options.max_tokens as usize, lifetime };
    let mut stopped = stopped_by_signals()?;
    let serving = quorate_discovery::run(Options { listen: options.listen, url, keep, tls, bounds, limits }, ready);
    tokio::select! {
        failed = serving => match failed {
            Err(error) => Err(error.into()),
            Ok(never) => match never {},
        },
        _ = stopped.changed() => Ok(Exit::Done),
    }
}

/// How the etcd cluster that keeps the tokens is reached.
async fn connections_to(context: &Context, access: &DiscoveryAccess) -> Result<Vec<ConnectOptions>, Error> {
    let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(Error::file("read", path));
    let password = access.password_file.as_ref().map(read).transpose()?;
    let login = password.map(|password| Login {
        user: access.user.clone(),
        password: password.trim_end_matches(['\r', '\n']).to_owned(),
    });
    let (endpoints, ca, files) = match &access.cluster {
        Some(name) => known_cluster(context, name, access).await?,
        None => {
            let ca = access.cacert.as_ref().map(read).transpose()?.unwrap_or_default();
            (access.endpoints.clone(), ca, access.cert.clone().zip(access.key.clone()))
        }
    };
    let identity = match files {
        Some((certificate, key)) => Some((read(&certificate)?, read(&key)?)),
        None => None,
    };
    let connection = |endpoint: String| ConnectOptions {
        identity: identity.clone(),
        login: login.clone(),
        ..ConnectOptions::new(endpoint, ca.clone())
    };
    Ok(endpoints.into_iter().map(connection).collect())
}

type Known = (Vec<String>, String, Option<(PathBuf, PathBuf)>);

/// Endpoints, CA and client certificate of a cluster of quorate's.
async fn known_cluster(context: &Context, name: &str, access: &DiscoveryAccess) -> Result<Known, Error> {
    let ledger = load::etcd_ledger(&context.home, name)?;
    let user = &access.user;
    if !ledger.spec.auth.users.iter().any(|declared| declared.name.as_str() == user) {
        let what = format!("cluster {name} has no user {user}, which the service would log in as");
        return Err(Error::refused(what, format!("add to its spec, and apply it:\n{}", lines_to_add(user))));
    }
    if ledger.spec.etcd.client_auth.asks_users_for_passwords() && access.password_file.is_none() {
        let what = format!("clients of cluster {name} log in with a password");
        return Err(Error::refused(what, format!("name the file with the password of {user}: --password-file")));
    }
    let ca = ledger.authorities.client.as_ref().map(|authority| authority.certificate.clone());
    let ca = ca.ok_or_else(|| ClientError::NotThere(name.to_owned()))?;
    let (endpoints, _) = clients::endpoints(&context.home, &ledger).await?;
    Ok((endpoints, ca, certificate_of(context, &ledger, user)?))
}

fn lines_to_add(user: &str) -> String {
    format!(
        "    auth:
      roles:
        - name: {user}
          permissions:
            - {{prefix: /_etcd/registry/, access: readwrite}}
            - {{prefix: /_etcd/discovery/, access: readwrite}}
      users:
        - {{name: {user}, roles: [{user}]}}"
    )
}

fn ready(ready: &Ready<'_>) {
    let Ready { url, ca } = ready;
    let endpoint = quorate_discovery::endpoint(url);
    let trust = match ca {
        Some(ca) => format!(" --discovery-cacert {}", ca.display()),
        None if url.starts_with("https:") => String::from(" --discovery-insecure-transport=false"),
        None => String::new(),
    };
    let mut text = format!("serving discovery at {url}\n  new token:          {url}/new?size=3\n");
    text.push_str(&format!("  etcd 3.4 to 3.6:    --discovery {url}/TOKEN --discovery-fallback exit\n"));
    if let Some(ca) = ca {
        text.push_str(&format!("                      with SSL_CERT_FILE={} in its environment\n", ca.display()));
    }
    text.push_str(&format!("  etcd 3.6 and later: --discovery-token TOKEN --discovery-endpoints {endpoint}{trust}\n"));
    output::talk(&text);
}

/// The service's default URL for members.
fn default_url(options: &DiscoveryServe) -> Result<String, Error> {
    if options.listen.ip().is_unspecified() {
        let what = format!("{} is not an address that members can connect to", options.listen.ip());
        return Err(Error::refused(what, "name the service with --url, such as https://discovery.example.com:8087"));
    }
    let scheme = if options.insecure_http { "http" } else { "https" };
    Ok(format!("{scheme}://{}", options.listen))
}

/// The host in a URL that tokens can be appended to.
fn checked_host(url: &str, insecure_http: bool) -> Result<String, Error> {
    let refuse = |why: &str| Err(Error::refused(format!("--url {url}: {why}"), "expected https://HOST[:PORT][/PATH]"));
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match scheme {
        "https" => {}
        "http" if insecure_http => {}
        "http" => return refuse("the service speaks TLS, unless --insecure-http is given"),
        _ => return refuse("it is not an https URL"),
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    };
    let fits = |c: char| c.is_ascii_graphic() && !"?#@\"'<>\\".contains(c);
    match !host.is_empty() && rest.chars().all(fits) {
        true => Ok(host.to_owned()),
        false => refuse("a user, a query, a fragment or spaces cannot be part of it, and a host must be"),
    }
}

/// For the host of the URL, and for the address that the service listens at.
fn own_certificate(directory: &std::path::Path, host: &str, listen: SocketAddr) -> Source {
    let named: Option<IpAddr> = host.parse().ok();
    let mut addresses: Vec<IpAddr> = named.into_iter().chain([listen.ip()]).filter(|ip| !ip.is_unspecified()).collect();
    addresses.dedup();
    let dns = if named.is_some() { Vec::new() } else { vec![host.to_owned()] };
    Source::Own { directory: directory.join("tls"), dns, addresses }
}

/// The requested number of connections, or as many as this process may open.
pub fn connections(wanted: u32) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    /// Reserved for other files.
    const OTHERS: u64 = 64;
    let mut limit = getrlimit(Resource::Nofile);
    let needed = u64::from(wanted) + OTHERS;
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // A limit that cannot be raised stays as it is, and is read again.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let most = getrlimit(Resource::Nofile).current.map_or(needed, |current| current.min(needed));
    most.saturating_sub(OTHERS).max(8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_and_nothing_that_a_token_cannot_follow() {
        assert_eq!(checked_host("https://d.example.com:8087/x", false).unwrap(), "d.example.com");
        assert_eq!(checked_host("https://[::1]:8087", false).unwrap(), "::1");
        assert_eq!(checked_host("http://10.0.0.1", true).unwrap(), "10.0.0.1");
        for bad in ["http://h", "h", "https://", "https://u@h", "https://h?x", "https://h/a b", "https:///x", "ftp://h"]
        {
            assert!(checked_host(bad, false).is_err(), "{bad}");
        }
    }
}
