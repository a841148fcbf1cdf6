use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::frame::{Frame, What};
use super::*;

/// A line as QEMU offers it: a socket that takes one host at a time, and a port for the guest that stays for life.
struct Ground {
    directory: TempDir,
    streams: mpsc::Receiver<Stream>,
}

impl Ground {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("line")).unwrap();
        let (guest, port) = UnixStream::pair().unwrap();
        let (read, write) = guest.into_split();
        tokio::spawn(relay(listener, port));
        Ground { directory, streams: accept(read, write) }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("line")
    }

    /// Answers every stream with what it said.
    fn echo(mut self) -> TempDir {
        tokio::spawn(async move {
            while let Some(stream) = self.streams.recv().await {
                let (mut read, mut write) = tokio::io::split(stream);
                tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await });
            }
        });
        self.directory
    }
}

async fn relay(listener: UnixListener, mut port: UnixStream) {
    while let Ok((mut host, _)) = listener.accept().await {
        let (mut from_host, mut to_host) = host.split();
        let (mut from_guest, mut to_guest) = port.split();
        tokio::select! {
            _ = tokio::io::copy(&mut from_host, &mut to_guest) => {}
            _ = tokio::io::copy(&mut from_guest, &mut to_host) => {}
        }
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), work).await.expect("it hangs")
}

async fn says_back(stream: &mut Stream, text: &[u8]) {
    stream.write_all(text).await.unwrap();
    let mut back = vec![0; text.len()];
    in_time(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn streams_share_a_line() {
    let directory = Ground::new().echo();
    let line = directory.path().join("line");
    let mut first = in_time(connect(&line)).await.unwrap();
    let mut second = in_time(connect(&line)).await.unwrap();
    says_back(&mut first, b"one").await;
    says_back(&mut second, b"two").await;
    says_back(&mut first, &[0; 3000]).await;
    drop(first);
    says_back(&mut second, b"still here").await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_keeps_no_other_waiting() {
    let directory = Ground::new().echo();
    let line = directory.path().join("line");
    let (mut stuck, mut other) = (in_time(connect(&line)).await.unwrap(), in_time(connect(&line)).await.unwrap());
    let flood = tokio::spawn(async move {
        for _ in 0..1000 {
            stuck.write_all(&[7; 4096]).await.unwrap();
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!flood.is_finished(), "what is not read must not be taken");
    says_back(&mut other, b"through").await;
    flood.abort();
}

#[tokio::test]
async fn much_comes_through_whole() {
    let directory = Ground::new().echo();
    let stream = in_time(connect(&directory.path().join("line"))).await.unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    let (mut read, mut write) = tokio::io::split(stream);
    let back = tokio::spawn(async move {
        let mut back = vec![0; 1_000_000];
        in_time(read.read_exact(&mut back)).await.unwrap();
        back
    });
    in_time(write.write_all(&sent)).await.unwrap();
    assert!(back.await.unwrap() == sent);
}

#[tokio::test]
async fn half_a_frame_of_an_earlier_host_is_dropped() {
    let mut ground = Ground::new();
    let line = ground.socket();
    // A host that opens a stream, begins to speak, and dies in the middle of a frame.
    let mut early = UnixStream::connect(&line).await.unwrap();
    early.write_all(&Frame { stream: 5, what: What::Open }.encode()).await.unwrap();
    let whole = Frame { stream: 5, what: What::Data(b"whole".to_vec()) }.encode();
    let half = Frame { stream: 5, what: What::Data(vec![7; 1000]) }.encode();
    early.write_all(&whole).await.unwrap();
    early.write_all(&half[..500]).await.unwrap();
    let mut old = in_time(ground.streams.recv()).await.unwrap();
    let mut text = [0; 5];
    in_time(old.read_exact(&mut text)).await.unwrap();
    assert_eq!(&text, b"whole");
    // What the guest says to it meanwhile may be read by nobody, or by the next.
    old.write_all(b"for the dead").await.unwrap();
    drop(early);

    let directory = ground.echo();
    let mut next = in_time(connect(&line)).await.unwrap();
    says_back(&mut next, b"fresh").await;
    let nothing = timeout(Duration::from_millis(100), old.read(&mut text)).await;
    assert!(!matches!(nothing, Ok(Ok(1..))), "half a frame was handed over: {nothing:?}");
    drop(directory);
}

#[tokio::test]
async fn another_process_gets_the_line_after_all_streams_have_ended() {
    let directory = Ground::new().echo();
    let line = directory.path().join("line");
    for round in 0..3_u8 {
        let mut stream = in_time(connect(&line)).await.unwrap();
        says_back(&mut stream, &[round; 10]).await;
        drop(stream);
        in_time(async {
            while held(&line).is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_machine_that_was_off_is_reached_again() {
    let directory = tempfile::tempdir().unwrap();
    let line = directory.path().join("line");
    for round in 0..2_u8 {
        let listener = UnixListener::bind(&line).unwrap();
        let (guest, port) = UnixStream::pair().unwrap();
        let (read, write) = guest.into_split();
        let machine = tokio::spawn(relay(listener, port));
        let streams = accept(read, write);
        let _echo = Ground { directory: tempfile::tempdir().unwrap(), streams }.echo();
        let mut stream = in_time(connect(&line)).await.unwrap();
        says_back(&mut stream, &[round; 10]).await;
        // The stream is kept, as an idle connection is.
        machine.abort();
        std::fs::remove_file(&line).unwrap();
        assert_eq!(in_time(stream.read(&mut [0])).await.unwrap(), 0, "its end is seen");
        assert!(in_time(connect(&line)).await.is_err());
    }
}

/// A named pipe hangs up when its writer goes and takes the next, as a port does with hosts.
#[tokio::test]
async fn a_port_that_waits_for_its_next_host_is_idle() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("port");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let port = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let mut reader = PortReader::new(port).unwrap();
    let host = || std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    drop(host());
    let mut byte = [0];
    assert_eq!(in_time(reader.read(&mut byte)).await.unwrap(), 0, "the first host has hung up");

    let mut second = host();
    let mut polled = 0;
    let waiting = std::future::poll_fn(|context| {
        polled += 1;
        Pin::new(&mut reader).poll_read(context, &mut ReadBuf::new(&mut byte))
    });
    assert!(timeout(Duration::from_millis(300), waiting).await.is_err(), "nothing was said");
    assert!(polled < 10, "asked {polled} times");
    std::io::Write::write_all(&mut second, b"x").unwrap();
    assert_eq!(in_time(reader.read(&mut byte)).await.unwrap(), 1);
    assert_eq!(byte, *b"x");
}
