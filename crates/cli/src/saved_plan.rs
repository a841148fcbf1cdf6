//! A plan in a file, to be reviewed before it is carried out: the steps, the spec and the cluster. `apply` plans again and begins
//! only if the steps are the same; reasons, and the member that a change goes through, may differ.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_agent::process;
use quorate_control::clients::write_private;
use quorate_core::planner::{Action, Plan, Step};
use quorate_core::spec::{Change, ClusterSpec};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use quorate_core::text::plural;

/// The format that this program writes. A newer one is refused.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct SavedPlan {
    #[serde(rename = "quorate_plan")]
    format: u32,
    made: Timestamp,
    by: String,
    clusters: Vec<SavedCluster>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SavedCluster {
    cluster: String,
    /// None: it did not exist.
    cluster_id: Option<String>,
    spec: ClusterSpec,
    /// For the reviewer; whether the plan still holds is read from the spec and the steps.
    #[serde(default)]
    changes: Vec<Change>,
    steps: Vec<SavedStep>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedStep {
    kind: String,
    member: Option<String>,
    action: String,
    because: String,
}

impl SavedCluster {
    pub fn new(spec: &ClusterSpec, cluster_id: Option<&str>, plan: &Plan) -> Self {
        let step = |Step { action, why, .. }: &Step| SavedStep {
            kind: action.kind().to_owned(),
            member: action.member().map(ToString::to_string),
            action: action.to_string(),
            because: why.to_string(),
        };
        SavedCluster {
            cluster: spec.name.to_string(),
            cluster_id: cluster_id.map(str::to_owned),
            spec: spec.clone(),
            changes: plan.changes.clone(),
            steps: plan.steps.iter().map(step).collect(),
        }
    }
}

impl SavedStep {
    fn deed(&self) -> &str {
        without_route(&self.action, self.member.as_deref())
    }
}

/// A step's text, which is the same in a plan and in its execution.
pub fn deed(action: &Action) -> String {
    let member = action.member().map(ToString::to_string);
    without_route(&action.to_string(), member.as_deref()).to_owned()
}

/// The member through which a change is made does not matter.
fn without_route<'a>(action: &'a str, member: Option<&str>) -> &'a str {
    let through = member.map(|member| format!(", through {member}"));
    through.and_then(|through| action.strip_suffix(&through)).unwrap_or(action)
}

pub fn write(path: &Path, clusters: Vec<SavedCluster>) -> Result<(), Error> {
    let by = format!("{}@{}", process::user_name(), process::host_name());
    let plan = SavedPlan { format: FORMAT, made: Timestamp::now(), by, clusters };
    let mut text = serde_json::to_string_pretty(&plan).expect("plain data serializes");
    text.push('\n');
    save(path, &text)
}

/// Only its owner can read it, also where it replaces a file that others can: the spec may hold the hash of a password. What is no
/// file, such as `/dev/stdout`, is written to as it is.
fn save(path: &Path, text: &str) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => fs::write(path, text).map_err(Error::file("written", path)),
        Ok(_) => Ok(write_private(&path.canonicalize().map_err(Error::file("found", path))?, text)?),
        Err(_) => Ok(write_private(path, text)?),
    }
}

/// A plan that was saved before.
#[derive(Debug)]
pub struct Reviewed {
    path: PathBuf,
    plan: SavedPlan,
}

