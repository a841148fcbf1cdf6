//! Logs refused connections without letting strangers fill the disk: the first one is logged at once, and those of the
//! following minute as one line with their number.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Refused {
    what: &'static str,
    period: Duration,
    quiet: Arc<Mutex<Quiet>>,
}

/// What has not been said yet; `None` while the next one is said at once.
type Quiet = Option<Unsaid>;

#[derive(Default)]
struct Unsaid {
    count: u64,
    last: String,
}

impl Refused {
    /// Of these, such as "connections".
    pub fn of(what: &'static str) -> Self {
        Refused { what, period: PERIOD, quiet: Arc::default() }
    }

    pub fn say(&self, from: &impl Display, why: &str) {
        let mut quiet = self.quiet.lock().expect("no holder panics");
        match quiet.as_mut() {
            Some(unsaid) => {
                unsaid.count += 1;
                unsaid.last = format!("{from}: {why}");
            }
            None => {
                tracing::info!(%from, why, "one of the {} was refused or broke off", self.what);
                *quiet = Some(Unsaid::default());
                tokio::spawn(self.clone().later());
            }
        }
    }

    async fn later(self) {
        loop {
            tokio::time::sleep(self.period).await;
            let mut quiet = self.quiet.lock().expect("no holder panics");
            let Some(Unsaid { count: count @ 1.., last }) = quiet.take() else { return };
            tracing::info!(count, last, "more {} were refused or broke off in the last minute", self.what);
            *quiet = Some(Unsaid::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// How many lines a log would have, and the last number that one of them reports.
    #[derive(Clone, Default)]
    struct Lines(Arc<(AtomicU64, AtomicU64)>);

    impl Visit for Lines {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "count" {
                self.0.1.store(value, Ordering::Relaxed);
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            self.0.0.fetch_add(1, Ordering::Relaxed);
            event.record(&mut self.clone());
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test]
    async fn a_flood_is_a_line_for_the_first_and_one_with_a_number_for_the_rest() {
        let lines = Lines::default();
        let _here = tracing::subscriber::set_default(lines.clone());
        let count = || lines.0.0.load(Ordering::Relaxed);
        let refused = Refused { period: Duration::from_millis(200), ..Refused::of("connections") };
        for _ in 0..10_000 {
            refused.say(&"192.0.2.66:1", "no TLS");
        }
        assert_eq!(count(), 1);
        while count() == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((count(), lines.0.1.load(Ordering::Relaxed)), (2, 9_999));
        // After a quiet while the next one is said at once.
        while refused.quiet.lock().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        refused.say(&"192.0.2.67:1", "no TLS");
        assert_eq!(count(), 3);
    }
}
