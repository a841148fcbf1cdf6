//! For the operator's own clients: `env` prints the variables for etcdctl as root, `cert issue` issues certificates for users.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use quorate_agent::dial::Dial;
use quorate_agent::private_directory;
use quorate_control::clients::{ClientError, write_private};
use quorate_control::kinds::etcd::clients::{self, Environment};
use quorate_control::kinds::postgres::clients as postgres;
use quorate_core::model::Ledger;
use quorate_core::spec::Kind;

use super::{Context, quoted};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

/// The network namespace that clients must run in, if there is one.
const NETNS: &str = "QUORATE_NETNS";

pub async fn env(context: &Context, options: cli::Env) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    if ledger.spec.kind == Kind::Postgres && options.front {
        let what = format!("{} is a cluster of PostgreSQL, and fronts are for etcd", options.name);
        return Err(Error::refused(what, "use `--proxy`"));
    }
    if ledger.spec.kind == Kind::Postgres {
        return postgres_env(context, &ledger, &options).await;
    }
    if options.proxy.is_some() {
        return Err(ClientError::NoProxy(options.name).into());
    }
    if options.session.is_some() {
        let what = format!("{} is an etcd cluster, and `--session` is for clusters of PostgreSQL", options.name);
        return Err(Error::refused(what, "leave it out; etcdctl uses any member that answers"));
    }
    let brought = load::brought_files(&ledger)?;
    let mut environment = clients::environment(&context.home, &ledger, &brought).await?;
    if options.front {
        environment.endpoints = clients::fronts(&context.home, &ledger).await?;
    }
    if environment.endpoints.is_empty() {
        return Err(ClientError::NoFront(options.name).into());
    }
    let user = options.user.as_deref().unwrap_or(ROOT);
    if user != ROOT {
        environment.password = None;
        environment.certificate = certificate_of(context, &ledger, user)?;
    }
    let mut variables = variables(&environment);
    if user != ROOT && ledger.spec.etcd.client_auth.asks_users_for_passwords() {
        variables.insert("ETCDCTL_USER", user.to_owned());
    }
    match options.output.format {
        Format::Json => output::print_json(&variables)?,
        Format::Text => output::print_exactly(&exports(&variables))?,
    }
    Ok(Exit::Done)
}

const ROOT: &str = "root";

/// Variables that psql and every other client with libpq reads.
async fn postgres_env(context: &Context, ledger: &Ledger, options: &cli::Env) -> Result<Exit, Error> {
    let way = way(options);
    let variables = postgres::environment(&context.home, ledger, options.user.as_deref(), way).await?;
    match options.output.format {
        Format::Json => output::print_json(&variables)?,
        Format::Text => {
            let other: Vec<&str> = LIBPQ.into_iter().filter(|name| !variables.contains_key(name)).collect();
            let exports = variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
            output::print_exactly(&exports.chain([format!("unset {}\n", other.join(" "))]).collect::<String>())?;
        }
    }
    Ok(Exit::Done)
}

fn way(options: &cli::Env) -> postgres::Way {
    match (options.proxy, options.session) {
        (Some(cli::ProxyPort::Primary), _) => postgres::Way::Proxy(postgres::ProxyPort::Primary),
        (Some(cli::ProxyPort::Replica), _) => postgres::Way::Proxy(postgres::ProxyPort::Replica),
        (None, Some(cli::Session::PreferStandby)) => postgres::Way::Members(postgres::Session::PreferStandby),
        (None, Some(cli::Session::Any)) => postgres::Way::Members(postgres::Session::Any),
        (None, Some(cli::Session::ReadWrite) | None) => postgres::Way::Members(postgres::Session::ReadWrite),
    }
}

/// Variables that would change libpq's server or login.
const LIBPQ: [&str; 8] =
    ["PGSSLCERT", "PGSSLKEY", "PGHOSTADDR", "PGSERVICE", "PGPASSFILE", "PGOPTIONS", "PGREQUIRESSL", "PGSSLCRL"];

