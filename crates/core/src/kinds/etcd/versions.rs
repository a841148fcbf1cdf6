//! Facts about etcd releases: which are refused, which get a warning, which have authorization bugs, and the published
//! checksums; and the paths from one release to another. Every rule is a row of a table, so a new finding is a new row.
//! Knows only releases, never a cluster.

mod path;

use crate::model::Version;

pub use path::{Path, PathRefused, path};

/// The etcd release that a spec without a version gets.
pub const DEFAULT: Version = Version::new(3, 6, 14);

/// The minor releases of etcd 3 that quorate knows.
pub const KNOWN_MINORS: [u32; 4] = [4, 5, 6, 7];

/// The newest release of each minor that this quorate knows. There is none missing before them.
pub const NEWEST: [Version; 4] =
    [Version::new(3, 4, 45), Version::new(3, 5, 33), Version::new(3, 6, 16), Version::new(3, 7, 3)];

/// The newest known release of the same minor, where this one is newer still: it was released since, or does not exist.
pub fn newest_before(version: Version) -> Option<Version> {
    let same_minor = |known: &&Version| (known.major, known.minor) == (version.major, version.minor);
    NEWEST.iter().find(same_minor).copied().filter(|newest| *newest < version)
}

/// quorate's verdict on a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    Fine,
    /// It can run, with these warnings.
    Warned(Vec<String>),
    Refused(String),
}

/// A defect of the releases `from..fixed` of one minor.
struct Defect {
    from: Version,
    fixed: Version,
    what: &'static str,
}

const fn defect(minor: u32, from: u32, fixed: u32, what: &'static str) -> Defect {
    Defect { from: Version::new(3, minor, from), fixed: Version::new(3, minor, fixed), what }
}

const UNSTARTED_LEARNER: &str = "a learner that never started can be promoted";
const MEMBER_UPDATE: &str = "updating a member's URLs can promote a learner";
const DEFRAGMENTATION_RACE: &str = "defragmentation while a snapshot arrives can corrupt the data";

const DEFECTS: [Defect; 9] = [
    defect(4, 0, 24, UNSTARTED_LEARNER),
    defect(4, 0, 38, DEFRAGMENTATION_RACE),
    defect(5, 0, 6, "a crash during defragmentation can corrupt the data"),
    defect(5, 0, 7, UNSTARTED_LEARNER),
    defect(5, 1, 20, "the promotion of a learner is not kept on disk and can be lost at a restart"),
    defect(5, 0, 23, DEFRAGMENTATION_RACE),
    defect(5, 0, 31, MEMBER_UPDATE),
    defect(6, 0, 5, DEFRAGMENTATION_RACE),
    defect(6, 0, 12, MEMBER_UPDATE),
];

/// Whether a cluster may run this release.
pub fn gate(version: Version) -> Gate {
    if version.major != 3 || !KNOWN_MINORS.contains(&version.minor) {
        return Gate::Refused(format!(
            "etcd {version} is not supported by this quorate: it supports 3.4, 3.5, 3.6 and 3.7"
        ));
    }
    if version.minor == 5 && version.patch <= 2 {
        return Gate::Refused(format!(
            "etcd {version} can corrupt its data when it is killed under load, as 3.5.0 to 3.5.2 do; use 3.5.33 or later"
        ));
    }
    let mut warnings = Vec::new();
    if version.minor == 4 {
        warnings.push(format!("etcd {version} is of the 3.4 line, which gets no more fixes; 3.6 and 3.7 do"));
    }
    let present = DEFECTS.iter().filter(|defect| (defect.from..defect.fixed).contains(&version));
    warnings.extend(present.map(|defect| format!("etcd {version}: {}; fixed in {}", defect.what, defect.fixed)));
    if warnings.is_empty() { Gate::Fine } else { Gate::Warned(warnings) }
}

/// Known authorization bypasses of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationHoles {
    pub what: &'static str,
    /// The first release without any of them.
    pub fixed_in: Version,
}

/// What clients without a login can do, in releases before the one named by `open_without_login`.
pub const OPEN_WITHOUT_LOGIN: &str = "anyone who reaches the client port can list members, read status and alarms, list and grant \
                                      leases, compact revisions and move the leader without a login";

/// The release of the same line from which on these calls ask for a login.
pub fn open_without_login(version: Version) -> Option<Version> {
    let fixed = match version.minor {
        4 => Version::new(3, 4, 42),
        5 => Version::new(3, 5, 28),
        6 => Version::new(3, 6, 9),
        _ => return None,
    };
    (version < fixed).then_some(fixed)
}

/// `None` when no hole is known in this release.
pub fn authorization_holes(version: Version) -> Option<AuthorizationHoles> {
    let leak_fixed = match version.minor {
        // The watch leak has no fix in the 3.4 line.
        4 | 5 => Version::new(3, 5, 33),
        6 => Version::new(3, 6, 14),
        7 => Version::new(3, 7, 1),
        _ => return None,
    };
    if version >= leak_fixed {
        return None;
    }
    let what = if open_without_login(version).is_some() {
        "permissions can be bypassed, and a watch can show keys that its user may not read"
    } else {
        "a watch can show keys that its user may not read"
    };
    Some(AuthorizationHoles { what, fixed_in: leak_fixed })
}

