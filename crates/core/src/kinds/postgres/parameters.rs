//! PostgreSQL's parameters: which ones a version has, of which type and range, and which take effect at a restart only. The table is written by
//! `cargo xtask parameters` from real servers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::spec::nearest;

const TABLE: &str = include_str!("parameters.txt");
/// Limits that must not be lower on a standby than on its primary.
pub const LIMITS: [(&str, i64); 5] = [
    ("max_connections", 100),
    ("max_locks_per_transaction", 64),
    ("max_prepared_transactions", 0),
    ("max_wal_senders", 10),
    ("max_worker_processes", 8),
];
/// For smaller values Patroni silently uses its default, the second number.
const LEAST_OF_PATRONI: [(&str, &str, &str); 6] = [
    ("max_connections", "25", "100"),
    ("max_locks_per_transaction", "32", "64"),
    ("max_replication_slots", "4", "10"),
    ("max_wal_senders", "3", "10"),
    ("max_worker_processes", "2", "8"),
    ("wal_keep_size", "16MB", "128MB"),
];
const MEMORY: [(&str, f64); 5] =
    [("B", 1.0), ("kB", 1024.0), ("MB", 1_048_576.0), ("GB", 1_073_741_824.0), ("TB", 1_099_511_627_776.0)];
const TIME: [(&str, f64); 6] =
    [("us", 0.001), ("ms", 1.0), ("s", 1000.0), ("min", 60_000.0), ("h", 3_600_000.0), ("d", 86_400_000.0)];

/// A parameter of one version.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameter {
    pub name: &'static str,
    context: &'static str,
    kind: &'static str,
    unit: &'static str,
    range: Option<(f64, f64)>,
    /// Separated by `|`. Empty: they depend on how the server was built.
    values: &'static str,
}

/// The old value of a parameter and the new one. Absent: its default.
pub type Changed = (Option<String>, Option<String>);

/// The problem with a parameter in a spec, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    pub message: String,
    pub hint: String,
}

fn rows() -> impl Iterator<Item = (Parameter, u16, u16)> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_default();
        let (name, versions, context, kind, unit) = (next(), next(), next(), next(), next());
        let (first, last) = versions.split_once('-')?;
        let range = next().parse().ok().zip(next().parse().ok());
        Some((Parameter { name, context, kind, unit, range, values: next() }, first.parse().ok()?, last.parse().ok()?))
    })
}

pub fn find(version: u16, name: &str) -> Option<Parameter> {
    let fits = |(parameter, first, last): &(Parameter, u16, u16)| {
        parameter.name.eq_ignore_ascii_case(name) && (*first..=*last).contains(&version)
    };
    rows().find(fits).map(|(parameter, ..)| parameter)
}

/// Values that this version of PostgreSQL, or Patroni, would refuse. Parameters of extensions, which have a dot, are not known here.
pub fn wrong(version: u16, name: &str, value: &str) -> Option<Wrong> {
    if name.contains('.') {
        return None;
    }
    match find(version, name) {
        None => Some(unknown(version, name)),
        Some(parameter) => parameter.wrong(version, value).or_else(|| below_patroni(&parameter, value)),
    }
}

fn unknown(version: u16, name: &str) -> Wrong {
    let others: Vec<(u16, u16)> =
        rows().filter(|(known, ..)| known.name == name).map(|(_, first, last)| (first, last)).collect();
    let message = format!("PostgreSQL {version} has no parameter `{name}`");
    let hint = match (others.iter().map(|(first, _)| first).min(), others.iter().map(|(_, last)| last).max()) {
        (Some(first), Some(last)) if first == last => format!("only PostgreSQL {first} has it"),
        (Some(first), Some(last)) => format!("PostgreSQL {first} to {last} have it"),
        _ => {
            let there = rows().filter(|(_, first, last)| (*first..=*last).contains(&version));
            match nearest(name, there.map(|(known, ..)| known.name)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => String::from("see `pg_settings`; parameters of extensions have a dot in their names"),
            }
        }
    };
    Wrong { message, hint }
}

fn below_patroni(parameter: &Parameter, value: &str) -> Option<Wrong> {
    let (name, least, default) = LEAST_OF_PATRONI.iter().find(|(name, ..)| *name == parameter.name)?;
    let number = |text: &str| number(text, parameter.unit);
    (number(value)? < number(least)?).then(|| Wrong {
        message: format!("`{name}` is {value}, and Patroni uses {default} for less than {least}, silently"),
        hint: format!("set at least {least}"),
    })
}

impl Parameter {
    /// Whether a change takes effect when PostgreSQL restarts.
    pub fn needs_restart(&self) -> bool {
        self.context == "postmaster"
    }

