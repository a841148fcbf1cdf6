//! Holds clients while the primary changes: new ones in HAProxy's queue, and those of PgBouncer.
//!
//! Held clients are always released, whatever happens to the controller: on its order, or when the time is up. HAProxy may obey without
//! answering, or not read the command at all. So the time starts before the first command to HAProxy, and the release is repeated until
//! HAProxy confirms it. Otherwise a server whose health checks are paused would keep its clients after it is no longer the primary.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::sleep;

use super::haproxy::{Place, Untold};
use super::pgbouncer;
use crate::api::Refusal;
use crate::layout::Layout;

/// How often HAProxy is asked to let clients through. One that has not answered by then is broken, and has to be started again.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(500);

/// The servers whose clients are held, each with the turn in which that was last requested or ended. An earlier turn no longer matters.
#[derive(Default)]
pub(super) struct Held {
    turns: u64,
    servers: BTreeMap<String, u64>,
    /// Held during a command to HAProxy, so no command of an earlier turn is sent.
    telling: Arc<tokio::sync::Mutex<()>>,
}

impl Held {
    fn begin(&mut self, server: &str) -> u64 {
        self.turns += 1;
        self.servers.insert(server.to_owned(), self.turns);
        self.turns
    }

    fn is_turn(&self, server: &str, turn: u64) -> bool {
        self.servers.get(server) == Some(&turn)
    }

    fn end(&mut self, server: &str, turn: u64) {
        if self.is_turn(server, turn) {
            self.servers.remove(server);
        }
    }

    pub(super) fn anybody(&self) -> bool {
        !self.servers.is_empty()
    }
}

/// The queue of this machine's HAProxy.
pub(super) struct Queue {
    pub(super) place: Place,
    pub(super) layout: Layout,
    pub(super) held: Arc<Mutex<Held>>,
    /// How many clients a server has at most, as the configuration in place says. None: there is no HAProxy.
    pub(super) most: Box<dyn Fn() -> Option<u32> + Send + Sync>,
}

impl Queue {
    /// Holds new clients of this server. When the time is up, they are released.
    pub(super) async fn hold(self: Arc<Self>, server: &str, time: Duration) -> Result<(), Refusal> {
        let telling = self.telling().await;
        let turn = self.held().begin(server);
        let (queue, held) = (self.clone(), server.to_owned());
        tokio::spawn(async move {
            sleep(time).await;
            if queue.held().is_turn(&held, turn) {
                tracing::warn!(server = held, "clients were held back until the time was up");
                let _ = queue.release(&held, None).await;
            }
        });
        // Its health is not asked for meanwhile: a server that is down has no queue.
        let commands = [format!("set maxconn server primary/{server} 1"), format!("disable health primary/{server}")];
        let told = self.place.tell(&commands).await;
        drop(telling);
        if let Err(untold) = told {
            // It may have obeyed all the same. A hold before this one may have paused PgBouncer, and its time ended with this turn.
            pgbouncer::resume(&self.layout);
            let turn = self.held().begin(server);
            self.keep_letting_through(server, turn);
            return Err(untold.into_refusal());
        }
        // Nobody would end a pause that begins when the time is up.
        if self.held().is_turn(server, turn) {
            pgbouncer::pause(&self.layout);
        }
        Ok(())
    }

    /// Releases clients, and sends them to another server at once, if one is named.
    pub(super) async fn release(self: Arc<Self>, server: &str, to: Option<&str>) -> Result<(), Refusal> {
        let telling = self.telling().await;
        let turn = self.held().begin(server);
        let mut commands = Vec::new();
        if let Some(to) = to {
            // Patroni has confirmed it; the next check asks again.
            commands.push(format!("set server primary/{to} health up"));
            commands.push(format!("set server primary/{server} health down"));
        }
        let released = self.tell_to_release(commands, server).await;
        drop(telling);
        pgbouncer::resume(&self.layout);
        match released {
            Ok(()) => self.held().end(server, turn),
            Err(_) => self.keep_letting_through(server, turn),
        }
        released.map_err(Untold::into_refusal)
    }

