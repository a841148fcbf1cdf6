//! Damaged bodies of the agent's API, in both directions: they are refused, or read.

use std::collections::BTreeMap;
use std::fmt::Debug;

use quorate_agent::api::boot::Machine;
use quorate_agent::api::{
    Bootstrap, EnrolAnswer, EnrolCertificate, EnrolRequest, Envelope, EtcdOrder, FactsRequest, LogAnswer, LogOf,
    LogRequest, Order, Refusal, Seed, ServedKey,
};
use quorate_core::Secret;
use quorate_core::model::{DataSeen, Facts};
use quorate_fuzz::campaign;
use quorate_pki::KeyAlgorithm;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::common::{Machine as Host, config, stamp};

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// What is read can be written and read again, and is the same.
fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(input: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(input) {
        assert_eq!(serde_json::from_slice::<T>(&json(&value)).unwrap(), value);
    }
}

#[test]
fn orders_and_requests() {
    let host = Host::off();
    let order = |order| json(&Envelope { fence: 7, order });
    let bootstrap = Bootstrap { stamp: stamp("token"), initial_cluster: BTreeMap::new(), existing: false };
    let samples = [
        order(Order::converge(3, config(), None)),
        order(Order::Etcd(EtcdOrder::Start {
            expects: DataSeen::Empty,
            bootstrap: Some(bootstrap),
            peers: Default::default(),
        })),
        order(Order::Etcd(EtcdOrder::WipeData { stamp: stamp("token") })),
        order(Order::Etcd(EtcdOrder::MoveLeader { to: u64::MAX })),
        json(&FactsRequest { fence: Some(9), auth: true, reach: [host.address].into() }),
        json(&EnrolRequest { nonce: String::from("00ff"), key_algorithm: KeyAlgorithm::P256 }),
        json(&EnrolCertificate { chain: String::from("-----BEGIN CERTIFICATE-----") }),
        json(&LogRequest { of: LogOf::Service(String::from("etcd")), from: Some(1), lines: 10 }),
        json(&LogAnswer { text: String::from("a line"), next: 7 }),
        json(&Refusal::StaleFence { obeyed: 1, carried: 2 }),
    ];
    campaign(&samples, |input| {
        read::<Envelope>(input);
        read::<FactsRequest>(input);
        read::<EnrolRequest>(input);
        read::<EnrolCertificate>(input);
        read::<LogRequest>(input);
        read::<LogAnswer>(input);
        read::<Refusal>(input);
        read::<Facts>(input);
        read::<Seed>(input);
        read::<Machine>(input);
    });
}

/// An answer to an enrolment proves nothing unless it was made with the token.
#[test]
fn enrolment_answers() {
    let served = ServedKey { der: vec![1, 2, 3], sha256: String::from("abc") };
    let answer = EnrolAnswer {
        machine_id: String::from("0123456789abcdef"),
        public_key: String::from("abc"),
        proof: "00".repeat(32),
        requests: BTreeMap::new(),
    };
    campaign(&[json(&answer)], |input| {
        if let Ok(answer) = serde_json::from_slice::<EnrolAnswer>(input) {
            assert!(!answer.proves(&Secret::new("the token"), "nonce", &served), "{answer:?}");
        }
    });
}