const RELEASES: &str = include_str!("versions/releases.tsv");

/// The published SHA-256 of a release archive for Linux. `arch` is Go's name: `amd64` or `arm64`.
pub fn release_checksum(version: Version, arch: &str) -> Option<&'static str> {
    let version = version.to_string();
    RELEASES.lines().find_map(|line| {
        let mut columns = line.split('\t');
        (columns.next() == Some(version.as_str()) && columns.next() == Some(arch)).then(|| columns.next())?
    })
}

/// Whether its checksum is known for some architecture, so it can be downloaded.
pub fn is_download(version: Version) -> bool {
    let version = version.to_string();
    RELEASES.lines().any(|line| line.split('\t').next() == Some(version.as_str()))
}

/// The newest release of the same minor whose checksum is known, so it can be downloaded.
pub fn newest_download(version: Version) -> Option<Version> {
    let known = RELEASES.lines().filter_map(|line| line.split('\t').next()?.parse::<Version>().ok());
    known.filter(|known| known.line() == version.line()).max()
}

/// The file name of a release archive for Linux, which is also the name of its top directory with `.tar.gz` added.
pub fn release_archive_name(version: Version, arch: &str) -> String {
    format!("etcd-v{version}-linux-{arch}.tar.gz")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn the_newest_release_to_download_is_of_the_same_minor() {
        assert_eq!(newest_download(version("3.6.99")), Some(DEFAULT));
        assert_eq!(newest_download(version("3.7.3")), Some(version("3.7.1")));
        assert_eq!(newest_download(version("3.9.0")), None);
    }

    #[test]
    fn the_gate_refuses_what_corrupts_and_what_it_does_not_know() {
        for refused in ["2.3.8", "3.3.27", "3.5.0", "3.5.2", "3.8.0", "4.0.0"] {
            assert!(matches!(gate(version(refused)), Gate::Refused(_)), "{refused}");
        }
        for fine in ["3.5.31", "3.6.12", "3.6.14", "3.7.0"] {
            assert_eq!(gate(version(fine)), Gate::Fine, "{fine}");
        }
    }

    #[test]
    fn the_gate_names_each_known_defect_up_to_its_fix() {
        let warned = |text: &str, of: &str| match gate(version(text)) {
            Gate::Warned(warnings) => warnings.iter().any(|warning| warning.contains(of)),
            _ => false,
        };
        assert!(warned("3.4.45", "no more fixes"));
        assert!(warned("3.5.19", "promotion of a learner is not kept"));
        assert!(!warned("3.5.20", "promotion of a learner is not kept"));
        assert!(warned("3.6.4", "fixed in 3.6.5"));
        assert!(!warned("3.6.5", "fixed in 3.6.5"));
        assert!(warned("3.5.30", "fixed in 3.5.31"));
    }

    #[test]
    fn authorization_holes_name_the_release_that_closes_all() {
        let fixed = |text: &str| authorization_holes(version(text)).map(|holes| holes.fixed_in.to_string());
        assert_eq!(fixed("3.4.45").as_deref(), Some("3.5.33"));
        assert_eq!(fixed("3.5.16").as_deref(), Some("3.5.33"));
        assert_eq!(fixed("3.6.13").as_deref(), Some("3.6.14"));
        assert_eq!(fixed("3.7.0").as_deref(), Some("3.7.1"));
        assert!(fixed("3.6.14").is_none() && fixed("3.7.1").is_none() && fixed("3.5.33").is_none());
        assert!(authorization_holes(version("3.6.8")).unwrap().what.contains("bypassed"));
        assert!(!authorization_holes(version("3.6.9")).unwrap().what.contains("bypassed"));
    }

    #[test]
    fn calls_without_a_login_end_with_a_release_of_the_same_line() {
        let fixed = |text: &str| open_without_login(version(text)).map(|fixed| fixed.to_string());
        let cases = [("3.4.23", "3.4.42"), ("3.4.41", "3.4.42"), ("3.5.16", "3.5.28"), ("3.6.8", "3.6.9")];
        assert!(cases.iter().all(|(text, expected)| fixed(text).as_deref() == Some(expected)));
        assert!(["3.4.42", "3.5.28", "3.5.30", "3.6.9", "3.7.0"].iter().all(|text| fixed(text).is_none()));
    }

    #[test]
    fn every_listed_release_has_a_well_formed_checksum() {
        let rows: Vec<_> = RELEASES.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(rows.len() > 80);
        for row in rows {
            let columns: Vec<_> = row.split('\t').collect();
            let checksum = release_checksum(version(columns[0]), columns[1]).unwrap();
            assert!(checksum.len() == 64 && checksum.bytes().all(|byte| byte.is_ascii_hexdigit()), "{row}");
        }
        assert!(release_checksum(DEFAULT, "amd64").unwrap().starts_with("ffe840ff"));
        assert_eq!(release_checksum(version("3.7.0"), "amd64"), None);
        assert!(is_download(DEFAULT) && !is_download(version("3.7.0")));
        assert_eq!(release_archive_name(DEFAULT, "arm64"), "etcd-v3.6.14-linux-arm64.tar.gz");
    }
}
