//! Records changes: a watch over all keys becomes segments on top of a full backup. A revision is never split over two segments and none
//! is left out: a gap is an error. While a new full backup is being taken, changes are recorded on top of both the old one and the new
//! one, so every moment is covered, and a failed backup costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use jiff::Timestamp;
use prost::Message;
use quorate_pki::SigningKey;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::catalog::{Chain, Full};
use crate::names::BackupId;
use crate::segment::{self, Change, Lease, Revision, Segment, SegmentManifest};
use crate::source::{Changes, Source, SourceError};
use crate::store::Store;

/// A segment is closed when it has so much in it …
const FULL: usize = 4 << 20;
/// … or something for so long. This is also how much may be lost with the recorder.
const FLUSH_AFTER: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(500);

/// A watch that skipped something.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the watch went from revision {after} to {next}: changes between them can no longer be had")]
pub struct Hole {
    pub after: i64,
    pub next: i64,
}

/// Now, by both clocks. What the wall clock says is kept as data. It may be set back at any time, so only the other one says for how long
/// something has waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    pub wall: Timestamp,
    pub monotonic: Instant,
}

impl Moment {
    pub fn now() -> Self {
        Moment { wall: Timestamp::now(), monotonic: Instant::now() }
    }
}

/// Turns changes into segments. It does no I/O, and is told the time.
pub struct Recorder {
    cluster: String,
    cluster_id: String,
    /// The last revision that is complete.
    received: i64,
    /// One that continues in the next answer.
    unfinished: Option<Revision>,
    chains: Vec<Growing>,
    ttls: BTreeMap<i64, i64>,
}

struct Growing {
    full: BackupId,
    recipient: Option<String>,
    previous: String,
    revisions: Vec<Revision>,
    bytes: usize,
    /// Since when the first of them waits.
    since: Option<Instant>,
    /// Leases that its segments name already.
    leases: BTreeSet<i64>,
    /// The revision with which it may end, once that is wanted.
    until: Option<i64>,
}

impl Recorder {
    /// Goes on where the segments on top of a full backup end.
    pub fn resume(full: &Full, chain: &Chain) -> Recorder {
        let manifest = &full.manifest;
        let last = chain.segments.last();
        let mut recorder = Recorder {
            cluster: manifest.cluster.clone(),
            cluster_id: manifest.cluster_id.clone(),
            received: last.map_or(manifest.revision, |last| last.span.to),
            unfinished: None,
            chains: Vec::new(),
            ttls: BTreeMap::new(),
        };
        recorder.begin(manifest.id.clone(), manifest.recipient.clone());
        if let Some(last) = last {
            recorder.chains[0].previous.clone_from(&last.stored_sha256);
        }
        recorder
    }

    /// The revision that is wanted next.
    pub fn next(&self) -> i64 {
        self.received + 1
    }

    /// From the next revision on, records on top of this backup too. It may not be taken before this.
    pub fn begin(&mut self, full: BackupId, recipient: Option<String>) {
        let previous = full.as_str().to_owned();
        self.chains.push(Growing {
            full,
            recipient,
            previous,
            revisions: Vec::new(),
            bytes: 0,
            since: None,
            leases: BTreeSet::new(),
            until: None,
        });
    }

    /// Records on top of this backup no longer than up to this revision, or than now.
    pub fn end(&mut self, full: &BackupId, after: i64) {
        for chain in self.chains.iter_mut().filter(|chain| chain.full == *full) {
            chain.until = Some(after);
        }
    }

    /// Whether there is a chain that [`drop_ended`](Self::drop_ended) would drop; what it holds is to be closed first.
    pub fn any_ended(&self) -> bool {
        self.chains.iter().any(|chain| chain.until.is_some_and(|until| until <= self.received))
    }

    pub fn drop_ended(&mut self) {
        let received = self.received;
        self.chains.retain(|chain| chain.until.is_none_or(|until| until > received));
        // They are asked for again as they come; otherwise this would grow for ever.
        self.ttls.clear();
    }

    /// After a break of the watch: what was not complete comes again.
    pub fn reconnected(&mut self) {
        self.unfinished = None;
    }

    /// Leases whose time to live must be reported, by [`know_lease`](Self::know_lease), before these changes are taken.
    pub fn unknown_leases(&self, changes: &Changes) -> BTreeSet<i64> {
        let leases = changes.events.iter().filter_map(|event| match event {
            quorate_etcd::Event::Put(pair) => Some(pair.lease),
            quorate_etcd::Event::Delete { .. } => None,
        });
        leases.filter(|id| *id != 0 && !self.ttls.contains_key(id)).collect()
    }

    /// `None` where it is gone already.
    pub fn know_lease(&mut self, id: i64, ttl: Option<i64>) {
        self.ttls.insert(id, ttl.unwrap_or_default());
    }

