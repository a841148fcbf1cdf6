//! A receiver of logs, as fluentd is one: over TLS, a greeting, the proof of the shared key on both sides, and then records in
//! msgpack.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, Sender, channel};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha512};

use crate::tls;

const NONCE: &str = "a nonce of the test";
const NAME: &str = "receiver";
const PATIENCE: Duration = Duration::from_secs(10);

/// What one sender said.
#[derive(PartialEq, Eq, Debug)]
pub struct Heard {
    pub hostname: String,
    pub tag: String,
    pub log: String,
}

pub struct Receiver {
    pub address: SocketAddr,
    authority: Authority,
    heard: Inbox<Result<Heard, String>>,
}

impl Receiver {
    pub fn new(shared_key: &'static str) -> Self {
        let here = IpAddr::from([127, 0, 0, 1]);
        let listener = TcpListener::bind((here, 0)).unwrap();
        let subject = AuthoritySubject { common_name: String::from("logs"), organization: None };
        let (day, now) = (SignedDuration::from_hours(24), Timestamp::now());
        let authority = Authority::generate(&subject, KeyAlgorithm::P256, day, now).unwrap();
        let key = KeyPair::generate(KeyAlgorithm::P256).unwrap();
        let wish = LeafWish {
            common_name: NAME.to_owned(),
            organization: None,
            dns: Vec::new(),
            addresses: vec![here],
            server: true,
            client: false,
            validity: SignedDuration::from_hours(12),
        };
        let chain = authority.sign(&key.csr(NAME).unwrap(), &wish, now).unwrap();
        let (chain, key) = (tls::chain_from_pem(&chain).unwrap(), tls::key_from_pem(&key.to_pem()).unwrap());
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(ring).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
        let address = listener.local_addr().unwrap();
        let (told, heard) = channel();
        std::thread::spawn(move || serve(&listener, &config, shared_key, &told));
        Receiver { address, authority, heard }
    }

    pub fn ca(&self) -> &str {
        self.authority.certificate_pem()
    }

    /// What came of the next sender.
    pub fn heard(&self) -> Result<Heard, String> {
        self.heard.recv_timeout(PATIENCE).expect("somebody comes")
    }
}

fn serve(listener: &TcpListener, config: &Arc<ServerConfig>, shared_key: &str, told: &Sender<Result<Heard, String>>) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let connection = ServerConnection::new(config.clone()).unwrap();
        if told.send(hear(StreamOwned::new(connection, stream), shared_key)).is_err() {
            return;
        }
    }
}

fn hear(mut stream: StreamOwned<ServerConnection, TcpStream>, shared_key: &str) -> Result<Heard, String> {
    let helo = array(&[text("HELO"), map(&[("nonce", bin(NONCE)), ("auth", bin("")), ("keepalive", vec![0xc3])])]);
    say(&mut stream, &helo)?;
    let ping = items(&mut stream)?;
    let [_, hostname, salt, digest, ..] = &ping[..] else { return Err(format!("this is no PING: {ping:?}")) };
    let proof = |name: &[u8]| {
        let parts = [salt.as_slice(), name, NONCE.as_bytes(), shared_key.as_bytes()];
        quorate_core::text::hex(&Sha512::digest(parts.concat()))
    };
    let right = digest == proof(hostname).as_bytes();
    let (yes, why) = if right { (0xc3, "") } else { (0xc2, "shared_key mismatch") };
    say(&mut stream, &array(&[text("PONG"), vec![yes], text(why), text(NAME), text(&proof(NAME.as_bytes()))]))?;
    if !right {
        return Err(String::from("the shared key is wrong"));
    }
    let message = items(&mut stream)?;
    let [tag, _, key, log, ..] = &message[..] else { return Err(format!("this is no message: {message:?}")) };
    assert_eq!(key, b"log");
    let words = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ok(Heard { hostname: words(hostname), tag: words(tag), log: words(log) })
}

fn say(stream: &mut impl Write, message: &[u8]) -> Result<(), String> {
    stream.write_all(message).and_then(|()| stream.flush()).map_err(|error| error.to_string())
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    let mut written = vec![0x90 | items.len() as u8];
    written.extend(items.concat());
    written
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut written = vec![0x80 | entries.len() as u8];
    written.extend(entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()));
    written
}

fn text(text: &str) -> Vec<u8> {
    [&[0xd9, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn bin(text: &str) -> Vec<u8> {
    [&[0xc4, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

/// One array, the leaves of which are given as bytes, those of maps and arrays within it among them.
fn items(stream: &mut impl Read) -> Result<Vec<Vec<u8>>, String> {
    let mut leaves = Vec::new();
    let mut left = 1;
    while left > 0 {
        left += read_one(stream, &mut leaves).map_err(|error| error.to_string())?;
        left -= 1;
    }
    Ok(leaves)
}

/// Reads one item, and returns how many follow that belong to it.
fn read_one(stream: &mut impl Read, leaves: &mut Vec<Vec<u8>>) -> std::io::Result<usize> {
    let kind = number(stream, 1)?;
    let length = match kind {
        0x80..=0x8f => return Ok(2 * (kind & 0x0f)),
        0x90..=0x9f => return Ok(kind & 0x0f),
        0xdc => return number(stream, 2),
        0xde => return Ok(2 * number(stream, 2)?),
        0xa0..=0xbf => kind & 0x1f,
        0xc4 | 0xd9 => number(stream, 1)?,
        0xc5 | 0xda => number(stream, 2)?,
        0xcc | 0xd0 => 1,
        0xcd | 0xd1 => 2,
        0xce | 0xd2 => 4,
        0xcf | 0xd3 => 8,
        // A time: its kind, and eight bytes.
        0xd7 => 9,
        // What stands for itself: small numbers, nothing, yes and no.
        _ => 0,
    };
    let mut leaf = vec![0; length];
    stream.read_exact(&mut leaf)?;
    leaves.push(leaf);
    Ok(0)
}

fn number(stream: &mut impl Read, bytes: usize) -> std::io::Result<usize> {
    let mut read = [0; 2];
    stream.read_exact(&mut read[..bytes])?;
    Ok(read[..bytes].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}
