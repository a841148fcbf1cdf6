//! The scripted cloud on a port of the loopback interface.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cloud::Cloud;
use crate::bench::http::Request;

/// It answers as long as this program runs.
pub struct Server {
    pub url: String,
    cloud: Arc<Mutex<Cloud>>,
}

impl Server {
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        let url = format!("http://{}", listener.local_addr().context("the port has no address")?);
        let cloud = Arc::new(Mutex::new(Cloud::new(url.clone())));
        let shared = cloud.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let cloud = shared.clone();
                // A client that went away in the middle of a request is none any more.
                thread::spawn(move || drop(serve(&stream, &cloud)));
            }
        });
        Ok(Server { url, cloud })
    }

    pub fn cloud(&self) -> MutexGuard<'_, Cloud> {
        lock(&self.cloud)
    }
}

fn lock(cloud: &Mutex<Cloud>) -> MutexGuard<'_, Cloud> {
    cloud.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Answers one request after another, until the client closes the connection.
fn serve(stream: &TcpStream, cloud: &Mutex<Cloud>) -> Result<()> {
    // Otherwise an answer waits for the acknowledgement of the one before it.
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let said = if request.body.is_empty() { Value::Null } else { serde_json::from_slice(&request.body)? };
        let (status, body) = lock(cloud).answer(&request.method, &request.target, &said);
        write(stream, status, &body)?;
    }
    Ok(())
}

fn write(mut stream: &TcpStream, status: u16, body: &Value) -> Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} bench\r\nContent-Type: application/json\r\nX-Subject-Token: bench\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    Ok(stream.write_all((head + &body).as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn it_answers_on_the_loopback_interface() {
        let server = Server::start().unwrap();
        let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
        stream.write_all(b"GET /network/v2.0/networks HTTP/1.1\r\n\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(super::super::cloud::NETWORK), "{answer}");
        assert_eq!(server.cloud().take_calls().all(), 1);
    }
}
