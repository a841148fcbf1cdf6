//! Filters of lists.

use std::collections::BTreeMap;

use serde_json::Value;

/// Other parameters say which fields are wanted, or how many.
const FILTERS: [&str; 6] = ["id", "name", "description", "network_id", "project_id", "status"];

/// Which values a field may have.
pub(crate) struct Filters(BTreeMap<String, Vec<String>>);

impl Filters {
    pub(crate) fn read(query: &str) -> Self {
        let mut filters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (field, value) in query.split('&').filter_map(|part| part.split_once('=')) {
            if FILTERS.contains(&field) || field == "tags" || field == "fixed_ips" {
                filters.entry(field.to_owned()).or_default().push(unescaped(value));
            }
        }
        Filters(filters)
    }

    pub(crate) fn fit(&self, record: &Value) -> bool {
        self.0.iter().all(|(field, values)| values.iter().any(|value| has(record, field, value)))
    }
}

fn has(record: &Value, field: &str, value: &str) -> bool {
    match field {
        "tags" => record["tags"].as_array().is_some_and(|tags| tags.iter().any(|tag| tag == value)),
        "fixed_ips" => {
            let address = value.strip_prefix("ip_address=").unwrap_or_default();
            record["fixed_ips"].as_array().is_some_and(|all| all.iter().any(|one| one["ip_address"] == address))
        }
        // Not every record says to whom it belongs: all are of one project.
        _ => record.get(field).is_none_or(|found| found == value),
    }
}

/// Without the escapes of a URL.
pub(crate) fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let code = others.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &others[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = others;
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_fits_if_each_field_has_one_of_the_values() {
        let record =
            json!({ "description": "quorate c", "tags": ["t"], "fixed_ips": [{ "ip_address": "127.77.0.3" }] });
        let fits = |query: &str| Filters::read(query).fit(&record);
        for query in [
            "",
            "description=other&description=quorate%20c",
            "description=quorate+c&tags=t&fields=id",
            "fixed_ips=ip_address%3D127.77.0.3",
            "project_id=any",
        ] {
            assert!(fits(query), "{query}");
        }
        for query in ["description=quorate", "tags=u", "fixed_ips=ip_address%3D127.77.0.4"] {
            assert!(!fits(query), "{query}");
        }
    }
}
