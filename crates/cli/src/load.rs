//! Loads the specs that the operator named, from a file or a known cluster, and the files that they name. Every problem is
//! reported at once, at its place.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_control::Home;
use quorate_control::brought::{self, BroughtFiles, FileProblem};
use quorate_control::kinds::postgres::dcs;
pub use quorate_control::verbs::Cluster;
use quorate_core::model::Ledger;
use quorate_core::spec::{ClusterSpec, Document, HostFacts, Kind, Name, Positions, Problem, Severity};

use crate::commands::Context;
use crate::error::Error;
use crate::output;

/// A spec file after all checks.
#[derive(Debug)]
pub struct CheckedFile {
    pub file: String,
    pub text: String,
    pub problems: Vec<Problem>,
    /// Complete only when no problem is an error.
    pub clusters: Vec<Cluster>,
}

pub fn errors(problems: &[Problem]) -> usize {
    problems.iter().filter(|p| p.severity == Severity::Error).count()
}

fn tell(problems: &[Problem], text: &str) {
    output::talk_page(&output::problems::page(problems, text, 0, output::terminal::of_stderr()));
}

/// The clusters of a file, or the one of that name as it was applied last.
pub fn clusters(home: &Home, target: &str) -> Result<Vec<Cluster>, Error> {
    if !is_file(home, target) {
        let ledger = ledger(home, target)?;
        let brought = brought_files(&ledger)?;
        return Ok(vec![Cluster { spec: ledger.spec, brought }]);
    }
    let checked = file(target)?;
    tell(&checked.problems, &checked.text);
    match errors(&checked.problems) {
        0 => Ok(checked.clusters),
        count => Err(Error::Invalid { file: checked.file, count }),
    }
}

/// The file that a target names, as recorded in the ledger. None: it is a name, or comes from stdin.
pub fn spec_file(home: &Home, target: &str) -> Option<String> {
    let path = std::fs::canonicalize(target).ok().filter(|_| target != "-" && is_file(home, target))?;
    Some(path.to_string_lossy().into_owned())
}

/// The clusters that were applied from this file and are no longer in it.
pub fn left_out(home: &Home, target: &str, declared: &[Cluster]) -> Vec<String> {
    let Some(file) = spec_file(home, target) else { return Vec::new() };
    let is_declared = |name: &String| declared.iter().any(|cluster| cluster.spec.name.as_str() == name);
    let came_from_it = |name: &String| {
        remembered(home, name).ok().flatten().is_some_and(|ledger| ledger.spec_file.as_ref() == Some(&file))
    };
    home.known_clusters().into_iter().filter(|name| !is_declared(name) && came_from_it(name)).collect()
}

/// Reports clusters that the operator may have forgotten to destroy.
pub fn tell_left_out(context: &Context, target: &str, declared: &[Cluster]) {
    for name in left_out(&context.home, target, declared) {
        let destroy = context.command(&format!("destroy {name}"));
        output::talk(&format!(
            "note: cluster {name} was applied from {target}, which no longer declares it: it is left unchanged; `{destroy}` \
             deletes it\n"
        ));
    }
}

/// The one selected cluster, from a file or by name.
pub fn one_cluster(home: &Home, target: &str, name: Option<&str>) -> Result<Cluster, Error> {
    let clusters = clusters(home, target)?;
    let declared: Vec<String> = clusters.iter().map(|cluster| cluster.spec.name.to_string()).collect();
    let mut meant = clusters.into_iter().filter(|cluster| name.is_none_or(|name| cluster.spec.name.as_str() == name));
    match (meant.next(), meant.next(), name) {
        (Some(cluster), None, _) => Ok(cluster),
        (None, _, Some(name)) => Err(Error::NotInFile { file: target.to_owned(), name: name.to_owned(), declared }),
        _ => {
            let what = format!("{target} declares {} clusters: {}", declared.len(), declared.join(", "));
            Err(Error::refused(what, "say which one with --cluster NAME"))
        }
    }
}