    fn wrong(&self, version: u16, value: &str) -> Option<Wrong> {
        let Parameter { name, unit, .. } = self;
        if self.context == "internal" {
            let message = format!("`{name}` describes the server and cannot be set");
            return Some(Wrong { message, hint: String::from("leave it out") });
        }
        let must_be = |what: String, hint: String| {
            let message = format!("`{name}` is `{value}`, and must be {what}");
            Some(Wrong { message, hint })
        };
        match self.kind {
            "bool" if boolean(value).is_none() => must_be(String::from("on or off"), String::from("use on or off")),
            "enum" if !self.is_one_of_its_values(value) => {
                let values = self.values.replace('|', ", ");
                must_be(format!("one of {values}"), String::from("use one of them"))
            }
            "integer" | "real" => match number(value, unit) {
                None => must_be(String::from("a number"), units(unit)),
                Some(found) => self.range.filter(|(least, most)| found < *least || found > *most).map(|range| Wrong {
                    message: format!(
                        "`{name}` is {value}, and PostgreSQL {version} takes {}{unit} to {}{unit}",
                        range.0, range.1
                    ),
                    hint: units(unit),
                }),
            },
            _ => None,
        }
    }

    fn is_one_of_its_values(&self, value: &str) -> bool {
        let mut values = self.values.split('|');
        let switches = self.values.split('|').any(|known| known == "on") && boolean(value).is_some();
        self.values.is_empty() || switches || values.any(|known| known.eq_ignore_ascii_case(value.trim()))
    }

    /// Whether two texts mean the same value.
    fn equal(&self, one: &str, other: &str) -> bool {
        match self.kind {
            "bool" => boolean(one) == boolean(other),
            "integer" | "real" => number(one, self.unit) == number(other, self.unit),
            "enum" => one.eq_ignore_ascii_case(other),
            _ => one == other,
        }
    }
}

/// The number that a text means, in the parameter's unit.
pub(super) fn number(text: &str, unit: &str) -> Option<f64> {
    let text = text.trim();
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return None;
    }
    let end = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end));
    let (value, given) = end.filter_map(|end| Some((text[..end].parse::<f64>().ok()?, text[end..].trim()))).next()?;
    if !value.is_finite() {
        return None;
    }
    if given.is_empty() {
        return Some(value);
    }
    let (times, base) = unit.split_at(unit.find(|c: char| !c.is_ascii_digit())?);
    let times = if times.is_empty() { 1.0 } else { times.parse().ok()? };
    let table = [&MEMORY[..], &TIME[..]].into_iter().find(|table| table.iter().any(|(name, _)| *name == base))?;
    let size = |of: &str| table.iter().find(|(name, _)| *name == of).map(|(_, size)| *size);
    Some(value * size(given)? / (size(base)? * times))
}

fn units(unit: &str) -> String {
    let base = unit.trim_start_matches(|c: char| c.is_ascii_digit());
    let of = |table: &[(&str, f64)]| table.iter().any(|(name, _)| *name == base);
    match () {
        () if unit.is_empty() => String::from("use a number without a unit"),
        () if of(&MEMORY) => String::from("use a number with B, kB, MB, GB or TB"),
        () if of(&TIME) => String::from("use a number with us, ms, s, min, h or d"),
        () => format!("use a number, in {unit}"),
    }
}

/// PostgreSQL accepts any unambiguous prefix of a word.
pub(super) fn boolean(text: &str) -> Option<bool> {
    let text = text.trim().to_ascii_lowercase();
    match text.as_str() {
        "" | "o" => None,
        "1" => Some(true),
        "0" => Some(false),
        word if ["on", "true", "yes"].iter().any(|known| known.starts_with(word)) => Some(true),
        word if ["off", "false", "no"].iter().any(|known| known.starts_with(word)) => Some(false),
        _ => None,
    }
}

/// The parameters that differ between two configurations of the DCS and take effect at a restart, as far as this version's are known.
pub fn restarts(version: u16, before: &str, after: &str) -> BTreeMap<String, Changed> {
    let (before, after) = (in_config(before), in_config(after));
    let names = before.keys().chain(after.keys());
    let changed = names.filter_map(|name| {
        let parameter = find(version, name).filter(Parameter::needs_restart)?;
        let (old, new) = (before.get(name), after.get(name));
        let same = old.zip(new).is_some_and(|(old, new)| parameter.equal(old, new));
        (!same).then(|| (name.clone(), (old.cloned(), new.cloned())))
    });
    changed.collect()
}

fn in_config(config: &str) -> BTreeMap<String, String> {
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    let parameters = config["postgresql"]["parameters"].as_object().cloned().unwrap_or_default();
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    parameters.into_iter().map(|(name, value)| (name, text(value))).collect()
}

