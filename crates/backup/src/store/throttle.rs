//! A bandwidth limit, shared by all uploads to one store.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

pub(super) struct Throttle {
    bytes_per_second: u64,
    free_at: Mutex<Instant>,
}

impl Throttle {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Throttle { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// Waits until so many bytes may go. Nothing is saved up while nothing goes.
    pub(super) async fn take(&self, bytes: usize) {
        let mut free_at = self.free_at.lock().await;
        let begin = (*free_at).max(Instant::now());
        let lasts = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *free_at = begin + lasts;
        let until = *free_at;
        drop(free_at);
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_limit_delays_bytes_as_long_as_needed() {
        let throttle = Throttle::new(1000);
        let begin = Instant::now();
        throttle.take(500).await;
        throttle.take(1500).await;
        assert_eq!(begin.elapsed().as_millis(), 2000);
        sleep_until(Instant::now() + Duration::from_secs(60)).await;
        let begin = Instant::now();
        throttle.take(1000).await;
        assert_eq!(begin.elapsed().as_millis(), 1000);
    }
}