/// The certificate that was issued for a user, or a new one. None if only passwords are used.
pub fn certificate_of(context: &Context, ledger: &Ledger, user: &str) -> Result<Option<(PathBuf, PathBuf)>, Error> {
    if !ledger.spec.etcd.client_auth.asks_for_certificates() {
        return Ok(None);
    }
    let (directory, name) = (context.home.clients(ledger.spec.name.as_str()), file_name(user));
    let files = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
    if !clients::is_usable(&files.0, ledger) || !files.1.exists() {
        private_directory(&directory).map_err(Error::file("created", &directory))?;
        let issued = clients::issue(&context.home, ledger, user, None, None)?;
        if let Some(key) = &issued.key {
            write_private(&files.1, key.expose())?;
        }
        write_private(&files.0, &issued.certificate)?;
    }
    Ok(Some(files))
}

fn variables(environment: &Environment) -> BTreeMap<&'static str, String> {
    let Environment { endpoints, ca, certificate, password, dial } = environment;
    let mut variables =
        BTreeMap::from([("ETCDCTL_ENDPOINTS", endpoints.join(",")), ("ETCDCTL_CACERT", ca.display().to_string())]);
    if let Some((certificate, key)) = certificate {
        variables.insert("ETCDCTL_CERT", certificate.display().to_string());
        variables.insert("ETCDCTL_KEY", key.display().to_string());
    }
    if let Some(password) = password {
        variables.insert("ETCDCTL_USER", format!("root:{}", password.expose()));
    }
    if let Dial::Namespace(name) = dial {
        variables.insert(NETNS, name.clone());
    }
    variables
}

/// Variables that would change etcdctl's endpoints or login. From 3.4 on etcdctl uses version 3 of the API by default, and from 3.6 on it
/// warns if the variable is set.
const MISLEADING: [&str; 12] = [
    "ETCDCTL_API",
    "ETCDCTL_AUTH_JWT_TOKEN",
    "ETCDCTL_CERT",
    "ETCDCTL_DISCOVERY_SRV",
    "ETCDCTL_DISCOVERY_SRV_NAME",
    "ETCDCTL_INSECURE_DISCOVERY",
    "ETCDCTL_INSECURE_SKIP_TLS_VERIFY",
    "ETCDCTL_INSECURE_TRANSPORT",
    "ETCDCTL_KEY",
    "ETCDCTL_PASSWORD",
    "ETCDCTL_USER",
    NETNS,
];

/// Variables of other login methods or networks are unset, so a shell can change from one cluster to another.
fn exports(variables: &BTreeMap<&'static str, String>) -> String {
    let other: Vec<&str> = MISLEADING.into_iter().filter(|name| !variables.contains_key(name)).collect();
    let within =
        variables.get(NETNS).map(|netns| format!("# clients must run in there: ip netns exec {netns} etcdctl …\n"));
    let exports = variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    within.into_iter().chain(exports).chain([format!("unset {}\n", other.join(" "))]).collect()
}

pub fn issue(context: &Context, options: cli::CertIssue) -> Result<Exit, Error> {
    let ledger = load::etcd_ledger(&context.home, &options.name)?;
    let read = |path: &std::path::PathBuf| std::fs::read_to_string(path).map_err(Error::file("read", path));
    let request = options.csr.as_ref().map(read).transpose()?;
    let validity = options.days.map(|days| validity(&ledger, &options.user, days)).transpose()?;
    let issued = clients::issue(&context.home, &ledger, &options.user, request.as_deref(), validity)?;
    let directory = options.out.unwrap_or_else(|| context.home.clients(&options.name));
    private_directory(&directory).map_err(Error::file("created", &directory))?;
    let name = file_name(&options.user);
    let certificate = directory.join(format!("{name}.crt"));
    let mut written = vec![("certificate", certificate.clone())];
    if let Some(key) = &issued.key {
        let path = directory.join(format!("{name}.key"));
        write_private(&path, key.expose())?;
        written.push(("key", path));
    }
    write_private(&certificate, &issued.certificate)?;
    if let Some(authority) = &ledger.authorities.client {
        let path = directory.join("ca.crt");
        write_private(&path, &authority.certificate)?;
        written.push(("CA", path));
    }
    let mut text: String = written.iter().map(|(what, path)| format!("{what:11}  {}\n", path.display())).collect();
    text.push_str(&format!("{:11}  {}\n", "valid until", issued.not_after));
    output::print(&text)?;
    Ok(Exit::Done)
}

