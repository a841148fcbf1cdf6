//! Several processes that serve one store: no update is lost, and in-order names are never assigned twice.

use std::net::SocketAddr;

use quorate_keys::{Keys, Settings};

use crate::http::ask;
use crate::stage::{Ours, run, serve};

const WRITERS: u64 = 8;
const EACH: u64 = 12;

async fn both(ours: &Ours) -> [SocketAddr; 2] {
    let other = quorate_etcd::Client::connect(ours.etcd.options()).expect("good options");
    [ours.at, serve(Keys::new(Settings::default()), other).await]
}

/// Adds one as often as told, by comparing either the index or the value.
async fn count(at: SocketAddr, by_index: bool) {
    for _ in 0..EACH {
        loop {
            let now = ask(at, "GET", "/v2/keys/count", "").await.json();
            let value: u64 = now["node"]["value"].as_str().expect("a value").parse().expect("a number");
            let expected = if by_index {
                format!("prevIndex={}", now["node"]["modifiedIndex"])
            } else {
                format!("prevValue={value}")
            };
            let form = format!("value={}", value + 1);
            match ask(at, "PUT", &format!("/v2/keys/count?{expected}"), &form).await.status {
                200 => break,
                412 => {}
                status => panic!("{status}"),
            }
        }
    }
}

#[test]
fn no_update_is_lost_between_two_processes() {
    run(async {
        let ours = Ours::start().await;
        let both = both(&ours).await;
        ask(ours.at, "PUT", "/v2/keys/count?value=0", "").await;
        let writers =
            (0..WRITERS).map(|number| tokio::spawn(count(both[usize::from(number % 2 == 0)], number % 4 < 2)));
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("a writer");
        }
        let last = ask(ours.at, "GET", "/v2/keys/count", "").await.json();
        assert_eq!(last["node"]["value"], (WRITERS * EACH).to_string());
    });
}

async fn post(at: SocketAddr, writer: u64) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    for number in 0..EACH {
        let answer = ask(at, "POST", "/v2/keys/queue", &format!("value={writer}-{number}")).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let node = &answer.json()["node"];
        names.push((node["key"].as_str().expect("a key").to_owned(), node["createdIndex"].as_u64().expect("an index")));
    }
    names
}

#[test]
fn names_in_order_are_unique_and_in_the_order_of_the_writes() {
    run(async {
        let ours = Ours::start().await;
        let both = both(&ours).await;
        let writers = (0..WRITERS).map(|number| tokio::spawn(post(both[usize::from(number % 2 == 0)], number)));
        let mut names = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            names.extend(writer.await.expect("a writer"));
        }
        names.sort();
        names.dedup_by_key(|(name, _)| name.clone());
        assert_eq!(names.len() as u64, WRITERS * EACH);
        assert!(names.is_sorted_by_key(|(_, created)| *created), "{names:?}");
        let listed = ask(ours.at, "GET", "/v2/keys/queue?sorted=true", "").await.json();
        assert_eq!(listed["node"]["nodes"].as_array().map(Vec::len), Some(names.len()));
    });
}

/// Directories come and go while others write into them: an answer of 201 means that the node was there, below a directory.
#[test]
fn nothing_is_ever_stored_in_a_directory_that_does_not_exist() {
    run(async {
        let ours = Ours::start().await;
        let both = both(&ours).await;
        let create = |at| async move {
            for number in 0..40 {
                let answer = ask(at, "PUT", &format!("/v2/keys/d/e/{}", number % 4), "value=x").await;
                assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
            }
        };
        let delete = |at, query: &'static str| async move {
            for _ in 0..40 {
                let answer = ask(at, "DELETE", &format!("/v2/keys/d{query}"), "").await;
                assert!(matches!(answer.status, 200 | 403 | 404), "{}", answer.body);
            }
        };
        let tasks = [
            tokio::spawn(create(both[0])),
            tokio::spawn(create(both[1])),
            tokio::spawn(delete(both[0], "?recursive=true")),
        ];
        let empty = tokio::spawn(delete(both[1], "/e?dir=true"));
        for task in tasks {
            task.await.expect("a writer");
        }
        empty.await.expect("a writer");
        let swept = ours.keys.sweep(&ours.client).await.expect("a sweep");
        assert_eq!(swept.directories, 0, "every node has its directories");
    });
}
