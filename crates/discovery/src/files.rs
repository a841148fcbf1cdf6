//! The embedded store: one file per token, in a directory that only one service uses. A registration is on disk before it is answered.
//! Files are replaced atomically, so a crash leaves the old registry or the new one.
//!
//! Tokens age by the time that services have run, on a monotonic clock. A clock that jumps expires nothing early and keeps nothing
//! forever; while no service runs, nothing ages.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use quorate_agent::{private_directory, write_durably};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::registry::{MemberId, Registration, Registry, Token, Verdict};
use crate::store::{Registered, Seen, Store, StoreError};
use crate::waiters::Waiters;

const PRIVATE: u32 = 0o600;
/// The memory limit of all registries together, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// What a registry and a registration take besides their texts, in memory.
const OVERHEAD: usize = 256;
/// How long an unused token is valid.
const UNUSED: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub tokens: usize,
    pub lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("another discovery service keeps its tokens in {}", path.display())]
    InUse { path: PathBuf },
    #[error("{} is damaged: restore it from a backup, or move the directory away to start without tokens", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

#[derive(Clone)]
pub struct Files(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    limits: Limits,
    /// Held while something is written: changes happen one after another.
    writing: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    waiters: Waiters,
    started: Instant,
    /// Until this store is dropped, no other service uses the directory.
    _lock: File,
}

#[derive(Default)]
struct State {
    tokens: BTreeMap<Token, Entry>,
    /// Of the last change.
    index: u64,
    /// What all entries take in memory.
    bytes: usize,
    /// For how long services had run when this one started.
    age: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    registry: Registry,
    /// For how many seconds services had run when it was created.
    created: u64,
}

/// What is not part of any token: neither may go back when tokens are deleted.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Clock {
    index: u64,
    age: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        OVERHEAD + self.registry.members.iter().map(|member| OVERHEAD + member.value.len()).sum::<usize>()
    }

    fn has_expired(&self, age: Duration, lifetime: Duration) -> bool {
        let lifetime = if self.registry.members.is_empty() { lifetime.min(UNUSED) } else { lifetime };
        age.saturating_sub(Duration::from_secs(self.created)) > lifetime
    }
}

impl Files {
    /// Takes the directory, makes it where there is none, and reads what is there.
    pub fn open(directory: &Path, limits: Limits) -> Result<Self, OpenError> {
        let tokens = directory.join("tokens");
        private_directory(&tokens).map_err(failed("make the directory", &tokens))?;
        let lock = lock(directory)?;
        let state = read_all(directory, &tokens)?;
        Ok(Files(Arc::new(Inner {
            directory: directory.to_owned(),
            limits,
            writing: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            waiters: Waiters::default(),
            started: Instant::now(),
            _lock: lock,
        })))
    }

