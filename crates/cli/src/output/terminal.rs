//! The terminal: its width, and whether to use colour.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use clap::ValueEnum;

use super::page::Look;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Also into files and pipes
    Always,
    /// No colour at all
    Never,
}

static WANTED: OnceLock<Colour> = OnceLock::new();

/// The command line's setting; the first call counts.
pub fn want(colour: Colour) {
    let _ = WANTED.set(colour);
}

pub fn of_stdout() -> Look {
    look(&io::stdout())
}

pub fn of_stderr() -> Look {
    look(&io::stderr())
}

fn look(stream: &(impl AsFd + IsTerminal)) -> Look {
    let terminal = stream.is_terminal();
    let wanted = WANTED.get().copied().unwrap_or_default();
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let refused = set("NO_COLOR").is_some() || set("TERM").is_none_or(|term| term == "dumb");
    Look { width: terminal.then(|| width(stream)), colour: is_coloured(wanted, terminal, refused) }
}

fn is_coloured(wanted: Colour, terminal: bool, refused: bool) -> bool {
    match wanted {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => terminal && !refused,
    }
}

fn width(stream: &impl AsFd) -> usize {
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    if columns == 0 { 80 } else { usize::from(columns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_outweighs_the_environment_and_pipes_are_plain() {
        assert!(is_coloured(Colour::Auto, true, false));
        assert!(!is_coloured(Colour::Auto, true, true) && !is_coloured(Colour::Auto, false, false));
        assert!(is_coloured(Colour::Always, false, true) && !is_coloured(Colour::Never, true, false));
    }
}
