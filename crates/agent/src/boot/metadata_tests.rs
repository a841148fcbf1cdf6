//! The metadata service, and impostors.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::super::tests::{Noted, PLAIN, Scene};
use super::super::{Boot, With};
use super::*;
use crate::layout::Layout;

const SOON: Duration = Duration::ZERO;

/// Answers each request with what `answer` says, and notes its head.
fn serve(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, heads) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
            let _ = asked.send(head.to_lowercase());
            answer(&head, &mut stream);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = reader.read_to_end(&mut Vec::new());
        }
    });
    (address, heads)
}

fn reply(stream: &mut TcpStream, status: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
}

/// A service that hands out this user data to those with a token.
fn with_data(data: &str) -> (String, Receiver<String>) {
    let data = data.to_owned();
    serve(move |head, stream| {
        let is_allowed = head.to_lowercase().contains("x-aws-ec2-metadata-token: the-token\r\n");
        match head.split(' ').take(2).collect::<Vec<_>>()[..] {
            ["PUT", "/latest/api/token"] => reply(stream, "200 OK", "the-token"),
            ["GET", "/latest/user-data"] if is_allowed => reply(stream, "200 OK", &data),
            _ => reply(stream, "401 Unauthorized", ""),
        }
    })
}

fn data(member: &str) -> String {
    let machine: Value = serde_json::from_str(PLAIN).unwrap();
    let seed = json!({
        "cluster": "c", "cluster_id": "id", "member": member, "incarnation": 1, "address": "10.0.0.11", "control_ca": "pem",
        "token": "t0ken", "token_expires": "2030-01-01T00:00:00Z", "of_a_newer_quorate": true,
    });
    json!({ "quorate": { "seed": seed, "machine": machine } }).to_string()
}

fn refused(address: &str) -> String {
    refused_of(Service::Ec2, address)
}

fn refused_of(service: Service, address: &str) -> String {
    let begun = Instant::now();
    let said = read(service, address, SOON).err().expect("it is refused").to_string();
    assert!(begun.elapsed() < ANSWERING + Duration::from_secs(3), "{said}");
    said
}

/// What an instance makes of this answer.
fn boot(scene: &Scene, address: &str) -> Result<Machine, AgentError> {
    let tools = Noted::default();
    let boot = Boot { layout: Layout::new(&scene.root()).unwrap(), tools: &tools, with: With::Ec2 };
    boot.read_user_data(Service::Ec2, address, boot.known()?)
}

#[test]
fn user_data_is_read_with_a_token_that_does_not_last() {
    let (address, heads) = with_data(&data("etcd-1"));
    let told = read(Service::Ec2, &address, SOON).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((told.seed.token.expose(), told.machine.hostname.as_str()), ("t0ken", "etcd-1"));
    assert!(String::from_utf8(told.seed_text).unwrap().contains("of_a_newer_quorate"), "nothing is left out");
    let first = heads.recv().unwrap();
    assert!(first.contains("x-aws-ec2-metadata-token-ttl-seconds: 60\r\n"), "{first}");
}

#[test]
fn user_data_written_by_the_provider_is_read_by_the_agent() {
    let (seed, machine) = (read(Service::Ec2, &with_data(&data("etcd-1")).0, SOON), data("etcd-1"));
    let Told { seed, machine, .. } = seed.unwrap_or_else(|error| panic!("{error}: {machine}"));
    let again =
        read(Service::Ec2, &with_data(&user_data(&seed, &machine)).0, SOON).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((again.seed, again.machine), (seed, machine));
}

#[test]
fn user_data_of_others_is_refused_with_the_reason() {
    let no_machine = json!({ "quorate": { "seed": {} } }).to_string();
    for other in ["", "#cloud-config\n{}", "[1]", r#"{"ignition": {}}"#, r#"{"quorate": 7}"#, &no_machine] {
        let said = refused(&with_data(other).0);
        assert!(said.contains("it was not written by quorate for `seed: quorate`"), "{other}: {said}");
    }
    let said = refused(&with_data(&data("etcd-1").replace("\"prefix\":24", "\"prefix\":true")).0);
    assert!(said.contains("quorate.machine: "), "{said}");
    let said = refused(&with_data(&data("etcd-1").replace("2030-01-01", "soon")).0);
    assert!(said.contains("quorate.seed: ") && !said.contains("t0ken"), "{said}");
}

