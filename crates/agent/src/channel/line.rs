//! One end of a line, and the streams on it. A stream is one half of a pipe in memory; two tasks carry bytes between its other
//! half and the line.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::frame::{Frame, LONGEST, PAYLOAD, What};
use super::{NOBODY_THERE, Stream};

/// How much of a stream may be in flight and unread.
const WINDOW: usize = 64 << 10;
/// How many streams a guest serves at once. More are refused: only a confused host needs them.
const STREAMS: usize = 32;
/// How long one direction of a stream outlives the other. No peer here sends after closing its side.
const LINGER: Duration = Duration::from_secs(5);
/// How many answers may wait to be sent. They are small, and come one for each frame of the other side.
const ANSWERS: usize = 1024;

pub(super) struct Line {
    /// Frames of streams, in order.
    out: mpsc::Sender<Frame>,
    /// Frames of the line itself, sent first. The reader of a line never waits for room in either queue: if both sides waited for
    /// the other to read, they would block each other.
    answers: mpsc::Sender<Frame>,
    streams: Mutex<BTreeMap<u64, Open>>,
    /// Nothing comes in any more. Changed with the streams locked.
    is_cut: AtomicBool,
    /// The receiver of streams that the other side opens; none: it may not open any.
    coming: Option<mpsc::Sender<Stream>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// The line's state of a stream.
struct Open {
    /// Notified when the other side has accepted.
    accepted: Option<oneshot::Sender<()>>,
    /// Received data. It holds at most a window, because the other side stops there.
    inbox: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// How many bytes may still be sent.
    credit: Arc<Semaphore>,
    /// Received and unread bytes: beyond a window, the other side breaks the protocol.
    waiting: Arc<Mutex<usize>>,
}

impl Drop for Open {
    /// Nothing more is sent.
    fn drop(&mut self) {
        self.credit.close();
    }
}

impl Line {
    /// The host's side ends when it is dropped; the guest's lives while its streams are accepted.
    pub(super) fn start(
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
        coming: Option<mpsc::Sender<Stream>>,
    ) -> Arc<Line> {
        let (out, frames) = mpsc::channel(4);
        let (answers, first) = mpsc::channel(ANSWERS);
        let serves = coming.is_some();
        let line = Arc::new(Line {
            out,
            answers,
            streams: Mutex::default(),
            is_cut: AtomicBool::new(false),
            coming,
            tasks: Mutex::default(),
        });
        // The guest's line is its own keeper.
        let kept = serves.then(|| line.clone());
        let weak = Arc::downgrade(&line);
        let reader = tokio::spawn(async move {
            let _kept = kept;
            if let Err(error) = listen(&weak, read, serves).await {
                tracing::debug!(%error, "the line is cut");
            }
            weak.upgrade().inspect(|line| line.cut());
        });
        let writer = tokio::spawn(send(first, frames, write, serves));
        line.tasks.lock().expect("no holder panics").extend([reader.abort_handle(), writer.abort_handle()]);
        line
    }

    /// Opens a stream, and waits until the other side has heard of it.
    pub(super) async fn open(self: &Arc<Self>) -> io::Result<Stream> {
        let (accepted, is_accepted) = oneshot::channel();
        let number = random();
        let stream = self.add(number, Some(accepted), Some(self.clone()));
        let stream = stream.ok_or(io::ErrorKind::ConnectionReset)?;
        self.say(number, What::Open).await?;
        is_accepted.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
        Ok(stream)
    }

    fn answer(&self, stream: u64, what: What) {
        if self.answers.try_send(Frame { stream, what }).is_err() {
            tracing::warn!("the line is too slow for its answers");
        }
    }

    async fn say(&self, stream: u64, what: What) -> io::Result<()> {
        let sent = self.out.send(Frame { stream, what }).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }

    /// `keeper` is held for as long as the stream is used. None: the line is cut.
    fn add(
        self: &Arc<Self>,
        number: u64,
        accepted: Option<oneshot::Sender<()>>,
        keeper: Option<Arc<Line>>,
    ) -> Option<Stream> {
        let (ours, theirs) = duplex(PAYLOAD);
        let (read, write) = split(ours);
        let (inbox, came) = mpsc::unbounded_channel();
        let credit = Arc::new(Semaphore::new(WINDOW));
        let waiting = Arc::new(Mutex::new(0));
        let open = Open { accepted, inbox: Some(inbox), credit: credit.clone(), waiting: waiting.clone() };
        let mut streams = self.streams.lock().expect("no holder panics");
        if self.is_cut.load(Ordering::Relaxed) {
            return None;
        }
        streams.insert(number, open);
        drop(streams);
        let (line, incoming) = (Arc::downgrade(self), Arc::downgrade(self));
        tokio::spawn(async move {
            let mut outgoing = pin!(carry_out(&line, number, read, credit));
            let mut incoming = pin!(carry_in(&incoming, number, write, came, waiting));
            let _ = tokio::select! {
                () = &mut outgoing => timeout(LINGER, incoming).await,
                () = &mut incoming => timeout(LINGER, outgoing).await,
            };
            if let Some(line) = line.upgrade() {
                line.drop_stream(number).await;
            }
            drop(keeper);
        });
        Some(theirs)
    }

    async fn drop_stream(&self, number: u64) {
        let known = self.streams.lock().expect("no holder panics").remove(&number).is_some();
        if known {
            let _ = self.say(number, What::Gone).await;
        }
    }

    fn hear(self: &Arc<Self>, Frame { stream, what }: Frame) {
        match what {
            What::Open => self.let_in(stream),
            What::Gone => drop(self.streams.lock().expect("no holder panics").remove(&stream)),
            what => {
                if !self.hand_over(stream, what) {
                    self.answer(stream, What::Gone);
                }
            }
        }
    }