    /// Completes a change, even if the client that requested it is gone: memory and disk must not differ.
    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = self.0.clone();
        let task = tokio::spawn(async move {
            let held = inner.clone();
            let _writing = held.writing.lock().await;
            tokio::task::spawn_blocking(move || work(&inner)).await
        });
        match task.await {
            Ok(Ok(done)) => done,
            _ => Err(StoreError::Failed(String::from("the store failed; the service's log says why"))),
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn age(&self, state: &State) -> Duration {
        state.age + self.started.elapsed()
    }

    /// The entry of a token that has not expired.
    fn entry(&self, token: &Token) -> Result<(Entry, u64), StoreError> {
        let state = self.state();
        let age = self.age(&state);
        let found = state.tokens.get(token).filter(|entry| !entry.has_expired(age, self.limits.lifetime));
        found.map(|entry| (entry.clone(), state.index)).ok_or(StoreError::NoToken { index: state.index })
    }

    fn path(&self, token: &Token) -> PathBuf {
        self.directory.join("tokens").join(format!("{}.json", token.as_str()))
    }

    /// Writes an entry, and lets others see it when it is durable.
    fn put(&self, token: &Token, entry: Entry, index: u64) -> Result<(), StoreError> {
        let (more, less) = (entry.bytes(), self.state().tokens.get(token).map_or(0, Entry::bytes));
        let bytes = self.state().bytes + more - less;
        if bytes > MAX_BYTES {
            return Err(StoreError::Full { what: format!("registrations take {MAX_BYTES} bytes") });
        }
        write(&self.path(token), &entry)?;
        let mut state = self.state();
        state.tokens.insert(token.clone(), entry);
        (state.index, state.bytes) = (index, bytes);
        Ok(())
    }

    fn create(&self, token: &Token, size: u16) -> Result<(), StoreError> {
        let (count, index, age) = {
            let state = self.state();
            (state.tokens.len(), state.index + 1, self.age(&state).as_secs())
        };
        if count >= self.limits.tokens {
            return Err(StoreError::Full { what: format!("{count} tokens (--max-tokens)") });
        }
        // Without it, a service that is restarted again and again would never grow older.
        self.write_clock()?;
        self.put(token, Entry { registry: Registry::new(size, index), created: age }, index)
    }

    fn register(&self, token: &Token, id: MemberId, value: String) -> Result<Registered, StoreError> {
        let (mut entry, index) = self.entry(token)?;
        match entry.registry.judge(&id, &value) {
            Err(refusal) => Err(StoreError::Refused { refusal, index }),
            Ok(Verdict::Known(registration)) => Ok(Registered { registration: registration.clone(), index }),
            Ok(Verdict::New) => {
                let registration = Registration { id, value, index: index + 1 };
                entry.registry.members.push(registration.clone());
                self.put(token, entry, registration.index)?;
                self.waiters.wake(token);
                Ok(Registered { index: registration.index, registration })
            }
        }
    }

    fn write_clock(&self) -> Result<(), StoreError> {
        let clock = {
            let state = self.state();
            Clock { index: state.index, age: self.age(&state).as_secs() }
        };
        write(&self.directory.join("clock.json"), &clock)
    }

    fn tend(&self) -> Result<(), StoreError> {
        self.waiters.tidy();
        // First: the index of a token that is deleted must not be given away again.
        self.write_clock()?;
        let expired: Vec<Token> = {
            let state = self.state();
            let age = self.age(&state);
            let expired = state.tokens.iter().filter(|(_, entry)| entry.has_expired(age, self.limits.lifetime));
            expired.map(|(token, _)| token.clone()).collect()
        };
        for token in expired {
            let path = self.path(&token);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::Failed(format!(
                        "the file of token {}… cannot be removed: {error}",
                        token.short()
                    )));
                }
                _ => {}
            }
            let mut state = self.state();
            if let Some(entry) = state.tokens.remove(&token) {
                state.bytes -= entry.bytes();
            }
            drop(state);
            self.waiters.wake(&token);
            tracing::info!(token = token.short(), "a token has expired");
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Files {
    async fn create(&self, token: &Token, size: u16) -> Result<(), StoreError> {
        let token = token.clone();
        self.change(move |inner| inner.create(&token, size)).await
    }

    async fn read(&self, token: &Token) -> Result<Seen, StoreError> {
        self.0.entry(token).map(|(Entry { registry, .. }, index)| Seen { registry, index })
    }

    async fn register(&self, token: &Token, id: &MemberId, value: &str) -> Result<Registered, StoreError> {
        let (token, id, value) = (token.clone(), id.clone(), value.to_owned());
        self.change(move |inner| inner.register(&token, id, value)).await
    }

    fn changes(&self, token: &Token) -> watch::Receiver<()> {
        self.0.waiters.subscribe(token)
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.change(Inner::write_clock).await
    }

    async fn tend(&self) -> Result<(), StoreError> {
        self.change(Inner::tend).await
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { doing, path: path.to_owned(), source }
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let content = serde_json::to_vec(value).expect("plain data serializes");
    write_durably(path, &content, PRIVATE).map_err(|error| {
        // The path has the token in it, which belongs neither into a log nor to other clients.
        let why = root_cause(&error);
        tracing::error!(why, "a registry could not be written");
        StoreError::Failed(format!("the registry cannot be written: {why}"))
    })
}

fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join("lock");
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE).open(&path);
    let file = opened.map_err(failed("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse { path: directory.to_owned() }),
        Err(error) => Err(failed("lock", &path)(error.into())),
    }
}

fn read_all(directory: &Path, tokens: &Path) -> Result<State, OpenError> {
    let clock: Clock = read(&directory.join("clock.json"))?.unwrap_or_default();
    let mut state = State { index: clock.index, age: Duration::from_secs(clock.age), ..State::default() };
    for file in fs::read_dir(tokens).map_err(failed("read", tokens))? {
        let file = file.map_err(failed("read", tokens))?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Anything else was left by a crash, and is replaced when its token is written again.
        let Some(token) = name.strip_suffix(".json").and_then(Token::parse) else { continue };
        let Some(entry) = read::<Entry>(&file)? else { continue };
        let last = entry.registry.members.iter().map(|member| member.index).max().unwrap_or_default();
        state.index = state.index.max(entry.registry.index).max(last);
        state.bytes += entry.bytes();
        state.tokens.insert(token, entry);
    }
    Ok(state)
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>, OpenError> {
    let content = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => content.map_err(failed("read", path))?,
    };
    let damaged = |source| OpenError::Damaged { path: path.to_owned(), source };
    serde_json::from_slice(&content).map(Some).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { tokens: 4, lifetime: Duration::from_secs(7 * 24 * 3600) };
    const DAY: u64 = 24 * 3600;

    fn id(number: u64) -> MemberId {
        MemberId::parse(&format!("{number:x}")).unwrap()
    }

    async fn register(store: &Files, token: &Token, number: u64) -> Registered {
        store.register(token, &id(number), &value(number)).await.unwrap()
    }

    fn value(number: u64) -> String {
        format!("m{number}=http://h:{}", number + 1)
    }

    /// As if services had run for this long.
    fn grow_older(store: &Files, seconds: u64) {
        store.0.state().age += Duration::from_secs(seconds);
    }

    #[tokio::test]
    async fn answered_registrations_survive_a_restart_and_indexes_continue() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::random();
        let store = Files::open(dir.path(), LIMITS).unwrap();
        store.create(&token, 3).await.unwrap();
        let first = register(&store, &token, 1).await;
        assert_eq!(register(&store, &token, 1).await, first, "asked again");
        let second = register(&store, &token, 2).await;
        assert!(second.index > first.index);
        let before = store.read(&token).await.unwrap();
        assert!(matches!(Files::open(dir.path(), LIMITS), Err(OpenError::InUse { .. })));
        drop(store);
        // What a crash in the middle of a write leaves.
        fs::write(dir.path().join("tokens").join(format!(".{}.json.new", token.as_str())), "{\"si").unwrap();

        let store = Files::open(dir.path(), LIMITS).unwrap();
        assert_eq!(store.read(&token).await.unwrap(), before);
        assert!(register(&store, &token, 3).await.index > second.index);
    }

