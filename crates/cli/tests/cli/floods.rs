//! Floods of connections at an agent's port, from the controller's own address.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use quorate_core::model::AGENT_PORT;

use crate::common::trio::{Login, Trio};

const BEGIN_OF_HELLO: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00];

/// Connections that begin a handshake; each that is dropped is opened again at once, and some hang up by themselves.
struct Flood {
    ended: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    fn of(connections: usize, address: IpAddr) -> Self {
        const THREADS: usize = 4;
        let (ended, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..THREADS).map(|_| {
            let (ended, opened) = (ended.clone(), opened.clone());
            std::thread::spawn(move || flood(connections / THREADS, (address, AGENT_PORT).into(), &ended, &opened))
        });
        let threads = threads.collect();
        Flood { ended, opened, threads }
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn flood(connections: usize, to: SocketAddr, ended: &AtomicBool, opened: &AtomicUsize) {
    let mut all: Vec<Option<TcpStream>> = (0..connections).map(|_| None).collect();
    let mut round = 0;
    while !ended.load(Ordering::Relaxed) {
        round += 1;
        for (at, place) in all.iter_mut().enumerate() {
            // Some hang up in each round. Not many: each takes one of this host's ports away for a minute.
            if place.as_mut().is_none_or(is_dropped) || (at + round) % 100 == 0 {
                *place = open(to);
                opened.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn open(to: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(1)).ok()?;
    stream.write_all(BEGIN_OF_HELLO).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

fn is_dropped(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn three_hundred_connections_that_reopen_at_once_do_not_keep_the_controller_out() {
    const ASKED: usize = 8;
    let trio = Trio::up(Login::Certificate);
    let agent = trio.agent_of("etcd-1");
    let log = trio.machine("etcd-1").join("agent.log");
    let before = std::fs::read_to_string(&log).expect("its log").lines().count();
    let flood = Flood::of(300, trio.address("etcd-1"));
    while flood.opened() < 600 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let answered = (0..ASKED).filter(|_| trio.status()["verdict"] == "healthy").count();
    let opened = flood.opened();
    drop(flood);
    assert_eq!(answered, ASKED, "of {ASKED} looks, beside {opened} connections");
    assert_eq!(trio.agent_of("etcd-1"), agent, "the agent died");
    let lines = std::fs::read_to_string(&log).expect("its log").lines().count() - before;
    assert!(lines < 20, "{lines} lines of log for {opened} connections");
}
