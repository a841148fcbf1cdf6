//! Puts fluent-bit's configuration in place, or starts a separate unit that follows one in another etcd.

use quorate_core::model::{HostConfig, LogForwardingConfig, LogSourceConfig};

use super::fluent_bit::{self, Piece};
use super::{Host, LOG_READER};
use crate::boot::PROGRAM;
use crate::layout::Layout;
use crate::services::systemd::{add_user, owner_in, systemctl};
use crate::units::ROOT_SHUT_IN;
use crate::{AgentError, files, follow};

const FLUENT_BIT: &str = "fluent-bit.service";
const FOLLOWER: &str = "quorate-follow.service";

impl Host {
    pub(super) async fn put_log_forwarding(&self, config: &HostConfig) -> Result<(), AgentError> {
        let Some(forwarding) = &config.log_forwarding else { return self.end_log_forwarding().await };
        let reader = self.log_reader().await?;
        let changed = self.put_unit(forwarding).await? | self.put_pieces(forwarding, reader)?;
        match &forwarding.from_etcd {
            // The follower starts fluent-bit, once there is something to read.
            Some(source) => self.begin_following(source, changed).await,
            None => {
                self.end_following().await?;
                if changed { self.restart(FLUENT_BIT).await } else { Ok(()) }
            }
        }
    }

    /// The group of the user that fluent-bit runs as; the user is made where it is missing.
    async fn log_reader(&self) -> Result<u32, AgentError> {
        let path = self.root.join("etc/passwd");
        let find = || -> Result<Option<u32>, AgentError> {
            let users = std::fs::read_to_string(&path).map_err(AgentError::file("read", &path))?;
            Ok(owner_in(&users, LOG_READER).map(|(_, group)| group))
        };
        if let Some(group) = find()? {
            return Ok(group);
        }
        add_user(LOG_READER, &self.root.join("var/lib").join(LOG_READER)).await?;
        find()?.ok_or_else(|| AgentError::NoUser { user: LOG_READER.to_owned() })
    }

    /// Whether it differed.
    async fn put_unit(&self, config: &LogForwardingConfig) -> Result<bool, AgentError> {
        let (path, text) = (self.root.join(fluent_bit::UNIT), fluent_bit::unit(config));
        if self.is_in_place(&path, &text) {
            return Ok(false);
        }
        files::write(&path, text.as_bytes(), 0o644, None)?;
        systemctl(&["daemon-reload"]).await?;
        Ok(true)
    }

    /// Whether anything differed.
    fn put_pieces(&self, config: &LogForwardingConfig, readers: u32) -> Result<bool, AgentError> {
        let pieces = fluent_bit::render(config);
        let differs = |piece: &Piece| !self.is_in_place(&self.root.join(piece.path), &piece.content);
        let mut changed = pieces.iter().any(differs);
        for piece in &pieces {
            files::ensure(&self.root.join(piece.path), piece.content.as_bytes(), piece.mode, Some((0, readers)))?;
        }
        for path in fluent_bit::PIECES.into_iter().filter(|path| !pieces.iter().any(|piece| piece.path == *path)) {
            changed |= self.root.join(path).exists();
            files::remove(&self.root.join(path))?;
        }
        Ok(changed)
    }

    /// Only what we began is ended.
    async fn end_log_forwarding(&self) -> Result<(), AgentError> {
        self.end_following().await?;
        if !self.root.join(fluent_bit::INPUTS).exists() {
            return Ok(());
        }
        systemctl(&["disable", "--quiet", "--now", FLUENT_BIT]).await?;
        fluent_bit::PIECES.iter().try_for_each(|path| files::remove(&self.root.join(path)))?;
        files::remove(&self.root.join(fluent_bit::UNIT))?;
        systemctl(&["daemon-reload"]).await.map(drop)
    }

    async fn begin_following(&self, source: &LogSourceConfig, pieces_changed: bool) -> Result<(), AgentError> {
        let settings = serde_json::to_string(source).expect("plain data serializes");
        let (path, unit_path) = (self.layout()?.log_source(), self.follower_unit());
        let same = self.is_in_place(&path, &settings) && self.is_in_place(&unit_path, &unit());
        files::ensure(&path, settings.as_bytes(), files::PRIVATE, None)?;
        files::ensure(&unit_path, unit().as_bytes(), 0o644, None)?;
        if !same {
            systemctl(&["daemon-reload"]).await?;
        }
        if pieces_changed {
            // The pieces may be included by what is followed.
            follow::start_over(&self.root)?;
        }
        let runs = systemctl(&["is-active", "--quiet", FOLLOWER]).await.is_ok();
        if same && runs && !pieces_changed { Ok(()) } else { self.restart(FOLLOWER).await }
    }

    async fn end_following(&self) -> Result<(), AgentError> {
        let layout = self.layout()?;
        if !self.follower_unit().exists() {
            return Ok(());
        }
        systemctl(&["disable", "--quiet", "--now", FOLLOWER]).await?;
        follow::forget(&self.root)?;
        for path in [layout.log_source(), layout.log_source_trouble(), self.follower_unit()] {
            files::remove(&path)?;
        }
        systemctl(&["daemon-reload"]).await.map(drop)
    }

    fn follower_unit(&self) -> std::path::PathBuf {
        self.root.join("etc/systemd/system").join(FOLLOWER)
    }

    fn layout(&self) -> Result<Layout, AgentError> {
        Layout::new(&self.root).map_err(AgentError::file("find", &self.root))
    }
}

/// As root, since it writes fluent-bit's files and starts its unit.
fn unit() -> String {
    format!(
        "# Written by quorate; changes are lost.\n\
         [Unit]\n\
         Description=quorate follows the configuration for forwarding logs\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart=/{PROGRAM} agent follow --root /\n\
         Restart=always\n\
         RestartSec=2s\n\
         {ROOT_SHUT_IN}\
         ReadWritePaths=/etc/fluent-bit-customization -/run/quorate\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}
