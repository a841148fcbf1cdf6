//! One cell from beginning to end: the cluster before the change, the drill, and its verdict.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cells::{Cell, Change, Line, Login, Role};
use super::ground::{CLUSTER, Place};

/// Addresses that are pinned begin so. The local provider gives no such, and only one run has the ground.
const PINNED: &str = "127.200";

#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// None: the cell passed.
    pub problem: Option<String>,
    /// Clients saw what they never may: no slow machine explains that.
    pub violated: bool,
    pub operations: u64,
    /// Acknowledged ones.
    pub writes: u64,
    /// Seconds.
    pub gap: Option<f64>,
}

impl Verdict {
    pub fn failed(problem: String) -> Self {
        Verdict { problem: Some(problem), violated: false, operations: 0, writes: 0, gap: None }
    }
}

pub fn rehearse(place: &Place, cell: &Cell) -> Result<Verdict> {
    needs_root(cell.fault)?;
    let (before, after) = shapes(cell);
    place.write("c.yaml", &before.spec(place)?)?;
    run(place, "apply", &["apply", "c.yaml", "--yes"]).context("the cluster did not come up")?;
    let during = during(place, cell)?;
    place.write("c.yaml", &after.spec(place)?)?;
    let told = drill(place, cell.fault, first(cell.change), during.as_deref())?;
    Ok(judge(&told, cell.downtime().longest_gap()))
}

/// Some faults only root can cause.
pub fn needs_root(fault: &str) -> Result<()> {
    let has = |start: &str| fault.starts_with(start);
    let what = match () {
        () if has("partition-") || has("delay-") => "network namespaces",
        () if has("full-disk-") => "a small disk to fill",
        () => return Ok(()),
    };
    if !is_root()? {
        bail!("it needs {what}, which only root can make");
    }
    Ok(())
}

/// What `quorate drill` says, in JSON.
pub fn drill(place: &Place, fault: &str, first: Option<&str>, during: Option<&str>) -> Result<Value> {
    let mut arguments = vec!["drill", CLUSTER, "--yes", "--output", "json", "--scenario", fault];
    arguments.extend(["--report", "drill.html", "--history", "drill.jsonl"]);
    if let Some(event) = first {
        arguments.extend(["--first", event]);
    }
    if let Some(during) = during {
        arguments.extend(["--during", during]);
    }
    let status = place.quorate("drill", &arguments)?;
    match serde_json::from_str(&place.read("drill.out")?) {
        Ok(told) => Ok(told),
        Err(_) => bail!("`quorate {}`: {status}\n{}", arguments.join(" "), last_words(place, "drill")?),
    }
}

pub fn run(place: &Place, name: &str, arguments: &[&str]) -> Result<String> {
    let status = place.quorate(name, arguments)?;
    if !status.success() {
        bail!("`quorate {}`: {status}\n{}", arguments.join(" "), last_words(place, name)?);
    }
    place.read(&format!("{name}.out"))
}

fn last_words(place: &Place, name: &str) -> Result<String> {
    let said = place.read(&format!("{name}.err"))?;
    let lines: Vec<&str> = said.trim_end().lines().collect();
    Ok(lines[lines.len().saturating_sub(6)..].join("\n"))
}

fn is_root() -> Result<bool> {
    let this = std::fs::metadata("/proc/self").context("cannot tell which user this is")?;
    Ok(this.uid() == 0)
}

/// What the spec says of a cell's cluster.
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    /// The numbers of the members.
    members: Vec<usize>,
    line: Line,
    quota: &'static str,
    login: Login,
    namespaces: bool,
    /// Where the addresses are pinned, a number that no other cell has.
    pinned: Option<usize>,
    /// Whether backups are taken.
    backups: bool,
}

