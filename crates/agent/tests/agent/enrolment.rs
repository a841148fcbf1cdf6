//! Which clients an agent accepts, and how it comes to know its controller.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_agent::api::{EnrolRequest, EtcdOrder, FactsRequest, Order, Refusal};
use quorate_agent::client::{AgentClient, ClientError, Look};
use quorate_core::Secret;
use quorate_core::model::{AGENT_PORT, CertificateUse};
use quorate_pki::KeyAlgorithm;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::common::{Machine, facts, identity, order};

fn request(algorithm: KeyAlgorithm) -> EnrolRequest {
    EnrolRequest { nonce: String::from("a nonce"), key_algorithm: algorithm }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Refusal {
    match answer.unwrap_err() {
        ClientError::Refused(refusal) => refusal,
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_new_machine_proves_itself_and_then_shows_the_certificate_it_was_given() {
    let machine = Machine::new().await;
    let client = machine.client();
    let Look::Unenrolled { public_key } =
        client.look(&FactsRequest { fence: Some(1), auth: false, reach: Default::default() }).await.unwrap()
    else {
        panic!("nobody enrolled it")
    };
    assert_eq!(order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await, Err(Refusal::NotEnrolled));

    let (answer, served) = client.enrol(&request(KeyAlgorithm::P256)).await.unwrap();
    assert_eq!((&answer.public_key, &served.sha256), (&public_key, &public_key));
    assert!(answer.proves(&machine.token, "a nonce", &served));
    assert!(!answer.proves(&machine.token, "another nonce", &served));
    assert!(!answer.proves(&Secret::new("another token"), "a nonce", &served));

    let (again, _) = client.enrol(&request(KeyAlgorithm::P256)).await.unwrap();
    assert_eq!(again.requests, answer.requests, "the same keys for one that asks twice");
    let (other, _) = client.enrol(&request(KeyAlgorithm::Ed25519)).await.unwrap();
    assert_ne!(other.requests[&CertificateUse::Member], answer.requests[&CertificateUse::Member]);
    assert_eq!(other.requests[&CertificateUse::Agent], answer.requests[&CertificateUse::Agent]);

    let chain = machine.sign_agent(&answer.requests[&CertificateUse::Agent]);
    client.enrol_certificate(chain.clone()).await.unwrap();
    let facts = facts(&client).await;
    assert_eq!(facts.machine_id, answer.machine_id);
    assert_eq!(facts.certificates[&CertificateUse::Agent].common_name, Some(identity().common_name()));
    assert_eq!(facts.requests, other.requests);

    assert_eq!(refusal(client.enrol(&request(KeyAlgorithm::P256)).await), Refusal::AlreadyEnrolled);
    assert_eq!(refusal(client.enrol_certificate(chain).await), Refusal::AlreadyEnrolled);
}

#[tokio::test]
async fn an_enrolled_agent_stays_so_without_its_seed_and_forgets_the_token() {
    let mut machine = Machine::new().await;
    machine.enrol(&machine.client()).await;
    let before = facts(&machine.client()).await;
    machine.stop_agent();
    std::fs::remove_file(machine.directory.path().join("seed.json")).unwrap();
    machine.start_agent().await;
    assert_eq!(facts(&machine.client()).await.machine_id, before.machine_id);
    let state = std::fs::read_to_string(machine.root().join("var/lib/quorate/state.json")).unwrap();
    assert!(!state.contains(machine.token.expose()));
}

#[tokio::test]
async fn a_machine_with_another_token_cannot_prove_itself() {
    let mut machine = Machine::off();
    machine.seed(Secret::new("somebody else's"), Timestamp::now() + SignedDuration::from_hours(1));
    machine.start_agent().await;
    let (answer, served) = machine.client().enrol(&request(KeyAlgorithm::P256)).await.unwrap();
    assert!(!answer.proves(&machine.token, "a nonce", &served));
}

#[tokio::test]
async fn an_agent_whose_clock_is_ahead_of_its_token_can_be_enrolled() {
    let mut machine = Machine::off();
    machine.seed(machine.token.clone(), Timestamp::now() - SignedDuration::from_hours(2));
    machine.start_agent().await;
    let (answer, served) = machine.client().enrol(&request(KeyAlgorithm::P256)).await.unwrap();
    assert!(answer.proves(&machine.token, "a nonce", &served));
    let chain = machine.sign_agent(&answer.requests[&CertificateUse::Agent]);
    machine.client().enrol_certificate(chain).await.unwrap();
    facts(&machine.client()).await;
}

#[tokio::test]
async fn a_certificate_for_another_key_or_name_or_from_another_ca_is_refused() {
    let machine = Machine::new().await;
    let client = machine.client();
    let (answer, _) = client.enrol(&request(KeyAlgorithm::P256)).await.unwrap();
    let own = &answer.requests[&CertificateUse::Agent];
    let other_key = machine.sign_agent(&answer.requests[&CertificateUse::Member]);
    let wish = |name: &str| quorate_pki::LeafWish {
        common_name: name.to_owned(),
        organization: None,
        dns: Vec::new(),
        addresses: Vec::new(),
        server: true,
        client: false,
        validity: SignedDuration::from_hours(1),
    };
    let now = Timestamp::now();
    let other_name = machine.control.sign(own, &wish("agent:other:etcd-1:1"), now).unwrap();
    let other_ca = machine.etcd.sign(own, &wish(&identity().common_name()), now).unwrap();
    for (chain, why) in
        [(other_key, "another key"), (other_name, "it names"), (other_ca, "UnknownIssuer"), (String::new(), "PEM")]
    {
        let refused = refusal(client.enrol_certificate(chain).await).to_string();
        assert!(refused.contains(why), "{refused}");
    }
    machine.enrol(&client).await;
}

#[tokio::test]
async fn strangers_are_refused_and_the_agent_lives() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let other = crate::common::authority("controller");
    let strangers = [
        ("an etcd client", machine.leaf(&machine.etcd, "controller", false, true)),
        ("another control CA", machine.leaf(&other, "controller", false, true)),
        ("self-signed", (other.certificate_pem().to_owned(), other.key_pem().clone())),
        ("an agent", machine.leaf(&machine.control, &identity().common_name(), true, true)),
        ("a server named controller", machine.leaf(&machine.control, "controller", true, false)),
    ];
    for (who, (chain, key)) in strangers {
        let stranger =
            AgentClient::new(machine.address, machine.control.certificate_pem(), (chain, key), identity()).unwrap();
        let answer = stranger.look(&FactsRequest { fence: Some(99), auth: false, reach: Default::default() }).await;
        assert!(matches!(answer, Err(ClientError::Unreachable { .. })), "{who}: {answer:?}");
        let read = stranger.status().await;
        assert!(matches!(read, Err(ClientError::Unreachable { .. })), "{who}: {read:?}");
    }
    assert!(without_certificate(&machine).is_err());
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0; 4096]] {
        let mut stream = TcpStream::connect((machine.address, AGENT_PORT)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.read(&mut [0; 100]);
    }
    assert_eq!(facts(&client).await.fence, 0, "no stranger was obeyed");
}

/// A handshake without a client certificate, and a request after it.
fn without_certificate(machine: &Machine) -> std::io::Result<usize> {
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(machine.control.certificate_pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::from(machine.address);
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tcp = TcpStream::connect((machine.address, AGENT_PORT))?;
    let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
    stream.write_all(b"POST /v1/facts HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")?;
    stream.read(&mut [0; 100])
}

#[tokio::test]
async fn too_much_or_too_strange_a_request_is_refused_and_the_agent_lives() {
    let machine = Machine::new().await;
    let client = machine.client();
    machine.enrol(&client).await;
    let (chain, key) = machine.leaf(&machine.control, "controller", false, true);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(machine.control.certificate_pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes()).unwrap();
    let config = Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap());
    let ask = |head: String| {
        let mut tls = rustls::ClientConnection::new(config.clone(), ServerName::from(machine.address)).unwrap();
        let mut tcp = TcpStream::connect((machine.address, AGENT_PORT)).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    let post = |path: &str, body: &str| {
        ask(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    };
    assert_eq!(post("/v1/facts", "{}"), "400");
    assert_eq!(post("/v1/nothing", "{}"), "404");
    for changing in ["KV/Put", "KV/Txn", "Maintenance/Defragment", "Auth/AuthDisable", "Cluster/MemberRemove", "KV"] {
        assert_eq!(post(&format!("/v1/read/{changing}"), ""), "404", "{changing}");
    }
    let put = |sha256: &str, fence: &str| {
        let said = format!("quorate-sha256: {sha256}\r\nquorate-bytes: 1\r\nquorate-fence: {fence}\r\n");
        ask(format!("PUT /v1/stage HTTP/1.1\r\nhost: a\r\n{said}content-length: 1\r\n\r\nx"))
    };
    let digest = "a".repeat(64);
    assert_eq!(put(&digest, ""), "400");
    assert_eq!(put(&format!("../{}", &digest[3..]), "1"), "400");
    assert_eq!(put(&digest.to_uppercase(), "1"), "400");
    assert_eq!(put(&digest, "1"), "409", "it is announced well, and is not what was announced");
    assert_eq!(ask(String::from("GET /v1/facts HTTP/1.1\r\nhost: a\r\n\r\n")), "405");
    assert_eq!(ask(String::from("POST /v1/facts HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n")), "413");
    facts(&client).await;
}

#[tokio::test]
async fn an_agent_with_an_expired_certificate_is_still_known_and_gets_a_new_one() {
    let machine = Machine::new().await;
    let (answer, _) = machine.client().enrol(&request(KeyAlgorithm::P256)).await.unwrap();
    let own = &answer.requests[&CertificateUse::Agent];
    let short = machine.sign_agent_for(own, SignedDuration::from_secs(2));
    machine.client().enrol_certificate(short).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let client = machine.client();
    let ended = facts(&client).await.certificates[&CertificateUse::Agent].not_after;
    assert!(ended < Timestamp::now(), "{ended} has not come yet");
    machine.install_certificates(&client).await;
}
