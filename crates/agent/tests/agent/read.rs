//! Reading etcd through its agent, on real etcds: without authentication, and as root by certificate and by password.

use std::time::Duration;

use futures_util::StreamExt;
use hyper::body::Bytes;
use quorate_agent::api::{EtcdOrder, Order, ReadFailure};
use quorate_agent::client::{AgentClient, Answers, ClientError};
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::model::NodeConfig;
use quorate_etcd::wire::{EventType, RangeRequest, WatchResponse};
use quorate_pki::Sha256;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Machine, config, config_of, file, order, turn_auth_on, until};

const VERSIONS: [&str; 3] = ["3.4.23", "3.5.30", "3.7.3"];
const PASSWORD: &str = "root's own";

async fn started(config: &NodeConfig) -> (Machine, AgentClient) {
    let (machine, client) = Machine::ready_with(config).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    (machine, client)
}

fn by_password(version: &str) -> NodeConfig {
    let mut config = config_of(version);
    config.etcd_mut().unwrap().flags.remove("client-cert-auth");
    // With a CA for clients, etcd wants a certificate of each, whatever it was told.
    config.etcd_mut().unwrap().flags.remove("trusted-ca-file");
    config.files.push(file(ROOT_PASSWORD_FILE, PASSWORD));
    config
}

fn writer(machine: &Machine, password: bool) -> quorate_etcd::Client {
    if !password {
        return machine.root_client();
    }
    let endpoint = format!("https://{}:2379", machine.address);
    let mut options = quorate_etcd::ConnectOptions::new(endpoint, machine.etcd.certificate_pem());
    options.login = Some(quorate_etcd::Login { user: String::from("root"), password: PASSWORD.to_owned() });
    quorate_etcd::Client::connect(options).unwrap()
}

async fn collect(mut stream: Answers<Bytes>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = stream.next().await {
        all.extend_from_slice(&chunk.unwrap());
    }
    all
}

/// A snapshot contains its checksum.
fn check_is_whole(snapshot: &[u8]) {
    let (database, checksum) = snapshot.split_at(snapshot.len() - 32);
    assert_eq!(Sha256::digest(database)[..], *checksum);
    assert!(!database.is_empty() && database.len() % 512 == 0, "{}", database.len());
}

fn failure(error: ClientError) -> ReadFailure {
    match error {
        ClientError::Read(failure) => failure,
        other => panic!("{other:?}"),
    }
}

async fn next(changes: &mut Answers<WatchResponse>) -> Result<WatchResponse, ClientError> {
    let next = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
    next.expect("something comes").expect("a watch ends with an error only")
}

/// Everything there is to read, once.
async fn read_all(machine: &Machine, client: &AgentClient, password: bool) {
    let etcd = writer(machine, password);
    let lease = etcd.lease_grant(Duration::from_secs(600)).await.unwrap();
    let first = etcd.put("a", "one").await.unwrap();
    etcd.put_with_lease("b", "two", lease.id).await.unwrap();
    etcd.put("a", "three").await.unwrap();
    let last = etcd.delete(quorate_etcd::KeyRange::key("b")).await.unwrap().revision;

    let status = client.status().await.unwrap();
    assert_eq!((status.revision, status.member_id), (last, etcd.status().await.unwrap().member_id));
    let hash = client.hash_kv(last).await.unwrap();
    assert_eq!(hash, etcd.hash_kv(last).await.unwrap());
    let request = RangeRequest { key: b"a".to_vec(), revision: first, ..Default::default() };
    assert_eq!(client.range(&request).await.unwrap().kvs[0].value, b"one");
    let future = client.range(&RangeRequest { revision: last + 1000, ..request.clone() }).await.unwrap_err();
    assert!(matches!(failure(future), ReadFailure::Other { .. }));
    assert_eq!(client.lease_ttl(lease.id).await.unwrap(), Some(600));
    assert_eq!(client.lease_ttl(lease.id + 1).await.unwrap(), None);
    check_is_whole(&collect(client.snapshot().await.unwrap()).await);

    let mut changes = client.changes(first).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let answer = next(&mut changes).await.unwrap();
        seen.extend(answer.events.into_iter().map(|event| (event.r#type(), event.kv.unwrap())));
    }
    let seen: Vec<_> = seen.into_iter().map(|(kind, pair)| (kind, pair.key, pair.mod_revision)).collect();
    let (put, deleted) = (EventType::Put, EventType::Delete);
    let expected = [
        (put, b"a".to_vec(), first),
        (put, b"b".to_vec(), first + 1),
        (put, b"a".to_vec(), first + 2),
        (deleted, b"b".to_vec(), last),
    ];
    assert_eq!(seen, expected);
    let later = etcd.put("c", "live").await.unwrap();
    assert_eq!(next(&mut changes).await.unwrap().events[0].kv.as_ref().unwrap().mod_revision, later);

    etcd.compact(last, true).await.unwrap();
    let mut compacted = client.changes(first).await.unwrap();
    let why = failure(next(&mut compacted).await.unwrap_err());
    assert_eq!(why, ReadFailure::Compacted { oldest: Some(last) });
    assert!(compacted.next().await.is_none());
    assert!(matches!(failure(client.range(&request).await.unwrap_err()), ReadFailure::Compacted { .. }));
}

#[tokio::test]
async fn all_is_read_without_authentication_and_as_root_by_certificate() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let (machine, client) = started(&config_of(version)).await;
        read_all(&machine, &client, false).await;
        turn_auth_on(&client, None).await;
        read_all(&machine, &client, false).await;
    }
}

