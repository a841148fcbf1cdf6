//! Databases and users, read and changed through the primary.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_core::Secret;
use quorate_core::desire::password_fingerprint;
use quorate_core::kinds::postgres::{Catalog, CatalogOp};
use serde::Deserialize;

use super::tools::{identifier, literal};
use crate::agent::Agent;
use crate::api::Refusal;

const READING: Duration = Duration::from_secs(5);
/// A commit may wait for a standby.
pub(super) const CHANGING: Duration = Duration::from_secs(20);

const LIST: &str = "SELECT json_build_object(\
    'transaction', pg_snapshot_xmax(pg_current_snapshot())::text::bigint, \
    'databases', (SELECT coalesce(json_object_agg(datname, pg_get_userbyid(datdba)), '{}') \
        FROM pg_database WHERE datallowconn AND NOT datistemplate), \
    'users', (SELECT coalesce(json_object_agg(rolname, rolpassword), '{}') FROM pg_authid WHERE rolcanlogin));\n";
const LIST_EXTENSIONS: &str =
    "SELECT json_build_object(current_database(), (SELECT coalesce(json_agg(extname), '[]') FROM pg_extension));\n";

#[derive(Deserialize)]
struct Listed {
    transaction: u64,
    databases: BTreeMap<String, String>,
    users: BTreeMap<String, Option<Secret>>,
}

impl Agent {
    /// With the number below which the numbers of all transactions are that have ended.
    pub(super) async fn read_catalog(&self) -> Result<(Catalog, u64), Refusal> {
        let Listed { transaction, databases, users } = read(&self.run_sql(LIST, READING).await?)?;
        let each = databases.keys().filter(|name| is_plain(name));
        let script: String = each.map(|name| format!("\\connect {}\n{LIST_EXTENSIONS}", identifier(name))).collect();
        let listed = self.run_sql(&script, READING).await?;
        let mut extensions = BTreeMap::new();
        for line in listed.lines().filter(|line| !line.is_empty()) {
            extensions.append(&mut read::<BTreeMap<String, BTreeSet<String>>>(line)?);
        }
        let cluster_id = &self.state.get().identity.cluster_id;
        let fingerprint = |verifier: Secret| password_fingerprint(cluster_id, &verifier);
        let users = users.into_iter().map(|(user, verifier)| (user, verifier.map(fingerprint))).collect();
        Ok((Catalog { databases, users, extensions }, transaction))
    }

    pub(super) async fn change_catalog(&self, op: &CatalogOp, verifier: Option<&Secret>) -> Result<(), Refusal> {
        let script = statements(op, verifier)?;
        self.run_sql(&script, CHANGING).await.map(drop)
    }
}

/// The reader's own words may quote what it reads.
fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Refusal> {
    serde_json::from_str(text.trim()).map_err(|_| Refusal::failed("psql prints something that is not understood"))
}

/// Whether `\connect` takes it for a name, and not for a whole connection string.
fn is_plain(database: &str) -> bool {
    database.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}

/// Each can be repeated.
fn statements(op: &CatalogOp, verifier: Option<&Secret>) -> Result<String, Refusal> {
    Ok(match op {
        CatalogOp::SetUser { user } => {
            let verifier = verifier.ok_or_else(|| Refusal::failed("the order has no password"))?;
            format!(
                "SELECT format('CREATE ROLE %I', {name}) WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) \\gexec\n\
                 ALTER ROLE {user} LOGIN PASSWORD {verifier};\n",
                name = quoted(user)?,
                user = identifier(user),
                verifier = quoted(verifier.expose())?,
            )
        }
        CatalogOp::CreateDatabase { database, owner } => format!(
            "SELECT format('CREATE DATABASE %I OWNER %I', {name}, {owner}) \
             WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = {name}) \\gexec\n",
            name = quoted(database)?,
            owner = quoted(owner)?,
        ),
        CatalogOp::SetOwner { database, owner } => {
            quoted(database).and(quoted(owner))?;
            format!("ALTER DATABASE {} OWNER TO {};\n", identifier(database), identifier(owner))
        }
        CatalogOp::CreateExtension { database, extension } => {
            quoted(extension)?;
            if !is_plain(database) {
                return Err(Refusal::failed(format!("{database:?} cannot be connected to by its name")));
            }
            format!("\\connect {}\nCREATE EXTENSION IF NOT EXISTS {};\n", identifier(database), identifier(extension))
        }
    })
}

/// psql reads line by line.
fn quoted(text: &str) -> Result<String, Refusal> {
    match text.chars().any(char::is_control) {
        true => Err(Refusal::failed("a name or a password has a control character in it")),
        false => Ok(literal(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_add_statements() {
        let op = CatalogOp::SetUser { user: String::from("a\"; DROP ROLE b; '") };
        let sql = statements(&op, Some(&Secret::new("SCRAM-SHA-256$4096:x"))).unwrap();
        assert!(sql.contains("ALTER ROLE \"a\"\"; DROP ROLE b; '\" LOGIN"), "{sql}");
        assert!(sql.contains("rolname = 'a\"; DROP ROLE b; '''"), "{sql}");
        assert!(statements(&op, None).is_err());
        let op = CatalogOp::CreateExtension { database: String::from("host=x"), extension: String::from("e") };
        assert!(statements(&op, None).is_err());
        let op = CatalogOp::SetOwner { database: String::from("a\n\\! id"), owner: String::from("b") };
        assert!(statements(&op, None).is_err());
    }
}