    pub fn take(&mut self, changes: Changes, now: Moment) -> Result<(), Hole> {
        if changes.events.is_empty() && !changes.unfinished {
            return self.expect_nothing_before(changes.revision);
        }
        for event in changes.events {
            let revision = revision_of(&event);
            if let Some(before) = self.unfinished.take_if(|before| before.revision != revision) {
                self.complete(before, now.monotonic);
            }
            // What a reconnected watch repeats is known.
            if revision <= self.received {
                continue;
            }
            if revision != self.received + 1 {
                return Err(Hole { after: self.received, next: revision });
            }
            let begun = self.unfinished.get_or_insert_with(|| Revision {
                revision,
                received_ms: now.wall.as_millisecond(),
                ..Revision::default()
            });
            begun.changes.push(Change::from(event));
        }
        if !changes.unfinished
            && let Some(last) = self.unfinished.take()
        {
            self.complete(last, now.monotonic);
        }
        Ok(())
    }

    /// A sign of progress says that everything up to it was delivered.
    fn expect_nothing_before(&self, revision: i64) -> Result<(), Hole> {
        match revision > self.received && self.unfinished.is_none() {
            true => Err(Hole { after: self.received, next: revision + 1 }),
            false => Ok(()),
        }
    }

    fn complete(&mut self, revision: Revision, now: Instant) {
        self.received = revision.revision;
        for chain in &mut self.chains {
            let mut revision = revision.clone();
            for id in revision.lease_ids() {
                if chain.leases.insert(id) {
                    revision.leases.push(Lease { id, ttl: self.ttls.get(&id).copied().unwrap_or_default() });
                }
            }
            chain.since.get_or_insert(now);
            chain.bytes += revision.encoded_len();
            chain.revisions.push(revision);
        }
    }

    /// Whether something should be closed now.
    pub fn is_due(&self, now: Instant) -> bool {
        let waits_long = |since: Instant| now.duration_since(since) >= FLUSH_AFTER;
        self.chains.iter().any(|chain| chain.bytes >= FULL || chain.since.is_some_and(waits_long))
    }

    /// Closes what there is. Each must be stored, and told by [`stored`](Self::stored), before the next is closed.
    pub fn close(&mut self) -> Vec<Segment> {
        let chains = self.chains.iter_mut().filter(|chain| !chain.revisions.is_empty());
        let segments = chains.map(|chain| {
            (chain.bytes, chain.since) = (0, None);
            Segment {
                cluster: self.cluster.clone(),
                cluster_id: self.cluster_id.clone(),
                full: chain.full.clone(),
                recipient: chain.recipient.clone(),
                previous: chain.previous.clone(),
                revisions: std::mem::take(&mut chain.revisions),
            }
        });
        segments.collect()
    }

    pub fn stored(&mut self, manifest: &SegmentManifest) {
        for chain in self.chains.iter_mut().filter(|chain| chain.full == manifest.full) {
            chain.previous.clone_from(&manifest.stored_sha256);
        }
    }
}

fn revision_of(event: &quorate_etcd::Event) -> i64 {
    match event {
        quorate_etcd::Event::Put(pair) => pair.mod_revision,
        quorate_etcd::Event::Delete { revision, .. } => *revision,
    }
}

/// What a running recording can be asked to do.
pub enum Command {
    /// A full backup is about to be taken: record on top of it too. Answered when that is so; only then may it begin.
    Begin { full: BackupId, recipient: Option<String>, begun: oneshot::Sender<()> },
    /// A newer backup has taken its place, and holds at most revision `after`: the old chain leads at least there, so that no revision
    /// is uncovered. Or the backup failed, and `after` is zero.
    End { full: BackupId, after: i64 },
    /// Store what there is, and end.
    Stop,
}

/// Why a recording ended. All that was received before is stored, except where storing failed.
#[derive(Debug)]
pub enum Ended {
    Stopped,
    /// The revisions wanted next are gone: a full backup is needed, and recording continues from there.
    Lost(Hole),
    Compacted,
    /// The watch broke; another member, or the same a little later, may do.
    Broken(SourceError),
    /// What is not stored is still in the recorder's segment, which `run` tries first when it is called again.
    Store(Error),
}

/// A recorder with the store that it writes to.
pub struct Recording {
    signing: SigningKey,
    store: Store,
    level: i32,
    recorder: Recorder,
    /// Closed, but not stored yet.
    closed: Vec<Segment>,
}

impl Recording {
    pub fn new(store: Store, level: i32, recorder: Recorder, signing: SigningKey) -> Self {
        Recording { signing, store, level, recorder, closed: Vec::new() }
    }

