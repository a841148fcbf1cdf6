//! The types of etcd's flags. etcd prints its usage and exits when a value has the wrong type, so quorate checks it first. The table
//! comes from etcd; a test compares it with real binaries.

use std::sync::LazyLock;

/// The type of a flag's value, unless it is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    /// A whole number of 0 or more.
    Unsigned,
    Whole,
    Duration,
}

/// In the order of names, as the file is.
static TABLE: LazyLock<Vec<(&str, Kind)>> = LazyLock::new(|| {
    let rows = include_str!("kinds.tsv").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| row.split_once('\t')).filter_map(|(name, kind)| Some((name, Kind::named(kind)?))).collect()
});

impl Kind {
    fn named(text: &str) -> Option<Self> {
        Some(match text {
            "bool" => Kind::Bool,
            "uint" => Kind::Unsigned,
            "int" => Kind::Whole,
            "duration" => Kind::Duration,
            _ => return None,
        })
    }

    /// None if the flag takes any text, or is not known.
    pub fn of(flag: &str) -> Option<Self> {
        TABLE.binary_search_by(|(name, _)| (*name).cmp(flag)).ok().map(|index| TABLE[index].1)
    }

    /// Whether etcd reads this value as one of the kind.
    pub fn takes(self, value: &str) -> bool {
        match self {
            Kind::Bool => matches!(
                value,
                "1" | "t" | "T" | "true" | "TRUE" | "True" | "0" | "f" | "F" | "false" | "FALSE" | "False"
            ),
            Kind::Unsigned => is_whole(value),
            Kind::Whole => is_whole(value.strip_prefix(['-', '+']).unwrap_or(value)),
            Kind::Duration => is_duration(value),
        }
    }

    /// What to write.
    pub fn expected(self) -> &'static str {
        match self {
            Kind::Bool => "true or false",
            Kind::Unsigned => "a whole number of 0 or more",
            Kind::Whole => "a whole number",
            Kind::Duration => "a time such as 30s, 5m or 1h30m",
        }
    }
}

/// Decimal, or with a prefix as in Go.
fn is_whole(value: &str) -> bool {
    let prefixes = [("0x", 16), ("0X", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixes.iter().find_map(|(prefix, radix)| Some((value.strip_prefix(prefix)?, *radix)));
    let (digits, radix) = prefixed.unwrap_or((value, 10));
    digits.starts_with(|c: char| c.is_ascii_alphanumeric()) && u64::from_str_radix(digits, radix).is_ok()
}

/// As Go reads it: numbers with units, one after the other.
fn is_duration(value: &str) -> bool {
    let mut rest = value.strip_prefix(['-', '+']).unwrap_or(value);
    if rest == "0" {
        return true;
    }
    let begun = !rest.is_empty();
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, after) = rest.split_at(number);
        if digits.parse::<f64>().is_err() {
            return false;
        }
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        if !["ns", "us", "µs", "ms", "s", "m", "h"].contains(&unit) {
            return false;
        }
        rest = after;
    }
    begun
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_the_kind_that_their_flag_takes() {
        assert!(TABLE.is_sorted_by_key(|row| row.0) && TABLE.len() > 50);
        assert_eq!(Kind::of("log-level"), None);
        let takes = |flag: &str, value: &str| Kind::of(flag).unwrap().takes(value);
        assert!(takes("enable-pprof", "true") && !takes("enable-pprof", "maybe"));
        assert!(takes("max-txn-ops", "256") && takes("max-txn-ops", "0x10"));
        assert!(!takes("max-txn-ops", "-1") && !takes("max-txn-ops", "abc") && !takes("max-txn-ops", "+1"));
        assert!(takes("max-learners", "-1") && !takes("max-learners", "1.5"));
        for time in ["30s", "1h30m", "1.5h", "0", "-5ms", "100ns"] {
            assert!(takes("corrupt-check-time", time), "{time}");
        }
        for wrong in ["", "30", "s", "1x", "h1", "-"] {
            assert!(!takes("corrupt-check-time", wrong), "{wrong}");
        }
    }
}
