//! Checks dependencies against `deny.toml`: licences, banned and duplicate crates, and sources. The file has cargo-deny's format and
//! meaning. cargo-deny itself is not run: no registry has a build that works with current cargo, and compiling it takes longer than
//! compiling quorate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{host, lab};

const RULES: &str = "deny.toml";
/// What we build for; crates for other systems are never compiled.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

pub fn check() -> Result<()> {
    let file = lab::workspace()?.join(RULES);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let rules: Value = basic_toml::from_str(&text).with_context(|| format!("{RULES} is not TOML"))?;
    let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM];
    let metadata: Value = serde_json::from_str(&host::read(host::cargo()?.args(arguments))?)?;
    let findings = findings(&rules, &metadata);
    if !findings.is_empty() {
        bail!("by {RULES}:\n  {}", findings.join("\n  "));
    }
    Ok(())
}

/// A crate that is compiled for us.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    license: &'a str,
    /// None: it is ours.
    source: Option<&'a str>,
    /// The version requirements that are `*`, by name.
    wildcards: Vec<&'a str>,
}

fn findings(rules: &Value, metadata: &Value) -> Vec<String> {
    let packages = packages(metadata);
    [
        reasons(rules),
        licenses(&rules["licenses"], &packages),
        bans(&rules["bans"], &packages),
        sources(&rules["sources"], &packages),
    ]
    .concat()
}

/// `cargo metadata` lists crates for other systems too; the graph has only ours.
fn packages(metadata: &Value) -> Vec<Package<'_>> {
    let used: BTreeSet<&str> = list(&metadata["resolve"]["nodes"]).filter_map(|node| node["id"].as_str()).collect();
    let ours = list(&metadata["packages"]).filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)));
    ours.map(|package| {
        let wildcards = list(&package["dependencies"]).filter(|wish| wish["req"] == "*" && !wish["source"].is_null());
        Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            license: text(&package["license"]),
            source: package["source"].as_str(),
            wildcards: wildcards.map(|wish| text(&wish["name"])).collect(),
        }
    })
    .collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// An exception without a reason is none.
fn reasons(rules: &Value) -> Vec<String> {
    let lists = [("advisories", "ignore"), ("bans", "deny"), ("bans", "skip"), ("licenses", "exceptions")];
    let entries =
        lists.iter().flat_map(|(table, key)| list(&rules[*table][*key]).map(move |entry| (table, key, entry)));
    entries
        .filter(|(_, _, entry)| text(&entry["reason"]).trim().is_empty())
        .map(|(table, key, entry)| format!("{table}.{key}: {entry} has no reason"))
        .collect()
}

fn licenses(rules: &Value, packages: &[Package<'_>]) -> Vec<String> {
    let allowed: BTreeSet<&str> = list(&rules["allow"]).map(text).collect();
    let mut needed = BTreeSet::new();
    let mut findings = Vec::new();
    for package in packages.iter().filter(|package| package.source.is_some()) {
        let excepted = list(&rules["exceptions"]).filter(|entry| entry["crate"] == package.name);
        let more: BTreeSet<&str> = excepted.flat_map(|entry| list(&entry["allow"]).map(text)).collect();
        match Expression::read(package.license).and_then(|expression| expression.satisfied_by(&allowed, &more)) {
            Some(used) => needed.extend(used),
            None => findings.push(format!(
                "licenses: {} {} has `{}`, which allows none of what we accept",
                package.name, package.version, package.license
            )),
        }
    }
    let idle = allowed.iter().filter(|license| !needed.contains(**license));
    findings.extend(idle.map(|license| format!("licenses.allow: no dependency needs `{license}`")));
    findings
}

fn bans(rules: &Value, packages: &[Package<'_>]) -> Vec<String> {
    let mut findings = Vec::new();
    for entry in list(&rules["deny"]) {
        let banned = packages.iter().filter(|package| entry["crate"] == package.name);
        findings.extend(banned.map(|package| format!("bans: {} is here; {}", package.name, text(&entry["reason"]))));
    }
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(package.name).or_default().insert(package.version);
        let ours = package.source.is_none();
        findings.extend(
            package
                .wildcards
                .iter()
                .filter(|_| ours)
                .map(|wish| format!("bans: {} asks for any version of {wish}", package.name)),
        );
    }
    let mut skipped: BTreeSet<&str> = list(&rules["skip"]).map(|entry| text(&entry["crate"])).collect();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let left: Vec<&str> =
            versions.iter().copied().filter(|version| !skipped.remove(format!("{name}@{version}").as_str())).collect();
        if left.len() > 1 {
            findings.push(format!(
                "bans: {name} is here more than once: {}; `cargo tree -i {name}@VERSION` shows why",
                left.join(", ")
            ));
        }
    }
    findings.extend(skipped.iter().map(|entry| format!("bans.skip: {entry} is not needed any more")));
    findings
}

