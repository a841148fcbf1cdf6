//! A minimal HTTP server for the scripted cloud, and a proxy that counts calls.

use std::io::{self, BufRead, Error, ErrorKind, Write};

use serde_json::Value;

/// A request as it was sent.
#[derive(Debug, PartialEq)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// As they came, with their line ends.
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

impl Request {
    /// None: there is no further one.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(Error::new(ErrorKind::InvalidData, format!("no request: {line:?}")));
        };
        let mut request = Request { method, target, headers: headers(reader)?, body: Vec::new() };
        let length = request.header("content-length").map(str::parse).transpose();
        let length = length.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        request.body = vec![0; length.unwrap_or_default()];
        reader.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.headers.iter().filter_map(|line| line.split_once(':'));
        all.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }
}

/// All up to the empty line.
fn headers(reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the request ends in its headers"));
        }
        if !line.contains(':') {
            return Ok(all);
        }
        all.push(line);
    }
}

/// Sends an answer. One that is null has no body.
pub(crate) fn write(mut stream: impl Write, status: u16, body: &Value) -> io::Result<()> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "HTTP/1.1 {status} scripted\r\nContent-Type: application/json\r\nX-Subject-Token: scripted\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_one_after_another() {
        let sent = "POST /a HTTP/1.1\r\nhost: x:1\r\nContent-Length: 3\r\n\r\na=bGET /b?c=d HTTP/1.1\r\n\r\n";
        let mut stream = sent.as_bytes();
        let first = Request::read(&mut stream).unwrap().unwrap();
        assert_eq!((first.method.as_str(), first.target.as_str(), &first.body[..]), ("POST", "/a", b"a=b".as_slice()));
        assert_eq!((first.header("Host"), first.header("cookie"), first.headers.len()), (Some("x:1"), None, 2));
        let second = Request::read(&mut stream).unwrap().unwrap();
        assert_eq!((second.target.as_str(), second.body.len()), ("/b?c=d", 0));
        assert_eq!(Request::read(&mut stream).unwrap(), None);
    }

    #[test]
    fn a_request_that_is_cut_short_is_an_error() {
        for sent in ["GET / HTTP/1.1\r\nhost: x\r\n", "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\na"] {
            assert!(Request::read(&mut sent.as_bytes()).is_err(), "{sent:?}");
        }
    }
}
