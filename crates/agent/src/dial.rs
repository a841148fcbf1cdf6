//! How this host connects to a machine, as its provider says. Used for every connection.
//!
//! A socket belongs to the network namespace in which it was created, wherever it is used later. So a namespace is entered by a
//! thread that exists only for that, and no other thread of the program leaves its own.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpSocket, TcpStream};

/// `ip`'s directory of namespace names.
pub const NAMESPACES: &str = "/run/netns";

/// How to reach a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Dial {
    /// To its address, from the network of this process.
    #[default]
    Address,
    /// To its address, from the network namespace of this name.
    Namespace(String),
    /// To its agent alone, over its virtio-serial line: the socket that the line ends in on this host.
    Line(PathBuf),
}

impl Dial {
    /// A socket for connections to a machine, created where the machine is reached from.
    pub fn socket(&self, to: SocketAddr) -> io::Result<TcpSocket> {
        let create = move || if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        match self {
            Dial::Address => create(),
            Dial::Namespace(name) => within(name, create),
            Dial::Line(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "no network leads to this machine")),
        }
    }

    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.socket(to)?.connect(to).await
    }
}

/// Does something on a thread in a network namespace.
pub fn within<T: Send + 'static>(
    namespace: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = File::open(Path::new(NAMESPACES).join(namespace))?;
    let enter = move || Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?);
    let worker = std::thread::spawn(move || enter().and_then(|()| work()));
    worker.join().expect("what is done in namespaces does not panic")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::process::Command;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn ip(words: &[&str]) {
        let output = Command::new("ip").args(words).output().expect("the command `ip`");
        assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A namespace in which somebody answers with its name.
    struct Answering(String);

    impl Answering {
        fn new(name: &str, at: SocketAddr) -> Self {
            let name = format!("quorate-dial-{}-{name}", std::process::id());
            ip(&["netns", "add", &name]);
            let this = Answering(name.clone());
            ip(&["-n", &name, "link", "set", "lo", "up"]);
            let listener = within(&name, move || TcpListener::bind(at)).expect("a listener");
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = stream.and_then(|mut stream| stream.write_all(name.as_bytes()));
                }
            });
            this
        }
    }

    impl Drop for Answering {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
        }
    }

    #[tokio::test]
    async fn one_thread_speaks_to_two_namespaces_in_turn() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return;
        }
        let at: SocketAddr = "127.0.0.1:2479".parse().unwrap();
        let [first, second] = ["a", "b"].map(|name| Answering::new(name, at));
        let dial = |to: &Answering| Dial::Namespace(to.0.clone());
        let mut connections = Vec::new();
        for to in [&first, &second, &first] {
            connections.push((to, dial(to).connect(at).await.expect("a connection")));
        }
        for (to, mut connection) in connections {
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.expect("an answer");
            assert_eq!(answer, to.0);
        }
        assert!(Dial::Address.connect(at).await.is_err(), "nobody listens there in this thread's network");
        assert!(Dial::Namespace(String::from("quorate-dial-nowhere")).connect(at).await.is_err());
        assert!(Dial::Line(PathBuf::from("/nowhere")).connect(at).await.is_err());
    }
}
