//! The spec: what the operator wrote. A file is read into a tree with line numbers, its shape is checked against the schema
//! of the types, and then the meaning. All problems are reported at once: a part with the wrong shape is left out, and
//! everything that does not depend on it is still checked. Pure: facts about the machine are passed in as [`HostFacts`],
//! and no file that a spec names is opened.

mod backup;
pub(crate) mod check;
mod diff;
mod host;
mod problem;
mod recipient;
mod schema;
mod shape;
mod signer;
mod tree;
mod types;
mod units;
mod write;

pub use backup::{BackupSettings, Credentials, Destination, Keep, S3Destination, StoreKeys};
pub use diff::{Change, changes};
pub use host::{Chrony, Firewall, Forward, HostSettings, LogForwarding, LogSource, MakeStep, NodeExporter, TimeSource};
pub(crate) use problem::nearest;
pub use problem::{Problem, Severity, Span};
pub use recipient::Recipient;
pub use schema::json_schema;
pub use shape::Positions;
pub use signer::Signer;
pub use tree::read_plain_yaml;
pub use types::{
    CertificateLayout, ClusterSpec, GivenCertificates, KeyAlgorithm, KeyPairFiles, Kind, Spec, TlsSettings,
};
pub use units::{
    AddressRange, AuthName, LONGEST_NAME, Mac, Malformed, Millis, Name, Retention, San, Sha256, Size, Uuid, Validity,
    VolumeName,
};
pub use write::{SCHEMA_LINE, generated, generated_postgres, postgres_template, template};

pub use crate::providers::{MemberSpec, Provider};

/// The format of the file that this program reads and writes.
pub const FORMAT: u32 = 1;

/// Facts about the machine that a spec can conflict with.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostFacts {
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// A spec file that is YAML.
#[derive(Debug, Clone)]
pub struct Document {
    file: String,
    text: String,
    root: tree::Node,
    findings: Vec<tree::Finding>,
}

/// The outcome of all checks.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Present if no problem is an error.
    pub spec: Option<Spec>,
    /// Present if there is an error and the rest can be read: only for finding more problems, not for use.
    pub draft: Option<Spec>,
    /// In the order of the file.
    pub problems: Vec<Problem>,
    /// Where in the file the items of the draft are.
    pub places: Positions,
}

impl Document {
    /// Reads YAML. `file` is only the name to show. Fails on what cannot be read any further; the rest comes with
    /// [`Document::spec`].
    pub fn parse(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        match tree::read(text) {
            Ok((root, findings)) => Ok(Self { file: file.to_owned(), text: text.to_owned(), root, findings }),
            Err(finding) => Err(vec![from_finding(file, &finding)]),
        }
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The spec, if it has no error, and all problems.
    pub fn spec(&self, host: &HostFacts) -> Checked {
        if let Some(problem) = self.other_format() {
            return Checked { spec: None, draft: None, problems: vec![problem], places: Positions::default() };
        }
        let shape::Reading { value, mut problems, left_out, places } = shape::read(self);
        problems.extend(self.findings.iter().map(|finding| from_finding(&self.file, finding)));
        let has_its_shape = problems.is_empty();
        let read = value.and_then(|value| match serde_json::from_value::<Spec>(value) {
            Ok(mut read) => {
                read.clusters.iter_mut().for_each(ClusterSpec::know_kind);
                Some(read)
            }
            Err(error) => {
                if has_its_shape {
                    problems.push(self.problem(Severity::Error, "", error.to_string(), None));
                }
                None
            }
        });
        if let Some(read) = &read {
            let meant = check::check(self, &places, read, host).into_iter();
            problems.extend(meant.filter(|problem| !left_out.iter().any(|path| may_depend_on(&problem.path, path))));
        }
        problems.sort_by_key(|problem| problem.span);
        let is_valid = problems.iter().all(|problem| problem.severity == Severity::Warning);
        let (spec, draft) = if is_valid { (read, None) } else { (None, read) };
        Checked { spec, draft, problems, places }
    }

    /// The position of a path such as `clusters[0].tls.ca.key`, or of its deepest existing part.
    pub fn locate(&self, path: &str) -> Span {
        tree::locate(&self.root, path).shown
    }

    /// The key that a path ends in.
    fn locate_key(&self, path: &str) -> Span {
        tree::locate(&self.root, path).key
    }

    /// A problem at a path of this file; for findings that need more than the spec, such as a CA that has expired.
    pub fn problem(
        &self,
        severity: Severity,
        path: impl Into<String>,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Problem {
        let path = path.into();
        let span = self.locate(&path);
        Problem { severity, file: self.file.clone(), span, path, message: message.into(), hint }
    }

    /// A file of another format may differ in everything, so nothing else is said about it.
    fn other_format(&self) -> Option<Problem> {
        let tree::Content::Scalar { text, plain: true } = &self.root.entry("quorate")?.value.content else {
            return None;
        };
        let found = text.parse::<u64>().ok().filter(|found| *found != u64::from(FORMAT))?;
        let message = format!("this quorate reads version {FORMAT} of the spec, and this file has version {found}");
        let hint = match found > u64::from(FORMAT) {
            true => "use a newer quorate".to_owned(),
            false => format!("write `quorate: {FORMAT}`"),
        };
        Some(self.problem(Severity::Error, "quorate", message, Some(hint)))
    }
}

/// Whether a problem at a path may be there only because what `left_out` names was left out. Settings of etcd decide about users too,
/// members and their provider about everything in their cluster.
fn may_depend_on(path: &str, left_out: &str) -> bool {
    let mut parts = left_out.splitn(3, '.');
    let cluster = parts.next().unwrap_or_default();
    let in_cluster = path.starts_with(cluster);
    let Some(section) = parts.next() else { return in_cluster || !path.starts_with("clusters[") };
    let within =
        |section: &str| path.strip_prefix(cluster).is_some_and(|rest| rest.starts_with(&format!(".{section}")));
    match section {
        "etcd" => within("etcd") || within("auth"),
        "tls" | "auth" | "backup" | "host" | "replace_after" | "initial_token" | "postgres" => within(section),
        // How large the quota may be depends on the members' memory.
        _ if section.starts_with("members") || section == "namespace" => {
            let independent = within("auth") || within("backup") || (within("etcd") && !within("etcd.quota"));
            in_cluster && !independent && !path.ends_with(".name")
        }
        // Of a cluster. Machines are named after members.
        "name" => within("name"),
        // No other setting decides whether a name is fine.
        _ => in_cluster && !path.ends_with(".name"),
    }
}

fn from_finding(file: &str, finding: &tree::Finding) -> Problem {
    Problem {
        severity: Severity::Error,
        file: file.to_owned(),
        span: finding.span,
        path: String::new(),
        message: finding.message.clone(),
        hint: finding.hint.map(str::to_owned),
    }
}