    async fn tell_to_release(&self, mut commands: Vec<String>, server: &str) -> Result<(), Untold> {
        let Some(most) = (self.most)() else { return Ok(()) };
        commands.push(format!("enable health primary/{server}"));
        commands.push(format!("set maxconn server primary/{server} {most}"));
        match self.place.tell(&commands).await {
            // Its next process begins with what the configuration says.
            Ok(()) | Err(Untold::NotRunning) => Ok(()),
            Err(untold) => Err(untold),
        }
    }

    /// In the background, until HAProxy confirms it, or clients of this server are held back once more. Where they are sent is no longer said: by
    /// now health checks know better.
    fn keep_letting_through(self: &Arc<Self>, server: &str, turn: u64) {
        let (queue, server) = (self.clone(), server.to_owned());
        tokio::spawn(async move {
            for _ in 0..ATTEMPTS {
                sleep(PAUSE).await;
                let _telling = queue.telling().await;
                if !queue.held().is_turn(&server, turn) {
                    return;
                }
                match queue.tell_to_release(Vec::new(), &server).await {
                    // A server that it does not have any more has no queue.
                    Ok(()) | Err(Untold::NoSuchServer) => return queue.held().end(&server, turn),
                    Err(untold) => tracing::warn!(server, %untold, "clients are not let through yet"),
                }
            }
            tracing::error!(server, "HAProxy did not confirm that clients are let through");
            queue.held().end(&server, turn);
        });
    }

    async fn telling(&self) -> OwnedMutexGuard<()> {
        let telling = self.held().telling.clone();
        telling.lock_owned().await
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;
    use tokio::time::timeout;

    use super::*;

    /// Longer than anything here needs.
    const SOON: Duration = Duration::from_secs(20);

    /// The answer of one that is too busy to answer.
    const SILENCE: &str = "...";

    /// An HAProxy that gives these answers, and from then on obeys. Without an answer it ends the connection.
    struct Fake {
        queue: Arc<Queue>,
        asked: Arc<Mutex<Vec<String>>>,
        _dir: tempfile::TempDir,
    }

    impl Fake {
        fn start(answers: &'static [&'static str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let layout = Layout::new(dir.path()).unwrap();
            let place = Place::new(&layout);
            std::fs::create_dir_all(place.socket().parent().unwrap()).unwrap();
            let listener = UnixListener::bind(place.socket()).unwrap();
            let asked = Arc::new(Mutex::new(Vec::new()));
            let heard = asked.clone();
            tokio::spawn(async move {
                let (mut answers, mut open) = (answers.iter(), Vec::new());
                while let Ok((stream, _)) = listener.accept().await {
                    let (read, mut write) = stream.into_split();
                    let mut line = String::new();
                    BufReader::new(read).read_line(&mut line).await.unwrap();
                    let obeyed = "\n".repeat(line.split(';').count());
                    let answer = answers.next().map_or(obeyed, |answer| (*answer).to_owned());
                    heard.lock().unwrap().push(line.trim().to_owned());
                    if answer == SILENCE {
                        open.push(write);
                    } else {
                        let _ = write.write_all(answer.as_bytes()).await;
                    }
                }
            });
            let held = Arc::default();
            let queue = Arc::new(Queue { place, layout, held, most: Box::new(|| Some(100)) });
            Fake { queue, asked, _dir: dir }
        }

        fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap().clone()
        }

        async fn until_nobody_is_held(&self) {
            let began = Instant::now();
            while self.queue.held().anybody() {
                assert!(began.elapsed() < SOON, "clients still wait: {:?}", self.asked());
                sleep(Duration::from_millis(10)).await;
            }
        }
    }

    const HELD: &str = "set maxconn server primary/pg-1 1;disable health primary/pg-1";
    const RELEASED: &str = "enable health primary/pg-1;set maxconn server primary/pg-1 100";
    const SENT: &str = "set server primary/pg-2 health up;set server primary/pg-1 health down;enable health primary/pg-1;set maxconn server primary/pg-1 100";
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn clients_are_released_on_the_controllers_order() {
        let fake = Fake::start(&[]);
        fake.queue.clone().hold("pg-1", LONG).await.unwrap();
        assert!(fake.queue.held().anybody());
        fake.queue.clone().release("pg-1", Some("pg-2")).await.unwrap();
        assert!(!fake.queue.held().anybody());
        assert_eq!(fake.asked(), [HELD, SENT]);
    }

