//! The watchdog of this machine, for Patroni. Its device belongs to root, and Patroni runs as another user.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use quorate_core::model::NodeConfig;
use serde::Deserialize;

use super::config::PatroniConfig;
use crate::agent::Agent;
use crate::error::Obstacle;
use crate::{AgentError, files};

const OFF: &str = "off";
const REQUIRED: &str = "required";

/// The part of Patroni's configuration that is about it.
#[derive(Deserialize)]
pub(super) struct Watchdog {
    mode: String,
    device: String,
}

impl Agent {
    /// A member without the watchdog that its configuration requires would never become the primary, and Patroni would say so in its log alone.
    pub(crate) fn watchdog_in_the_way(&self, config: &NodeConfig) -> Option<Obstacle> {
        let watchdog = PatroniConfig::read(config.patroni()?).ok()?.watchdog?;
        obstacle(&watchdog)
    }

    /// Gives the device to the user that Patroni runs as, where it is another one than the agent's.
    pub(super) async fn give_watchdog(&self) -> Result<(), AgentError> {
        let Ok(settings) = self.patroni_settings() else { return Ok(()) };
        let used = settings.watchdog.filter(|watchdog| watchdog.mode != OFF && is_device(&watchdog.device));
        match used {
            Some(watchdog) => files::give_to(Path::new(&watchdog.device), self.patroni().await?.owner()?),
            None => Ok(()),
        }
    }
}

fn is_device(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
}

fn obstacle(Watchdog { mode, device }: &Watchdog) -> Option<Obstacle> {
    (mode == REQUIRED && !is_device(device)).then(|| Obstacle {
        why: format!("`postgres.patroni.watchdog.mode` is `required`, and this machine has no watchdog at {device}"),
        remedy: String::from(
            "give the machine a watchdog, load its driver (`modprobe softdog` for one in software), or use `automatic`",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_required_watchdog_that_is_missing_is_in_the_way() {
        let of = |mode: &str, device: &str| {
            obstacle(&Watchdog { mode: mode.to_owned(), device: device.to_owned() }).map(|obstacle| obstacle.why)
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().to_string_lossy();
        assert!(of(REQUIRED, &file).unwrap().ends_with(&format!("no watchdog at {file}")), "a file is no device");
        assert_eq!(of(REQUIRED, "/dev/null"), None);
        assert_eq!(of("automatic", &file), None);
        assert_eq!(of(OFF, &file), None);
    }
}
