//! Exit codes. Scripts rely on them: `docs/json.md` and `quorate help` list them, and a code never changes its meaning.

use std::process::ExitCode;

/// How a run ended, mildest first. If several clusters end differently, the worst result counts. Code 2, wrong usage,
/// is reserved for clap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exit {
    Done,
    /// `plan --detailed-exitcode`: there is something to do.
    ChangesPending,
    /// Something was refused as unsafe.
    Blocked,
    /// `status`: it serves, with less tolerance than it should have.
    Degraded,
    /// `status`: it does not serve, is not bootstrapped yet, or cannot be judged.
    Down,
    /// `drill`: a scenario did not pass.
    Drill,
    /// `backup`: one is damaged, or cannot be restored.
    Damaged,
    /// Another controller holds the lock, or took over.
    Locked,
    Error,
    /// By Ctrl-C, as shells report it.
    Interrupted,
    /// By SIGTERM.
    Terminated,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Error => 1,
            Exit::Blocked => 3,
            Exit::ChangesPending => 4,
            Exit::Degraded => 5,
            Exit::Down => 6,
            Exit::Locked => 7,
            Exit::Drill => 8,
            Exit::Damaged => 9,
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn an_error_outweighs_all_and_blocked_outweighs_changes() {
        let ends = [Exit::Blocked, Exit::Error, Exit::Done, Exit::Locked];
        assert_eq!(ends.into_iter().max().map(Exit::code), Some(1));
        assert_eq!(Exit::ChangesPending.max(Exit::Blocked).code(), 3);
        assert_eq!(Exit::Degraded.max(Exit::Down).code(), 6);
    }
}
