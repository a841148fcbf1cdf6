//! `quorate output`: how to connect to a cluster, for scripts and Terraform. Contains no secret.

use std::fs;
use std::path::PathBuf;

use quorate_control::kinds::etcd::clients;
use quorate_control::kinds::postgres::clients as postgres;
use quorate_core::model::{FixtureId, FixtureKind, Ledger};
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
    Ok(values.into_iter().chain(names(ledger, &fronts)).map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Fields that not every cluster has.
fn names(ledger: &Ledger, fronts: &[String]) -> impl Iterator<Item = (&'static str, Value)> {
    // Without a load balancer or a DNS name, a front is the one address.
    let url = ledger.url().or_else(|| fronts.first().cloned());
    let all = [("url", url), ("discovery_srv", discovery_srv(ledger))];
    all.into_iter().filter_map(|(name, value)| Some((name, json!(value?))))
}

/// The domain for etcd's `--discovery-srv`, if the cluster's name points to members. A name that points to a load balancer has no SRV
/// records.
fn discovery_srv(ledger: &Ledger) -> Option<String> {
    let settings = ledger.spec.provider.settings();
    let is_made = |id: &FixtureId| id.kind == FixtureKind::Records && ledger.fixtures.0.contains_key(id);
    let leads_to_members = settings.fixtures(&ledger.spec).iter().any(|wish| is_made(&wish.id) && !wish.to_balancer);
    settings.cluster_name(&ledger.spec).filter(|_| leads_to_members)
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
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions;
    use quorate_core::model::FixtureRecord;
    use quorate_core::spec::Provider;

    use super::*;

    fn known() -> Map<String, Value> {
        let known = json!({"ca": "a\nb\n", "endpoints": ["https://[::1]:2379", "https://b:2379"], "name": "it's ${x}"});
        known.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn a_name_in_dns_is_a_url_and_a_domain_for_discovery() {
        let settings = |balancer: Value| {
            let settings = json!({
                "subnets": ["subnet-0a1b2c3d"], "instance_types": ["m7i.large"], "image": { "id": "ami-1" },
                "dns": { "zone": "example.com", "name": "orders" }, "load_balancer": balancer,
            });
            Provider::Aws(Box::new(serde_json::from_value(settings).expect("settings")))
        };
        let spec = quorate_core::spec::generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate);
        let mut ledger = Ledger::new(String::from("c1"), spec.expect("a fine name").clusters.remove(0));
        let front = [String::from("https://10.0.0.21:2379")];
        let shown = |ledger: &Ledger| -> Map<String, Value> {
            names(ledger, &front).map(|(name, value)| (name.to_owned(), value)).collect()
        };
        assert_eq!(Value::Object(shown(&ledger)), json!({ "url": front[0] }));
        ledger.spec.provider = settings(Value::Null);
        assert_eq!(Value::Object(shown(&ledger)), json!({ "url": front[0] }), "the records do not exist yet");
        let id = ledger.spec.provider.settings().fixtures(&ledger.spec).remove(0).id;
        ledger.fixtures.0.insert(id, FixtureRecord::default());
        let values = shown(&ledger);
        let expected = json!({ "url": "https://orders.example.com:2379", "discovery_srv": "orders.example.com" });
        assert_eq!(Value::Object(values.clone()), expected);
        assert!(shell(&values).contains("QUORATE_DISCOVERY_SRV=orders.example.com\n"), "{}", shell(&values));
        assert!(tfvars(&values).contains("quorate_discovery_srv = \"orders.example.com\"\n"), "{}", tfvars(&values));
        ledger.spec.provider = settings(json!({}));
        let expected = json!({ "url": "https://orders.example.com:2379" });
        assert_eq!(Value::Object(shown(&ledger)), expected, "the name leads to the load balancer");
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