    /// The last revision that was received.
    pub fn received(&self) -> i64 {
        self.recorder.received
    }

    /// Records until something ends it. `told` is called with each segment that was stored.
    pub async fn run(
        &mut self,
        source: &dyn Source,
        commands: &mut mpsc::Receiver<Command>,
        told: &(dyn Fn(&SegmentManifest) + Sync),
    ) -> Ended {
        let ended = match self.store_closed(told).await {
            Ok(()) => self.watch(source, commands, told).await,
            Err(error) => return Ended::Store(error),
        };
        match (self.flush(told).await, ended) {
            (Err(error), _) => Ended::Store(error),
            (Ok(()), ended) => ended,
        }
    }

    async fn watch(
        &mut self,
        source: &dyn Source,
        commands: &mut mpsc::Receiver<Command>,
        told: &(dyn Fn(&SegmentManifest) + Sync),
    ) -> Ended {
        self.recorder.reconnected();
        let mut changes = match source.changes(self.recorder.next()).await {
            Ok(changes) => changes,
            Err(error) => return ended_by(error),
        };
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Begin { full, recipient, begun }) => {
                        self.recorder.begin(full, recipient);
                        // One who no longer waits will say `End`.
                        let _ = begun.send(());
                    }
                    Some(Command::End { full, after }) => self.recorder.end(&full, after),
                    Some(Command::Stop) | None => return Ended::Stopped,
                },
                change = changes.next() => match change {
                    Some(Ok(change)) => match self.take(source, change).await {
                        Ok(()) => {}
                        Err(ended) => return ended,
                    },
                    Some(Err(error)) => return ended_by(error),
                    None => return Ended::Broken(SourceError::Unreachable(String::from("the watch was closed"))),
                },
                _ = ticks.tick() => {}
            }
            let ended = self.recorder.any_ended();
            if (ended || self.recorder.is_due(Instant::now()))
                && let Err(error) = self.flush(told).await
            {
                return Ended::Store(error);
            }
            if ended {
                self.recorder.drop_ended();
            }
        }
    }

    async fn take(&mut self, source: &dyn Source, changes: Changes) -> Result<(), Ended> {
        for id in self.recorder.unknown_leases(&changes) {
            let ttl = source.lease_ttl(id).await.map_err(ended_by)?;
            self.recorder.know_lease(id, ttl);
        }
        self.recorder.take(changes, Moment::now()).map_err(Ended::Lost)
    }

    /// Stores what there is.
    pub async fn flush(&mut self, told: &(dyn Fn(&SegmentManifest) + Sync)) -> Result<(), Error> {
        self.store_closed(told).await?;
        self.closed = self.recorder.close();
        self.store_closed(told).await
    }

    async fn store_closed(&mut self, told: &(dyn Fn(&SegmentManifest) + Sync)) -> Result<(), Error> {
        while let Some(segment) = self.closed.first() {
            let manifest = segment::write(&self.store, segment, self.level, &self.signing).await?;
            self.recorder.stored(&manifest);
            self.closed.remove(0);
            told(&manifest);
        }
        Ok(())
    }
}

fn ended_by(error: SourceError) -> Ended {
    match error {
        SourceError::Compacted { .. } => Ended::Compacted,
        error => Ended::Broken(error),
    }
}

#[cfg(test)]
mod tests {
    use quorate_etcd::{Event, KeyValue};

    use super::*;

    fn recorder() -> Recorder {
        let mut recorder = Recorder {
            cluster: String::from("orders"),
            cluster_id: String::from("1"),
            received: 10,
            unfinished: None,
            chains: Vec::new(),
            ttls: BTreeMap::new(),
        };
        recorder.begin(id(0), None);
        recorder
    }

    fn id(second: i64) -> BackupId {
        BackupId::new(wall(second), "00000000")
    }

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    fn monotonic(second: u64) -> Instant {
        static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *BEGAN.get_or_init(Instant::now) + Duration::from_secs(second)
    }

    /// Where nobody sets a clock.
    fn at(second: u64) -> Moment {
        Moment { wall: wall(second.cast_signed()), monotonic: monotonic(second) }
    }

    fn put(revision: i64, lease: i64) -> Event {
        let (key, value) = (b"k".to_vec(), b"v".to_vec());
        Event::Put(KeyValue { key, value, create_revision: 1, mod_revision: revision, version: 1, lease })
    }

    fn says(events: Vec<Event>, unfinished: bool) -> Changes {
        Changes { revision: 99, events, unfinished }
    }

    fn progress(revision: i64) -> Changes {
        Changes { revision, events: Vec::new(), unfinished: false }
    }

