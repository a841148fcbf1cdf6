//! Which clients wait for changes of which token.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::registry::Token;

#[derive(Default)]
pub struct Waiters(Mutex<BTreeMap<Token, watch::Sender<()>>>);

impl Waiters {
    fn tokens(&self) -> MutexGuard<'_, BTreeMap<Token, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn subscribe(&self, token: &Token) -> watch::Receiver<()> {
        self.tokens().entry(token.clone()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    pub fn wake(&self, token: &Token) {
        if let Some(waiting) = self.tokens().get(token) {
            waiting.send_replace(());
        }
    }

    pub fn wake_all(&self) {
        self.tokens().values().for_each(|waiting| waiting.send_replace(()));
    }

    /// Drops tokens without waiting clients.
    pub fn tidy(&self) {
        self.tokens().retain(|_, waiting| waiting.receiver_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_clients_that_wait_for_the_token_are_woken() {
        let (waiters, one, other) = (Waiters::default(), Token::random(), Token::random());
        let (mut waits, sleeps) = (waiters.subscribe(&one), waiters.subscribe(&other));
        waiters.wake(&one);
        waits.changed().await.unwrap();
        assert!(!sleeps.has_changed().unwrap());
        drop(waits);
        waiters.tidy();
        assert_eq!(waiters.tokens().keys().collect::<Vec<_>>(), [&other]);
    }
}
