//! Specs that quorate writes: the commented template, the spec of a cluster that was created without a file, and any
//! spec as YAML. Reading one of them gives the same spec.

use std::fmt::Write;

use serde_json::Value;

use super::{ClusterSpec, FORMAT, Kind, Malformed, MemberSpec, Name, Provider, Spec, TlsSettings};
use crate::kinds::etcd::spec::{AuthSettings, ClientAuth, EtcdSettings};
use crate::kinds::postgres::spec::PostgresSettings;
use crate::model::Version;
use crate::providers::TEMPLATES;

/// Settings that are the same for every provider.
const SETTINGS: &str = include_str!("template.yaml");

/// The first lines of a spec for people: editors with a YAML language server then complete and check it.
pub const SCHEMA_LINE: &str = "\
# yaml-language-server: $schema=quorate.schema.json
# (`quorate schema > quorate.schema.json` writes that file, for editors.)
";

/// How the template is read and changed.
const HEADER: &str = "
## A quorate spec: the clusters that should exist. `quorate validate FILE`
## checks it, `quorate plan FILE` shows what would be done, `quorate apply FILE`
## does it. Lines with `##` explain. Lines with one `#` are settings: remove
## `# ` to set one. A setting shows its default, or, after a line that ends with
## a colon, an example.
";

/// A commented spec to start from, with every option and its default, for the provider of this name. All lines that show a setting
/// can be uncommented together; what excludes each other is in the explanations.
pub fn template(provider: &str) -> Option<String> {
    let (_, machines) = TEMPLATES.iter().find(|(name, _)| *name == provider)?;
    Some(format!("{SCHEMA_LINE}{HEADER}{machines}{SETTINGS}"))
}

/// The same for a cluster of PostgreSQL on this machine, with the etcd cluster that it needs.
pub fn postgres_template() -> String {
    format!("{SCHEMA_LINE}{HEADER}{}", include_str!("../kinds/postgres/template.yaml"))
}

/// A spec of one local cluster with members `etcd-1` to `etcd-N`; the rest is default.
pub fn generated(name: &str, members: usize, version: Version, client_auth: ClientAuth) -> Result<Spec, Malformed> {
    let members = (1..=members).map(|number| Ok(MemberSpec::named(format!("etcd-{number}").parse()?)));
    let cluster = ClusterSpec {
        name: name.parse::<Name>()?,
        kind: Kind::Etcd,
        namespace: None,
        initial_token: super::types::default_initial_token(),
        provider: Provider::default(),
        replace_after: super::types::default_replace_after(),
        members: members.collect::<Result<_, Malformed>>()?,
        etcd: EtcdSettings { version, client_auth, ..EtcdSettings::default() },
        postgres: None,
        tls: TlsSettings::default(),
        auth: AuthSettings::default(),
        backup: None,
        host: None,
    };
    Ok(Spec { quorate: FORMAT, clusters: vec![cluster] })
}

/// A spec of one local cluster of PostgreSQL with members `pg-1` to `pg-N`, and of the etcd cluster of three that it needs.
pub fn generated_postgres(name: &str, members: usize, version: u16, etcd_version: Version) -> Result<Spec, Malformed> {
    let mut spec = generated(&format!("{name}-etcd"), 3, etcd_version, ClientAuth::Password)?;
    let etcd = &mut spec.clusters[0];
    etcd.etcd.grpc_gateway = true;
    let members = (1..=members).map(|number| Ok(MemberSpec::named(format!("pg-{number}").parse()?)));
    let members: Vec<MemberSpec> = members.collect::<Result<_, Malformed>>()?;
    let mut postgres = PostgresSettings::new(version, etcd.name.clone());
    if members.len() == 1 {
        postgres.synchronous.nodes = 0;
    }
    let cluster = ClusterSpec {
        name: name.parse::<Name>()?,
        kind: Kind::Postgres,
        members,
        etcd: EtcdSettings::default(),
        postgres: Some(postgres),
        ..etcd.clone()
    };
    spec.clusters.push(cluster);
    Ok(spec)
}

impl Spec {
    /// The spec as YAML, with all defaults written out, so that it means the same to a later quorate.
    pub fn to_yaml(&self) -> String {
        let mut value =
            serde_json::to_value(self).expect("a spec is made of text, numbers, truth values, lists and maps");
        let written = value["clusters"].as_array_mut().into_iter().flatten();
        for (cluster, written) in
            self.clusters.iter().zip(written).filter(|(cluster, _)| cluster.kind == Kind::Postgres)
        {
            leave_out_etcd(cluster, written);
        }
        let mut yaml = String::new();
        block(&mut yaml, &value, 0);
        yaml
    }
}

/// Settings of etcd clusters only. In other clusters they would be misleading.
fn leave_out_etcd(cluster: &ClusterSpec, written: &mut Value) {
    let unset = [
        ("etcd", cluster.etcd == EtcdSettings::default()),
        ("auth", cluster.auth == AuthSettings::default()),
        ("initial_token", cluster.initial_token == super::types::default_initial_token()),
    ];
    if let Some(written) = written.as_object_mut() {
        unset.iter().filter(|(_, is_default)| *is_default).for_each(|(key, _)| drop(written.remove(*key)));
    }
}

/// Keys that a reader looks for first; the others follow by name.
const FIRST: [&str; 6] = ["quorate", "name", "members", "version", "key", "prefix"];

/// Writes a collection in block form. The cursor stands at the column `indent` of a line.
fn block(yaml: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
            for (position, (key, value)) in entries.into_iter().enumerate() {
                pad(yaml, if position > 0 { indent } else { 0 });
                yaml.push_str(&text(key));
                yaml.push(':');
                nested(yaml, value, indent + 2);
            }
        }
        Value::Array(items) => {
            for (position, item) in items.iter().enumerate() {
                pad(yaml, if position > 0 { indent } else { 0 });
                yaml.push_str("- ");
                match is_block(item) {
                    true => block(yaml, item, indent + 2),
                    false => line(yaml, item),
                }
            }
        }
        _ => line(yaml, value),
    }
}

/// Writes what stands after `key:`.
fn nested(yaml: &mut String, value: &Value, indent: usize) {
    if is_block(value) {
        yaml.push('\n');
        pad(yaml, indent);
        block(yaml, value, indent);
    } else {
        yaml.push(' ');
        line(yaml, value);
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn line(yaml: &mut String, value: &Value) {
    let result = match value {
        Value::String(plain) => writeln!(yaml, "{}", text(plain)),
        // An empty collection, a number or a truth value is written in YAML as in JSON.
        other => writeln!(yaml, "{other}"),
    };
    result.expect("writing to a string does not fail");
}

fn pad(yaml: &mut String, columns: usize) {
    yaml.extend(std::iter::repeat_n(' ', columns));
}

/// Plain if it can only be read as this text, otherwise quoted as in JSON, which is valid YAML too.
fn text(text: &str) -> String {
    let simple = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/');
    let begins_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let units = text.starts_with(|first: char| first.is_ascii_digit())
        && text.ends_with(|last: char| last.is_ascii_alphabetic());
    let word =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    // "1e5h" is no number to anyone, "0x1f" is one to some.
    if (begins_well || units && !text.starts_with('0')) && !word && text.bytes().all(simple) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}
