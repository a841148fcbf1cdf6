//! Progress of a backup or of the preparation of a restore, on stderr: on a terminal one line that is redrawn, elsewhere a line for
//! each stage and occasional updates.

use std::io::IsTerminal;
use std::mem::{Discriminant, discriminant};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_control::backup::{Doing, Teller};

use super::{draw, size, talk, terminal};

const REDRAW: Duration = Duration::from_millis(100);
/// How often the same line is repeated in a file or a log.
const AGAIN: Duration = Duration::from_secs(5);

pub struct Working {
    terminal: bool,
    /// Lines that stay begin with the time: they make a log.
    log: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A line is drawn that is to be cleared.
    drawn: bool,
    doing: Option<Discriminant<Doing<'static>>>,
    at: Option<Instant>,
}

impl Working {
    pub fn new() -> Self {
        Working { terminal: std::io::stderr().is_terminal(), log: false, state: Mutex::default() }
    }

    /// For long-lasting work.
    pub fn log() -> Self {
        Working { terminal: std::io::stderr().is_terminal(), log: true, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller for Working {
    fn say(&self, text: &str) {
        let mut state = self.state();
        let cleared = if std::mem::take(&mut state.drawn) { "\r\x1b[K" } else { "" };
        match self.log {
            true => draw(cleared, &format!("{} {text}\n", Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ"))),
            false => draw(cleared, &format!("{text}\n")),
        }
    }

    fn doing(&self, what: Doing<'_>) {
        let mut state = self.state();
        let kind = kind(what);
        let same = state.doing == Some(kind);
        let pause = if self.terminal { REDRAW } else { AGAIN };
        if same && state.at.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        (state.doing, state.at) = (Some(kind), Some(Instant::now()));
        match (text(what), self.terminal) {
            (Some(text), true) => {
                state.drawn = true;
                draw("\r\x1b[K", &on_one_line(&text, terminal::of_stderr().width.unwrap_or(usize::MAX)));
            }
            (Some(text), false) if !self.log => talk(&format!("{text} …\n")),
            (None, true) if std::mem::take(&mut state.drawn) => draw("\r\x1b[K", ""),
            _ => {}
        }
    }
}

/// Of a line that is wrapped, only the last row can be cleared.
fn on_one_line(text: &str, width: usize) -> String {
    let room = width.saturating_sub("   … ".chars().count());
    let kept: String = text.chars().take(room).collect();
    format!("  {} …", kept.trim_end())
}

impl Drop for Working {
    fn drop(&mut self) {
        if self.state().drawn {
            draw("\r\x1b[K", "");
        }
    }
}

/// What it is, whatever it is done with.
fn kind(what: Doing<'_>) -> Discriminant<Doing<'static>> {
    match what {
        Doing::Checking { .. } => discriminant(&Doing::Checking { place: "" }),
        Doing::Looking => discriminant(&Doing::Looking),
        Doing::Reading { .. } => discriminant(&Doing::Reading { member: "", bytes: 0 }),
        Doing::Proving { .. } => discriminant(&Doing::Proving { id: "" }),
        Doing::Copying { .. } => discriminant(&Doing::Copying { place: "" }),
        Doing::Fetching { .. } => discriminant(&Doing::Fetching { what: "" }),
        Doing::Replaying { .. } => discriminant(&Doing::Replaying { revision: 0 }),
        Doing::Working { .. } => discriminant(&Doing::Working { member: "", what: "" }),
        Doing::Nothing => discriminant(&Doing::Nothing),
    }
}

fn text(what: Doing<'_>) -> Option<String> {
    Some(match what {
        Doing::Checking { place } => format!("checking {place}"),
        Doing::Looking => String::from("looking for the member to read from"),
        Doing::Reading { member, bytes: 0 } => format!("reading the snapshot of {member}"),
        Doing::Reading { member, bytes } => format!("reading the snapshot of {member}: {}", size(bytes)),
        Doing::Proving { id } => format!("restoring {id} into a temporary etcd to verify it"),
        Doing::Copying { place } => format!("copying to {place}"),
        Doing::Fetching { what } => format!("preparing {what}"),
        Doing::Working { member, what } => format!("{member}: {what}"),
        Doing::Replaying { revision } => format!("replaying changes: revision {revision}"),
        Doing::Nothing => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_redrawn_fits_the_terminal() {
        assert_eq!(on_one_line("reading", usize::MAX), "  reading …");
        let drawn = on_one_line(&"ä".repeat(200), 80);
        assert_eq!(drawn.chars().count(), 79);
        assert_eq!(on_one_line("reading", 3), "   …");
    }

    #[test]
    fn everything_that_takes_time_is_reported() {
        assert_eq!(text(Doing::Reading { member: "etcd-2", bytes: 0 }).unwrap(), "reading the snapshot of etcd-2");
        let told = text(Doing::Reading { member: "etcd-2", bytes: 5 << 20 }).unwrap();
        assert_eq!(told, "reading the snapshot of etcd-2: 5 MiB");
        assert_eq!(text(Doing::Nothing), None);
        assert_ne!(kind(Doing::Looking), kind(Doing::Nothing));
    }
}
