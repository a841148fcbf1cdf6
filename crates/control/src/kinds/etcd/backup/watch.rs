//! `backup watch`: records changes as they happen, and takes full backups when they are due. It continues after lost connections,
//! replaced members, unavailable stores and compactions. It exits on a signal, when everything received is stored, or when it cannot
//! continue.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use quorate_backup::catalog::{Catalog, Chain, Full, chain};
use quorate_backup::manifest::{Manifest, Outcome};
use quorate_backup::recorder::{Command, Ended, Moment, Recorder, Recording};
use quorate_backup::segment::SegmentManifest;
use quorate_backup::{BackupId, prune, store};
use quorate_core::model::Ledger;
use quorate_core::spec::ClusterSpec;
use rustix::fs::FlockOperation;
use tokio::sync::{mpsc, watch};

use super::create::{Backups, Taken, end};
use super::source::{AgentSource, Members};
use crate::backup::{BackupError, Doing, Teller, Vault, note, signing};
use crate::home::Home;
use quorate_core::text::with_causes;

/// How often to check whether something is due.
const TICK: Duration = Duration::from_secs(2);
/// How often to check whether another process has taken a later full backup.
const OVERTAKEN: Duration = Duration::from_secs(10);
/// How often recorded changes are copied to the second destination and noted in the ledger.
const PASSED_ON: Duration = Duration::from_secs(60);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The options of a watch.
pub struct Watching<'a> {
    pub home: &'a Home,
    pub cluster: &'a str,
    /// Also remove, after each full backup, what the spec no longer keeps.
    pub prune: bool,
    pub teller: &'a dyn Teller,
}

type Stop = watch::Receiver<bool>;

/// Watches until `stop` becomes true.
pub async fn watch(watching: &Watching<'_>, stop: Stop) -> Result<(), BackupError> {
    let _alone = watching.alone()?;
    let mut first = true;
    loop {
        let ledger = signing::with_key(watching.home, watching.ledger()?).await?;
        let vault = Vault::open(&ledger.spec)?;
        let backups = Backups { home: watching.home, ledger: &ledger, vault: &vault, teller: watching.teller };
        let watch = Watch { watching, backups, stop: stop.clone(), reported: Mutex::default() };
        if std::mem::take(&mut first) {
            tokio::select! {
                checked = vault.first.check(&vault.cluster) => checked?,
                () = watch.stopped() => return Ok(()),
            }
        }
        match watch.run().await? {
            End::Stopped => return Ok(()),
            End::Overtaken => {}
            End::Changed => watching.teller.say("the backup settings have changed: continuing with the new ones"),
        }
    }
}

impl Watching<'_> {
    /// Held while the file is open. A second recorder would create a chain that cannot be followed.
    fn alone(&self) -> Result<File, BackupError> {
        let path = self.home.cluster(self.cluster).join("watch.lock");
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = opened.map_err(BackupError::file("opened", &path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(BackupError::Watched { cluster: self.cluster.to_owned() }),
            Err(error) => Err(BackupError::file("locked", &path)(error.into())),
        }
    }

    fn ledger(&self) -> Result<Ledger, BackupError> {
        let gone = || BackupError::Gone { cluster: self.cluster.to_owned() };
        self.home.store(self.cluster).read()?.ok_or_else(gone)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Stopped,
    /// The spec has changed.
    Changed,
    /// Another process took a later full backup: changes belong on top of that one from now on.
    Overtaken,
}

/// Why one recording ended.
enum Over {
    End(End),
    /// The next revisions are gone: only a full backup can continue.
    FullNeeded,
}

/// What changes are recorded on top of.
type Base = (Full, Chain);

struct Watch<'a> {
    watching: &'a Watching<'a>,
    backups: Backups<'a>,
    stop: Stop,
    /// The last report about other writers to the store.
    reported: Mutex<BTreeSet<String>>,
}