    #[tokio::test]
    async fn clients_are_released_when_the_time_is_up_even_if_haproxy_misses_it_once() {
        let fake = Fake::start(&["\n\n", ""]);
        fake.queue.clone().hold("pg-1", Duration::from_millis(20)).await.unwrap();
        fake.until_nobody_is_held().await;
        assert_eq!(fake.asked(), [HELD, RELEASED, RELEASED]);
    }

    #[tokio::test]
    async fn the_time_begins_before_haproxy_is_asked() {
        let fake = Fake::start(&[SILENCE]);
        let hold = fake.queue.clone().hold("pg-1", Duration::from_millis(200));
        // The order ends when nobody waits for its answer any more.
        assert!(timeout(Duration::from_millis(50), hold).await.is_err());
        fake.until_nobody_is_held().await;
        assert_eq!(fake.asked(), [HELD, RELEASED]);
    }

    #[tokio::test]
    async fn a_release_that_haproxy_does_not_confirm_is_repeated_until_it_does() {
        let fake = Fake::start(&["\n\n", "", "\n\n", "Unknown command.\n\n\n"]);
        fake.queue.clone().hold("pg-1", LONG).await.unwrap();
        assert!(fake.queue.clone().release("pg-1", Some("pg-2")).await.is_err());
        assert!(fake.queue.held().anybody(), "nothing was confirmed");
        fake.until_nobody_is_held().await;
        assert_eq!(fake.asked(), [HELD, SENT, RELEASED]);
        // An error is no confirmation.
        fake.queue.clone().hold("pg-1", Duration::from_millis(20)).await.unwrap_err();
        fake.until_nobody_is_held().await;
        assert_eq!(fake.asked()[3..], [HELD, RELEASED]);
    }

    #[tokio::test]
    async fn clients_are_released_when_haproxy_does_not_confirm_that_they_wait() {
        let fake = Fake::start(&["", "", "\n"]);
        assert!(fake.queue.clone().hold("pg-1", LONG).await.is_err());
        fake.until_nobody_is_held().await;
        assert_eq!(fake.asked(), [HELD, RELEASED, RELEASED, RELEASED], "half an answer is none");
    }

    #[tokio::test]
    async fn another_hold_of_the_same_server_ends_what_is_left_of_the_one_before_and_one_of_another_does_not() {
        let fake = Fake::start(&["\n\n", "", "\n\n", "\n\n"]);
        fake.queue.clone().hold("pg-1", LONG).await.unwrap();
        assert!(fake.queue.clone().release("pg-1", None).await.is_err());
        fake.queue.clone().hold("pg-1", LONG).await.unwrap();
        fake.queue.clone().hold("pg-2", LONG).await.unwrap();
        sleep(PAUSE * 3).await;
        assert_eq!(fake.asked().len(), 4, "clients of pg-1 wait for the second switchover: {:?}", fake.asked());
        fake.queue.clone().release("pg-1", None).await.unwrap();
        assert!(fake.queue.held().anybody(), "those of pg-2 still wait");
    }

    #[tokio::test]
    async fn a_stopped_haproxy_holds_no_client() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        let (place, held) = (Place::new(&layout), Arc::default());
        let queue = Arc::new(Queue { place, layout, held, most: Box::new(|| Some(100)) });
        assert!(queue.clone().hold("pg-1", LONG).await.is_err());
        queue.clone().release("pg-1", None).await.unwrap();
        assert!(!queue.held().anybody());
    }

    #[tokio::test]
    async fn a_server_that_haproxy_does_not_have_keeps_nobody_waiting() {
        let fake =
            Fake::start(&["\n\n", "No such server.\n\nNo such server.\n\n", "No such server.\n\nNo such server.\n\n"]);
        fake.queue.clone().hold("pg-1", LONG).await.unwrap();
        assert!(fake.queue.clone().release("pg-1", None).await.is_err());
        fake.until_nobody_is_held().await;
        assert_eq!(fake.asked(), [HELD, RELEASED, RELEASED]);
    }
}
