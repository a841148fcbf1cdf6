//! Waiting for events, live and afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use quorate_keys::Settings;
use serde_json::Value;

use crate::http::{ask, begin, next};
use crate::lab::Version;
use crate::stage::{Ours, Theirs, run};

const SOON: Duration = Duration::from_secs(10);
/// Long enough to be sure that nothing comes.
const NEVER: Duration = Duration::from_millis(400);

/// The event without what differs between the two: action, key, and whether something was there before.
fn essence(event: Option<String>) -> String {
    let Some(event) = event else { return String::from("nothing") };
    let json: Value = serde_json::from_str(&event).expect("JSON");
    let event = format!(
        "{} {} dir={} previous={}:{}",
        json["action"], json["node"]["key"], json["node"]["dir"], json["prevNode"]["value"], json["prevNode"]["dir"]
    );
    // A name in order is an index.
    event.replace(|character: char| character.is_ascii_digit(), "#")
}

/// What somebody who waits there sees of a write.
async fn sees(at: SocketAddr, wait: &str, write: &str) -> String {
    let mut waiting = begin(at, "GET", &format!("/v2/keys{wait}"), "").await;
    assert_eq!(waiting.status(), 200, "{wait}");
    let (method, path) = write.split_once(' ').expect("method and path");
    let answer = ask(at, method, &format!("/v2/keys{path}"), "").await;
    assert!(answer.status < 300, "{write}: {}", answer.body);
    // A write that both let pass need not be waited for long.
    essence(next(&mut waiting, NEVER).await)
}

/// Where somebody waits, what is written, and what is prepared before.
const SCENES: [(&str, &str); 22] = [
    ("/a?wait=true", "PUT /a?value=1"),
    ("/a?wait=true", "PUT /a?value=2"),
    ("/a?wait=true", "PUT /a?value=3&prevExist=true"),
    ("/a?wait=true", "PUT /a?value=4&prevValue=3"),
    ("/a?wait=true", "PUT /b?value=1"),
    ("/?wait=true&recursive=true", "PUT /d/e/f?value=1"),
    ("/d?wait=true", "PUT /d/e/g?value=1"),
    ("/d?wait=true&recursive=true", "PUT /d/e/g?value=2"),
    ("/d/e?wait=true&recursive=true", "POST /d/e?value=2"),
    ("/d?wait=true&recursive=true", "PUT /d/_h?value=1"),
    ("/d/_h?wait=true", "PUT /d/_h?value=2"),
    ("/d?wait=true&recursive=true", "PUT /d/_i/x?value=2"),
    ("/d/_i?wait=true&recursive=true", "PUT /d/_i/x?value=3"),
    ("/a?wait=true", "PUT /a?ttl=100&refresh=true"),
    ("/a?wait=true", "DELETE /a"),
    ("/b?wait=true&recursive=true", "DELETE /b?prevValue=1"),
    ("/d/e/f?wait=true", "DELETE /d?recursive=true"),
    ("/x?wait=true", "PUT /x?dir=true"),
    ("/x/y?wait=true", "PUT /x/z?value=1"),
    ("/x/y/z?wait=true&recursive=true", "DELETE /x?recursive=true"),
    ("/x?wait=true", "PUT /x?dir=true&ttl=1000"),
    ("/x?wait=true&recursive=true", "DELETE /x?dir=true"),
];

#[test]
fn a_waiting_client_sees_the_same_as_with_etcd() {
    run(async {
        let (theirs, ours) = (Theirs::start("3.4.23").await, Ours::start().await);
        for (wait, write) in SCENES {
            assert_eq!(sees(theirs.at, wait, write).await, sees(ours.at, wait, write).await, "{wait}, {write}");
        }
    });
}

#[test]
fn every_event_since_an_index_can_be_had_and_later_ones_are_waited_for() {
    run(async {
        let ours = Ours::start().await;
        let first = ask(ours.at, "PUT", "/v2/keys/f?value=1", "").await.index();
        ask(ours.at, "PUT", "/v2/keys/f?value=2", "").await;
        let mut at = first;
        for value in ["1", "2"] {
            let event = ask(ours.at, "GET", &format!("/v2/keys/f?wait=true&waitIndex={at}"), "").await.json();
            assert_eq!(event["node"]["value"], value);
            at = event["node"]["modifiedIndex"].as_u64().expect("an index") + 1;
        }
        let mut waiting = begin(ours.at, "GET", &format!("/v2/keys/f?wait=true&waitIndex={at}"), "").await;
        assert_eq!(next(&mut waiting, NEVER).await, None);
        ask(ours.at, "PUT", "/v2/keys/f?value=3", "").await;
        assert!(next(&mut waiting, SOON).await.expect("an event").contains("\"value\":\"3\""));
        let mut future = begin(ours.at, "GET", "/v2/keys/f?wait=true&waitIndex=18446744073709551615", "").await;
        assert_eq!(next(&mut future, NEVER).await, None);
    });
}

