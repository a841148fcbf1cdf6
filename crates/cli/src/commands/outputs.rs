//! `quorate output`: how a cluster is reached, for scripts and Terraform. Nothing in it is secret.

use std::fs;
use std::path::PathBuf;

use quorate_control::kinds::etcd::clients;
use quorate_control::kinds::postgres::clients as postgres;
use quorate_core::model::Ledger;
use quorate_core::spec::Kind;
use serde_json::{Map, Value, json};

use super::{Context, quoted};
use crate::cli::{OutputFormat, OutputValues};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, options: &OutputValues) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let values = values(context, &ledger).await?;
    match options.format {
        OutputFormat::Json => output::print_json(&values)?,
        OutputFormat::Shell => output::print_exactly(&shell(&values))?,
        OutputFormat::Tfvars => output::print_exactly(&tfvars(&values))?,
    }
    Ok(Exit::Done)
}

async fn values(context: &Context, ledger: &Ledger) -> Result<Map<String, Value>, Error> {
    let (endpoints, ca) = match ledger.spec.kind {
        Kind::Etcd => of_etcd(context, ledger).await?,
        Kind::Postgres => of_postgres(context, ledger).await?,
    };
    let pem = fs::read_to_string(&ca).map_err(Error::file("read", &ca))?;
    let version = match &ledger.spec.postgres {
        Some(postgres) => postgres.version.to_string(),
        None => ledger.spec.etcd.version.to_string(),
    };
    let fronts = clients::fronts(&context.home, ledger).await?;
    // Without a balancer or a name, a front is the one address.
    let url = ledger.url().or_else(|| fronts.first().cloned()).map(|url| ("url", json!(url)));
    let values = [
        ("name", json!(ledger.spec.name)),
        ("kind", json!(ledger.spec.kind)),
        ("version", json!(version)),
        ("provider", json!(ledger.spec.provider.settings().name())),
        ("endpoints", json!(endpoints)),
        ("fronts", json!(fronts)),
        ("ca_file", json!(ca)),
        ("ca", json!(pem)),
    ];
    Ok(values.into_iter().chain(url).map(|(name, value)| (name.to_owned(), value)).collect())
}

async fn of_etcd(context: &Context, ledger: &Ledger) -> Result<(Vec<String>, PathBuf), Error> {
    let brought = load::brought_files(ledger)?;
    let environment = clients::environment(&context.home, ledger, &brought).await?;
    Ok((environment.endpoints, environment.ca))
}

async fn of_postgres(context: &Context, ledger: &Ledger) -> Result<(Vec<String>, PathBuf), Error> {
    let variables =
        postgres::environment(&context.home, ledger, None, postgres::Way::Members(postgres::Session::ReadWrite))
            .await?;
    let hosts = variables["PGHOST"].split(',').map(|host| match host.contains(':') {
        true => format!("[{host}]:{}", variables["PGPORT"]),
        false => format!("{host}:{}", variables["PGPORT"]),
    });
    Ok((hosts.collect(), PathBuf::from(&variables["PGSSLROOTCERT"])))
}

/// Lists are joined by commas, as clients take them.
fn shell(values: &Map<String, Value>) -> String {
    let text = |value: &Value| match value {
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let line = |(name, value): (&String, &Value)| format!("QUORATE_{}={}\n", name.to_uppercase(), quoted(&text(value)));
    values.iter().map(line).collect()
}

fn tfvars(values: &Map<String, Value>) -> String {
    values.iter().map(|(name, value)| format!("quorate_{name} = {}\n", hcl(value))).collect()
}

/// Terraform reads lists and strings as JSON has them, and also expands `${` and `%{`.
fn hcl(value: &Value) -> String {
    value.to_string().replace("${", "$${").replace("%{", "%%{")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Map<String, Value> {
        let known = json!({"ca": "a\nb\n", "endpoints": ["https://[::1]:2379", "https://b:2379"], "name": "it's ${x}"});
        known.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn values_are_quoted_for_a_shell() {
        let expected = "QUORATE_CA='a\nb\n'\nQUORATE_ENDPOINTS='https://[::1]:2379,https://b:2379'\nQUORATE_NAME='it'\\''s ${x}'\n";
        assert_eq!(shell(&known()), expected);
    }

    #[test]
    fn values_are_quoted_for_terraform() {
        let expected = "quorate_ca = \"a\\nb\\n\"\nquorate_endpoints = [\"https://[::1]:2379\",\"https://b:2379\"]\n\
                        quorate_name = \"it's $${x}\"\n";
        assert_eq!(tfvars(&known()), expected);
    }
}