    #[tokio::test]
    async fn tokens_expire_by_time_that_was_served_and_their_indexes_are_not_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let (used, unused) = (Token::random(), Token::random());
        let store = Files::open(dir.path(), LIMITS).unwrap();
        store.create(&used, 3).await.unwrap();
        let last = register(&store, &used, 1).await.index;
        store.create(&unused, 3).await.unwrap();
        let mut waits = store.changes(&used);
        grow_older(&store, DAY + 60);
        store.tend().await.unwrap();
        assert!(store.read(&unused).await.is_err(), "nobody used it for a day");
        assert!(store.read(&used).await.is_ok());
        drop(store);

        let store = Files::open(dir.path(), LIMITS).unwrap();
        let age = store.0.state().age;
        assert!(age >= Duration::from_secs(DAY + 60), "{age:?}");
        assert!(store.read(&used).await.is_ok());
        grow_older(&store, 6 * DAY);
        // Expired at once, whenever it is deleted.
        assert!(matches!(store.read(&used).await, Err(StoreError::NoToken { .. })));
        let refused = store.register(&used, &id(2), &value(2)).await;
        assert!(matches!(refused, Err(StoreError::NoToken { .. })), "{refused:?}");
        store.tend().await.unwrap();
        assert_eq!(fs::read_dir(dir.path().join("tokens")).unwrap().count(), 0);
        drop(store);
        assert!(waits.changed().await.is_err(), "the first service has ended");