fn validity(ledger: &Ledger, user: &str, days: u16) -> Result<SignedDuration, Error> {
    if user == ROOT {
        let what = "certificates of root are valid for a day: root is never removed, so they cannot be revoked";
        return Err(Error::refused(what, "leave out --days, or declare another user"));
    }
    let validity = SignedDuration::from_hours(24 * i64::from(days));
    let left = ledger.authorities.client.as_ref().map(|ca| ca.not_after.duration_since(Timestamp::now()));
    match left.filter(|left| *left < validity) {
        None => Ok(validity),
        Some(left) => Err(Error::refused(
            format!("the CA expires in {} days, before the certificate would", left.as_hours() / 24),
            "choose fewer --days",
        )),
    }
}

/// A file name for any user name. `ca.crt` is next to it.
fn file_name(user: &str) -> String {
    let fine = |(at, c): (usize, char)| {
        c.is_ascii_alphanumeric() && (at > 0 || user != "ca") || "-_@+=".contains(c) || (c == '.' && at > 0)
    };
    let encoded = |(at, c): (usize, char)| match fine((at, c)) {
        true => c.to_string(),
        false => format!("%{:02X}", u32::from(c)),
    };
    user.char_indices().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use quorate_core::Secret;

    use super::*;

    #[test]
    fn each_users_name_is_one_file() {
        assert_eq!(file_name("app.v1@corp"), "app.v1@corp");
        assert_eq!(file_name("../app"), "%2E.%2Fapp");
        assert_eq!(file_name("ca"), "%63a");
    }

    #[test]
    fn the_environment_can_be_evaluated_and_replaces_another() {
        let mut environment = Environment {
            endpoints: vec![String::from("https://127.64.0.1:2379"), String::from("https://127.64.0.2:2379")],
            ca: PathBuf::from("/my home/ca.crt"),
            certificate: Some((PathBuf::from("/c"), PathBuf::from("/k"))),
            password: None,
            dial: Dial::Address,
        };
        let expected = "\
export ETCDCTL_CACERT='/my home/ca.crt'
export ETCDCTL_CERT=/c
export ETCDCTL_ENDPOINTS=https://127.64.0.1:2379,https://127.64.0.2:2379
export ETCDCTL_KEY=/k
unset ETCDCTL_API ETCDCTL_AUTH_JWT_TOKEN ETCDCTL_DISCOVERY_SRV ETCDCTL_DISCOVERY_SRV_NAME ETCDCTL_INSECURE_DISCOVERY \
    ETCDCTL_INSECURE_SKIP_TLS_VERIFY ETCDCTL_INSECURE_TRANSPORT ETCDCTL_PASSWORD ETCDCTL_USER QUORATE_NETNS
";
        assert_eq!(exports(&variables(&environment)), expected);
        environment.certificate = None;
        environment.password = Some(Secret::new("a'b"));
        let text = exports(&variables(&environment));
        assert!(text.contains("export ETCDCTL_USER='root:a'\\''b'\n"), "{text}");
        let unset = unset(&text);
        assert!(unset.contains(&"ETCDCTL_CERT") && unset.contains(&"ETCDCTL_KEY") && unset.contains(&NETNS), "{text}");
        assert!(!unset.contains(&"ETCDCTL_USER") && unset.contains(&"ETCDCTL_PASSWORD"), "{text}");
        environment.dial = Dial::Namespace(String::from("quorate-1"));
        let text = exports(&variables(&environment));
        assert!(text.starts_with("# clients must run in there: ip netns exec quorate-1 etcdctl …\n"), "{text}");
        assert!(text.contains("export QUORATE_NETNS=quorate-1\n") && !self::unset(&text).contains(&NETNS), "{text}");
    }

    fn unset(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.strip_prefix("unset ")).flat_map(str::split_whitespace).collect()
    }
}