/// Which limits become lower, and which higher.
pub fn moved_limits(changed: &BTreeMap<String, Changed>) -> (Vec<String>, Vec<String>) {
    let (mut lowered, mut raised) = (Vec::new(), Vec::new());
    for (name, default) in LIMITS {
        let Some((old, new)) = changed.get(name) else { continue };
        let value = |text: &Option<String>| text.as_ref().map_or(Some(default), |text| text.trim().parse().ok());
        match (value(old), value(new)) {
            (Some(old), Some(new)) if new < old => lowered.push(name.to_owned()),
            (Some(old), Some(new)) if new > old => raised.push(name.to_owned()),
            _ => {}
        }
    }
    (lowered, raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(version: u16, name: &str, value: &str) -> String {
        wrong(version, name, value).map(|wrong| format!("{}; {}", wrong.message, wrong.hint)).unwrap_or_default()
    }

    #[test]
    fn every_row_of_the_table_is_read() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(rows().count(), lines);
        assert!(lines > 400, "{lines}");
        for version in 13..=18 {
            let known = rows().filter(|(_, first, last)| (*first..=*last).contains(&version)).count();
            assert!(known > 300, "{version} has {known}");
        }
        let kinds = ["bool", "enum", "integer", "real", "string"];
        assert!(rows().all(|(parameter, ..)| kinds.contains(&parameter.kind)));
        let numbers = rows().filter(|(parameter, ..)| ["integer", "real"].contains(&parameter.kind));
        assert!(numbers.into_iter().all(|(parameter, ..)| parameter.range.is_some()));
    }

    #[test]
    fn numbers_have_units() {
        let close = |found: Option<f64>, wanted: f64| assert!((found.unwrap() - wanted).abs() < 1e-6, "{found:?}");
        close(number("256MB", "8kB"), 32768.0);
        close(number("1.5GB", "kB"), 1_572_864.0);
        close(number(" 10 min ", "s"), 600.0);
        close(number("200us", "ms"), 0.2);
        close(number("-1", "ms"), -1.0);
        close(number("1e3", ""), 1000.0);
        for (text, unit) in [
            ("5min", "kB"),
            ("5kb", "kB"),
            ("many", ""),
            ("", "s"),
            ("5s", ""),
            ("inf", ""),
            ("+nan", ""),
            ("1e400", "kB"),
        ] {
            assert_eq!(number(text, unit), None, "{text} in {unit}");
        }
    }

    #[test]
    fn unsupported_settings_of_a_version_are_reported() {
        assert_eq!(
            message(15, "max_conections", "5"),
            "PostgreSQL 15 has no parameter `max_conections`; did you mean `max_connections`?"
        );
        assert_eq!(
            message(15, "io_method", "worker"),
            "PostgreSQL 15 has no parameter `io_method`; only PostgreSQL 18 has it"
        );
        assert_eq!(
            message(18, "old_snapshot_threshold", "5"),
            "PostgreSQL 18 has no parameter `old_snapshot_threshold`; PostgreSQL 13 to 16 have it"
        );
        assert!(
            message(15, "work_mem", "1kB")
                .starts_with("`work_mem` is 1kB, and PostgreSQL 15 takes 64kB to 2147483647kB")
        );
        assert!(message(15, "work_mem", "5s").contains("must be a number; use a number with B, kB, MB, GB or TB"));
        assert!(message(15, "huge_pages", "maybe").contains("must be one of off, on, try"));
        assert!(message(15, "jit", "perhaps").contains("must be on or off"));
        assert!(message(15, "server_version", "16").contains("cannot be set"));
        assert!(message(15, "max_connections", "10").contains("Patroni uses 100 for less than 25"));
        assert!(message(15, "wal_keep_size", "1MB").contains("at least 16MB"));
        let good = [
            ("timezone", "UTC"),
            ("synchronous_commit", "true"),
            ("huge_pages", "TRY"),
            ("wal_compression", "zstd"),
            ("jit", "of"),
            ("pg_stat_statements.max", "many"),
            ("shared_preload_libraries", "a,b"),
            ("vacuum_cost_delay", "1.5ms"),
            ("wal_keep_size", "1GB"),
        ];
        for (name, value) in good {
            assert_eq!(message(15, name, value), "", "{name}");
        }
    }

    #[test]
    fn only_what_differs_restarts() {
        let config = |parameters: Value| serde_json::json!({"postgresql": {"parameters": parameters}}).to_string();
        let before = config(serde_json::json!({"max_connections": "100", "shared_buffers": "1GB", "work_mem": "4MB"}));
        let after = config(serde_json::json!({"shared_buffers": "1024MB", "work_mem": "8MB", "max_wal_senders": 5}));
        let changed = restarts(15, &before, &after);
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["max_connections", "max_wal_senders"]);
        assert_eq!(moved_limits(&changed), (vec![String::from("max_wal_senders")], vec![]));
        let text = |text: &str| Some(text.to_owned());
        let changed = BTreeMap::from([
            (String::from("max_connections"), (text("60"), text("50"))),
            (String::from("max_worker_processes"), (text("8"), text("16"))),
            (String::from("shared_buffers"), (text("9"), text("1"))),
        ]);
        assert_eq!(
            moved_limits(&changed),
            (vec![String::from("max_connections")], vec![String::from("max_worker_processes")])
        );
        assert!(restarts(15, "", &before).contains_key("shared_buffers"));
        assert!(restarts(15, &before, &before).is_empty());
    }
}