#[test]
fn a_stream_has_one_line_for_each_event() {
    run(async {
        let ours = Ours::start().await;
        let mut stream = begin(ours.at, "GET", "/v2/keys/?wait=true&recursive=true&stream=true", "").await;
        for number in 0..5 {
            ask(ours.at, "PUT", &format!("/v2/keys/s?value={number}"), "").await;
            let line = next(&mut stream, SOON).await.expect("an event");
            assert!(line.contains(&format!("\"value\":\"{number}\"")) && line.ends_with("}\n"), "{line}");
        }
    });
}

#[test]
fn history_that_etcd_has_compacted_is_cleared() {
    run(async {
        let ours = Ours::start().await;
        let first = ask(ours.at, "PUT", "/v2/keys/f?value=1", "").await.index();
        let last = ask(ours.at, "PUT", "/v2/keys/f?value=2", "").await.index();
        ours.client.compact(last.cast_signed(), true).await.expect("compaction");
        let answer = ask(ours.at, "GET", &format!("/v2/keys/f?wait=true&waitIndex={first}"), "").await;
        let cause = format!("the requested history has been cleared [{last}/{first}]");
        assert_eq!(
            (answer.status, answer.json()["errorCode"].as_u64(), answer.json()["cause"].as_str()),
            (400, Some(401), Some(&*cause))
        );
        let answer = ask(ours.at, "GET", &format!("/v2/keys/f?wait=true&waitIndex={last}"), "").await;
        assert_eq!(answer.json()["node"]["value"], "2");
    });
}

#[test]
fn expired_nodes_are_reported_and_deleted() {
    run(async {
        let ours = Ours::start().await;
        ask(ours.at, "PUT", "/v2/keys/t?value=x&ttl=1", "").await;
        let mut waiting = begin(ours.at, "GET", "/v2/keys/t?wait=true", "").await;
        let event = essence(next(&mut waiting, SOON).await);
        assert_eq!(event, "\"expire\" \"/t\" dir=null previous=\"x\":null");
        assert_eq!(ask(ours.at, "GET", "/v2/keys/t", "").await.status, 404);
    });
}

#[test]
fn a_directory_expires_with_all_that_is_in_it() {
    run(async {
        let ours = Ours::start().await;
        ask(ours.at, "PUT", "/v2/keys/d?dir=true&ttl=1", "").await;
        ask(ours.at, "PUT", "/v2/keys/d/e/f?value=x", "").await;
        let mut waiting = begin(ours.at, "GET", "/v2/keys/d/e/f?wait=true", "").await;
        let event = essence(next(&mut waiting, SOON).await);
        assert_eq!(event, "\"expire\" \"/d\" dir=true previous=null:true");
        for path in ["/d", "/d/e", "/d/e/f"] {
            let answer = ask(ours.at, "GET", &format!("/v2/keys{path}"), "").await;
            assert_eq!((answer.status, answer.json()["cause"].as_str()), (404, Some("/d")), "{path}");
        }
        let listed = ask(ours.at, "GET", "/v2/keys/?recursive=true", "").await;
        assert!(!listed.body.contains("/d"), "{}", listed.body);
        let mut stream = begin(ours.at, "GET", "/v2/keys/?wait=true&recursive=true&stream=true", "").await;
        let again = ask(ours.at, "PUT", "/v2/keys/d/e/g?value=y", "").await;
        assert_eq!((again.status, again.json()["prevNode"].is_null()), (201, true));
        assert!(next(&mut stream, SOON).await.expect("an event").contains("/d/e/g"));
        assert_eq!(next(&mut stream, NEVER).await, None, "what was left is no event");
        assert_eq!(ask(ours.at, "GET", "/v2/keys/d/e/f", "").await.status, 404, "it does not come back");
    });
}

#[test]
fn waiting_clients_are_limited_and_free_their_place_when_they_leave() {
    run(async {
        let ours = Ours::with(&Version::newest(), Settings { max_waiters: 2, ..Settings::default() }).await;
        let wait = || begin(ours.at, "GET", "/v2/keys/w?wait=true", "");
        let (first, _second) = (wait().await, wait().await);
        assert_eq!((first.status(), wait().await.status()), (200.try_into().unwrap(), 503.try_into().unwrap()));
        assert!(ask(ours.at, "GET", "/v2/stats/store", "").await.body.ends_with("\"watchers\":2}"));
        drop(first);
        for _ in 0..100 {
            if wait().await.status() == 200 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the place of the one who left stays taken");
    });
}

#[test]
fn a_wait_outlives_a_restart_of_its_member() {
    run(async {
        let mut ours = Ours::start().await;
        let mut waiting = begin(ours.at, "GET", "/v2/keys/r?wait=true", "").await;
        ours.etcd.restart();
        ours.etcd.ready(&ours.client).await;
        ask(ours.at, "PUT", "/v2/keys/r?value=after", "").await;
        assert!(next(&mut waiting, SOON).await.expect("an event").contains("after"));
    });
}
