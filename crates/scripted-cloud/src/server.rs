//! The scripted cloud on a port of the loopback interface, and faults on the way to it.

use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cloud::{Answer, Cloud, REGION, refused};
use crate::http::{Request, write};

/// What clients meet. By default each request is answered at once.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// Every request is answered with this status, and nothing is done.
    pub refuses: Option<u16>,
    /// Every second request is answered with 413, and nothing is done.
    pub throttles: bool,
    /// Requests with this method and this path are carried out at once and answered after this time.
    pub slow: Option<(&'static str, Duration)>,
}

/// How a request stands still. It is never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It is not carried out.
    Before,
    /// It is carried out.
    After,
}

/// A request that is to stand still.
struct Gate {
    number: u64,
    /// How many requests come before it.
    left: usize,
    how: Halt,
    taken: bool,
    reached: bool,
}

#[derive(Default)]
struct Way {
    conditions: Conditions,
    requests: usize,
    gates: u64,
    gate: Option<Gate>,
}

struct Shared {
    cloud: Mutex<Cloud>,
    way: Mutex<Way>,
    changed: Condvar,
}

/// It answers as long as this program runs.
pub struct Server {
    pub url: String,
    shared: Arc<Shared>,
}

impl Server {
    pub fn start() -> io::Result<Self> {
        Self::start_in(REGION)
    }

    /// In a region of this name.
    pub fn start_in(region: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (cloud, way) = (Mutex::new(Cloud::new(url.clone(), region)), Mutex::default());
        let shared = Arc::new(Shared { cloud, way, changed: Condvar::new() });
        let server = Server { url, shared: shared.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A client that went away in the middle of a request is none any more.
                thread::spawn(move || drop(shared.serve(&stream)));
            }
        });
        Ok(server)
    }

    pub fn cloud(&self) -> MutexGuard<'_, Cloud> {
        lock(&self.shared.cloud)
    }

    /// From the next request on.
    pub fn set(&self, conditions: Conditions) {
        lock(&self.shared.way).conditions = conditions;
    }

    /// How many requests there were so far.
    pub fn requests(&self) -> usize {
        lock(&self.shared.way).requests
    }

    /// The request after so many others stands still, until `resume`. Other requests go on.
    pub fn halt_after(&self, left: usize, how: Halt) {
        let mut way = lock(&self.shared.way);
        way.gates += 1;
        way.gate = Some(Gate { number: way.gates, left, how, taken: false, reached: false });
    }

    /// Whether a request stands still.
    pub fn is_halted(&self) -> bool {
        lock(&self.shared.way).gate.as_ref().is_some_and(|gate| gate.reached)
    }

    /// Nothing stands still any more. The request that did is never answered.
    pub fn resume(&self) {
        lock(&self.shared.way).gate = None;
        self.shared.changed.notify_all();
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Answers one request after another, until the client closes the connection.
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        // Otherwise an answer waits for the acknowledgement of the one before it.
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = Request::read(&mut reader)? {
            let (number, conditions, halt) = self.count();
            if let Some((gate, Halt::Before)) = halt {
                return self.stand_still(gate);
            }
            let answer = match conditions {
                Conditions { refuses: Some(status), .. } => refused(status, "the service is away"),
                Conditions { throttles: true, .. } if number % 2 == 1 => refused(413, "too many requests"),
                _ => self.carry_out(&request)?,
            };
            if let Some((gate, Halt::After)) = halt {
                return self.stand_still(gate);
            }
            let path = request.target.split('?').next().unwrap_or_default();
            if let Some((_, delay)) = conditions.slow.filter(|(slow, _)| *slow == format!("{} {path}", request.method))
            {
                thread::sleep(delay);
            }
            write(stream, answer.0, &answer.1)?;
        }
        Ok(())
    }

    fn carry_out(&self, request: &Request) -> io::Result<Answer> {
        let said = if request.body.is_empty() { Value::Null } else { serde_json::from_slice(&request.body)? };
        Ok(lock(&self.cloud).answer(&request.method, &request.target, &said))
    }

    /// The number of a request, what it meets, and whether it stands still.
    fn count(&self) -> (usize, Conditions, Option<(u64, Halt)>) {
        let mut way = lock(&self.way);
        way.requests += 1;
        let mut halt = None;
        if let Some(gate) = way.gate.as_mut().filter(|gate| !gate.taken) {
            if gate.left == 0 {
                gate.taken = true;
                halt = Some((gate.number, gate.how));
            }
            gate.left = gate.left.saturating_sub(1);
        }
        (way.requests, way.conditions.clone(), halt)
    }

    /// Until nothing stands still any more.
    fn stand_still(&self, number: u64) -> io::Result<()> {
        let mut way = lock(&self.way);
        while let Some(gate) = way.gate.as_mut().filter(|gate| gate.number == number) {
            gate.reached = true;
            way = self.changed.wait(way).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use super::*;

    /// What a server answers, all of it.
    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    const LIST: &str = "GET /network/v2.0/networks";

    #[test]
    fn it_answers_on_the_loopback_interface() {
        let server = Server::start().unwrap();
        let answer = ask(&server, LIST);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(crate::NETWORK), "{answer}");
        assert_eq!((server.cloud().take_calls().all(), server.requests()), (1, 1));
    }

    #[test]
    fn refused_calls_are_not_carried_out() {
        let server = Server::start().unwrap();
        server.set(Conditions { refuses: Some(503), ..Conditions::default() });
        assert!(ask(&server, LIST).starts_with("HTTP/1.1 503"));
        server.set(Conditions { throttles: true, ..Conditions::default() });
        let answers = [ask(&server, LIST), ask(&server, LIST)].map(|answer| answer[9..12].to_owned());
        assert_eq!(answers, ["200", "413"]);
        assert_eq!(server.cloud().take_calls().all(), 1);
    }

    #[test]
    fn a_slow_answer_comes_after_the_request_was_carried_out() {
        let server = Server::start().unwrap();
        let delay = Duration::from_millis(300);
        server.set(Conditions { slow: Some(("POST /network/v2.0/security-groups", delay)), ..Conditions::default() });
        let begun = Instant::now();
        assert!(ask(&server, LIST).starts_with("HTTP/1.1 200") && begun.elapsed() < delay);
        thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&server, "POST /network/v2.0/security-groups"));
            while server.cloud().all("security-groups").is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(!asked.is_finished());
            assert!(asked.join().unwrap().starts_with("HTTP/1.1 201"));
        });
    }

    #[test]
    fn a_request_stands_still_before_or_after_it_is_carried_out() {
        for (how, made) in [(Halt::Before, 0), (Halt::After, 1)] {
            let server = Server::start().unwrap();
            server.halt_after(1, how);
            assert!(ask(&server, LIST).starts_with("HTTP/1.1 200") && !server.is_halted());
            thread::scope(|scope| {
                let asked = scope.spawn(|| ask(&server, "POST /network/v2.0/security-groups"));
                while !server.is_halted() {
                    thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(server.cloud().all("security-groups").len(), made, "{how:?}");
                assert!(ask(&server, LIST).starts_with("HTTP/1.1 200"), "others go on");
                server.resume();
                assert_eq!(asked.join().unwrap(), "", "it is never answered");
            });
        }
    }
}
