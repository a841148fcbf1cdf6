//! The requests that the cloud received.

use std::collections::BTreeMap;
use std::fmt;

/// Calls, by method, service and path, with `ID` in place of every id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls(BTreeMap<String, usize>);

impl Calls {
    pub fn of(calls: &[(&str, &str)]) -> Self {
        let mut all = Calls::default();
        calls.iter().for_each(|(method, path)| all.add(method, path));
        all
    }

    pub(crate) fn add(&mut self, method: &str, path: &str) {
        *self.0.entry(shape(method, path)).or_default() += 1;
    }

    pub fn all(&self) -> usize {
        self.0.values().sum()
    }

    pub fn logins(&self) -> usize {
        self.0.iter().filter(|(call, _)| call.contains("auth/tokens")).map(|(_, times)| times).sum()
    }

    /// Calls that change something: all but reads and logins.
    pub fn changes(&self) -> usize {
        let reads = self.0.iter().filter(|(call, _)| call.starts_with("GET ")).map(|(_, times)| times).sum::<usize>();
        self.all() - self.logins() - reads
    }
}

/// `2 × GET compute/servers/detail, 1 × POST identity/auth/tokens`.
impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> = self.0.iter().map(|(call, times)| format!("{times} × {call}")).collect();
        f.write_str(&calls.join(", "))
    }
}

fn shape(method: &str, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let is_version = |part: &str| part.starts_with('v') && part[1..].starts_with(|first: char| first.is_ascii_digit());
    let parts = path.split('/').filter(|part| !part.is_empty() && !is_version(part));
    let parts: Vec<&str> = parts.map(|part| if is_id(part) { "ID" } else { part }).collect();
    format!("{method} {}", parts.join("/"))
}

fn is_id(part: &str) -> bool {
    part.len() == 36 && part.matches('-').count() == 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_what_they_ask_for_whatever_it_is_called() {
        let tags = "/compute/v2.1/servers/00000000-0000-4000-8000-00000000002a/tags";
        let calls = Calls::of(&[
            ("POST", "/identity/v3/auth/tokens"),
            ("GET", "/compute/v2.1/servers/detail?tags=quorate.c1"),
            ("GET", "/compute/v2.1/servers/detail"),
            ("GET", tags),
            ("GET", "/volume/v3/volumes/detail"),
        ]);
        assert_eq!((calls.all(), calls.logins(), calls.changes()), (5, 1, 0));
        let expected = "1 × GET compute/servers/ID/tags, 2 × GET compute/servers/detail, \
                        1 × GET volume/volumes/detail, 1 × POST identity/auth/tokens";
        assert_eq!(calls.to_string(), expected);
        assert_eq!(Calls::of(&[("POST", "/network/v2.0/ports"), ("DELETE", tags)]).changes(), 2);
    }
}