/// Before the change, and after it.
fn shapes(cell: &Cell) -> (Shape, Shape) {
    let before = Shape {
        members: vec![1, 2, 3],
        line: Line::V35,
        quota: "2GiB",
        login: cell.login(),
        namespaces: cell.needs_namespaces(),
        pinned: (cell.change == Change::ReplacePinned).then(|| cell.number()),
        backups: cell.change == Change::Restore,
    };
    let same = before.clone();
    match cell.change {
        Change::Settings => (before, Shape { quota: "4GiB", ..same }),
        Change::Version { from, to } => (Shape { line: from, ..before }, Shape { line: to, ..same }),
        Change::Scale { from, to } => {
            let members = |count| (1..=count).collect();
            (Shape { members: members(from), ..before }, Shape { members: members(to), ..same })
        }
        Change::Several => {
            let members = vec![2, 3, 4, 5, 6];
            (before, Shape { members, line: Line::V36, quota: "4GiB", ..same })
        }
        Change::None
        | Change::Replace(_)
        | Change::ReplacePinned
        | Change::DeadMachine(_)
        | Change::WipedDisk
        | Change::OldData
        | Change::GhostLearner
        | Change::Recover
        | Change::Restore => (before, same),
    }
}

impl Shape {
    fn spec(&self, place: &Place) -> Result<String> {
        let Shape { members, line, quota, login, namespaces, pinned, backups } = self;
        let member = |number: &usize| match pinned {
            Some(of_cell) => format!("{{name: etcd-{number}, address: {PINNED}.{of_cell}.{number}}}"),
            None => format!("{{name: etcd-{number}}}"),
        };
        let members: Vec<String> = members.iter().map(member).collect();
        let (version, programs) = place.etcd(line.minor())?;
        // Cheap logins: after each restart all clients log in at once, and two cores would do little else.
        let (login, auth) = match login {
            Login::Certificate => ("certificate", ""),
            Login::SimpleToken => ("password\n      flags: {bcrypt-cost: 4}", "    auth: {token: simple}\n"),
            Login::Jwt => ("password\n      flags: {bcrypt-cost: 4}", "    auth: {token: jwt}\n"),
        };
        let network = if *namespaces { "    provider: {local: {network: netns}}\n" } else { "" };
        let backup = match backups {
            true => format!("    backup: {{to: {{directory: {}}}}}\n", place.backups().display()),
            false => String::new(),
        };
        Ok(format!(
            "quorate: 1\nclusters:\n  - name: {CLUSTER}\n    members: [{}]\n{network}    etcd:\n      version: {version}\n      \
             binary: {{path: {}}}\n      client_auth: {login}\n      quota: {quota}\n{auth}{backup}",
            members.join(", "),
            programs.display()
        ))
    }
}

/// What happens to the cluster before the change begins, with the clients at work already.
fn first(change: Change) -> Option<&'static str> {
    match change {
        Change::DeadMachine(Role::Leader) => Some("lose-leader"),
        Change::DeadMachine(Role::Follower) => Some("lose-follower"),
        Change::WipedDisk | Change::Several => Some("wipe-follower"),
        Change::OldData => Some("old-data-follower"),
        Change::GhostLearner => Some("ghost-learner"),
        Change::Recover => Some("lose-majority"),
        Change::None
        | Change::Settings
        | Change::Version { .. }
        | Change::Scale { .. }
        | Change::Replace(_)
        | Change::ReplacePinned
        | Change::Restore => None,
    }
}

/// The command that makes the change.
fn during(place: &Place, cell: &Cell) -> Result<Option<String>> {
    Ok(match cell.change {
        Change::None => None,
        Change::Replace(role) => Some(format!("replace {CLUSTER} {} --yes", member(place, role)?)),
        Change::ReplacePinned => Some(format!("replace {CLUSTER} etcd-2 --yes")),
        Change::DeadMachine(_) => Some(String::from("apply c.yaml --now --yes")),
        Change::Recover => Some(format!("recover {CLUSTER} --yes")),
        Change::Restore => Some(format!("restore {CLUSTER} --yes")),
        _ => Some(String::from("apply c.yaml --yes")),
    })
}