#[test]
fn a_liar_is_not_believed_and_costs_neither_time_nor_memory() {
    let of_token = |status: &'static str, body: &'static str| serve(move |_, stream| reply(stream, status, body)).0;
    assert!(refused(&of_token("405 Method Not Allowed", "")).contains("answered 405"), "version 1 is not asked");
    assert!(refused(&of_token("200 OK", "two words")).contains("gave no token"));
    assert!(refused(&of_token("404 Not Found", "")).contains("has no user data"));
    assert!(refused(&of_token("503 Slow Down", "")).contains("within 0 s (it answered 503"));

    let (elsewhere, asked) = with_data(&data("etcd-9"));
    let redirect = format!("307 Temporary Redirect\r\nLocation: {elsewhere}/latest/user-data");
    assert!(refused(&serve(move |_, stream| reply(stream, &redirect, "")).0).contains("answered 307"));
    assert!(asked.try_recv().is_err(), "nobody was asked elsewhere");

    let endless = |_: &str, stream: &mut TcpStream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    };
    assert!(refused(&serve(endless).0).contains("more than 1024 bytes"));
    assert!(refused(&with_data(&" ".repeat(MOST_OF_EC2 + 1)).0).contains("more than 16384 bytes"));
    let silent = serve(|_, _| thread::sleep(ANSWERING * 2)).0;
    assert!(refused(&silent).contains("has given no user data within 0 s"));
}

/// A service of Nova that hands out this user data, at its one path.
fn with_nova_data(data: &str) -> (String, Receiver<String>) {
    let data = data.to_owned();
    serve(move |head, stream| match head.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/openstack/latest/user_data"] => reply(stream, "200 OK", &data),
        _ => reply(stream, "404 Not Found", ""),
    })
}

#[test]
fn nova_is_asked_for_user_data_alone() {
    let (address, heads) = with_nova_data(&data("etcd-1"));
    let told = read(Service::Nova, &address, SOON).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((told.seed.token.expose(), told.machine.hostname.as_str()), ("t0ken", "etcd-1"));
    assert!(heads.recv().is_ok() && heads.try_recv().is_err(), "one request");
    assert!(refused(&address).contains("has no user data"), "EC2's service is never asked without a token");
}

#[test]
fn nova_may_know_a_server_later_than_it_boots() {
    let (asked, text) = (std::sync::atomic::AtomicUsize::new(0), data("etcd-1"));
    let (address, _heads) = serve(move |_, stream| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => reply(stream, "404 Not Found", ""),
        _ => reply(stream, "200 OK", &text),
    });
    assert!(read(Service::Nova, &address, Duration::from_secs(5)).is_ok());
    let nothing = serve(|_, stream| reply(stream, "404 Not Found", "")).0;
    assert!(refused_of(Service::Nova, &nothing).contains("within 0 s (this instance has no user data)"));
}

#[test]
fn nothing_else_of_nova_is_believed() {
    let (elsewhere, asked) = with_nova_data(&data("etcd-9"));
    let redirect = format!("302 Found\r\nLocation: {elsewhere}/openstack/latest/user_data");
    let redirects = serve(move |_, stream| reply(stream, &redirect, "")).0;
    assert!(refused_of(Service::Nova, &redirects).contains("answered 302"));
    assert!(asked.try_recv().is_err(), "nobody was asked elsewhere");
    let long = with_nova_data(&" ".repeat(MOST_OF_NOVA + 1)).0;
    assert!(refused_of(Service::Nova, &long).contains("more than 49149 bytes"));
    let other = with_nova_data("#cloud-config\n{}").0;
    assert!(refused_of(Service::Nova, &other).contains("it was not written by quorate"));
}

#[test]
fn a_machine_that_knows_what_it_is_does_not_depend_on_the_service() {
    let scene = Scene::new(PLAIN);
    let (address, _heads) = with_data(&data("etcd-1"));
    assert_eq!(boot(&scene, &address).unwrap().hostname, "etcd-1");
    let known = scene.root().join("var/lib/quorate/machine.json");
    let before = fs::read_to_string(&known).unwrap();
    for (what, liar) in [
        ("nonsense", with_data("nonsense").0),
        (
            "a host name with a line",
            with_data(&data("x").replace("\"hostname\":\"etcd-1\"", "\"hostname\":\"a\\nb\"")).0,
        ),
        ("nothing", serve(|_, stream| reply(stream, "404 Not Found", "")).0),
    ] {
        assert_eq!(boot(&scene, &liar).unwrap().hostname, "etcd-1", "{what}");
        assert_eq!(fs::read_to_string(&known).unwrap(), before, "{what}");
    }
    let fresh = Scene::new(PLAIN);
    assert!(boot(&fresh, &with_data("nonsense").0).is_err(), "one that knows nothing takes nothing");
    // An image of a machine that was a member: another instance of it is what its own user data says.
    assert!(boot(&scene, &with_data(&data("etcd-2")).0).is_ok());
    assert_ne!(fs::read_to_string(&known).unwrap(), before);
}