    /// False: there is no such stream.
    fn hand_over(&self, number: u64, what: What) -> bool {
        let mut streams = self.streams.lock().expect("no holder panics");
        let Some(open) = streams.get_mut(&number) else { return false };
        match what {
            What::Accept => drop(open.accepted.take().map(|accepted| accepted.send(()))),
            What::Data(bytes) => {
                let mut waiting = open.waiting.lock().expect("no holder panics");
                *waiting += bytes.len();
                if *waiting > WINDOW {
                    drop(waiting);
                    streams.remove(&number);
                    return false;
                }
                let _ = open.inbox.as_ref().map(|inbox| inbox.send(bytes));
            }
            What::Taken(count) => {
                let room = WINDOW.saturating_sub(open.credit.available_permits());
                open.credit.add_permits(room.min(count as usize));
            }
            What::End => drop(open.inbox.take()),
            What::Open | What::Gone => {}
        }
        true
    }

    /// Only the guest accepts streams.
    fn let_in(self: &Arc<Self>, number: u64) {
        let Some(coming) = &self.coming else { return };
        let full = {
            let streams = self.streams.lock().expect("no holder panics");
            streams.len() >= STREAMS || streams.contains_key(&number)
        };
        let place = if full { None } else { coming.try_reserve().ok() };
        match place {
            Some(place) => {
                let Some(stream) = self.add(number, None, None) else { return };
                self.answer(number, What::Accept);
                place.send(stream);
            }
            None => self.answer(number, What::Gone),
        }
    }

    fn cut(&self) {
        let mut streams = self.streams.lock().expect("no holder panics");
        self.is_cut.store(true, Ordering::Relaxed);
        streams.clear();
    }

    /// The other side has disconnected: nothing will read what streams still send.
    fn forget_all(&self) {
        self.streams.lock().expect("no holder panics").clear();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        for task in self.tasks.lock().expect("no holder panics").drain(..) {
            task.abort();
        }
    }
}

/// Dispatches frames until the line is cut. Bytes between two zeros that are not a frame are dropped.
async fn listen(line: &Weak<Line>, mut read: impl AsyncRead + Unpin, serves: bool) -> io::Result<()> {
    let mut bytes = vec![0; LONGEST];
    let mut frame = Vec::with_capacity(LONGEST);
    loop {
        let count = match read.read(&mut bytes).await {
            // A guest whose host is not there.
            Ok(0) if serves => {
                line.upgrade().inspect(|line| line.forget_all());
                tokio::time::sleep(NOBODY_THERE).await;
                continue;
            }
            Ok(0) => return Ok(()),
            count => count?,
        };
        for byte in &bytes[..count] {
            match byte {
                0 => {
                    let Some(line) = line.upgrade() else { return Ok(()) };
                    if let Some(whole) = Frame::decode(&frame) {
                        line.hear(whole);
                    }
                    frame.clear();
                }
                // Longer than any frame: it is dropped at its zero.
                _ if frame.len() >= LONGEST => {}
                byte => frame.push(*byte),
            }
        }
    }
}

async fn send(
    mut first: mpsc::Receiver<Frame>,
    mut frames: mpsc::Receiver<Frame>,
    mut write: impl AsyncWrite + Unpin,
    serves: bool,
) {
    loop {
        let frame = tokio::select! {
            biased;
            Some(frame) = first.recv() => frame,
            Some(frame) = frames.recv() => frame,
            else => return,
        };
        // Ends a partial frame of an earlier connection.
        let mut next = vec![0];
        next.extend(frame.encode());
        let written = async {
            write.write_all(&next).await?;
            write.flush().await
        };
        match written.await {
            Ok(()) => {}
            // A guest's line outlives its hosts; part of a frame may be out.
            Err(error) if serves => {
                tracing::debug!(%error, "nobody reads the line");
                tokio::time::sleep(NOBODY_THERE).await;
            }
            Err(_) => return,
        }
    }
}

async fn carry_out(line: &Weak<Line>, number: u64, mut read: ReadHalf<DuplexStream>, credit: Arc<Semaphore>) {
    let mut bytes = vec![0; PAYLOAD];
    loop {
        // Reads at most as much as may be sent, so nothing is held here.
        let Ok(first) = credit.acquire().await else { return };
        let Ok(count @ 1..) = read.read(&mut bytes).await else { break };
        first.forget();
        match credit.acquire_many((count - 1) as u32).await {
            Ok(rest) => rest.forget(),
            Err(_) => return,
        }
        let Some(line) = line.upgrade() else { return };
        if line.say(number, What::Data(bytes[..count].to_vec())).await.is_err() {
            return;
        }
    }
    if let Some(line) = line.upgrade() {
        let _ = line.say(number, What::End).await;
    }
}

async fn carry_in(
    line: &Weak<Line>,
    number: u64,
    mut write: WriteHalf<DuplexStream>,
    mut came: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: Arc<Mutex<usize>>,
) {
    while let Some(bytes) = came.recv().await {
        if write.write_all(&bytes).await.is_err() {
            break;
        }
        *waiting.lock().expect("no holder panics") -= bytes.len();
        let Some(line) = line.upgrade() else { break };
        let taken = Frame { stream: number, what: What::Taken(bytes.len() as u32) };
        if line.answers.send(taken).await.is_err() {
            break;
        }
    }
    let _ = write.shutdown().await;
}

/// No two streams of a line's life share a number.
fn random() -> u64 {
    u64::from_str_radix(&quorate_pki::random_hex(8), 16).expect("sixteen digits")
}
