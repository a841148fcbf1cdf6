//! Output: data to stdout, messages to stderr. Rendering is pure and writes to text; only this file prints.

pub mod backup;
pub mod block;
mod group;
pub mod history;
pub mod page;
pub mod plain;
pub mod plan;
pub mod problems;
pub mod progress;
pub mod status;
pub mod table;
pub mod terminal;
pub mod working;

use std::io::{self, IsTerminal, StdoutLock, Write};

use serde::Serialize;

use crate::error::Error;
use page::Page;
pub use table::text as table;

/// Stdout, for data. If the reader has exited, such as `head`, the rest is dropped and the exit code does not change.
pub struct Data<'a> {
    stdout: StdoutLock<'a>,
    is_read: bool,
}

impl Data<'_> {
    pub fn open() -> Self {
        Data { stdout: io::stdout().lock(), is_read: true }
    }

    fn unless_unread<T>(&mut self, done: io::Result<T>, dropped: T) -> io::Result<T> {
        match done {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_read = false;
                Ok(dropped)
            }
            other => other,
        }
    }
}

impl Write for Data<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.stdout.write(bytes);
        self.unless_unread(done, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.stdout.flush();
        self.unless_unread(done, ())
    }
}

/// Prints data for people. It cannot control the terminal.
pub fn print(text: &str) -> Result<(), Error> {
    print_exactly(&plain::text(text))
}

/// Prints data for people, in a form that fits the terminal.
pub fn show(page: &Page) -> Result<(), Error> {
    print_exactly(&page.render(terminal::of_stdout()))
}

/// Prints data for programs, which need every byte of it.
pub fn print_exactly(text: &str) -> Result<(), Error> {
    stream(text).map(drop)
}

/// Prints data of which more may come. Returns whether it is still being read.
pub fn stream(text: &str) -> Result<bool, Error> {
    let mut data = Data::open();
    data.write_all(text.as_bytes()).and_then(|()| data.flush()).map_err(Error::Output)?;
    Ok(data.is_read)
}

pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value).expect("plain data serializes");
    text.push('\n');
    print_exactly(&plain::json(&text))
}

/// Prints a message. Errors are ignored, because stderr may be closed.
pub fn talk(text: &str) {
    talk_page(&Page::written(text));
}

pub fn talk_page(page: &Page) {
    let _ = io::stderr().lock().write_all(page.render(terminal::of_stderr()).as_bytes());
}

/// Writes a message as it is laid out, behind a sequence that moves the cursor.
pub fn draw(sequence: &str, text: &str) {
    let _ = io::stderr().lock().write_all(format!("{sequence}{}", plain::text(text)).as_bytes());
}

/// Whether the operator can be asked.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks, and gives the answer without the white space around it.
pub fn ask(question: &str) -> Result<String, Error> {
    draw("", question);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Error::file("read", "stdin"))?;
    Ok(answer.trim().to_owned())
}

/// A size in the largest unit that keeps it readable: 20.5 KiB, 8 GiB.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = bytes.saturating_mul(10) / 1024;
    let mut unit = 0;
    while tenths >= 10240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(20_992), "20.5 KiB");
        assert_eq!(size(8 << 30), "8 GiB");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(1 << 54), "16384 TiB");
    }
}