/// The spec of the one selected cluster. For a known one, only the ledger is read.
pub fn one_spec(home: &Home, target: &str, name: Option<&str>) -> Result<ClusterSpec, Error> {
    if is_file(home, target) {
        return one_cluster(home, target, name).map(|cluster| cluster.spec);
    }
    Ok(ledger(home, target)?.spec)
}

/// The names that a file declares, for callers that need no more. None: the target is a name itself.
pub fn names_in_file(home: &Home, target: &str) -> Result<Option<Vec<String>>, Error> {
    if !is_file(home, target) {
        return Ok(None);
    }
    let source = read(target)?;
    let (spec, problems) = match Document::parse(&source.file, &source.text) {
        Ok(document) => {
            let checked = document.spec(&HostFacts::default());
            (checked.spec, checked.problems)
        }
        Err(problems) => (None, problems),
    };
    let Some(spec) = spec else {
        tell(&problems, &source.text);
        return Err(Error::Invalid { file: source.file, count: errors(&problems) });
    };
    Ok(Some(spec.clusters.into_iter().map(|c| c.name.to_string()).collect()))
}

/// Names of clusters have neither dots nor slashes, so most targets show what they are. Of a known
/// cluster and a file of the same name, the cluster is meant.
fn is_file(home: &Home, target: &str) -> bool {
    let path_like = target == "-" || target.contains(['.', '/']);
    path_like || (!home.ledger(target).exists() && Path::new(target).is_file())
}

/// Reads and checks a spec, and every file that it names.
pub fn file(target: &str) -> Result<CheckedFile, Error> {
    let Source { file, text, base } = read(target)?;
    let document = match Document::parse(&file, &text) {
        Ok(document) => document,
        Err(problems) => return Ok(CheckedFile { file, text, problems, clusters: Vec::new() }),
    };
    let checked = document.spec(&HostFacts { memory: memory() });
    let mut problems = checked.problems;
    let mut clusters = Vec::new();
    let now = Timestamp::now();
    for (index, mut spec) in checked.spec.or(checked.draft).into_iter().flat_map(|s| s.clusters).enumerate() {
        brought::resolve_paths(&mut spec, &base);
        match brought::read(&spec, now) {
            Ok(brought) => clusters.push(Cluster { spec, brought }),
            Err(found) => problems.extend(found.into_iter().map(|p| placed(&document, &checked.places, index, p))),
        }
    }
    problems.sort_by_key(|p| p.span);
    Ok(CheckedFile { file, text, problems, clusters })
}

fn placed(document: &Document, places: &Positions, index: usize, problem: FileProblem) -> Problem {
    let FileProblem { field, message, hint } = problem;
    document.problem(Severity::Error, places.in_file(&format!("clusters[{index}].{field}")), message, hint)
}

/// A spec as text, and where the relative names in it begin.
struct Source {
    file: String,
    text: String,
    base: PathBuf,
}

/// Enough for tens of thousands of clusters, and little enough to be read whole.
const LARGEST: u64 = 4 << 20;

fn read(target: &str) -> Result<Source, Error> {
    if target == "-" {
        let text = text_of("<stdin>", std::io::stdin().lock())?;
        return Ok(Source { file: String::from("<stdin>"), text, base: PathBuf::from(".") });
    }
    let text = text_of(target, File::open(target).map_err(Error::file("read", target))?)?;
    let base = Path::new(target).parent().unwrap_or(Path::new("")).to_owned();
    Ok(Source { file: target.to_owned(), text, base })
}

