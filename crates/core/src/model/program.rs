//! The quorate version that a machine's agent runs, and whether a controller and an agent understand each other.
//!
//! Promise: in every version, an agent's answer to a facts request contains `program` in this shape and the number `fence`. From
//! `FIRST_UPGRADABLE` on, every version receives a new program in the same way. Everything else between controller and agent may change
//! with the protocol number.

use std::fmt;
use std::hint::black_box;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::model::Version;

/// Raised with every change of the messages between controllers and agents; `tests/core/wire.rs` compares.
pub const PROTOCOL: u32 = 4;
/// The oldest protocol whose facts and orders this program still uses. An older agent can only be upgraded.
pub const OLDEST_PROTOCOL: u32 = 4;
/// Agents of this protocol and later accept a new program over their own port.
pub const FIRST_UPGRADABLE: u32 = 2;

/// Part of every quorate binary, so a program's file shows what it is without being run.
static MARK: &str = concat!("quorate-program protocol=0004 oldest=0004 version=", env!("CARGO_PKG_VERSION"), ";");

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    /// 0: before there were protocol numbers.
    #[serde(default)]
    pub protocol: u32,
    #[serde(default)]
    pub version: String,
}

impl Program {
    /// The program that runs here.
    pub fn this() -> &'static Program {
        &marked().0
    }

    /// Whether a machine with this program should get the other one.
    pub fn is_older_than(&self, other: &Program) -> bool {
        let version = |program: &Program| program.version.parse::<Version>().ok();
        (self.protocol, version(self)) < (other.protocol, version(other))
    }

    /// Whether a controller that is `self` understands an agent that is `other`.
    pub fn understands(&self, other: &Program) -> bool {
        (marked().1..=self.protocol).contains(&other.protocol)
    }

    pub fn takes_programs(&self) -> bool {
        self.protocol >= FIRST_UPGRADABLE
    }
}

/// The content of the mark: this program, and the oldest protocol that it supports.
fn marked() -> &'static (Program, u32) {
    static MARKED: OnceLock<(Program, u32)> = OnceLock::new();
    // Without `black_box` the compiler may keep only what follows from the mark, and not the mark itself.
    MARKED.get_or_init(|| parse(black_box(MARK)).expect("the mark has this form"))
}

fn parse(mark: &str) -> Option<(Program, u32)> {
    let (protocol, rest) = mark.strip_prefix("quorate-program protocol=")?.strip_suffix(';')?.split_once(" oldest=")?;
    let (oldest, version) = rest.split_once(" version=")?;
    Some((Program { protocol: protocol.parse().ok()?, version: version.to_owned() }, oldest.parse().ok()?))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version.is_empty() { "of an unknown version" } else { &self.version };
        write!(f, "quorate {version} (protocol {})", self.protocol)
    }
}

/// The program of an agent, as the agent reports it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ProgramSeen {
    #[serde(flatten)]
    pub runs: Program,
    /// The upgrade that the controller which asks began, and that was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedUpgrade>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FailedUpgrade {
    pub to: Program,
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(protocol: u32, version: &str) -> Program {
        Program { protocol, version: version.to_owned() }
    }

    /// A new protocol needs a new version, and a line here: "use 0.3.0 or newer" must name a program that speaks it.
    const FIRST_VERSION_OF: [(u32, Version); 3] =
        [(2, Version::new(0, 1, 0)), (3, Version::new(0, 2, 0)), (4, Version::new(0, 3, 0))];

    #[test]
    fn every_protocol_has_a_separate_version() {
        let [.., (protocol, first)] = FIRST_VERSION_OF;
        assert_eq!(protocol, PROTOCOL);
        assert!(Program::this().version.parse::<Version>().unwrap() >= first);
        assert!(FIRST_VERSION_OF.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
    }

    #[test]
    fn this_program_is_what_its_constants_say() {
        assert_eq!(*marked(), (program(PROTOCOL, env!("CARGO_PKG_VERSION")), OLDEST_PROTOCOL));
    }

    #[test]
    fn older_is_a_lower_protocol_or_an_earlier_version_of_the_same() {
        assert!(program(1, "9.0.0").is_older_than(&program(2, "0.1.0")));
        assert!(program(2, "0.9.1").is_older_than(&program(2, "0.10.0")));
        assert!(!program(2, "0.1.0").is_older_than(&program(2, "0.1.0")));
        assert!(!program(3, "0.1.0").is_older_than(&program(2, "0.2.0")));
        assert!(Program::default().is_older_than(Program::this()), "an agent that does not say");
    }

    /// Additions of another version must not prevent reading this part.
    #[test]
    fn the_part_that_never_changes_is_read_among_unknown_fields() {
        let told =
            r#"{"protocol":7,"version":"2.0.0","flavour":"new","failed":{"to":{"protocol":8},"why":"x","at":1}}"#;
        let seen: ProgramSeen = serde_json::from_str(told).unwrap();
        assert_eq!(seen.runs, program(7, "2.0.0"));
        assert_eq!(seen.failed.unwrap().to.protocol, 8);
    }
}
