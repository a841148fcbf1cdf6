//! A proxy between quorate and moto's server: passes every call on and records its name and times.

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use anyhow::{Context, Result};
use quorate_scripted_cloud::Request;

use super::timeline::Call;

/// It answers as long as this program runs.
pub struct Proxy {
    pub url: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Proxy {
    /// In front of the server at this address.
    pub fn start(server: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        let url = format!("http://{}", listener.local_addr().context("the port has no address")?);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (shared, server) = (calls.clone(), server.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (calls, server) = (shared.clone(), server.clone());
                // A client that went away in the middle of a request is none any more.
                thread::spawn(move || drop(serve(&stream, &server, &calls)));
            }
        });
        Ok(Proxy { url, calls })
    }

    /// Those since it was last asked.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut lock(&self.calls))
    }
}

fn lock(calls: &Mutex<Vec<Call>>) -> MutexGuard<'_, Vec<Call>> {
    calls.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// moto's server closes a connection after its answer, and so does this.
fn serve(mut stream: &TcpStream, server: &str, calls: &Mutex<Vec<Call>>) -> Result<()> {
    stream.set_nodelay(true)?;
    let Some(request) = Request::read(&mut BufReader::new(stream))? else { return Ok(()) };
    let begun = super::now();
    let answer = relay(&request, server)?;
    // Noted before the client can go on.
    lock(calls).push(Call { action: action(&request), refused: !is_success(&answer), begun, ended: super::now() });
    stream.write_all(&answer)?;
    Ok(())
}

fn relay(request: &Request, server: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let headers = request.headers.iter().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let mut sent = format!("{} {} HTTP/1.1\r\n", request.method, request.target).into_bytes();
    headers.for_each(|line| sent.extend_from_slice(line.as_bytes()));
    sent.extend_from_slice(b"Connection: close\r\n\r\n");
    sent.extend_from_slice(&request.body);
    stream.write_all(&sent)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// What the call is called: EC2 and load balancers have it in a form, Systems Manager in a header, and Route53 in method and path.
fn action(request: &Request) -> String {
    let form = String::from_utf8_lossy(&request.body);
    let named = form.split('&').find_map(|field| field.strip_prefix("Action="));
    let target = || request.header("x-amz-target").and_then(|target| target.rsplit('.').next());
    named.or_else(target).map_or_else(|| format!("{} {}", request.method, request.target), str::to_owned)
}

fn is_success(answer: &[u8]) -> bool {
    answer.split(|byte| *byte == b' ').nth(1).is_some_and(|status| status.starts_with(b"2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(proxy: &Proxy, text: &str) -> String {
        let mut stream = TcpStream::connect(proxy.url.trim_start_matches("http://")).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A server that shows what it was sent, after this first line.
    fn server(first: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let request = Request::read(&mut BufReader::new(&stream)).unwrap().unwrap();
                let seen = format!("{}{}", request.headers.concat(), String::from_utf8(request.body).unwrap());
                write!(stream, "{first}\r\n\r\n{seen}").unwrap();
            }
        });
        address
    }

    #[test]
    fn calls_are_passed_on_and_noted() {
        let proxy = Proxy::start(&server("HTTP/1.1 200 OK")).unwrap();
        let body = "Action=RunInstances&Version=1";
        let sent = "POST / HTTP/1.1\r\nAuthorization: x\r\nconnection: keep-alive\r\nContent-Length: 29\r\n\r\n";
        let answer = ask(&proxy, &format!("{sent}{body}"));
        assert!(answer.ends_with(&format!("Connection: close\r\n{body}")), "{answer}");
        assert!(answer.contains("Authorization: x\r\n") && !answer.contains("keep-alive"), "{answer}");
        let calls = proxy.take_calls();
        assert_eq!((calls.len(), calls[0].action.as_str(), calls[0].refused), (1, "RunInstances", false));
        assert!(calls[0].begun <= calls[0].ended && proxy.take_calls().is_empty());
    }

    #[test]
    fn a_refusal_is_one_and_every_service_has_names() {
        let proxy = Proxy::start(&server("HTTP/1.1 400 Bad Request")).unwrap();
        ask(&proxy, "POST / HTTP/1.1\r\nX-Amz-Target: AmazonSSM.GetParameter\r\nContent-Length: 2\r\n\r\n{}");
        ask(&proxy, "GET /2013-04-01/hostedzone HTTP/1.1\r\n\r\n");
        let calls = proxy.take_calls();
        let named: Vec<&str> = calls.iter().map(|call| call.action.as_str()).collect();
        assert_eq!(named, ["GetParameter", "GET /2013-04-01/hostedzone"]);
        assert!(calls.iter().all(|call| call.refused));
    }
}
