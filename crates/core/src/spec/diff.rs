//! The differences between two specs of one cluster, setting by setting. It compares the specs as serialized data, so
//! new settings need no additional code.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ClusterSpec;

/// One setting that differs. Values are text as in YAML; secrets are hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Such as `etcd.quota` or `members.etcd-4`.
    pub path: String,
    /// `None`: it is new.
    pub before: Option<String>,
    /// `None`: it is removed.
    pub after: Option<String>,
}

/// Settings whose values a plan must not show.
const SECRET: [&str; 1] = ["console_password_hash"];
const HIDDEN: &str = "(hidden)";
/// What an item is that has nothing but its name.
const BARE: &str = "{}";

/// Every setting that differs, in the order of the fields' names.
pub fn changes(before: &ClusterSpec, after: &ClusterSpec) -> Vec<Change> {
    if before == after {
        return Vec::new();
    }
    let value = |spec: &ClusterSpec| serde_json::to_value(spec).expect("a spec is plain data");
    let mut found = Vec::new();
    compare("", Some(&value(before)), Some(&value(after)), &mut found);
    found
}

impl Change {
    /// In the middle of a sentence: `quota 4GiB → 6GiB`.
    pub fn brief(&self) -> String {
        let sections = ["etcd.", "postgres."];
        let path = sections.iter().find_map(|section| self.path.strip_prefix(section)).unwrap_or(&self.path);
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => format!("{path} {before} → {after}"),
            (None, Some(after)) => format!("{path} set to {after}"),
            _ => format!("{path} removed"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "~ {path}: {before} → {after}"),
            (None, Some(value)) if value == BARE => write!(f, "+ {path}"),
            (None, Some(value)) => write!(f, "+ {path}: {value}"),
            (Some(value), None) if value == BARE => write!(f, "- {path}"),
            (Some(value), None) => write!(f, "- {path}: {value}"),
            (None, None) => write!(f, "  {path}"),
        }
    }
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Change>) {
    match (before, after) {
        _ if before == after => {}
        (Some(Value::Array(before)), Some(Value::Array(after))) => lists(path, before, after, found),
        (Some(Value::Array(before)), None) => lists(path, before, &[], found),
        (None, Some(Value::Array(after))) => lists(path, &[], after, found),
        (None | Some(Value::Object(_)), None | Some(Value::Object(_))) => sections(path, before, after, found),
        _ => leaf(path, before, after, found),
    }
}

/// A section that appears or disappears is shown setting by setting, like one that changes.
fn sections(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Change>) {
    let none = Map::new();
    let before = before.and_then(Value::as_object).unwrap_or(&none);
    let after = after.and_then(Value::as_object).unwrap_or(&none);
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    if keys.is_empty() {
        found.push(Change { path: path.to_owned(), before: None, after: Some(BARE.to_owned()) });
    }
    for key in keys {
        compare(&below(path, key), before.get(key), after.get(key), found);
    }
}

fn lists(path: &str, before: &[Value], after: &[Value], found: &mut Vec<Change>) {
    let start = found.len();
    if before.iter().chain(after).all(|item| name(item).is_some()) {
        named(path, before, after, found);
    } else if before.len() == after.len() && after.iter().all(Value::is_object) {
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            compare(&format!("{path}[{index}]"), Some(before), Some(after), found);
        }
    } else {
        let only_in = |these: &[Value], those: &[Value]| -> Vec<Value> {
            these.iter().filter(|item| !those.contains(item)).cloned().collect()
        };
        only_in(before, after).iter().for_each(|item| leaf(path, Some(item), None, found));
        only_in(after, before).iter().for_each(|item| leaf(path, None, Some(item), found));
    }
    if found.len() == start {
        let order = |items: &[Value]| Value::from_iter(items.iter().map(|item| name(item).unwrap_or(item).clone()));
        leaf(path, Some(&order(before)), Some(&order(after)), found);
    }
}

/// Members, users and roles are identified by their names, in any order.
fn named(path: &str, before: &[Value], after: &[Value], found: &mut Vec<Change>) {
    let of = |list: &[Value], wanted: &Value| list.iter().find(|item| name(item) == Some(wanted)).map(nameless);
    let new = after.iter().filter(|item| before.iter().all(|other| name(other) != name(item)));
    for name in before.iter().chain(new).filter_map(name) {
        let path = below(path, &flow(name));
        match (of(before, name), of(after, name)) {
            (Some(before), Some(after)) => compare(&path, Some(&before), Some(&after), found),
            (before, after) => leaf(&path, before.as_ref(), after.as_ref(), found),
        }
    }
}