/// A member with this role.
fn member(place: &Place, role: Role) -> Result<String> {
    let told = run(place, "status", &["status", CLUSTER, "--output", "json"])?;
    let status: Value = serde_json::from_str(&told).context("`quorate status` printed no JSON")?;
    let wanted = match role {
        Role::Leader => "leader",
        Role::Follower => "voter",
    };
    let members = status["members"].as_array().into_iter().flatten();
    let mut fitting = members.filter(|member| member["role"] == wanted).filter_map(|member| member["member"].as_str());
    fitting.next().map(str::to_owned).with_context(|| format!("no {role} in {told}"))
}

/// What the drill says, and whether writes paused for longer than so many seconds.
pub fn judge(told: &Value, most: f64) -> Verdict {
    let drilled = &told["scenarios"][0];
    let measures = &drilled["measures"];
    let sum = |values: Vec<&Value>| values.into_iter().filter_map(Value::as_u64).sum();
    let kinds = measures["operations"].as_object().into_iter().flat_map(|kinds| kinds.values());
    let seconds = measures["per_second"].as_array().into_iter().flatten();
    let gap = &measures["longest_write_gap"];
    let gap = gap["to"].as_f64().zip(gap["from"].as_f64()).map(|(to, from)| to - from);
    let problem = if told["passed"] != true {
        let listed = drilled["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let problems: Vec<&str> = listed.take(4).collect();
        Some(if problems.is_empty() { String::from("the drill did not pass") } else { problems.join("\n") })
    } else {
        let longer = gap.filter(|gap| *gap > most);
        longer.map(|gap| format!("writes paused for {gap:.2} s; the cell expects {most} s at most"))
    };
    Verdict {
        problem,
        violated: drilled["violations"].as_array().is_some_and(|violations| !violations.is_empty()),
        operations: sum(kinds.map(|kind| &kind["answered"]).collect()),
        writes: sum(seconds.map(|second| &second["writes"]).collect()),
        gap,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{cells, named};
    use super::*;

    fn told(passed: bool, to: f64) -> Value {
        json!({"passed": passed, "scenarios": [{
            "problems": if passed { vec![] } else { vec!["a write was lost"] },
            "violations": if passed { vec![] } else { vec![json!({"rule": "no acknowledged write is lost"})] },
            "measures": {
                "operations": {"put": {"answered": 7, "unanswered": 1}, "get": {"answered": 5, "unanswered": 0}},
                "per_second": [{"writes": 4, "others": 3}, {"writes": 2, "others": 3}],
                "longest_write_gap": {"from": 1.0, "to": to},
            },
        }]})
    }

    #[test]
    fn a_cell_passes_when_the_drill_does_and_writes_went_on() {
        let good = judge(&told(true, 1.5), 3.0);
        assert_eq!(good, Verdict { problem: None, violated: false, operations: 12, writes: 6, gap: Some(0.5) });
        let lost = judge(&told(false, 1.5), 3.0);
        assert_eq!((lost.problem.as_deref(), lost.violated), (Some("a write was lost"), true));
        let slow = judge(&told(true, 5.0), 3.0);
        assert!(!slow.violated);
        assert_eq!(slow.problem.unwrap(), "writes paused for 4.00 s; the cell expects 3 s at most");
        assert_eq!(judge(&told(true, 5.0), 10.0).problem, None);
        assert!(judge(&json!({}), 3.0).problem.is_some());
    }

    #[test]
    fn a_change_changes_what_it_says_and_nothing_else() {
        let of = |name: &str| shapes(&named(&cells::all(), name).unwrap());
        let (before, after) = of("settings x calm");
        assert_eq!(after, Shape { quota: "4GiB", ..before });
        let (before, after) = of("scale-5-3 x kill-controller");
        assert_eq!((before.members.len(), before.login), (5, Login::SimpleToken));
        assert_eq!(after, Shape { members: vec![1, 2, 3], ..before });
        let (before, after) = of("none x partition-leader");
        assert!(before.namespaces && before == after);
    }
}