impl Watch<'_> {
    async fn run(&self) -> Result<End, BackupError> {
        let mut trouble = Trouble::default();
        let mut full_needed = false;
        loop {
            let begun = tokio::select! {
                begun = self.begin(full_needed) => begun,
                () = self.stopped() => return Ok(End::Stopped),
            };
            match begun {
                Ok((base, taken)) => {
                    trouble.is_over();
                    match self.record(&base, taken).await {
                        Ok(Over::End(End::Overtaken)) => full_needed = false,
                        Ok(Over::End(end)) => return Ok(end),
                        Ok(Over::FullNeeded) => full_needed = true,
                        // Changes that could not be stored are received again, unless the receiver has ended.
                        Err(error) if error.is_passing() && !*self.stop.borrow() => {
                            self.tell(&mut trouble, &error);
                            full_needed = false;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(error) if error.is_passing() => {
                    self.tell(&mut trouble, &error);
                    tokio::select! {
                        () = trouble.pause() => {}
                        () = self.stopped() => return Ok(End::Stopped),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn stopped(&self) {
        let mut stop = self.stop.clone();
        // If the sender is gone, the caller has ended.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    fn say(&self, text: &str) {
        self.watching.teller.say(text);
    }

    fn tell(&self, trouble: &mut Trouble, error: &(dyn std::error::Error + 'static)) {
        if let Some(text) = trouble.news(with_causes(error)) {
            self.say(&text);
        }
    }

    /// The full backup on top of which changes are recorded; taken first if there is none. It is verified while changes are already
    /// recorded, because late recording gives late times.
    async fn begin(&self, full_needed: bool) -> Result<(Base, Option<Taken>), BackupError> {
        let store = &self.backups.vault.first;
        if !full_needed && let Some((full, chain)) = self.base().await? {
            let next = chain.segments.last().map_or(full.manifest.revision, |last| last.span.to) + 1;
            self.say(&format!("recording continues at revision {next}, on top of {}", full.id()));
            return Ok(((full, chain), None));
        }
        let mut members = Members::new(self.watching.home, self.backups.ledger);
        let taken = self.backups.take(&mut members, None).await?;
        let id = taken.manifest.id.clone();
        let catalog = self.backups.catalog(store).await?;
        let full = catalog.find(&id).cloned().ok_or_else(|| {
            quorate_backup::Error::NothingToRestore(format!("backup {id} is not in {} any more", store.place()))
        })?;
        Ok(((full, Chain { segments: Vec::new(), damage: None }), Some(taken)))
    }

    async fn base(&self) -> Result<Option<Base>, BackupError> {
        let store = &self.backups.vault.first;
        let catalog = self.backups.catalog(store).await?;
        self.report_forged(&catalog);
        let Some(full) = newest(&catalog) else { return Ok(None) };
        if let Some(why) = why_not_on(full, &self.backups.vault.settings.recipients) {
            self.say(&format!("nothing more is recorded on top of {}, as {why}: a full backup is taken", full.id()));
            return Ok(None);
        }
        let chain = chain(store, full).await?;
        if let Some(damage) = &chain.damage {
            self.say(&format!("warning: nothing more can be recorded on top of {}: {damage}", full.id()));
            return Ok(None);
        }
        Ok(Some((full.clone(), chain)))
    }

    /// Once each: they stay in the store.
    fn report_forged(&self, catalog: &Catalog) {
        for forged in catalog.damage.iter().filter(|damage| damage.is_forgery()).map(ToString::to_string) {
            if self.reported.lock().unwrap_or_else(PoisonError::into_inner).insert(forged.clone()) {
                self.say(&format!("WARNING: another writer writes to {}: {forged}", self.backups.vault.first.place()));
            }
        }
    }

    /// Verifies, copies and records a full backup, and reports it. If any of that fails, recording on top continues.
    async fn finish(&self, taken: Taken) {
        let Manifest { id, stored_bytes, from_member, revision, .. } = taken.manifest.clone();
        self.say(&format!("full backup {id} is taken from {from_member}: revision {revision}, {stored_bytes} bytes"));
        let created = match self.backups.finish(taken, true).await {
            Ok(created) => created,
            Err(error) => return self.say(&format!("warning: {}", with_causes(&error))),
        };
        match created.verification.map(|verification| verification.outcome) {
            Some(Outcome::Ok(_)) => self.say(&format!("backup {id} is verified")),
            Some(Outcome::Failed { why, .. }) => self.say(&format!("warning: backup {id} cannot be restored: {why}")),
            None => {}
        }
        if let Some(error) = created.not_proven {
            self.say(&format!("warning: backup {id} could not be verified: {}", with_causes(&error)));
        }
        if let Some(error) = created.not_copied {
            self.say(&format!("warning: the second destination does not have it yet: {}", with_causes(&error)));
        }
        if self.watching.prune
            && let Err(error) = self.prune().await
        {
            self.say(&format!("warning: not pruned: {}", with_causes(&error)));
        }
    }

    async fn prune(&self) -> Result<(), BackupError> {
        let vault = self.backups.vault;
        for store in vault.stores() {
            let plan = prune::plan(&self.backups.catalog(store).await?, &vault.keep, Timestamp::now());
            prune::carry_out(store, &vault.cluster, &plan).await?;
            for id in &plan.remove {
                self.say(&format!("backup {id} is removed from {}", store.place()));
            }
        }
        Ok(())
    }

    /// Records on top of a full backup until something ends it; a new backup is completed meanwhile.
    async fn record(&self, (full, chain): &Base, taken: Option<Taken>) -> Result<Over, BackupError> {
        let vault = self.backups.vault;
        let recorder = Recorder::resume(full, chain);
        let signing = signing::key_of(self.backups.ledger)?;
        let mut recording = Recording::new(vault.first.clone(), vault.settings.compression, recorder, signing);
        let (commands, mut orders) = mpsc::channel(8);
        let stored = LastStored::default();
        let told = |segment: &SegmentManifest| {
            stored.set(segment);
            if stored.was_away.swap(false, Ordering::Relaxed) {
                self.say(&format!("changes are stored again, up to revision {}", segment.span.to));
            }
        };
        let director = Director {
            watch: self,
            commands: commands.clone(),
            on_top_of: RefCell::new(full.id().clone()),
            stored: &stored,
        };
        let mut directing = std::pin::pin!(director.run(taken));
        let mut members = Members::new(self.watching.home, self.backups.ledger);
        let mut trouble = Trouble::default();
        let (mut avoided, mut stopped) = (None, None);
        loop {
            let reached = tokio::select! {
                source = choose(&mut members, avoided.take()) => source,
                end = &mut directing => return self.ended(end?, &mut recording, &stored).await,
            };
            let ended = match reached {
                Err(error) if !error.is_passing() => return Err(error),
                Err(error) => Err(error),
                Ok(source) => {
                    if trouble.is_there() && !stored.was_away.load(Ordering::Relaxed) {
                        let next = recording.received() + 1;
                        self.say(&format!("recording continues at revision {next}, from {}", source.member()));
                    }
                    let began = Instant::now();
                    let mut run = std::pin::pin!(recording.run(&source, &mut orders, &told));
                    avoided = Some(source.member().to_owned());
                    tokio::select! {
                        ended = &mut run => {
                            if began.elapsed() > LONGEST_PAUSE {
                                trouble.is_over();
                            }
                            Ok(ended)
                        }
                        end = &mut directing => {
                            let _ = commands.send(Command::Stop).await;
                            run.await;
                            stopped = Some(end?);
                            Ok(Ended::Stopped)
                        }
                    }
                }
            };
            if let Some(end) = stopped {
                return self.ended(end, &mut recording, &stored).await;
            }
            match ended {
                Ok(Ended::Stopped) => {}
                Ok(Ended::Compacted) => {
                    self.say(
                        "the next revisions were compacted: a full backup is taken, and recording continues from there",
                    );
                    return Ok(Over::FullNeeded);
                }
                Ok(Ended::Lost(hole)) => {
                    self.say(&format!("{hole}: a full backup is taken, and recording continues from there"));
                    return Ok(Over::FullNeeded);
                }
                Ok(Ended::Broken(error)) => self.tell(&mut trouble, &error),
                Ok(Ended::Store(quorate_backup::Error::Store(error)))
                    if error.trouble == store::Trouble::AlreadyExists =>
                {
                    // Two recorders would create a chain that cannot be followed.
                    return Err(BackupError::RecordedTwice { source: error });
                }
                Ok(Ended::Store(error)) => {
                    stored.was_away.store(true, Ordering::Relaxed);
                    self.tell(&mut trouble, &error);
                }
                Err(error) => self.tell(&mut trouble, &error),
            }
            tokio::select! {
                () = trouble.pause() => {}
                end = &mut directing => return self.ended(end?, &mut recording, &stored).await,
            }
        }
    }

    /// Stores what was received, as far as the store accepts it.
    async fn ended(&self, end: End, recording: &mut Recording, stored: &LastStored) -> Result<Over, BackupError> {
        recording.flush(&|segment| stored.set(segment)).await?;
        let received = recording.received();
        self.say(&format!("all changes up to revision {received} are stored"));
        if let Err(error) = self.pass_on(stored.get().as_ref()).await {
            self.say(&format!("warning: {}", with_causes(&error)));
        }
        Ok(Over::End(end))
    }

    /// To the second destination and into the ledger.
    async fn pass_on(&self, last: Option<&SegmentManifest>) -> Result<(), BackupError> {
        let copied = self.backups.copy().await;
        self.backups.note(last).await?;
        self.watching.teller.doing(Doing::Nothing);
        copied
    }
}

/// The best member to read; a different one than the one that has just failed, if possible.
async fn choose(members: &mut Members<'_>, avoided: Option<String>) -> Result<AgentSource, BackupError> {
    let mut sources = members.readable().await?;
    let other = sources.iter().position(|source| Some(source.member()) != avoided.as_deref());
    Ok(sources.swap_remove(other.unwrap_or(0)))
}

fn newest(catalog: &Catalog) -> Option<&Full> {
    catalog.fulls.last().filter(|full| full.damage.is_empty())
}

/// Why changes may not be recorded on top of a backup. The backup decides who can read them, so it must be this cluster's and match the
/// current spec: another one could be from before there were recipients, or for a removed one.
fn why_not_on(full: &Full, recipients: &[String]) -> Option<&'static str> {
    let named: BTreeSet<&String> = recipients.iter().collect();
    let sealed_for: BTreeSet<&String> = full.manifest.sealed_for.iter().collect();
    match full.manifest.recipient.is_some() {
        _ if full.signed_by.is_none() => Some("it is not signed"),
        encrypted if encrypted == named.is_empty() => Some("it is not encrypted as the spec wants it"),
        _ if named != sealed_for => Some("it is encrypted to other recipients than the spec names now"),
        _ => None,
    }
}

/// When the next full backup is taken: by the wall clock, like `status`, and when this process has waited that long, however the clock was
/// changed meanwhile.
struct Due {
    by_wall: Timestamp,
    by_waiting: Instant,
    /// After one that failed.
    not_before: Instant,
}

impl Due {
    fn of(on_top_of: &BackupId, schedule: SignedDuration) -> Self {
        Self::after(on_top_of.begun(), schedule, Moment::now())
    }

    fn after(begun: Timestamp, schedule: SignedDuration, now: Moment) -> Self {
        // A backup from the future, by this clock, was begun no later than now.
        let by_wall = begun.min(now.wall).saturating_add(schedule).unwrap_or(Timestamp::MAX);
        let left = Duration::try_from(by_wall.duration_since(now.wall)).unwrap_or_default();
        Due { by_wall, by_waiting: now.monotonic + left, not_before: now.monotonic }
    }

    fn has_come(&self, now: Moment) -> bool {
        (now.wall >= self.by_wall || now.monotonic >= self.by_waiting) && now.monotonic >= self.not_before
    }
}

/// What happens during the recording.
struct Director<'a> {
    watch: &'a Watch<'a>,
    commands: mpsc::Sender<Command>,
    /// The full backup on top of which is recorded.
    on_top_of: RefCell<BackupId>,
    stored: &'a LastStored,
}

/// The segment that was stored last.
#[derive(Default)]
struct LastStored {
    segment: Mutex<Option<SegmentManifest>>,
    /// Storing has failed since.
    was_away: AtomicBool,
}

impl LastStored {
    fn set(&self, segment: &SegmentManifest) {
        *self.segment.lock().unwrap_or_else(PoisonError::into_inner) = Some(segment.clone());
    }

    fn get(&self) -> Option<SegmentManifest> {
        self.segment.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Director<'_> {
    async fn run(&self, taken: Option<Taken>) -> Result<End, BackupError> {
        let backups = &self.watch.backups;
        if let Some(taken) = taken {
            tokio::select! {
                () = self.watch.finish(taken) => {}
                () = self.watch.stopped() => return Ok(End::Stopped),
            }
        }
        let mut trouble = Trouble::default();
        let mut due = Due::of(&self.on_top_of.borrow(), backups.vault.schedule);
        let (mut passed_on, mut told_of) = (Instant::now(), None);
        let (mut looked, mut useless) = (Instant::now(), BTreeSet::new());
        loop {
            tokio::select! {
                () = self.watch.stopped() => return Ok(End::Stopped),
                () = tokio::time::sleep(TICK) => {}
            }
            if settings_of(&self.watch.watching.ledger()?.spec) != settings_of(&backups.ledger.spec) {
                return Ok(End::Changed);
            }
            if looked.elapsed() >= OVERTAKEN {
                looked = Instant::now();
                match self.overtaken(&mut useless).await {
                    Ok(true) => return Ok(End::Overtaken),
                    Ok(false) => {}
                    Err(error) => self.watch.tell(&mut trouble, &error),
                }
            }
            if due.has_come(Moment::now()) {
                tokio::select! {
                    done = self.take_full() => match done {
                        Ok(()) => {
                            trouble.is_over();
                            due = Due::of(&self.on_top_of.borrow(), backups.vault.schedule);
                        }
                        Err(error) => {
                            self.watch.tell(&mut trouble, &error);
                            due.not_before = Instant::now() + LONGEST_PAUSE;
                        }
                    },
                    () = self.watch.stopped() => return Ok(End::Stopped),
                }
            }
            if passed_on.elapsed() >= PASSED_ON {
                passed_on = Instant::now();
                let last = self.stored.get();
                let new = last.as_ref().is_some_and(|last| told_of != Some(last.span));
                if new && let Err(error) = self.watch.pass_on(last.as_ref()).await {
                    self.watch.tell(&mut trouble, &error);
                }
                told_of = last.map(|last| last.span);
            }
        }
    }

    /// Whether another process took a later full backup that can be recorded on. Others are remembered in `useless`, and not checked
    /// again.
    async fn overtaken(&self, useless: &mut BTreeSet<BackupId>) -> Result<bool, BackupError> {
        let backups = &self.watch.backups;
        let store = &backups.vault.first;
        let on_top_of = self.on_top_of.borrow().clone();
        let later = Catalog::ids_after(store, &backups.vault.cluster, &on_top_of).await?;
        if later.is_subset(useless) {
            return Ok(false);
        }
        let catalog = backups.catalog(store).await?;
        useless.extend(later);
        self.watch.report_forged(&catalog);
        let recipients = &backups.vault.settings.recipients;
        let newer = newest(&catalog).filter(|full| *full.id() > on_top_of);
        let Some(full) = newer.filter(|full| why_not_on(full, recipients).is_none()) else { return Ok(false) };
        self.watch.say(&format!("another run took backup {}: changes are now recorded on top of it", full.id()));
        Ok(true)
    }

    async fn take_full(&self) -> Result<(), BackupError> {
        let backups = &self.watch.backups;
        let mut members = Members::new(self.watch.watching.home, backups.ledger);
        let taken = backups.take(&mut members, Some(&self.commands)).await?;
        let before = self.on_top_of.replace(taken.manifest.id.clone());
        end(Some(&self.commands), &before, taken.manifest.revision_at_most).await;
        self.watch.finish(taken).await;
        Ok(())
    }
}

fn settings_of(spec: &ClusterSpec) -> impl PartialEq + use<'_> {
    (&spec.backup, &spec.etcd.binary)
}

/// A temporary problem: reported when it changes, with growing pauses.
#[derive(Default)]
struct Trouble {
    told: Option<String>,
    since: Option<Instant>,
    pauses: u32,
}

impl Trouble {
    /// What is worth telling.
    fn news(&mut self, text: String) -> Option<String> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let repeated = self.told.as_ref() == Some(&text);
        self.told = Some(text.clone());
        match repeated {
            // Now and then, so that a log does not look as if everything were fine.
            true if self.pauses % 10 == 9 => {
                let lasts = note::in_words(SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX));
                Some(format!("warning: for {lasts} now: {text}"))
            }
            true => None,
            false => Some(format!("warning: {text}; trying again")),
        }
    }

    fn is_there(&self) -> bool {
        self.since.is_some()
    }

    fn is_over(&mut self) {
        *self = Trouble::default();
    }

    async fn pause(&mut self) {
        let pause = SHORTEST_PAUSE * 2_u32.pow(self.pauses.min(7));
        self.pauses += 1;
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests;