#[tokio::test]
async fn all_is_read_as_root_by_password_and_the_login_is_repeated() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let (machine, client) = started(&by_password(version)).await;
        turn_auth_on(&client, Some(PASSWORD)).await;
        read_all(&machine, &client, true).await;
        let mut changes = client.changes(0).await.unwrap();
        // Tokens die with the member that gave them.
        machine.signal_etcd(Signal::KILL);
        let ended = failure(next(&mut changes).await.unwrap_err());
        assert!(matches!(ended, ReadFailure::Unavailable { .. }), "{ended:?}");
        machine.healthy(&client).await;
        drop(client.changes(0).await.unwrap());
        check_is_whole(&collect(client.snapshot().await.unwrap()).await);
    }
}

#[tokio::test]
async fn a_client_without_read_permission_gets_an_error_and_a_stopped_etcd_is_unavailable() {
    let (machine, client) = started(&by_password("3.5.30")).await;
    turn_auth_on(&client, Some("another than the agent knows")).await;
    let denied = failure(client.snapshot().await.unwrap().next().await.unwrap().unwrap_err());
    assert!(matches!(denied, ReadFailure::Denied { .. }), "{denied:?}");
    let denied = failure(client.changes(0).await.map(drop).unwrap_err());
    assert!(matches!(denied, ReadFailure::Denied { .. }), "{denied:?}");
    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let stopped = failure(client.status().await.unwrap_err());
    assert!(matches!(stopped, ReadFailure::Unavailable { .. }), "{stopped:?}");
    drop(machine);
}

/// How many calls of this method etcd has begun and not ended.
async fn under_way(machine: &Machine, method: &str) -> i64 {
    let mut stream = tokio::net::TcpStream::connect((machine.address, 2381)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let of_method = format!("grpc_method=\"{method}\"");
    let sum = |metric: &str| {
        let lines = page.lines().filter(|line| line.starts_with(metric) && line.contains(&of_method));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum::<i64>()
    };
    let begun = sum("grpc_server_started_total{");
    assert!(begun > 0, "etcd does not count its calls of {method}");
    begun - sum("grpc_server_handled_total{")
}

#[tokio::test]
async fn the_call_to_etcd_ends_when_the_reader_disconnects() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let mut config = config_of(version);
        config
            .etcd_mut()
            .unwrap()
            .flags
            .insert(String::from("listen-metrics-urls"), String::from("http://{address}:2381"));
        let (mut machine, client) = started(&config).await;
        let etcd = machine.root_client();
        for number in 0..48 {
            etcd.put(format!("large-{number}"), vec![number; 1 << 20]).await.unwrap();
        }
        let ended = async |method: &str| {
            until("the call has ended", async || (under_way(&machine, method).await == 0).then_some(())).await;
        };
        let changes = client.changes(0).await.unwrap();
        assert_eq!(under_way(&machine, "Watch").await, 1);
        drop(changes);
        ended("Watch").await;

        let mut snapshot = client.snapshot().await.unwrap();
        snapshot.next().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(under_way(&machine, "Snapshot").await, 1, "it waits for who takes it slowly");
        client.status().await.unwrap();
        drop(snapshot);
        ended("Snapshot").await;
        check_is_whole(&collect(client.snapshot().await.unwrap()).await);
        ended("Snapshot").await;

        let mut changes = client.changes(0).await.unwrap();
        machine.stop_agent();
        let cut = next(&mut changes).await;
        assert!(matches!(cut, Err(ClientError::Unreachable { .. })), "an agent that ends is no end: {cut:?}");
        until("the call has ended", async || (under_way(&machine, "Watch").await == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn the_number_of_read_calls_is_limited() {
    let (_machine, client) = started(&config()).await;
    let mut all = Vec::new();
    let refused = loop {
        match client.changes(0).await {
            Ok(changes) => all.push(changes),
            Err(error) => break error.to_string(),
        }
        assert!(all.len() < 100);
    };
    assert!(refused.contains("16 reading calls"), "{refused}");
    all.pop();
    until("there is room again", async || client.status().await.ok()).await;
}
