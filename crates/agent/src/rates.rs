//! Limits the requests of each client address: a burst, and then a number per second. Memory is bounded: the addresses that were
//! quiet for longest are dropped first, and a dropped address starts again with a full allowance.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Addresses that are remembered.
const REMEMBERED: usize = 4096;

#[derive(Debug)]
pub struct Rates {
    burst: f64,
    per_second: f64,
    clients: HashMap<IpAddr, Allowance>,
}

#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    at: Instant,
}

impl Rates {
    pub fn new(burst: u32, per_second: f64) -> Self {
        Rates { burst: f64::from(burst), per_second, clients: HashMap::new() }
    }

    /// Counts a request, and says whether it is within the allowance.
    pub fn take(&mut self, from: IpAddr, now: Instant) -> bool {
        let client = crate::unauthenticated::network(from);
        if self.clients.len() >= REMEMBERED && !self.clients.contains_key(&client) {
            self.forget(now);
        }
        let (burst, per_second) = (self.burst, self.per_second);
        let allowance = self.clients.entry(client).or_insert(Allowance { left: burst, at: now });
        let passed = now.saturating_duration_since(allowance.at).as_secs_f64();
        allowance.left = (allowance.left + passed * per_second).min(burst);
        allowance.at = now;
        let is_within = allowance.left >= 1.0;
        if is_within {
            allowance.left -= 1.0;
        }
        is_within
    }

    /// Drops addresses whose allowance is full again, or else the half that was quiet for longest.
    fn forget(&mut self, now: Instant) {
        let full = Duration::from_secs_f64(self.burst / self.per_second);
        self.clients.retain(|_, allowance| now.saturating_duration_since(allowance.at) < full);
        if self.clients.len() >= REMEMBERED {
            let mut times: Vec<Instant> = self.clients.values().map(|allowance| allowance.at).collect();
            let (_, median, _) = times.select_nth_unstable(REMEMBERED / 2);
            let median = *median;
            self.clients.retain(|_, allowance| allowance.at > median);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn one_address_is_limited_and_another_is_not() {
        let (mut rates, start) = (Rates::new(3, 0.5), Instant::now());
        let taken = |rates: &mut Rates, from, at| (0..10).filter(|_| rates.take(address(from), at)).count();
        assert_eq!(taken(&mut rates, 1, start), 3);
        assert_eq!(taken(&mut rates, 2, start), 3);
        assert_eq!(taken(&mut rates, 1, start + Duration::from_secs(4)), 2);
        // A clock that goes back takes nothing away.
        assert_eq!(taken(&mut rates, 1, start), 0);
        assert_eq!(taken(&mut rates, 1, start + Duration::from_secs(3600)), 3);
    }

    #[test]
    fn memory_is_bounded_whoever_comes() {
        let (mut rates, start) = (Rates::new(3, 0.001), Instant::now());
        for number in 0..3 * REMEMBERED as u32 {
            assert!(rates.take(address(number), start + Duration::from_millis(number.into())));
            assert!(rates.clients.len() <= REMEMBERED);
        }
        // All at the same instant.
        for number in 0..3 * REMEMBERED as u32 {
            rates.take(address(1 << 24 | number), start);
            assert!(rates.clients.len() <= REMEMBERED);
        }
    }
}
