//! Who may log in: one user with sudo, by key over ssh, and by password on the console alone.

use std::fs;

use super::{Boot, With, render};
use crate::AgentError;
use crate::api::boot::Admin;

const SSHD: &str = "etc/ssh/sshd_config.d/10-quorate.conf";
const SUDOERS: &str = "etc/sudoers.d/90-quorate";

impl Boot<'_> {
    /// ssh refuses passwords even without such a user.
    pub(super) fn set_admin(&self, admin: Option<&Admin>) -> Result<(), AgentError> {
        self.put(SSHD, &render::sshd(), 0o644)?;
        if let Some(admin) = admin {
            self.make_user(&admin.user)?;
            self.put(SUDOERS, &render::sudoers(&admin.user), 0o440)?;
            let keys: String = admin.ssh_keys.iter().map(|key| format!("{}\n", key.trim())).collect();
            self.put(&format!("{}/{}", render::KEYS, admin.user), &keys, 0o644)?;
            if let Some(hash) = &admin.console_password_hash {
                self.set_password(&admin.user, hash)?;
            }
        }
        if self.with != With::Nothing {
            // It runs already. Without ssh there is nothing to do.
            let _ = self.tools.ask("systemctl", &["try-reload-or-restart", "ssh.service"], None)?;
        }
        Ok(())
    }

    fn make_user(&self, user: &str) -> Result<(), AgentError> {
        if self.line_of("etc/passwd", user).is_none() {
            self.tools.run("useradd", &["--create-home", "--shell", "/bin/bash", user], None)?;
        }
        Ok(())
    }

    /// Passed on stdin, because every user can read arguments.
    fn set_password(&self, user: &str, hash: &str) -> Result<(), AgentError> {
        let in_place = self.line_of("etc/shadow", user);
        if in_place.as_deref().and_then(|line| line.split(':').nth(1)) == Some(hash) {
            return Ok(());
        }
        self.tools.run("chpasswd", &["--encrypted"], Some(&format!("{user}:{hash}\n"))).map(drop)
    }

    fn line_of(&self, file: &str, user: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(file)).ok()?;
        text.lines().find(|line| line.split(':').next() == Some(user)).map(str::to_owned)
    }
}
