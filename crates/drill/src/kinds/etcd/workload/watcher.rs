//! One watch of all keys. It resumes where it broke, through the next endpoint, until it has shown the last write.

use std::time::Duration;

use quorate_etcd::{Error, Event, KeyRange, RangeQuery, Watch};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{AFTER_FAILURE, Connection, Shared, unpadded, why};
use crate::kinds::etcd::history::Watched;

/// The lease is written to every second or so. When nothing is shown for longer, the member is stopped or cut off.
const SILENCE: Duration = Duration::from_secs(3);

impl Shared {
    /// Counts itself in `began` when the first watch was taken; ends when it has shown the revision in `through`.
    pub(super) async fn watch(self, number: u32, began: watch::Sender<u32>, mut through: watch::Receiver<Option<i64>>) {
        let mut seat = Connection::new(&self, number);
        let mut next = self.beginning(&mut seat).await;
        let mut counted = false;
        loop {
            let why = match self.take_up(&mut seat, next).await {
                Ok((endpoint, watch)) => {
                    self.note(number, Watched::Began { endpoint, from: next });
                    if !counted {
                        counted = true;
                        began.send_modify(|count| *count += 1);
                    }
                    match self.show(number, watch, &mut next, &mut through).await {
                        Ok(()) => return,
                        Err(Broken::Compacted(oldest)) => {
                            self.note(number, Watched::Skipped { through: oldest });
                            next = next.max(oldest);
                            continue;
                        }
                        Err(Broken::Otherwise(why)) => why,
                    }
                }
                Err(why) => why,
            };
            self.note(number, Watched::Broke { why });
            seat.move_on();
            sleep(AFTER_FAILURE).await;
        }
    }

    /// The revision after the newest.
    async fn beginning(&self, seat: &mut Connection) -> i64 {
        loop {
            if let Ok((_, client)) = seat.client() {
                let query = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::prefix(self.prefix.as_str())) };
                if let Ok(read) = client.range(query).await {
                    return read.revision + 1;
                }
            }
            seat.move_on();
            sleep(AFTER_FAILURE).await;
        }
    }

    async fn take_up(&self, seat: &mut Connection, from: i64) -> Result<(String, Watch), String> {
        let (endpoint, client) = seat.client()?;
        let watch = client.watch(KeyRange::prefix(self.prefix.as_str()), from, false).await;
        watch.map(|watch| (endpoint, watch)).map_err(|e| why(&e))
    }

    async fn show(
        &self,
        number: u32,
        mut watch: Watch,
        next: &mut i64,
        through: &mut watch::Receiver<Option<i64>>,
    ) -> Result<(), Broken> {
        loop {
            let wanted = *through.borrow_and_update();
            if let Some(wanted) = wanted.filter(|wanted| *next > *wanted) {
                self.note(number, Watched::Ended { through: wanted });
                return Ok(());
            }
            let update = tokio::select! {
                update = timeout(SILENCE, watch.next()) => update,
                _ = through.changed(), if wanted.is_none() => continue,
            };
            let update = update.map_err(|_| Broken::Otherwise(format!("nothing was shown for {SILENCE:?}")))?;
            for event in update.map_err(Broken::from)?.events {
                let (revision, key, value) = match event {
                    Event::Put(pair) => (pair.mod_revision, pair.key, Some(pair.value)),
                    Event::Delete { key, revision } => (revision, key, None),
                };
                let value = value.map(|value| unpadded(&value));
                self.note(number, Watched::Saw { revision, key: self.short(&key), value });
                *next = revision + 1;
            }
        }
    }
}

enum Broken {
    /// The oldest revision from which a watch can be taken.
    Compacted(i64),
    Otherwise(String),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error {
            Error::Compacted { oldest: Some(oldest) } => Broken::Compacted(oldest),
            other => Broken::Otherwise(why(&other)),
        }
    }
}
