//! How an agent receives its next program, and how that program takes its place.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::body::Incoming;
use quorate_core::model::{Busy, Program};

use super::{ANSWER, CHECK, NEXT, PROGRAM, RESERVE, Trial, clear};
use crate::agent::{Agent, UnderWay};
use crate::api::{Refusal, UploadRequest};
use crate::layout::Layout;
use crate::upload::{self, Upload};
use crate::{AgentError, blocking, files};

impl Agent {
    /// Takes in another program for this machine. The agent leaves for it when this is answered.
    pub(crate) async fn take_program(
        self: &Arc<Self>,
        announced: UploadRequest,
        mut body: Incoming,
    ) -> Result<(), Refusal> {
        let _one_at_a_time = self.orders.lock().await;
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        self.confirm_trial().await?;
        let fence = announced.fence;
        let _under_way = UnderWay::begin(self, Busy { order: String::from("upgrade the agent"), fence });
        self.state.obey_fence(fence).await?;
        let layout = self.layout.clone();
        let mut upload = blocking(move || begin(&layout, &announced)).await?;
        tracing::info!(fence, "a new program is being received");
        while let Some(piece) = upload::receive(&mut body).await? {
            self.check_still_obeyed()?;
            upload = blocking(move || upload.take(&piece)).await?;
        }
        let next = self.layout.root().join(NEXT);
        let place = next.clone();
        blocking(move || finish(upload, &place)).await?;
        let checked = self.try_program(&next).await;
        let Ok(to) = checked else {
            let _ = fs::remove_file(&next);
            return checked.map(drop);
        };
        tracing::info!(%to, "the new program runs here; the agent leaves for it");
        *self.upgrades.next.lock().expect("no holder panics") = Some(Trial { program: next, to, fence });
        let agent = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ANSWER).await;
            agent.upgrades.leave.notify_one();
        });
        Ok(())
    }

    /// Runs the new program to see that it starts on this machine and can read what this agent has written.
    async fn try_program(&self, program: &Path) -> Result<Program, Refusal> {
        let refused = |why: String| Refusal::Failed { why: format!("the new program does not run here: {why}") };
        let mut command = tokio::process::Command::new(program);
        command.args(["agent", "check", "--root"]).arg(self.layout.root());
        command.stdin(Stdio::null()).kill_on_drop(true);
        let ended = match tokio::time::timeout(CHECK, command.output()).await {
            Ok(ended) => ended.map_err(|error| refused(error.to_string()))?,
            Err(_) => return Err(refused(format!("it did not end within {} s", CHECK.as_secs()))),
        };
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
            return Err(refused(format!("{}: {said}", ended.status)));
        }
        serde_json::from_slice(&ended.stdout).map_err(|_| refused(String::from("it does not say what it is")))
    }

    /// A controller has spoken to this agent: if it was on trial, it takes its place on disk.
    pub(crate) async fn confirm_trial(&self) -> Result<(), AgentError> {
        if !self.upgrades.is_on_trial() {
            return Ok(());
        }
        let layout = self.layout.clone();
        blocking(move || put_in_place(&layout)).await?;
        // Not before: the program that was there until now could not read it.
        self.state.release().await?;
        if self.upgrades.on_trial.swap(false, Ordering::Relaxed) {
            tracing::info!(program = %Program::this(), "the upgrade is complete");
            self.upgrades.confirmed.notify_one();
        }
        Ok(())
    }
}

fn begin(layout: &Layout, announced: &UploadRequest) -> Result<Upload, Refusal> {
    let next = layout.root().join(NEXT);
    let directory = next.parent().unwrap_or(layout.root());
    files::make_dir(directory, 0o755)?;
    clear(layout)?;
    let disk = rustix::fs::statvfs(directory).map_err(|error| AgentError::file("read", directory)(error.into()))?;
    let (free, needed) = (disk.f_bavail.saturating_mul(disk.f_frsize), announced.bytes.saturating_add(RESERVE));
    if free < needed {
        let expected = format!("{} MiB free in {} for the new program", needed.div_ceil(1 << 20), directory.display());
        return Err(Refusal::NotAsExpected { expected, found: format!("{} MiB free", free >> 20) });
    }
    Upload::of_program(directory, announced)
}

fn finish(upload: Upload, place: &Path) -> Result<(), Refusal> {
    upload.finish(place)?;
    let executable = fs::set_permissions(place, fs::Permissions::from_mode(0o755));
    Ok(executable.map_err(AgentError::file("make executable", place))?)
}

fn put_in_place(layout: &Layout) -> Result<(), AgentError> {
    let (next, place) = (layout.root().join(NEXT), layout.root().join(PROGRAM));
    match fs::rename(&next, &place) {
        Ok(()) => files::make_durable(place.parent().unwrap_or(&place)),
        // Two controllers may ask at once.
        Err(error) if error.kind() == io::ErrorKind::NotFound && place.exists() => Ok(()),
        Err(error) => Err(AgentError::file("put in place", place)(error)),
    }
}