impl Reviewed {
    pub fn read(path: &Path) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Format {
            quorate_plan: u32,
        }
        let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
        let damaged = |source| Error::NotAPlan { path: path.to_owned(), source };
        let Format { quorate_plan: format } = serde_json::from_str(&text).map_err(damaged)?;
        if format > FORMAT {
            let what =
                format!("the plan in {} has format {format}, and this quorate knows up to {FORMAT}", path.display());
            return Err(Error::refused(what, "use a newer quorate, or create the plan again with this one"));
        }
        Ok(Reviewed { path: path.to_owned(), plan: serde_json::from_str(&text).map_err(damaged)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Said when nothing differs.
    pub fn accepted(&self) -> String {
        let SavedPlan { made, by, .. } = &self.plan;
        let made = made.strftime("%Y-%m-%d %H:%M:%S UTC");
        format!("these are the steps of the plan in {}, made by {by} at {made}", self.path.display())
    }

    /// Refuses a target without all clusters of the plan.
    pub fn is_all_of(&self, names: &[&str], target: &str) -> Result<(), Error> {
        match self.plan.clusters.iter().find(|c| !names.contains(&c.cluster.as_str())) {
            None => Ok(()),
            Some(left_out) => Err(Error::refused(
                format!(
                    "the plan in {} is also of cluster {}, and {target} is not",
                    self.path.display(),
                    left_out.cluster
                ),
                "pass what the plan was made from, or choose clusters with --cluster",
            )),
        }
    }

    /// The differences between the plan and the steps needed now. Empty: there are none.
    pub fn differences(&self, now: &SavedCluster) -> Result<String, Error> {
        let (path, name) = (self.path.display(), &now.cluster);
        let again = "create the plan again with `quorate plan --save`";
        let Some(then) = self.plan.clusters.iter().find(|c| c.cluster == *name) else {
            return Err(Error::refused(format!("the plan in {path} is not for cluster {name}"), again));
        };
        if let Some(id) = &then.cluster_id
            && now.cluster_id.as_ref() != Some(id)
        {
            let here = now.cluster_id.as_ref().map_or_else(
                || String::from("no such cluster is known here"),
                |id| format!("the local cluster has id {id}"),
            );
            let what = format!("the plan in {path} is for another cluster {name}: its id is {id}, and {here}");
            return Err(Error::refused(what, again));
        }
        Ok(told(then, now))
    }
}

fn told(then: &SavedCluster, now: &SavedCluster) -> String {
    let mut text = String::new();
    let mut tell = |line: String| {
        let _ = writeln!(text, "  cluster {}: {line}", now.cluster);
    };
    if then.cluster_id.is_none() && now.cluster_id.is_some() {
        tell(String::from("it did not exist when the plan was made"));
    }
    if then.spec != now.spec {
        tell(String::from("its spec has changed since the plan was made"));
    }
    let (planned, needed) = (&then.steps, &now.steps);
    let same = |(then, now): (&SavedStep, &SavedStep)| then.kind == now.kind && then.deed() == now.deed();
    let alike = planned.iter().zip(needed).take_while(|pair| same(*pair)).count();
    if alike == planned.len() && alike == needed.len() {
        return text;
    }
    let verb = if needed.len() == 1 { "is" } else { "are" };
    tell(format!("{} planned, and {} {verb} needed now", plural(planned.len(), "step"), needed.len()));
    let deed = |steps: &[SavedStep]| steps.get(alike).map_or("nothing", SavedStep::deed).to_owned();
    tell(format!(
        "first difference, at step {}: `{}` was planned, now it is `{}`",
        alike + 1,
        deed(planned),
        deed(needed)
    ));
    for gone in without(planned, needed) {
        tell(format!("gone: {gone}"));
    }
    for new in without(needed, planned) {
        tell(format!("new: {new}"));
    }
    text
}

/// The deeds of one list that the other does not have, or not as often.
fn without<'a>(these: &'a [SavedStep], those: &[SavedStep]) -> Vec<&'a str> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    those.iter().for_each(|step| *left.entry(step.deed()).or_default() += 1);
    let mut missing = Vec::new();
    for deed in these.iter().map(SavedStep::deed) {
        match left.get_mut(deed) {
            Some(number) if *number > 0 => *number -= 1,
            _ => missing.push(deed),
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::spec::generated;

    use super::*;

    fn cluster(id: Option<&str>, actions: &[&str]) -> SavedCluster {
        let mut spec = generated("demo", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let step = |action: &&str| SavedStep {
            kind: String::from("auth"),
            member: Some(String::from("etcd-1")),
            action: action.to_string(),
            because: String::from("why not"),
        };
        SavedCluster {
            cluster: String::from("demo"),
            cluster_id: id.map(str::to_owned),
            spec: spec.clusters.remove(0),
            changes: Vec::new(),
            steps: actions.iter().map(step).collect(),
        }
    }

    fn reviewed(cluster: SavedCluster) -> (tempfile::TempDir, Reviewed) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan");
        write(&path, vec![cluster]).unwrap();
        (directory, Reviewed::read(&path).unwrap())
    }

    #[test]
    fn the_same_steps_are_accepted_through_any_member() {
        let (_directory, reviewed) = reviewed(cluster(Some("a"), &["add user x, through etcd-1", "restart"]));
        let mut now = cluster(Some("a"), &["add user x, through etcd-2", "restart"]);
        now.steps[0].member = Some(String::from("etcd-2"));
        now.steps[1].because = String::from("of something else");
        assert_eq!(reviewed.differences(&now).unwrap(), "");
    }

    #[test]
    fn different_steps_are_reported_with_the_first_difference() {
        let (_directory, reviewed) = reviewed(cluster(Some("a"), &["one", "two", "three"]));
        let told = reviewed.differences(&cluster(Some("a"), &["one", "three", "four"])).unwrap();
        let expected = "  cluster demo: 3 steps planned, and 3 are needed now
  cluster demo: first difference, at step 2: `two` was planned, now it is `three`
  cluster demo: gone: two
  cluster demo: new: four
";
        assert_eq!(told, expected);
        let shorter = reviewed.differences(&cluster(Some("a"), &["one", "two"])).unwrap();
        assert!(shorter.contains("at step 3: `three` was planned, now it is `nothing`"), "{shorter}");
        let turned = reviewed.differences(&cluster(Some("a"), &["two", "one", "three"])).unwrap();
        assert!(turned.contains("at step 1") && !turned.contains("gone"), "{turned}");
    }

    #[test]
    fn another_spec_is_a_difference_and_another_cluster_an_error() {
        let (_directory, reviewed) = reviewed(cluster(Some("a"), &[]));
        let mut now = cluster(Some("a"), &[]);
        now.spec.members.pop();
        assert!(reviewed.differences(&now).unwrap().contains("its spec has changed since the plan was made"));
        let refusal = reviewed.differences(&cluster(Some("b"), &[])).unwrap_err().to_string();
        assert!(refusal.contains("another cluster demo: its id is a, and the local cluster has id b"), "{refusal}");
        assert!(
            reviewed
                .differences(&cluster(None, &[]))
                .unwrap_err()
                .to_string()
                .contains("no such cluster is known here")
        );
        assert!(reviewed.is_all_of(&["demo"], "x").is_ok());
        assert!(reviewed.is_all_of(&["other"], "x").is_err());
    }

    #[test]
    fn damaged_plans_and_plans_of_a_later_format_are_refused() {
        let (directory, reviewed) = reviewed(cluster(None, &[]));
        let text = fs::read_to_string(reviewed.path()).unwrap();
        let path = directory.path().join("other");
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(Reviewed::read(&path).unwrap_err().to_string().contains("damaged"));
        fs::write(&path, text.replace("\"quorate_plan\": 1", "\"quorate_plan\": 2")).unwrap();
        assert!(Reviewed::read(&path).unwrap_err().to_string().contains("has format 2"));
    }
}
