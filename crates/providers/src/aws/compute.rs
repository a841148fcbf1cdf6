//! Calls about instances: list, power, console, and AWS' status checks.

use std::time::{Duration, Instant};

use quorate_core::model::PowerState;
use tokio::time::sleep;

use super::Aws;
use super::error::AwsError;
use super::instance::{ALIVE, Instance};
use super::session::Call;
use super::xml::Xml;
use crate::marks::{Mark, key};

/// How long an instance may take to be terminated, or to stop: AWS waits for the guest, and then forces it.
const STOPPING: Duration = Duration::from_secs(600);
const STARTING: Duration = Duration::from_secs(300);
/// For how long one that was just made may be missing from answers.
const APPEARING: Duration = Duration::from_secs(90);

impl Aws {
    /// Instances with a mark of this cluster's name, in one list. One that was there before and is missing now is asked for by its id:
    /// lists of AWS may be older than what they are about.
    pub(super) async fn marked(&self) -> Result<Vec<(Instance, Mark)>, AwsError> {
        let call = Call::new("list instances", "DescribeInstances")
            .filter(&format!("tag:{}", key("cluster")), [self.spec.name.as_str()])
            .filter("instance-state-name", ALIVE);
        let mut found = Instance::all(&self.session()?.list(call, "reservationSet").await?);
        let missing: Vec<String> = {
            let known = self.known.borrow();
            known.iter().filter(|id| !found.iter().any(|instance| instance.id == **id)).cloned().collect()
        };
        if !missing.is_empty() {
            let call = Call::new("find instances", "DescribeInstances").filter("instance-id", &missing);
            let again = Instance::all(&self.session()?.list(call, "reservationSet").await?);
            found.extend(again.into_iter().filter(Instance::is_alive));
        }
        *self.known.borrow_mut() = found.iter().map(|instance| instance.id.clone()).collect();
        let marked = found.into_iter().filter_map(|instance| Some((instance.clone(), instance.mark?)));
        Ok(marked.filter(|(_, mark)| mark.cluster == self.spec.name.as_str()).collect())
    }

    /// Instances with a mark of this cluster's ID.
    pub(super) async fn ours(&self) -> Result<Vec<(Instance, Mark)>, AwsError> {
        let marked = self.marked().await?;
        Ok(marked.into_iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id).collect())
    }

    /// None: it is terminated, or was long ago.
    pub(super) async fn look_at(&self, id: &str) -> Result<Option<Instance>, AwsError> {
        let call = Call::new(format!("read the instance {id}"), "DescribeInstances").list("InstanceId", [id]);
        let found = self.session()?.unless_absent(&call).await?;
        let found = found.map(|found| found.items("reservationSet").cloned().collect::<Vec<Xml>>());
        Ok(found.map(|all| Instance::all(&all)).and_then(|all| all.into_iter().next()))
    }

    /// Looks at an instance until it is as wanted. None: it is gone. One that is `fresh` may not be listed yet.
    pub(super) async fn wait(
        &self,
        id: &str,
        within: Duration,
        fresh: bool,
        is_done: impl Fn(&Instance) -> bool,
    ) -> Result<Option<Instance>, AwsError> {
        let begun = Instant::now();
        let mut pause = self.polling;
        loop {
            let found = self.look_at(id).await?;
            let state = found.as_ref().map_or_else(|| String::from("not listed"), Instance::state_and_reason);
            match found {
                Some(now) if is_done(&now) => return Ok(Some(now)),
                Some(now) if now.state == "terminated" => return Ok(None),
                None if !fresh || begun.elapsed() > APPEARING => return Ok(None),
                _ => {}
            }
            if begun.elapsed() > within {
                let what = format!("the instance {id}");
                return Err(AwsError::TooSlow { what, state, seconds: within.as_secs(), remedy: None });
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(Duration::from_secs(5));
        }
    }

    pub(super) async fn power_on(&self, instance: &Instance) -> Result<(), AwsError> {
        let steady = |now: &Instance| matches!(now.state.as_str(), "running" | "stopped" | "terminated");
        let now = self.wait(&instance.id, STOPPING, false, steady).await?;
        let now = now.ok_or_else(|| gone(&instance.id))?;
        if !now.is_alive() {
            return Err(now.ending(&format!("start {}", now.name)));
        }
        if now.power() == PowerState::On {
            return Ok(());
        }
        let call = Call::new(format!("start {}", now.name), "StartInstances").list("InstanceId", [&now.id]);
        match self.session()?.call(&call).await {
            Err(error) if error.is_capacity() => {
                let AwsError::Refused { said, .. } = error else { return Err(error) };
                return Err(AwsError::NoCapacity { types: vec![now.kind], zones: vec![now.zone], said });
            }
            started => drop(started?),
        }
        let running = |now: &Instance| now.power() == PowerState::On || !now.is_alive();
        match self.wait(&now.id, STARTING, false, running).await? {
            Some(now) if now.is_alive() => Ok(()),
            Some(now) => Err(now.ending(&format!("start {}", now.name))),
            None => Err(gone(&now.id)),
        }
    }

    pub(super) async fn shut_down(&self, instance: &Instance) -> Result<(), AwsError> {
        let steady = |now: &Instance| now.state != "pending";
        let Some(now) = self.wait(&instance.id, STARTING, false, steady).await? else { return Ok(()) };
        if now.state == "running" {
            let call = Call::new(format!("stop {}", now.name), "StopInstances").list("InstanceId", [&now.id]);
            self.session()?.unless_absent(&call).await?;
        }
        self.wait(&now.id, STOPPING, false, |now| now.power() == PowerState::Off).await.map(drop)
    }

    /// Returns when it is gone.
    pub(super) async fn terminate(&self, id: &str) -> Result<(), AwsError> {
        let call = Call::new(format!("terminate the instance {id}"), "TerminateInstances").list("InstanceId", [id]);
        self.session()?.unless_absent(&call).await?;
        let gone = self.wait(id, STOPPING, false, |now| now.state == "terminated").await;
        self.known.borrow_mut().remove(id);
        gone.map(drop)
    }

    /// The end of what an instance printed. AWS may have nothing of it yet.
    pub(super) async fn console_output(&self, instance: &Instance, lines: usize) -> Result<String, AwsError> {
        let call = Call::new(format!("read the console of {}", instance.name), "GetConsoleOutput");
        let call = call.with("InstanceId", &instance.id);
        let answer = match self.session()?.call(&call).await {
            Err(AwsError::Refused { .. }) => return Ok(String::new()),
            answer => answer?,
        };
        Ok(last_lines(&answer.text("output").unwrap_or_default(), lines))
    }

    /// What AWS says of an instance's health, and what it is about to do to it.
    pub(super) async fn health(&self, instance: &Instance) -> Result<Vec<String>, AwsError> {
        let call = Call::new(format!("ask how {} is", instance.name), "DescribeInstanceStatus");
        let call = call.list("InstanceId", [&instance.id]).with("IncludeAllInstances", true);
        let found = match self.session()?.call(&call).await {
            Err(AwsError::Refused { .. }) => return Ok(Vec::new()),
            found => found?,
        };
        Ok(found.items("instanceStatusSet").flat_map(health_of).collect())
    }

    /// Puts tags on things, or changes them.
    pub(super) async fn tag(
        &self,
        doing: &str,
        ids: &[&str],
        tags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), AwsError> {
        let call = Call::new(doing, "CreateTags").list("ResourceId", ids);
        let call = tags.into_iter().enumerate().fold(call, |call, (at, (key, value))| {
            call.with(format!("Tag.{}.Key", at + 1), key).with(format!("Tag.{}.Value", at + 1), value)
        });
        self.session()?.call(&call).await.map(drop)
    }
}

