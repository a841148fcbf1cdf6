//! etcd's releases as they are downloaded: archives, and a server for them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::{Run, Sandbox};

/// A file server on this machine that knows a few paths and notes every visit.
pub struct Server {
    pub base: String,
    visits: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        Server::at("127.0.0.1", files)
    }

    pub fn at(address: &str, files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("its address"));
        let visits = Arc::new(Mutex::new(Vec::new()));
        let noted = visits.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a visitor");
                let mut request = [0; 4096];
                let read = stream.read(&mut request).unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..read]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                let (status, body) = match files.get(&path) {
                    Some(body) => ("200 OK", body.as_slice()),
                    None => ("404 Not Found", &b"no such file"[..]),
                };
                noted.lock().unwrap().push(path);
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            }
        });
        Server { base, visits }
    }

    pub fn visits(&self) -> Vec<String> {
        self.visits.lock().unwrap().clone()
    }
}

/// An archive laid out as etcd's releases are, and its SHA-256.
pub fn archive(sandbox: &Sandbox, version: &str, etcd: &Path) -> (Vec<u8>, String) {
    let name = format!("etcd-v{version}-linux-amd64");
    let directory = sandbox.path().join(&name);
    fs::create_dir_all(directory.join("Documentation")).unwrap();
    fs::write(directory.join("README.md"), "words").unwrap();
    fs::copy(etcd, directory.join("etcd")).unwrap();
    let etcdutl = etcd.with_file_name("etcdutl");
    if etcdutl.exists() {
        fs::copy(etcdutl, directory.join("etcdutl")).unwrap();
    }
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--use-compress-program=gzip -1", "-cf", &archive, &name]).current_dir(sandbox.path());
    Run::from(tar.output().expect("tar runs")).ok();
    let sum = sandbox.openssl(&["dgst", "-sha256", "-r", &archive]);
    let sum = sum.split_whitespace().next().expect("a checksum").to_owned();
    (fs::read(sandbox.path().join(archive)).unwrap(), sum)
}
