//! Creating a PostgreSQL cluster under faults: its data is created once, whatever ends meanwhile. There are no clients before it is created; they
//! come when it is, and judge it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::ground::{CLUSTER, DCS, PATIENCE, Place};
use super::rehearsal::{Verdict, drill, judge, run};

const MEMBERS: [&str; 3] = ["pg-1", "pg-2", "pg-3"];
/// More than a bootstrap has boundaries of steps, twice over.
const MOST_KILLS: usize = 200;
/// How many lines of a run that failed are shown.
const LAST_WORDS: usize = 15;

pub fn rehearse(place: &Place, fault: &str) -> Result<Verdict> {
    run(place, "apply", &["apply", "c.yaml", "--cluster", DCS, "--yes"]).context("etcd did not come up")?;
    let mut found = Found::default();
    match fault {
        "kill-controller" => kill_again_and_again(place, &mut found)?,
        "power-cut-first" => cut_power(place, "create the data of the cluster on ", &mut found)?,
        "power-cut-clone" => cut_power(place, "clone the data to ", &mut found)?,
        _ => {}
    }
    run(place, "apply", &["apply", "c.yaml", "--yes"]).context("the cluster did not come up")?;
    found.look(place)?;
    found.check()?;
    Ok(judge(&drill(place, "calm", None, None)?, f64::INFINITY))
}

/// What data any member ever had.
#[derive(Default)]
struct Found {
    /// What `initdb` called it.
    systems: BTreeSet<u64>,
    /// The bootstraps that its stamps name.
    tokens: BTreeSet<String>,
}

impl Found {
    fn look(&mut self, place: &Place) -> Result<()> {
        for member in MEMBERS {
            let data = place.root_of(CLUSTER, member).join("var/lib/postgresql");
            let control = fs::read(data.join("data/global/pg_control")).unwrap_or_default();
            self.systems.extend(control.first_chunk().map(|system| u64::from_ne_bytes(*system)));
            let Ok(stamp) = fs::read_to_string(data.join("data.stamp")) else { continue };
            let stamp: serde_json::Value = serde_json::from_str(&stamp).context("a stamp is no JSON")?;
            self.tokens.extend(stamp["token"].as_str().map(str::to_owned));
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let Found { systems, tokens } = self;
        ensure!(systems.len() == 1, "the data was created more than once, or never: {systems:?}");
        ensure!(tokens.len() == 1, "it was bootstrapped more than once, or never: {tokens:?}");
        Ok(())
    }
}

/// Kills the controller before and after each step in turn.
fn kill_again_and_again(place: &Place, found: &mut Found) -> Result<()> {
    let mut known = BTreeSet::new();
    for _ in 0..MOST_KILLS {
        let mut apply = Apply::start(place)?;
        let next = loop {
            match apply.next_step()? {
                Some(step) if known.contains(&step) => {}
                other => break other,
            }
        };
        let Some(step) = next else {
            ensure!(!known.is_empty(), "`apply` had nothing to do");
            return apply.end();
        };
        apply.kill()?;
        known.insert(step);
        found.look(place)?;
    }
    bail!("`apply` did not end in {MOST_KILLS} runs")
}

/// Cuts the power of the machine that a step is about when the step begins, and lets `apply` go on.
fn cut_power(place: &Place, begins: &str, found: &mut Found) -> Result<()> {
    let mut apply = Apply::start(place)?;
    while let Some(step) = apply.next_step()? {
        let Some((_, members)) = step.split_once(begins) else { continue };
        let member = MEMBERS.into_iter().find(|member| members.starts_with(member)).context("of which member?")?;
        place.cut_power(CLUSTER, member)?;
        found.look(place)?;
        // It may fail, and is resumed then.
        return apply.finish();
    }
    bail!("no step began with `{begins}`")
}

/// `quorate apply`, followed step by step. Dropping it kills it.
struct Apply {
    child: Child,
    /// What it says, without end if it hangs.
    lines: Receiver<String>,
    said: Vec<String>,
    deadline: Instant,
}

impl Apply {
    fn start(place: &Place) -> Result<Self> {
        let mut command = place.command(&["apply", "c.yaml", "--cluster", CLUSTER, "--yes"])?;
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start quorate")?;
        let said = BufReader::new(child.stderr.take().context("it is piped")?).lines();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Apply { child, lines, said: Vec::new(), deadline: Instant::now() + PATIENCE })
    }

    /// The next line about a step, without what differs each time it is tried: its time, its number and its token.
    fn next_step(&mut self) -> Result<Option<String>> {
        loop {
            let line = match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => bail!("`quorate apply` did not end within {} s", PATIENCE.as_secs()),
            };
            self.said.push(line.clone());
            let Some((_, text)) = line.strip_prefix('[').and_then(|line| line.split_once("] ")) else { continue };
            let Some((step, rest)) = text.split_once(" …") else { continue };
            let rest = rest.split(" (").next().unwrap_or_default();
            let step = step.split(", with token ").next().unwrap_or_default();
            return Ok(Some(format!("{step} …{rest}")));
        }
    }

    fn kill(&mut self) -> Result<()> {
        // It may have ended by itself.
        let _ = self.child.kill();
        self.child.wait().context("cannot end quorate").map(drop)
    }

    /// Follows it to its end, however that is.
    fn finish(&mut self) -> Result<()> {
        while self.next_step()?.is_some() {}
        self.child.wait().context("cannot wait for quorate").map(drop)
    }

    fn end(&mut self) -> Result<()> {
        let status = self.child.wait().context("cannot wait for quorate")?;
        let last = &self.said[self.said.len().saturating_sub(LAST_WORDS)..];
        ensure!(status.success(), "`quorate apply`: {status}\n{}", last.join("\n"));
        Ok(())
    }
}

impl Drop for Apply {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_was_created_twice_is_noticed() {
        let found = |systems: &[u64], tokens: &[&str]| Found {
            systems: systems.iter().copied().collect(),
            tokens: tokens.iter().map(|token| (*token).to_owned()).collect(),
        };
        assert!(found(&[7], &["a"]).check().is_ok());
        for (systems, tokens) in [(&[7, 8][..], &["a"][..]), (&[7], &["a", "b"]), (&[], &[])] {
            assert!(found(systems, tokens).check().is_err());
        }
    }
}
