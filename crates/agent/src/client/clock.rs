//! Clock differences. An agent whose clock is wrong rejects the controller's certificate as expired, or not valid yet,
//! and says nothing more. Its health page shows the time, so the difference can be reported.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use quorate_core::model::HEALTH_PORT;
use quorate_core::text::plural;
use rustls::AlertDescription;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dial::Dial;

const PATIENCE: Duration = Duration::from_secs(1);
const MOST: usize = 4096;

/// The other side's TLS alert, if it ended the connection.
pub(super) fn alert(error: &(dyn Error + 'static)) -> Option<AlertDescription> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error.downcast_ref::<io::Error>().and_then(|io| io.get_ref());
        let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = tls.or_else(|| error.downcast_ref()) {
            return Some(*alert);
        }
        cause = error.source();
    }
    None
}

/// How far the machine's clock is ahead of this one.
pub(super) async fn difference(dial: &Dial, machine: IpAddr) -> Option<SignedDuration> {
    let ask = async {
        let mut stream = dial.connect(SocketAddr::new(machine, HEALTH_PORT)).await.ok()?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut answer = Vec::new();
        stream.take(MOST as u64).read_to_end(&mut answer).await.ok()?;
        let there = date(&String::from_utf8_lossy(&answer))?;
        Some(there.duration_since(Timestamp::now()))
    };
    tokio::time::timeout(PATIENCE, ask).await.ok().flatten()
}

fn date(answer: &str) -> Option<Timestamp> {
    let lines = answer.lines().take_while(|line| !line.is_empty());
    let date = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("date"))?.1;
    Some(rfc2822::parse(date.trim()).ok()?.timestamp())
}

pub(super) fn advice(ahead: Option<SignedDuration>) -> String {
    let refusal = "it considers the controller's certificate expired or not valid yet; check its clock";
    match ahead {
        Some(ahead) if ahead.abs() >= SignedDuration::from_mins(1) => {
            let side = if ahead.is_positive() { "ahead of" } else { "behind" };
            format!("{refusal}. The machine's clock is {} {side} that of this host", coarse(ahead.abs()))
        }
        _ => refusal.to_owned(),
    }
}

/// The largest unit that says enough.
fn coarse(time: SignedDuration) -> String {
    let minutes = time.as_mins();
    match minutes {
        ..120 => plural(minutes, "minute"),
        120..2880 => plural(minutes / 60, "hour"),
        _ => plural(minutes / (24 * 60), "day"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_named_where_it_is_known() {
        assert!(advice(None).ends_with("check its clock"));
        assert!(advice(Some(SignedDuration::from_secs(20))).ends_with("check its clock"));
        let behind = advice(Some(SignedDuration::from_hours(-72)));
        assert!(behind.ends_with("The machine's clock is 3 days behind that of this host"), "{behind}");
        let ahead = advice(Some(SignedDuration::from_mins(90)));
        assert!(ahead.ends_with("90 minutes ahead of that of this host"), "{ahead}");
    }

    #[test]
    fn the_time_is_in_the_head_of_an_answer() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ndate: Mon, 16 Nov 2026 07:00:00 GMT\r\n\r\n{}";
        assert_eq!(date(answer), Some("2026-11-16T07:00:00Z".parse().expect("a time")));
        assert_eq!(date("HTTP/1.1 200 OK\r\n\r\ndate: Mon, 16 Nov 2026 07:00:00 GMT"), None);
    }
}