fn sources(rules: &Value, packages: &[Package<'_>]) -> Vec<String> {
    let allowed: Vec<String> =
        list(&rules["allow-registry"]).map(|place| format!("registry+{}", text(place))).collect();
    let foreign =
        packages.iter().filter(|package| package.source.is_some_and(|source| !allowed.iter().any(|a| a == source)));
    foreign
        .map(|package| format!("sources: {} comes from {}", package.name, package.source.unwrap_or_default()))
        .collect()
}

/// A licence as SPDX writes it: which of several one may choose, and which come together.
enum Expression {
    One(String),
    Any(Vec<Expression>),
    All(Vec<Expression>),
}

impl Expression {
    /// Older crates write `MIT/Apache-2.0` for `MIT OR Apache-2.0`.
    fn read(text: &str) -> Option<Self> {
        let spaced = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        let read = Self::any(&mut words)?;
        words.next().is_none().then_some(read)
    }

    fn any<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Option<Self> {
        let mut parts = vec![Self::all(words)?];
        while words.next_if_eq(&"OR").is_some() {
            parts.push(Self::all(words)?);
        }
        Some(Self::Any(parts))
    }

    fn all<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Option<Self> {
        let mut parts = vec![Self::one(words)?];
        while words.next_if_eq(&"AND").is_some() {
            parts.push(Self::one(words)?);
        }
        Some(Self::All(parts))
    }

    fn one<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Option<Self> {
        match words.next()? {
            "(" => {
                let inner = Self::any(words)?;
                words.next_if_eq(&")").map(|_| inner)
            }
            ")" | "OR" | "AND" | "WITH" => None,
            name if words.next_if_eq(&"WITH").is_some() => Some(Self::One(format!("{name} WITH {}", words.next()?))),
            name => Some(Self::One(name.to_owned())),
        }
    }

    /// The licences that are needed to accept it, or none if it cannot be.
    fn satisfied_by(&self, allowed: &BTreeSet<&str>, more: &BTreeSet<&str>) -> Option<Vec<String>> {
        match self {
            Self::One(name) if allowed.contains(name.as_str()) || more.contains(name.as_str()) => {
                Some(vec![name.clone()])
            }
            Self::One(_) => None,
            // All that would do: none of them is idle.
            Self::Any(parts) => {
                let ways: Vec<_> = parts.iter().filter_map(|part| part.satisfied_by(allowed, more)).collect();
                (!ways.is_empty()).then(|| ways.concat())
            }
            Self::All(parts) => {
                let all: Option<Vec<_>> = parts.iter().map(|part| part.satisfied_by(allowed, more)).collect();
                all.map(|parts| parts.concat())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn rules() -> Value {
        let text = r#"
            [licenses]
            allow = ["MIT", "ISC"]
            [bans]
            deny = [{ crate = "openssl-sys", reason = "ring is ours" }]
            skip = [{ crate = "rand@0.8.0", reason = "age" }]
            [sources]
            allow-registry = ["https://github.com/rust-lang/crates.io-index"]
        "#;
        basic_toml::from_str(text).unwrap()
    }

    fn found(crates: &[(&str, &str, &str, Value)]) -> Vec<String> {
        let mut packages = vec![
            json!({"id": "a", "name": "rand", "version": "0.8.0", "license": "MIT", "source": INDEX}),
            json!({"id": "b", "name": "rand", "version": "0.9.0", "license": "ISC", "source": INDEX}),
            json!({"id": "windows", "name": "windows", "version": "1.0.0", "license": "Strange", "source": INDEX}),
        ];
        packages.extend(crates.iter().map(|(name, version, license, source)| {
            json!({"id": format!("{name}{version}"), "name": name, "version": version, "license": license, "source": source})
        }));
        let nodes: Vec<Value> =
            packages.iter().filter(|p| p["id"] != "windows").map(|p| json!({"id": p["id"]})).collect();
        findings(&rules(), &json!({"packages": packages, "resolve": {"nodes": nodes}}))
    }

    #[test]
    fn compliant_dependencies_cause_no_findings() {
        assert_eq!(found(&[("fine", "1.0.0", "(MIT OR GPL-3.0) AND ISC", json!(INDEX))]), [] as [&str; 0]);
        assert_eq!(found(&[("ours", "0.1.0", "", Value::Null)]), [] as [&str; 0]);
    }

    #[test]
    fn each_kind_of_finding_is_named() {
        let one = |name: &str, version: &str, license: &str, source: &str| {
            let found = found(&[(name, version, license, json!(source))]);
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].clone()
        };
        assert!(one("copyleft", "1.0.0", "GPL-3.0", INDEX).starts_with("licenses: copyleft 1.0.0 has `GPL-3.0`"));
        assert!(one("nothing", "1.0.0", "", INDEX).starts_with("licenses: nothing"));
        assert!(one("both", "1.0.0", "MIT AND GPL-3.0", INDEX).starts_with("licenses: both"));
        assert!(one("openssl-sys", "1.0.0", "MIT", INDEX).starts_with("bans: openssl-sys is here"));
        assert!(one("rand", "0.10.0", "MIT", INDEX).contains("0.10.0, 0.9.0"));
        assert!(one("forked", "1.0.0", "MIT", "git+https://example.org/forked").starts_with("sources: forked"));
    }

    #[test]
    fn exceptions_have_reasons_and_are_needed() {
        let mut rules = rules();
        rules["bans"]["skip"] =
            json!([{"crate": "rand@0.8.0", "reason": " "}, {"crate": "gone@1.0.0", "reason": "once"}]);
        rules["licenses"]["allow"] = json!(["MIT", "ISC", "Zlib"]);
        let packages = json!([
            {"id": "a", "name": "rand", "version": "0.8.0", "license": "MIT/Apache-2.0", "source": INDEX},
            {"id": "b", "name": "rand", "version": "0.9.0", "license": "ISC", "source": INDEX},
        ]);
        let found = findings(&rules, &json!({"packages": packages, "resolve": {"nodes": [{"id": "a"}, {"id": "b"}]}}));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].ends_with("has no reason"));
        assert_eq!(found[1], "licenses.allow: no dependency needs `Zlib`");
        assert_eq!(found[2], "bans.skip: gone@1.0.0 is not needed any more");
    }

    #[test]
    fn licences_with_exceptions_are_separate_licences() {
        let allowed = BTreeSet::from(["MIT"]);
        let fits =
            |text: &str| Expression::read(text).is_some_and(|e| e.satisfied_by(&allowed, &BTreeSet::new()).is_some());
        assert!(fits("Apache-2.0 WITH LLVM-exception OR MIT"));
        assert!(!fits("MIT WITH something"));
        assert!(!fits("MIT OR"));
        assert!(!fits("(MIT"));
    }
}