        let store = Files::open(dir.path(), LIMITS).unwrap();
        store.create(&used, 3).await.unwrap();
        assert!(store.read(&used).await.unwrap().registry.index > last);
    }

    #[tokio::test]
    async fn waiting_clients_are_notified_of_registrations_and_of_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::random();
        let store = Files::open(dir.path(), LIMITS).unwrap();
        store.create(&token, 3).await.unwrap();
        let mut waits = store.changes(&token);
        register(&store, &token, 1).await;
        waits.changed().await.unwrap();
        grow_older(&store, 8 * DAY);
        store.tend().await.unwrap();
        waits.changed().await.unwrap();
    }

    #[tokio::test]
    async fn tokens_are_bounded_and_places_become_free() {
        let dir = tempfile::tempdir().unwrap();
        let store = Files::open(dir.path(), LIMITS).unwrap();
        for _ in 0..4 {
            store.create(&Token::random(), 3).await.unwrap();
        }
        let refused = store.create(&Token::random(), 3).await;
        assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
        grow_older(&store, 2 * DAY);
        store.tend().await.unwrap();
        assert_eq!(store.0.state().bytes, 0);
        store.create(&Token::random(), 3).await.unwrap();
    }

    #[tokio::test]
    async fn a_write_that_fails_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::random();
        let store = Files::open(dir.path(), LIMITS).unwrap();
        store.create(&token, 3).await.unwrap();
        let before = store.read(&token).await.unwrap();
        // Root may write everywhere, but nobody can write a file in one that is no directory.
        let (tokens, aside) = (dir.path().join("tokens"), dir.path().join("aside"));
        fs::rename(&tokens, &aside).unwrap();
        fs::write(&tokens, "").unwrap();
        let refused = store.register(&token, &id(1), &value(1)).await;
        assert!(matches!(refused, Err(StoreError::Failed(_))), "{refused:?}");
        assert_eq!(store.read(&token).await.unwrap(), before);
        fs::remove_file(&tokens).unwrap();
        fs::rename(&aside, &tokens).unwrap();
        register(&store, &token, 1).await;
    }

    #[tokio::test]
    async fn simultaneous_registrations_get_different_indexes() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::random();
        let store = Files::open(dir.path(), LIMITS).unwrap();
        store.create(&token, 3).await.unwrap();
        let tasks = (0..8).map(|number| {
            let (store, token) = (store.clone(), token.clone());
            tokio::spawn(async move { register(&store, &token, number).await.index })
        });
        let mut indexes = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            indexes.push(task.await.unwrap());
        }
        indexes.sort_unstable();
        indexes.dedup();
        assert_eq!(indexes.len(), 8);
        assert_eq!(store.read(&token).await.unwrap().registry.members.len(), 8);
    }

    #[test]
    fn a_damaged_file_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        drop(Files::open(dir.path(), LIMITS).unwrap());
        let file = dir.path().join("tokens").join(format!("{}.json", Token::random().as_str()));
        fs::write(&file, "{\"size\":").unwrap();
        let refused = Files::open(dir.path(), LIMITS).err().unwrap();
        assert!(refused.to_string().contains(file.to_str().unwrap()), "{refused}");
        assert!(file.exists());
    }
}