    #[test]
    fn a_hole_is_seen_and_what_comes_again_is_passed_over() {
        let mut recorder = recorder();
        recorder.take(says(vec![put(9, 0), put(10, 0), put(11, 0)], false), at(0)).unwrap();
        assert_eq!(recorder.next(), 12);
        let hole = recorder.take(says(vec![put(13, 0)], false), at(0)).unwrap_err();
        assert_eq!(hole, Hole { after: 11, next: 13 });
        recorder.take(progress(11), at(0)).unwrap();
        assert!(recorder.take(progress(12), at(0)).is_err());
    }

    #[test]
    fn a_revision_in_fragments_stays_one() {
        let mut recorder = recorder();
        recorder.take(says(vec![put(11, 0), put(12, 0)], true), at(0)).unwrap();
        assert_eq!(recorder.next(), 12, "the last may go on");
        recorder.take(says(vec![put(12, 0)], true), at(1)).unwrap();
        recorder.take(says(vec![put(12, 0), put(13, 0)], false), at(2)).unwrap();
        let segments = recorder.close();
        let counted: Vec<_> = segments[0].revisions.iter().map(|one| (one.revision, one.changes.len())).collect();
        assert_eq!(counted, [(11, 1), (12, 3), (13, 1)]);
        assert_eq!(segments[0].revisions[1].received(), wall(0));
    }

    #[test]
    fn an_incomplete_revision_is_recorded_again_after_the_watch_breaks() {
        let mut recorder = recorder();
        recorder.take(says(vec![put(11, 0)], true), at(0)).unwrap();
        recorder.reconnected();
        assert_eq!(recorder.next(), 11);
        recorder.take(says(vec![put(11, 0), put(11, 0)], false), at(1)).unwrap();
        assert_eq!(recorder.close()[0].revisions[0].changes.len(), 2);
    }

    #[test]
    fn a_segment_is_due_by_age_or_size_and_never_when_empty() {
        let mut recorder = recorder();
        assert!(!recorder.is_due(monotonic(1000)));
        recorder.take(says(vec![put(11, 0)], false), at(0)).unwrap();
        assert!(!recorder.is_due(monotonic(4)) && recorder.is_due(monotonic(5)));
        assert_eq!(recorder.close().len(), 1);
        assert!(!recorder.is_due(monotonic(1000)) && recorder.close().is_empty());
        let Event::Put(pair) = put(12, 0) else { unreachable!() };
        recorder.take(says(vec![Event::Put(KeyValue { value: vec![0; FULL], ..pair })], false), at(9)).unwrap();
        assert!(recorder.is_due(monotonic(9)));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_nothing_up() {
        let mut recorder = recorder();
        recorder.take(says(vec![put(11, 0)], false), at(1000)).unwrap();
        let set_back = Moment { wall: wall(1000 - 3600), monotonic: monotonic(1003) };
        recorder.take(says(vec![put(12, 0)], false), set_back).unwrap();
        assert!(!recorder.is_due(monotonic(1004)));
        assert!(recorder.is_due(monotonic(1006)));
        let times: Vec<_> = recorder.close()[0].revisions.iter().map(Revision::received).collect();
        assert_eq!(times, [wall(1000), wall(-2600)], "the wall clock's times are data");
    }

    #[test]
    fn each_chain_tells_of_a_lease_once() {
        let mut recorder = recorder();
        let changes = says(vec![put(11, 7), put(12, 7)], false);
        assert_eq!(recorder.unknown_leases(&changes), [7].into());
        recorder.know_lease(7, Some(60));
        recorder.take(changes, at(0)).unwrap();
        recorder.begin(id(1), None);
        recorder.take(says(vec![put(13, 7)], false), at(0)).unwrap();
        let told = |segment: &Segment| -> Vec<usize> { segment.revisions.iter().map(|one| one.leases.len()).collect() };
        let segments = recorder.close();
        assert_eq!((told(&segments[0]), told(&segments[1])), (vec![1, 0, 0], vec![1]));
        assert_eq!(segments[0].revisions[0].leases, [Lease { id: 7, ttl: 60 }]);
    }

    #[test]
    fn the_old_chain_ends_no_earlier_than_the_new_backup_may_reach() {
        let mut recorder = recorder();
        recorder.begin(id(1), None);
        recorder.take(says(vec![put(11, 0)], false), at(0)).unwrap();
        recorder.end(&id(0), 12);
        assert!(!recorder.any_ended());
        recorder.take(says(vec![put(12, 0)], false), at(0)).unwrap();
        assert!(recorder.any_ended());
        assert_eq!(recorder.close().len(), 2, "what it holds is closed before it goes");
        recorder.drop_ended();
        recorder.take(says(vec![put(13, 0)], false), at(0)).unwrap();
        let left: Vec<BackupId> = recorder.close().into_iter().map(|segment| segment.full).collect();
        assert_eq!(left, [id(1)]);
    }
}