fn name(item: &Value) -> Option<&Value> {
    item.as_object()?.get("name")
}

fn nameless(item: &Value) -> Value {
    let mut fields = item.as_object().cloned().unwrap_or_default();
    fields.remove("name");
    Value::Object(fields)
}

fn leaf(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Change>) {
    let is_secret = SECRET.iter().any(|secret| path.rsplit('.').next() == Some(secret));
    let shown = |value: &Value| if is_secret { HIDDEN.to_owned() } else { flow(value) };
    found.push(Change { path: path.to_owned(), before: before.map(shown), after: after.map(shown) });
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A value in one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => without_password(text),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| match SECRET.contains(&key.as_str()) {
                true => format!("{key}: {HIDDEN}"),
                false => format!("{key}: {}", flow(value)),
            };
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// An address may carry a login: `https://user:password@host`.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{HIDDEN}{}", &rest[at..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Document, HostFacts};

    fn spec(settings: &str) -> ClusterSpec {
        let text = format!("quorate: 1\nclusters:\n  - name: demo\n{settings}");
        let checked = Document::parse("demo", &text).unwrap().spec(&HostFacts::default());
        checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0)
    }

    fn shown(before: &str, after: &str) -> Vec<String> {
        changes(&spec(before), &spec(after)).iter().map(ToString::to_string).collect()
    }

    const THREE: &str = "    members: [{name: a}, {name: b}, {name: c}]\n";

    #[test]
    fn a_setting_is_shown_with_both_values_and_a_list_by_its_items() {
        let before = format!("{THREE}    etcd: {{quota: 4GiB}}\n    tls: {{extra_sans: [one.example, two.example]}}\n");
        let after = format!(
            "{THREE}    etcd: {{quota: 6GiB, flags: {{max-txn-ops: 256}}}}\n    tls: {{extra_sans: [two.example, ten.example]}}\n"
        );
        assert_eq!(
            shown(&before, &after),
            [
                "+ etcd.flags.max-txn-ops: 256",
                "~ etcd.quota: 4GiB → 6GiB",
                "- tls.extra_sans: one.example",
                "+ tls.extra_sans: ten.example",
            ]
        );
        assert!(shown(&before, &before).is_empty());
    }

    #[test]
    fn members_users_and_roles_are_known_by_name() {
        let before = format!(
            "{THREE}    auth:\n      roles: [{{name: r, permissions: [{{key: /a, access: read}}]}}]\n      users: [{{name: app, roles: [r]}}]\n"
        );
        let after = "    members: [{name: c}, {name: b}, {name: d, address: 127.0.10.4}]\n    auth:\n      \
                     roles: [{name: r, permissions: [{key: /a, access: readwrite}]}]\n      users: [{name: web, roles: [r]}]\n";
        assert_eq!(
            shown(&before, after),
            [
                "~ auth.roles.r.permissions[0].access: read → readwrite",
                "- auth.users.app: {roles: [r]}",
                "+ auth.users.web: {roles: [r]}",
                "- members.a",
                "+ members.d: {address: 127.0.10.4}",
            ]
        );
        let turned = "    members: [{name: c}, {name: b}, {name: a}]\n";
        assert_eq!(shown(THREE, turned), ["~ members: [a, b, c] → [c, b, a]"]);
    }

    #[test]
    fn a_section_that_appears_is_shown_setting_by_setting() {
        let after = format!("{THREE}    backup:\n      to: {{directory: /srv/b}}\n      schedule: 12h\n");
        let shown = shown(THREE, &after);
        assert!(shown.contains(&String::from("+ backup.to.directory: /srv/b")), "{shown:?}");
        assert!(shown.contains(&String::from("+ backup.schedule: 12h")), "{shown:?}");
    }

    #[test]
    fn secrets_are_hidden() {
        let field = serde_json::json!({"admin": {"console_password_hash": "$6$x", "user": "a"}});
        assert_eq!(flow(&field), "{admin: {console_password_hash: (hidden), user: a}}");
        let mut found = Vec::new();
        let other = serde_json::json!({"admin": {"console_password_hash": "$6$y", "user": "a"}});
        compare("", Some(&field), Some(&other), &mut found);
        assert_eq!(found[0].to_string(), "~ admin.console_password_hash: (hidden) → (hidden)");
        let mirror = serde_json::json!("https://me:pw@mirror.example/etcd");
        assert_eq!(flow(&mirror), "https://(hidden)@mirror.example/etcd");
    }
}