/// What is wrong with an instance, in words.
fn health_of(status: &Xml) -> Vec<String> {
    let checks = [("system", "its host"), ("instance", "the instance")];
    let failed = checks
        .into_iter()
        .filter(|(check, _)| status.text(&format!("{check}Status/status")).is_some_and(|status| status == "impaired"));
    let mut said: Vec<String> =
        failed.map(|(check, whose)| format!("AWS' check of {whose} fails ({check} status: impaired)")).collect();
    for event in status.items("eventsSet") {
        let text = |field: &str| event.text(field).unwrap_or_default();
        let what = text("description");
        if !what.starts_with("[Completed]") && !what.starts_with("[Canceled]") {
            said.push(format!("AWS plans {} not before {}: {what}", text("code"), text("notBefore")));
        }
    }
    said
}

/// In base64, with line ends of a terminal.
fn last_lines(output: &str, most: usize) -> String {
    use base64::Engine;
    let packed: String = output.split_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}

/// AWS no longer knows it, and so not its reason.
pub(super) fn gone(id: &str) -> AwsError {
    AwsError::Gone { id: id.to_owned(), why: String::from("AWS no longer lists it") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_planned_by_aws_are_reported() {
        let status = "<item><instanceId>i-1</instanceId><systemStatus><status>impaired</status></systemStatus>\
                      <instanceStatus><status>ok</status></instanceStatus><eventsSet>\
                      <item><code>instance-retirement</code><description>The instance is running on degraded hardware</description>\
                      <notBefore>2026-12-01T00:00:00.000Z</notBefore></item>\
                      <item><code>system-reboot</code><description>[Completed] reboot</description></item></eventsSet></item>";
        let said = health_of(&Xml::read(status).unwrap());
        let expected = [
            "AWS' check of its host fails (system status: impaired)",
            "AWS plans instance-retirement not before 2026-12-01T00:00:00.000Z: The instance is running on degraded hardware",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn the_end_of_a_console_is_shown() {
        // "one\r\ntwo\r\nthree\r\n"
        assert_eq!(last_lines("b25lDQp0d28N\nCnRocmVlDQo=", 2), "two\nthree");
        assert_eq!(last_lines("", 2), "");
    }
}
