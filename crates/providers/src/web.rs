//! Shared by requests to clouds: retries after failures, and escaping of text.

use std::net::IpAddr;
use std::time::Duration;

use quorate_core::text::with_causes;
use reqwest::{Response, Url};

/// How often and how long a failed request is repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) attempts: u32,
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

/// Half a minute in all.
pub(crate) const RETRY: Retry =
    Retry { attempts: 7, first: Duration::from_millis(500), longest: Duration::from_secs(8) };

impl Retry {
    /// The pause after this attempt, of which there were `tried`: twice as long each time, and up to half of it is left to chance, so
    /// that clients that failed together do not return together.
    pub(crate) fn pause(&self, tried: u32, told: Option<Duration>) -> Duration {
        let doubled = self.first.saturating_mul(1 << tried.saturating_sub(1).min(16)).min(self.longest);
        let chance = u32::from_str_radix(&quorate_pki::random_hex(1), 16).unwrap_or_default();
        let pause = doubled.mul_f64(0.75 + f64::from(chance) / 512.0);
        // A server that says how long is believed, within limits.
        told.map_or(pause, |told| told.clamp(pause, self.longest.saturating_mul(4)))
    }
}

/// The body of an answer, of which no more is read than this.
pub(crate) async fn read(mut answer: Response, most: usize) -> Result<Vec<u8>, Unread> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|error| Unread::Lost(with_causes(&error.without_url())))? {
        if body.len() + part.len() > most {
            return Err(Unread::TooLong(format!("the answer is longer than {}", size(most))));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// Why a body was not read to its end.
#[derive(Debug)]
pub(crate) enum Unread {
    Lost(String),
    TooLong(String),
}

impl Unread {
    pub(crate) fn why(self) -> String {
        match self {
            Unread::Lost(why) | Unread::TooLong(why) => why,
        }
    }
}

fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

/// The address that a URL names. None: it names something else, such as a host by its name.
pub(crate) fn address_of(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Whether requests to this URL stay on this host. Does not depend on DNS.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    address_of(url).is_some_and(|address| address.is_loopback()) || host == "localhost" || host.ends_with(".localhost")
}

/// For use in a URL.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_literal_address_or_localhost_stays_on_this_host() {
        let stays = |url: &str| is_loopback(&Url::parse(url).unwrap());
        for url in [
            "http://127.0.0.1:4566",
            "http://127.9.9.9/x",
            "http://[::1]:80/",
            "http://localhost:1",
            "http://a.localhost",
        ] {
            assert!(stays(url), "{url}");
        }
        let others = [
            "http://10.0.0.1",
            "http://127.0.0.1.example.com",
            "http://127.0.0.1@example.com",
            "http://localhost.example.com",
        ];
        for url in others {
            assert!(!stays(url), "{url}");
        }
    }
}
