//! Which clients get a connection, and which errors the others get.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use quorate_etcd::{Client, ConnectOptions, Error, Login};

use crate::lab::{Authority, Etcd, Setup, free_address, on_every_version};

fn unreachable_because(answer: Result<(), Error>) -> String {
    match answer {
        Err(Error::Unreachable { source, .. }) => source.to_string(),
        other => panic!("expected an unreachable etcd, got {other:?}"),
    }
}

#[test]
fn a_stranger_gets_no_connection() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::certificate());
        etcd.ready(&etcd.client_as(authority.client("root"))).await;

        let without = Client::connect(etcd.options()).expect("good options");
        unreachable_because(without.linearizable_read_ok().await);
        let stranger = etcd.client_as(Authority::new().client("root"));
        unreachable_because(stranger.linearizable_read_ok().await);
    });
}

#[test]
fn the_member_must_show_a_certificate_for_its_address_from_our_ca() {
    on_every_version(async |version| {
        let authority = Authority::new();
        let etcd = Etcd::start(version, &authority, Setup::password());
        etcd.ready(&Client::connect(etcd.options()).expect("good options")).await;

        let other_ca = ConnectOptions { ca_pem: Authority::new().pem(), ..etcd.options() };
        let why = unreachable_because(Client::connect(other_ca).expect("good options").linearizable_read_ok().await);
        assert!(why.contains("UnknownIssuer") || why.contains("BadSignature"), "{why}");

        let endpoint = format!("https://{}:2379", etcd.unnamed_address);
        let other_address = ConnectOptions { endpoint, ..etcd.options() };
        let why =
            unreachable_because(Client::connect(other_address).expect("good options").linearizable_read_ok().await);
        assert!(why.contains("not valid for name"), "{why}");
    });
}

#[tokio::test]
async fn where_nothing_listens_the_answer_comes_at_once() {
    let options = ConnectOptions::new(format!("https://{}:2379", free_address()), Authority::new().pem());
    let client = Client::connect(options).expect("good options");
    let start = Instant::now();
    let why = unreachable_because(client.linearizable_read_ok().await);
    assert!(why.contains("Connection refused"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn where_someone_listens_and_is_silent_the_timeouts_hold() {
    let address = free_address();
    let _silent = TcpListener::bind((address, 2379)).expect("a free address");
    let options = ConnectOptions::new(format!("https://{address}:2379"), Authority::new().pem());
    let short = Duration::from_millis(100);

    let handshake = ConnectOptions { connect_timeout: short, ..options.clone() };
    unreachable_because(Client::connect(handshake).expect("good options").linearizable_read_ok().await);

    let request = ConnectOptions { request_timeout: short, ..options };
    let answer = Client::connect(request).expect("good options").linearizable_read_ok().await;
    assert!(matches!(answer, Err(Error::Timeout)), "{answer:?}");
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_before_anything_is_sent() {
    let ca_pem = Authority::new().pem();
    let refused = |options| matches!(Client::connect(options), Err(Error::Options { .. }));
    assert!(refused(ConnectOptions::new("http://127.0.0.1:2379", &ca_pem)));
    assert!(refused(ConnectOptions::new("not a url", &ca_pem)));
    let identity = Some((ca_pem.clone(), "no key".to_owned()));
    assert!(refused(ConnectOptions { identity, ..ConnectOptions::new("https://127.0.0.1:2379", &ca_pem) }));
    assert!(Client::connect(ConnectOptions::new("https://[::1]:2379", &ca_pem)).is_ok());
}

#[tokio::test]
async fn debug_output_keeps_secrets() {
    let login = Some(Login { user: "root".to_owned(), password: "s3cret".to_owned() });
    let authority = Authority::new();
    let identity = Some(authority.client("root"));
    let options = ConnectOptions { login, identity, ..ConnectOptions::new("https://127.0.0.1:2379", authority.pem()) };
    let client = Client::connect(options.clone()).expect("good options");
    let shown = format!("{options:?} {client:?}");
    assert!(shown.contains("root") && !shown.contains("s3cret") && !shown.contains("PRIVATE"), "{shown}");
}
