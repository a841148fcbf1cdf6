//! A program on trial, on a machine where the older program may have to continue.

use std::fs;

use quorate_core::model::{HEALTH_PORT, PROTOCOL, ServiceState};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{Machine, facts};

const STATE: &str = "var/lib/quorate/state.json";
const PROGRAM: &str = "usr/lib/quorate/quorate";
const NEXT: &str = "usr/lib/quorate/quorate.next";

/// The state in the form of protocol 2, indented so that rewriting it would show.
fn as_protocol_2(state: &str) -> String {
    let mut state: Value = serde_json::from_str(state).unwrap();
    let Value::Object(etcd) = state["etcd"].take() else { panic!("{state:#}") };
    let all = state.as_object_mut().unwrap();
    all.extend(etcd);
    let added = [all.remove("etcd"), all.remove("services")];
    assert!(added.iter().all(Option::is_some));
    state["protocol"] = json!(2);
    let in_place = &mut state["node_config"];
    in_place["etcd_digest"] = in_place["services"]["etcd"].take();
    let service = in_place["config"]["services"][0].take();
    in_place["config"]["etcd"] = service["runs"]["etcd"].clone();
    in_place["config"]["etcd"]["inputs"] = service["inputs"].clone();
    in_place.as_object_mut().unwrap().remove("services").unwrap();
    in_place["config"].as_object_mut().unwrap().remove("services").unwrap();
    serde_json::to_string_pretty(&state).unwrap()
}

/// Waits until the agent has put its machine right, without its controller.
async fn served(machine: &Machine) {
    let mut page = TcpStream::connect((machine.address, HEALTH_PORT)).await.unwrap();
    page.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 "), "{answer:?}");
}

#[tokio::test]
async fn a_trial_that_fails_leaves_the_state_to_the_older_program_and_one_that_succeeds_migrates_it() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    let (etcd, state) = (machine.etcds(), machine.root().join(STATE));
    machine.stop_agent();
    let written = as_protocol_2(&fs::read_to_string(&state).unwrap());
    fs::write(&state, &written).unwrap();
    let next = machine.root().join(NEXT);
    fs::create_dir_all(next.parent().unwrap()).unwrap();
    fs::write(&next, "the new program").unwrap();

    // No controller comes, and the trial ends.
    machine.start_agent_on_trial().await;
    served(&machine).await;
    machine.stop_agent();
    assert_eq!(fs::read_to_string(&state).unwrap(), written);
    assert_eq!((machine.etcds(), next.exists()), (etcd.clone(), true));

    machine.start_agent_on_trial().await;
    served(&machine).await;
    assert_eq!(fs::read_to_string(&state).unwrap(), written);
    let seen = machine.healthy(&client).await;
    assert!(matches!(seen.etcd.service, ServiceState::Running { restarts: 0, .. }), "{:?}", seen.etcd.service);
    let now: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    assert_eq!(now["protocol"], PROTOCOL);
    assert_eq!(now["node_config"]["services"]["etcd"].as_str(), Some(digest_in(&written).as_str()));
    assert!(machine.root().join(PROGRAM).exists() && !next.exists());

    // The state is written again from now on.
    machine.stop_agent();
    machine.start_agent().await;
    assert_eq!(facts(&client).await.node_config, seen.node_config);
    assert_eq!(machine.etcds(), etcd, "the same process all along");
}

fn digest_in(written: &str) -> String {
    let state: Value = serde_json::from_str(written).unwrap();
    state["node_config"]["etcd_digest"].as_str().unwrap().to_owned()
}

/// The older program would find data of which its state knows nothing.
#[tokio::test]
async fn a_program_on_trial_does_not_put_new_data_in_place() {
    let (mut machine, client) = Machine::ready().await;
    facts(&client).await;
    machine.stop_agent();
    let renewal = machine.root().join("var/lib/etcd.renewal");
    fs::create_dir_all(renewal.join("new/member/wal")).unwrap();
    fs::write(renewal.join("ready.json"), serde_json::to_vec(&machine.stamp("t-2")).unwrap()).unwrap();
    machine.start_agent_on_trial().await;
    served(&machine).await;
    machine.stop_agent();
    assert!(renewal.join("ready.json").exists() && !machine.data().join("member").exists());
    machine.start_agent().await;
    served(&machine).await;
    assert!(!renewal.exists() && machine.data().join("member").exists());
}
