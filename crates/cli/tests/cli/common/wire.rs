//! A connection to a server on this machine, which can be cut and restored.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub struct Wire {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    /// Bytes that went to the server.
    sent: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Wire {
    /// Serves until the test's process ends.
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // One that is cut is closed at once.
                if !shared.is_cut.load(Ordering::SeqCst) {
                    let _ = shared.clone().join(client, server);
                }
            }
        });
        Wire { port, state }
    }

    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        for end in self.state.open.lock().expect("no holder panics").drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    pub fn reconnect(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }
}

impl State {
    fn join(self: Arc<Self>, client: TcpStream, server: u16) -> io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
        let ends = [client.try_clone()?, server.try_clone()?];
        self.open.lock().expect("no holder panics").extend(ends);
        let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
        let counted = self.clone();
        let count = move |bytes| {
            counted.sent.fetch_add(bytes, Ordering::SeqCst);
        };
        thread::spawn(move || copy(from_client, to_server, count));
        thread::spawn(move || copy(server, client, |_| {}));
        Ok(())
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, count: impl Fn(u64)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        count(read as u64);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
