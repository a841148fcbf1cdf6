//! What requests to clouds have in common: how failed ones are repeated, and how texts are escaped.

use std::time::Duration;

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

/// For use in a URL.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}