/// Reads text from there, up to a limit.
fn text_of(file: &str, source: impl Read) -> Result<String, Error> {
    let mut bytes = Vec::new();
    source.take(LARGEST + 1).read_to_end(&mut bytes).map_err(Error::file("read", file))?;
    if bytes.len() as u64 > LARGEST {
        let what = format!("{file} is larger than {}, so it is not read as a spec", output::size(LARGEST));
        return Err(Error::refused(what, "split the clusters over several files"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        let what = format!("{file}:{line}: this line is not UTF-8 text");
        Error::refused(what, "save the file as UTF-8")
    })
}

fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?.trim();
    kibibytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// Clusters in the order in which they are applied: a PostgreSQL cluster after the etcd cluster that Patroni keeps its state in. That one is
/// added where it is not ready for it yet.
pub fn with_their_etcd(home: &Home, mut clusters: Vec<Cluster>) -> Result<Vec<Cluster>, Error> {
    let users: Vec<ClusterSpec> =
        clusters.iter().map(|cluster| &cluster.spec).filter(|s| s.postgres.is_some()).cloned().collect();
    for spec in users {
        let Some(name) = dcs::own_etcd(&spec) else { continue };
        if !clusters.iter().any(|cluster| cluster.spec.name.as_str() == name)
            && !dcs::is_ready(home, &spec)
            && let Some(ledger) = remembered(home, &name)?
        {
            let brought = brought_files(&ledger)?;
            clusters.push(Cluster { spec: ledger.spec, brought });
        }
        let Some(etcd) = clusters.iter_mut().find(|cluster| cluster.spec.name.as_str() == name) else { continue };
        etcd.brought.patroni_of.push(spec.clone());
        let planned = Some(Box::new(etcd.spec.clone()));
        let own = clusters.iter_mut().find(|cluster| cluster.spec.name == spec.name);
        own.into_iter().for_each(|cluster| cluster.brought.planned_etcd.clone_from(&planned));
    }
    clusters.sort_by_key(|cluster| cluster.spec.kind == Kind::Postgres);
    Ok(clusters)
}

/// The ledger of the etcd cluster that Patroni of this cluster uses, if it is in this home.
pub fn etcd_of(home: &Home, spec: &ClusterSpec) -> Result<Option<Ledger>, Error> {
    Ok(dcs::own_etcd(spec).map(|name| remembered(home, &name)).transpose()?.flatten())
}

/// The ledger of a known cluster of etcd, for commands that only etcd has.
pub fn etcd_ledger(home: &Home, name: &str) -> Result<Ledger, Error> {
    let ledger = ledger(home, name)?;
    match ledger.spec.kind {
        Kind::Etcd => Ok(ledger),
        Kind::Postgres => {
            Err(Error::refused(format!("cluster {name} runs PostgreSQL"), "this command is for clusters of etcd"))
        }
    }
}

/// The ledger of a known cluster.
pub fn ledger(home: &Home, name: &str) -> Result<Ledger, Error> {
    remembered(home, name)?.ok_or_else(|| unknown(home, name))
}

/// The ledger of a cluster, if it is known. A text that cannot be a name is not looked for.
pub fn remembered(home: &Home, name: &str) -> Result<Option<Ledger>, Error> {
    if name.parse::<Name>().is_err() {
        return Ok(None);
    }
    Ok(home.store(name).read()?)
}

pub fn unknown(home: &Home, name: &str) -> Error {
    let known = home.known_clusters();
    Error::UnknownCluster { name: name.to_owned(), home: home.root().to_owned(), known }
}

/// The current files that a recorded spec names.
pub fn brought_files(ledger: &Ledger) -> Result<BroughtFiles, Error> {
    brought::read(&ledger.spec, Timestamp::now()).map_err(|problems| {
        let told: Vec<String> = problems.iter().map(|p| format!("{}: {}", p.field, p.message)).collect();
        let what = format!("files that the spec of {} names cannot be used: {}", ledger.spec.name, told.join("; "));
        Error::refused(what, "put them back, or apply a spec that names others")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_without_end_is_refused_and_bytes_that_are_no_text_have_a_line() {
        let endless = text_of("/dev/zero", std::io::repeat(0)).unwrap_err().render(None);
        assert!(endless.contains("/dev/zero is larger than 4 MiB"), "{endless}");
        let bytes: &[u8] = b"quorate: 1\n# caf\xe9\n";
        let foreign = text_of("a.yaml", bytes).unwrap_err().render(None);
        assert!(foreign.contains("a.yaml:2: this line is not UTF-8 text"), "{foreign}");
    }
}
